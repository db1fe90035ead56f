//! The soft-rnic daemon and its command-line tool: the control plane around engines, which run in
//! `rnic_host` on the network that `rnic_net` describes.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | command line and configuration file |
//! | [`daemon`] | start, signals, end |
//! | `check` | what this host can do |
//! | `control_socket` | where programs connect, and who may |
//! | `connections` | the connection manager: what peers say to QP1, and the answers |
//! | `device` | the network, the wire and the engines of the device |
//! | `files` | the files in which programs look for the device |
//! | `users` | the engine processes of users, as the daemon sees them |
//! | [`engine_process`] | such a process |
//! | `resolver` | threads that look for the way to addresses |
//! | `counted` | the sum of all engines' counters |
//! | `metrics` | the same over HTTP, for Prometheus |
//! | `log` | lines on standard error, not too many |
//! | [`cli`] | the `rnic` command |
#![deny(unsafe_code)]

mod check;
pub mod cli;
pub mod config;
mod connections;
mod control_socket;
mod counted;
pub mod daemon;
mod device;
pub mod engine_process;
mod files;
mod http;
mod log;
mod metrics;
mod resolver;
mod system;
mod users;

pub use users::ENGINE_PROCESS;

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
