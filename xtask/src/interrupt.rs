//! Ctrl-C and SIGTERM become a flag, so that what was started is stopped before the tool ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From here on a signal sets the flag instead of ending the process.
///
/// Called only by commands that poll [`requested`]: the others end at once, as usual.
pub(crate) fn watch() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot watch signals")?;
    }
    Ok(())
}

/// Whether a signal asked the tool to end.
pub(crate) fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
