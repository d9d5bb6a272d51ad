//! Log lines on standard error, and spans to wherever they are exported.

use std::io::IsTerminal;

use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::{LogConfig, LogFormat},
    exit::Failure,
};

/// A further reader of what the program tells.
pub(crate) type Tap = Box<dyn Layer<Registry> + Send + Sync>;

/// A broken session of a driver is a line each time: the relay tells the same, folded. Who names the
/// target in the filter gets them.
const DRIVER: &str = "sqlx_core::pool=error,async_nats=off";

/// Installs the subscriber for the whole process. Colours only on a terminal.
pub(crate) fn init(config: &LogConfig, spans: Option<Tap>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(format!("{DRIVER},{}", config.level)).map_err(|_| {
        Failure::usage(
            "log.level is no filter — write error, warn, info, debug, trace, or targets as in \
             info,outbox_core=debug",
        )
    })?;
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers: Vec<Tap> = vec![lines.with_filter(filter).boxed()];
    layers.extend(spans);
    tracing_subscriber::registry()
        .with(layers)
        .try_init()
        .map_err(|error| Failure::failed(format!("start logging: {error}")))
}
