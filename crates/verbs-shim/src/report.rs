//! What the library tells people, on stderr. Silent unless something is wrong that only a person can put right.

use std::{env, fmt::Display, io, io::Write, sync::Once, sync::OnceLock};

/// `RNIC_DEBUG`, or libibverbs' own `IBV_SHOW_WARNINGS`, asks for more than the errno value.
pub(crate) fn debug_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        ["RNIC_DEBUG", "IBV_SHOW_WARNINGS"]
            .iter()
            .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0"))
    })
}

/// Says it now. A stderr that cannot be written to is not the program's problem.
pub(crate) fn say(message: impl Display) {
    let _ = writeln!(io::stderr(), "libibverbs (soft-rnic): {message}");
}

/// Says it when the user asked for details.
pub(crate) fn debug(message: impl Display) {
    if debug_wanted() {
        say(message);
    }
}

/// Says it once per process.
pub(crate) fn say_once(once: &Once, message: impl Display) {
    once.call_once(|| say(message));
}
