//! The soft-rnic daemon: everything around the engine that needs an operating system.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | command line and configuration file |
//! | [`daemon`] | start, signals, end |
//! | `server` | control socket: sessions, quotas, ring memory |
//! | `shard` | the engine's thread |
//! | `dma` | the memory of applications |
//! | `wire` | packet I/O |
//! | `net` | interfaces, addresses, routes, neighbours |
//! | `pcapng` | capture files |
//! | `log` | lines on standard error, not too many |
//! | `memory` | a reserve for the moment when there is none |
//! | `thread` | threads that clients cause to exist |
//! | [`cli`] | the `rnic` command |
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod daemon;
mod dma;
mod inspect;
mod log;
mod memory;
mod net;
mod pcapng;
mod refusal;
mod report;
mod server;
mod shard;
mod system;
mod thread;
mod wire;

/// An error and its causes in one text, without the numbers that Rust adds to the kernel's words.
#[must_use]
pub fn for_people(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_has_no_numbers_of_the_kernel() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        let error = Err::<(), _>(error).context("cannot open x").context("no (good) start");
        let text = for_people(&error.unwrap_err());
        assert_eq!(text, "no (good) start: cannot open x: No such file or directory");
    }
}
