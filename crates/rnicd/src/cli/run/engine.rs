//! Where the engine of a program is to be.

use super::super::client::Client;
use anyhow::Result;
use rnic_abi::control::Inspect;
use rnic_host::report::Status;
use std::ffi::OsStr;
use std::path::Path;

/// Where an engine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Engine {
    /// In the program where the daemon lets it have one, else in the daemon.
    Auto,
    /// In the daemon, or in an engine process that it has started.
    Daemon,
    /// In the program.
    Program,
}

impl Engine {
    /// The value of `RNIC_ENGINE`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Daemon => "daemon",
            Self::Program => "program",
        }
    }

    /// For a program at the daemons with these sockets, whose user has not said it.
    ///
    /// In the program where the daemons are of this user and send by UDP sockets, as the program's
    /// own engine would: otherwise the user has chosen another packet I/O.
    pub(super) fn for_daemons_at(sockets: &OsStr) -> Self {
        let mut sockets = std::env::split_paths(sockets).filter_map(|path| lends_its_port(&path));
        // Those that do not answer now are no devices.
        let first = sockets.next().unwrap_or(false);
        if first && sockets.all(|lends| lends) { Self::Auto } else { Self::Daemon }
    }
}

/// `None` when no daemon answers there.
fn lends_its_port(socket: &Path) -> Option<bool> {
    let client = Client::at(socket).ok()?;
    // A report takes a daemon with busy users some time.
    if !client.is_of_this_user() {
        return Some(false);
    }
    let status: Result<Status> = client.inspect(Inspect::Status);
    Some(status.is_ok_and(|status| status.io == "udp"))
}
