//! Refusals on their way to a client.

use rnic_abi::control::Refusal;
use rnic_core::command::CommandError;
use std::io;

/// Why a request is refused: the errno that the verb returns and a text for people.
pub type Refused = Refusal;

/// Makes a refusal.
pub fn refuse(errno: i32, message: impl Into<String>) -> Refused {
    Refusal { errno, message: message.into() }
}

/// The engine's refusal.
pub fn refused_by_engine(error: CommandError) -> Refused {
    refuse(error.errno.number(), error.reason)
}

/// A system call failed while something was made for the client.
pub fn refused_by_kernel(what: &str) -> impl Fn(io::Error) -> Refused {
    move |error| {
        let errno = match error.kind() {
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => libc::ENOMEM,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => error.raw_os_error().unwrap_or(libc::ENOMEM),
        };
        refuse(errno, format!("{what}: {error}"))
    }
}
