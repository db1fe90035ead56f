//! Messages to the user on stderr, only about what the user can correct.

use std::{env, fmt::Display, io, io::Write, sync::Once, sync::OnceLock};

/// `RNIC_DEBUG`, or libibverbs' own `IBV_SHOW_WARNINGS`, asks for an explanation of each errno
/// value.
pub(crate) fn debug_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        ["RNIC_DEBUG", "IBV_SHOW_WARNINGS"]
            .iter()
            .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0"))
    })
}

/// Prints the message. An unwritable stderr must not fail the program, so errors are ignored.
pub(crate) fn say(message: impl Display) {
    let _ = writeln!(io::stderr(), "libibverbs (soft-rnic): {message}");
}

/// Prints the message if the user asked for details ([`debug_wanted`]).
pub(crate) fn debug(message: impl Display) {
    if debug_wanted() {
        say(message);
    }
}

/// Prints the message once per process.
pub(crate) fn say_once(once: &Once, message: impl Display) {
    once.call_once(|| say(message));
}
