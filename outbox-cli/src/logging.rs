//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

use crate::{
    config::{LogConfig, LogFormat},
    exit::Failure,
};

/// Installs the subscriber for the whole process. Colours only on a terminal.
pub(crate) fn init(config: &LogConfig) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.level).map_err(|_| {
        Failure::usage(
            "log.level is no filter — write error, warn, info, debug, trace, or targets as in \
             info,outbox_core=debug",
        )
    })?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = match config.format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| Failure::failed(format!("start logging: {error}")))
}
