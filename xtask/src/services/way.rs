//! By which way services are started.

use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::services::compose::Project;

/// By which way a service that is not there yet is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// Docker Compose when a daemon answers and it works, else a private server
    Auto,
    /// Docker Compose, or an error
    Docker,
    /// A private server from programs of this machine
    Local,
}

#[derive(Args)]
pub(crate) struct ViaOption {
    /// How to start services. The way by Docker is linted and tested with a program that plays
    /// docker; the project has no daemon to run it against
    #[arg(long, value_enum, default_value_t = Via::Auto, env = "OUTBOX_SERVICES_VIA")]
    pub(crate) via: Via,
}

/// [`Via`], once it is known whether Docker is there.
pub(crate) enum Way {
    /// By Docker Compose where there is some and it works.
    First(Option<Project>),
    Docker(Project),
    Local,
}

impl Way {
    /// Asks Docker, unless it is not wanted.
    pub(crate) fn choose(via: Via, root: &Path) -> Result<Self> {
        Ok(match via {
            Via::Auto => Self::First(Project::find(root).ok()),
            Via::Docker => Self::Docker(Project::find(root)?),
            Via::Local => Self::Local,
        })
    }
}
