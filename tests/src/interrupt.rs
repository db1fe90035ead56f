//! Ctrl-C and SIGTERM become an error of the wait that is going on, so that everything that must
//! be undone is undone by the drops of an ordinary unwinding.

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
        // The order matters: the first signal finds the flag down and only raises it.
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
