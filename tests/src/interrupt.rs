//! Ctrl-C and SIGTERM make the current wait fail, so that ordinary unwinding and drops undo
//! everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Catches SIGINT, SIGTERM and SIGHUP from now on; a second one ends the process at once.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn install() -> Result<()> {
    if REQUESTED.get().is_some() {
        return Ok(());
    }
    let flag = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the handler that exits tests the flag before the first signal has set
        // it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// Fails once an interrupt was asked for. Every wait of this crate calls it.
///
/// # Errors
/// When SIGINT, SIGTERM or SIGHUP arrived since [`install`].
pub fn check() -> Result<()> {
    if REQUESTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}
