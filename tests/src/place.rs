//! Where an RDMA program runs: beside one of our daemons, or in a Linux guest with rxe.
//!
//! A dialogue of two programs ([`crate::programs`]) takes two places and does not know which.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::daemon::Daemon;
use crate::dist::Dist;
use crate::netns::End;
use crate::packages::Toolbox;
use crate::process::{Cmd, Output, Running, User, shell_code};

/// Where a program runs and which RDMA device it finds there.
pub trait Place: Sync {
    /// The RDMA device's name.
    fn device(&self) -> &str;

    /// The GID index of [`Place::address`].
    fn gid_index(&self) -> u32;

    /// The address under which the other side finds it, for TCP and for RDMA.
    fn address(&self) -> IpAddr;

    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>>;

    /// Whether a program of this place listens on a TCP port.
    ///
    /// # Errors
    /// When the place cannot be asked.
    fn listens(&self, port: u16) -> Result<bool>;
}

/// A program in the background; killed on drop.
pub trait Job {
    /// Its exit status as a shell gives it, once it has ended.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn exit_code(&mut self) -> Result<Option<i32>>;

    /// What it printed so far, on standard output and error.
    fn said(&self) -> String;

    /// Waits for the end.
    ///
    /// # Errors
    /// When its limit passes or an interrupt arrives.
    fn wait(self: Box<Self>) -> Result<Output>;
}

/// One of our daemons and the programs that use it through the drop-in libraries.
pub struct Node {
    /// The daemon.
    pub daemon: Daemon,
    /// Its address.
    pub address: IpAddr,
    /// The GID index of that address.
    pub gid_index: u32,
    /// The namespace that programs run in.
    pub netns: Option<String>,
    /// Whom programs run as.
    pub user: Option<User>,
    /// The CPU that programs run on; by default the scheduler chooses.
    pub cpu: Option<usize>,
    /// Where the programs are.
    pub tools: Toolbox,
    /// Where the libraries are.
    pub dist: &'static Dist,
}

impl Node {
    /// A command beside this daemon: in its namespace, with the drop-in libraries first.
    ///
    /// # Errors
    /// When the program is not on this machine.
    pub fn cmd(&self, program: &str) -> Result<Cmd> {
        let mut cmd = Cmd::new(self.tools.program(program)?)
            .env("LD_LIBRARY_PATH", library_path(self.dist, &self.tools)?)
            .env("RNIC_SOCKET", self.daemon.socket())
            .in_netns(self.netns.as_deref())
            .as_user(self.user)
            .on_cpu(self.cpu);
        if self.netns.is_none() {
            cmd = cmd.without_env("XDG_RUNTIME_DIR");
        }
        Ok(cmd)
    }

    /// The node of one end of a veth pair: programs run as root in its namespace.
    #[must_use]
    pub fn at_end(daemon: Daemon, end: &End, tools: &Toolbox, dist: &'static Dist) -> Self {
        Self {
            daemon,
            address: end.ipv4.into(),
            gid_index: 0,
            netns: Some(end.netns.name().to_owned()),
            user: None,
            cpu: None,
            tools: tools.clone(),
            dist,
        }
    }

    /// Ends the daemon in order and returns its log.
    ///
    /// # Errors
    /// As [`Daemon::stop`].
    pub fn stop(self) -> Result<String> {
        self.daemon.stop()
    }
}

/// The value of `LD_LIBRARY_PATH` that puts the drop-in libraries before everything else.
///
/// # Errors
/// When a folder has a colon in its name.
pub fn library_path(dist: &Dist, tools: &Toolbox) -> Result<std::ffi::OsString> {
    let dirs: Vec<PathBuf> = std::iter::once(dist.lib()).chain(tools.library_dirs()).collect();
    std::env::join_paths(dirs).context("a library folder has a colon in its name")
}

impl Place for Node {
    fn device(&self) -> &str {
        self.daemon.device()
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        Ok(Box::new(self.cmd(program)?.args(args).limit(limit).start()?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        // The daemon's view of its namespace is the programs' view too.
        let net = PathBuf::from(format!("/proc/{}/net", self.daemon.pid()));
        for table in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(net.join(table)).context("the daemon is gone")?;
            if has_listener(&text, port) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Job for Running {
    fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.try_status()?.map(shell_code))
    }

    fn said(&self) -> String {
        self.stdout() + &self.stderr()
    }

    fn wait(self: Box<Self>) -> Result<Output> {
        Running::wait(*self)
    }
}

/// Whether a `/proc/net/tcp` table has a socket that listens on `port`.
#[must_use]
pub fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let at_port = words.next().is_some_and(|word| word.ends_with(&local));
        at_port && words.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_counts() {
        let table = "  sl  local_address rem_address   st\n\
             0: 00000000:4853 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:4854 0100007F:9C40 01 00000000:00000000\n";
        assert!(has_listener(table, 18515));
        assert!(!has_listener(table, 18516));
    }
}
