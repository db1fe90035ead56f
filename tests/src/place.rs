//! Where an RDMA program runs: beside one of our daemons, or in a Linux guest with rxe.
//!
//! A dialogue of two programs ([`crate::programs`]) takes two places of any kind.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;
use crate::dist::Dist;
use crate::inspect;
use crate::netns::{self, End};
use crate::packages::Toolbox;
use crate::process::{Cmd, Output, Running, User, engine_in_program, shell_code};

/// Where a program runs and which RDMA device it finds there.
pub trait Place: Sync {
    /// The RDMA device's name.
    fn device(&self) -> &str;

    /// The GID index of [`Place::address`].
    fn gid_index(&self) -> u32;

    /// The address under which the other side finds it, for TCP and for RDMA.
    fn address(&self) -> IpAddr;

    /// That for RDMA, where it is another one.
    fn rdma_address(&self) -> IpAddr {
        self.address()
    }

    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>>;

    /// How many identifiers of the RDMA CM listen, where that can be known.
    ///
    /// # Errors
    /// When the place cannot be asked.
    fn cm_listeners(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether a program of this place listens on a TCP port.
    ///
    /// # Errors
    /// When the place cannot be asked.
    fn listens(&self, port: u16) -> Result<bool>;

    /// Whether a program of this place has a UDP port, where that can be known.
    ///
    /// # Errors
    /// When the place cannot be asked.
    fn has_udp_port(&self, _port: u16) -> Result<Option<bool>> {
        Ok(None)
    }
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

/// A place without RDMA: where TCP programs run that ours are compared with.
#[derive(Clone)]
pub struct Host {
    /// Its address.
    pub address: IpAddr,
    /// The namespace that programs run in.
    pub netns: Option<String>,
    /// The user that programs run as.
    pub user: Option<User>,
    /// The program that becomes each of them, as for [`Cmd::through`].
    pub through: Vec<String>,
    /// The CPU that programs run on; by default the scheduler chooses.
    pub cpu: Option<usize>,
    /// Where the programs are.
    pub tools: Toolbox,
}

impl Host {
    /// Our own namespace and the [user of the tests](User::of_tests), on this address.
    #[must_use]
    pub fn here(address: IpAddr, tools: &Toolbox) -> Self {
        let (user, tools) = (User::of_tests(), tools.clone());
        Self { address, netns: None, user, through: Vec::new(), cpu: None, tools }
    }

    /// One end of a veth pair.
    #[must_use]
    pub fn at_end(end: &End, tools: &Toolbox) -> Self {
        let netns = Some(end.netns.name().to_owned());
        Self { netns, ..Self::here(end.ipv4.into(), tools) }
    }

    /// A program of this machine, in the place's namespace.
    ///
    /// # Errors
    /// When the program is not on this machine.
    pub fn cmd(&self, program: &str) -> Result<Cmd> {
        let cmd = self.placed(Cmd::new(self.tools.program(program)?));
        match self.tools.library_dirs() {
            dirs if dirs.is_empty() => Ok(cmd),
            dirs => Ok(cmd.env("LD_LIBRARY_PATH", std::env::join_paths(dirs)?)),
        }
    }

    /// What the kernel says of sockets over IPv4 and IPv6 there.
    fn sockets(&self, tables: [&str; 2]) -> Result<[String; 2]> {
        let files = tables.map(|table| format!("/proc/thread-self/net/{table}"));
        let read = || files.map(|file| std::fs::read_to_string(file).unwrap_or_default());
        Ok(match &self.netns {
            Some(name) => netns::enter(name, read)?,
            None => read(),
        })
    }

    fn placed(&self, cmd: Cmd) -> Cmd {
        let cmd = if self.through.is_empty() { cmd } else { cmd.through(&self.through) };
        cmd.in_netns(self.netns.as_deref()).as_user(self.user).on_cpu(self.cpu)
    }
}

impl Place for Host {
    fn device(&self) -> &str {
        ""
    }

    fn gid_index(&self) -> u32 {
        0
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        Ok(Box::new(self.cmd(program)?.args(args).limit(limit).start()?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        let tables = self.sockets(["tcp", "tcp6"])?;
        Ok(tables.iter().any(|table| has_listener(table, port)))
    }

    fn has_udp_port(&self, port: u16) -> Result<Option<bool>> {
        let tables = self.sockets(["udp", "udp6"])?;
        Ok(Some(tables.iter().flat_map(|table| table.lines()).any(|line| is_at_port(line, port))))
    }
}

/// One of our daemons and the programs that use it through the drop-in libraries.
pub struct Node {
    /// The daemon.
    pub daemon: Daemon,
    /// The GID index of the host's address.
    pub gid_index: u32,
    /// Where programs run.
    pub host: Host,
    /// Where the libraries are.
    pub dist: &'static Dist,
    /// Start programs by `rnic run`, as users do, and not by environment variables.
    pub by_rnic_run: bool,
    /// Programs have engines of their own.
    pub in_program: bool,
}

impl Node {
    /// A daemon and programs that find it by `LD_LIBRARY_PATH` and `RNIC_SOCKET`.
    #[must_use]
    pub fn new(daemon: Daemon, host: Host, dist: &'static Dist) -> Self {
        let in_program = engine_in_program() && daemon.has_functions();
        Self { daemon, gid_index: 0, host, dist, by_rnic_run: false, in_program }
    }

    /// A command beside this daemon that uses the drop-in libraries.
    ///
    /// # Errors
    /// When the program is not on this machine.
    pub fn cmd(&self, program: &str) -> Result<Cmd> {
        let cmd = self.usual_cmd(program)?;
        Ok(if self.in_program { cmd.env("RNIC_ENGINE", "program") } else { cmd })
    }

    /// Of a program that says nothing about where its engine runs.
    fn usual_cmd(&self, program: &str) -> Result<Cmd> {
        if self.by_rnic_run {
            let rnic = Cmd::new(self.dist.bin("rnic")).args(["run", "--socket"]);
            let cmd =
                rnic.arg(self.daemon.socket()).arg("--").arg(self.host.tools.program(program)?);
            let dirs = self.host.tools.library_dirs();
            return Ok(self.host.placed(cmd).env("LD_LIBRARY_PATH", std::env::join_paths(dirs)?));
        }
        let dirs = std::iter::once(self.dist.lib()).chain(self.host.tools.library_dirs());
        let cmd = self.host.cmd(program)?.env("RNIC_SOCKET", self.daemon.socket());
        Ok(cmd.env("LD_LIBRARY_PATH", std::env::join_paths(dirs)?))
    }

    /// The `rnic` command, which talks to this daemon.
    #[must_use]
    pub fn rnic(&self, args: &[&str]) -> Cmd {
        self.daemon.rnic(self.dist, args)
    }

    /// Ends the daemon in order and returns its log.
    ///
    /// # Errors
    /// As [`Daemon::stop`].
    pub fn stop(self) -> Result<String> {
        self.daemon.stop()
    }
}

impl Place for Node {
    fn device(&self) -> &str {
        self.daemon.device()
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.host.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        Ok(Box::new(self.cmd(program)?.args(args).limit(limit).start()?))
    }

    fn cm_listeners(&self) -> Result<Option<u64>> {
        inspect::counter(self, "cm_listeners").map(Some)
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.host.listens(port)
    }

    fn has_udp_port(&self, port: u16) -> Result<Option<bool>> {
        self.host.has_udp_port(port)
    }
}

/// A place's entries of the GID table that are RoCEv2: index and address.
///
/// # Errors
/// When `ibv_devinfo` fails there.
pub fn gid_table(place: &dyn Place) -> Result<Vec<(u32, IpAddr)>> {
    let args = ["-v", "-d", place.device()].map(str::to_owned);
    let output = place.start("ibv_devinfo", &args, Duration::from_secs(30))?.wait()?;
    ensure!(output.success(), "{output}");
    let gids: Vec<_> = output.stdout.lines().filter_map(gid_of_line).collect();
    ensure!(!gids.is_empty(), "{} has no RoCEv2 GID: {output}", place.device());
    Ok(gids)
}

/// The path MTU that a place's device allows now, in bytes.
///
/// # Errors
/// When `ibv_devinfo` fails there.
pub fn active_mtu(place: &dyn Place) -> Result<u32> {
    let args = ["-d", place.device()].map(str::to_owned);
    let output = place.start("ibv_devinfo", &args, Duration::from_secs(30))?.wait()?;
    let line = output.stdout.lines().find_map(|line| line.trim().strip_prefix("active_mtu:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.with_context(|| format!("no active_mtu: {output}"))
}

/// `GID[  1]:  ::ffff:10.0.0.1, RoCE v2` of `ibv_devinfo -v`. Cards list each address twice,
/// once for RoCE v1.
fn gid_of_line(line: &str) -> Option<(u32, IpAddr)> {
    let (index, rest) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
    let (gid, kind) = rest.split_once(',').unwrap_or((rest, ""));
    let gid: IpAddr = gid.trim().parse().ok()?;
    (kind.trim() != "RoCE v1").then_some((index.trim().parse().ok()?, gid.to_canonical()))
}

/// A place whose RDMA traffic uses IPv6. TCP stays on IPv4: perftest and the pingpongs listen on
/// IPv4 alone.
pub struct OverV6<'a> {
    place: &'a dyn Place,
    gid_index: u32,
    address: IpAddr,
}

impl<'a> OverV6<'a> {
    /// Looks an address up in the device's GID table.
    ///
    /// # Errors
    /// When the device does not have it.
    pub fn of(place: &'a dyn Place, address: Ipv6Addr) -> Result<Self> {
        let found = Self::with(place, |gid| gid == address)?;
        found.with_context(|| format!("{} has no GID {address}", place.device()))
    }

    /// The place's first address that is not link-local, if it has one.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub fn global(place: &'a dyn Place) -> Result<Option<Self>> {
        Self::with(place, |gid| matches!(gid, IpAddr::V6(v6) if !v6.is_unicast_link_local()))
    }

    fn with(place: &'a dyn Place, wanted: impl Fn(IpAddr) -> bool) -> Result<Option<Self>> {
        let gids = gid_table(place)?;
        let found = gids.iter().find(|(_, gid)| wanted(*gid));
        Ok(found.map(|(gid_index, address)| Self {
            place,
            gid_index: *gid_index,
            address: *address,
        }))
    }
}

impl Place for OverV6<'_> {
    fn device(&self) -> &str {
        self.place.device()
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.place.address()
    }

    fn rdma_address(&self) -> IpAddr {
        self.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        self.place.start(program, args, limit)
    }

    fn listens(&self, port: u16) -> Result<bool> {
        self.place.listens(port)
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
    let listens = |line: &str| line.split_whitespace().nth(3) == Some(LISTEN);
    table.lines().any(|line| is_at_port(line, port) && listens(line))
}

/// Whether a line of such a table is of a socket of this port.
fn is_at_port(line: &str, port: u16) -> bool {
    line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_of_roce_v1_are_left_out() {
        let line = "\t\t\tGID[  3]:\t\t::ffff:10.0.0.1, RoCE v2";
        assert_eq!(gid_of_line(line), Some((3, IpAddr::from([10, 0, 0, 1]))));
        assert_eq!(gid_of_line("GID[  2]:\t\t::ffff:10.0.0.1, RoCE v1"), None);
        let old = "\t\t\tGID[  0]:\t\tfd77:0000:0000:0000:0000:0000:0000:0001";
        assert_eq!(gid_of_line(old), Some((0, "fd77::1".parse().unwrap())));
        assert_eq!(gid_of_line("\t\t\tport_lid:\t0"), None);
    }

    #[test]
    fn only_a_listening_socket_counts() {
        let table = "  sl  local_address rem_address   st\n\
             0: 00000000:4853 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:4854 0100007F:9C40 01 00000000:00000000\n";
        assert!(has_listener(table, 18515));
        assert!(!has_listener(table, 18516));
    }
}
