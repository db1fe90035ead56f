//! A host with a card, reached over ssh: the peer of `cargo xtask interop`.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{InteropRun, Kind, Outcome, Peer, Wire, cases};
use crate::checker;
use crate::daemon::{Daemon, Io, Spec};
use crate::dist::Dist;
use crate::packages::Toolbox;
use crate::paths::repository;
use crate::place::{Host, Job, Node, Place, gid_table, has_listener};
use crate::process::Cmd;
use crate::ssh::{Session, Target, quoted};

/// What to run the suite against.
#[derive(Clone, Debug)]
pub struct Options {
    /// The host.
    pub target: Target,
    /// Its RDMA device.
    pub device: String,
    /// Our interface towards it; by default the one that its address is routed over.
    pub interface: Option<String>,
    /// What to run over, where both devices can.
    pub wires: Vec<Wire>,
}

/// Programs that the peer must have.
const NEEDED: [&str; 11] = [
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ib_send_bw",
    "ib_write_bw",
    "ib_read_bw",
    "ib_atomic_bw",
    "ib_send_lat",
    "ib_write_lat",
    "ib_read_lat",
    "ib_atomic_lat",
    "timeout",
];
/// Folders of administrators' programs, which a login's search path may lack.
const SEARCH: &str = "PATH=$PATH:/usr/local/bin:/usr/sbin:/sbin; export PATH";

/// A device of another host.
pub struct Card {
    session: Session,
    folder: String,
    device: String,
    address: IpAddr,
    gid_index: u32,
    kind: Kind,
}

impl Card {
    /// Logs in and examines the device. The error names what is missing there.
    ///
    /// # Errors
    /// When the host does not let us in, or has not what the suite needs.
    pub fn connect(target: &Target, device: &str) -> Result<Self> {
        let session = Session::open(target)?;
        let host = session.name().to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        ensure!(device.chars().all(plain), "{device:?} is no name of a device");
        let devices = session.check("ls /sys/class/infiniband 2>/dev/null || true")?;
        let devices: Vec<_> = devices.split_whitespace().collect();
        ensure!(devices.contains(&device), "{host} has no RDMA device {device}: {devices:?}");
        demand_programs(&session)?;
        // Only soft RoCE names the interface that it sits on.
        let parent = format!("test -e /sys/class/infiniband/{device}/parent");
        let kind = if session.run(&parent)?.success() { Kind::Rxe } else { Kind::Standard };
        let folder = session.check("mktemp -d /tmp/rnic-interop.XXXXXX")?.trim().to_owned();
        let mut card = Self {
            session,
            folder,
            device: device.to_owned(),
            address: IpAddr::from([0; 4]),
            gid_index: 0,
            kind,
        };
        let gids = gid_table(&card)?;
        let v4 = gids.iter().find(|(_, gid)| gid.is_ipv4());
        (card.gid_index, card.address) = *v4.with_context(|| {
            format!("{device} of {host} has no IPv4 address among its RoCEv2 GIDs: {gids:?}")
        })?;
        Ok(card)
    }

    /// What the device says about itself.
    ///
    /// # Errors
    /// When `ibv_devinfo` fails there.
    pub fn describe(&self) -> Result<String> {
        self.session.check(&format!("{SEARCH}; ibv_devinfo -d {}", self.device))
    }

    /// Compiles the checker there, for a host that cannot run our build.
    fn compile_checker(&self) -> Result<()> {
        let sources = repository().join("tests").join("checker");
        for entry in std::fs::read_dir(&sources)? {
            let path = entry?.path();
            let name = path.file_name().context("a source has a name")?.to_string_lossy();
            self.session.put(&path, &format!("{}/{name}", self.folder))?;
        }
        let compile =
            format!("cd {} && cc -std=gnu11 -O2 -pthread -o checker *.c -libverbs", self.folder);
        let output = self.session.run(&compile)?;
        ensure!(
            output.success(),
            "the checker built here does not run on {host}, and it cannot be compiled there. \
             Install a C compiler and the verbs headers on {host} (Debian: gcc libibverbs-dev; Red \
             Hat: gcc rdma-core-devel).\n{output}",
            host = self.session.name()
        );
        Ok(())
    }
}

fn demand_programs(session: &Session) -> Result<()> {
    let script = format!(
        "{SEARCH}; for p in {}; do command -v $p >/dev/null || echo $p; done",
        NEEDED.join(" ")
    );
    let missing = session.check(&script)?;
    let missing: Vec<_> = missing.split_whitespace().collect();
    ensure!(
        missing.is_empty(),
        "{host} lacks {}: install perftest and the verbs utilities there (Debian: apt install \
         perftest ibverbs-utils; Red Hat: dnf install perftest libibverbs-utils)",
        missing.join(", "),
        host = session.name()
    );
    Ok(())
}

impl Place for Card {
    fn device(&self) -> &str {
        &self.device
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let args: Vec<_> = args.iter().map(|arg| quoted(arg)).collect();
        // Programs pin memory; a limit that may not be raised is their own error to report.
        let command = format!(
            "sh -c {}",
            quoted(&format!(
                "{SEARCH}; PATH={}:$PATH; ulimit -l unlimited 2>/dev/null; exec {program} {}",
                self.folder,
                args.join(" ")
            ))
        );
        Ok(Box::new(self.session.start(&command, limit)?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        let tables = self.session.check("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || true")?;
        Ok(has_listener(&tables, port))
    }
}

impl Peer for Card {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn install(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("a program has a name")?.to_string_lossy();
        let to = format!("{}/{name}", self.folder);
        self.session.put(program, &to)?;
        if self.session.run(&format!("chmod 755 {to} && {to} --help"))?.success() {
            return Ok(());
        }
        ensure!(name == checker::PROGRAM, "{name} does not run on {}", self.session.name());
        self.compile_checker()
    }

    fn log(&self) -> String {
        self.session.run("dmesg | tail -n 40").map_or_else(|e| format!("{e:#}"), |o| o.stdout)
    }

    fn state(&self) -> String {
        let ask = format!(
            "{SEARCH}; rdma resource show qp link {device}/1; \
             cd /sys/class/infiniband/{device}/ports/1/hw_counters && grep . *",
            device = self.device
        );
        self.session.run(&ask).map_or_else(|error| format!("{error:#}"), |output| output.stdout)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.folder.starts_with("/tmp/rnic-interop.") {
            let _ = self.session.run(&format!("rm -rf {}", self.folder));
        }
    }
}

/// Runs programs and checker, each side as server and as client.
///
/// # Errors
/// When one of the sides cannot be prepared. A case that fails is an outcome.
pub fn run(options: &Options) -> Result<Vec<Outcome>> {
    let tools = Toolbox::provide(&["ssh", "ip", "ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw"])?;
    let built = checker::build()?;
    let card = Card::connect(&options.target, &options.device)?;
    eprintln!("{}", card.describe()?.trim_end());
    card.install(&built.join(checker::PROGRAM))?;
    let nic = our_side(options, &card, &tools.with_built(built))?;
    let interop = InteropRun::new(&nic, &card)?;
    let mut outcomes = Vec::new();
    for wire in interop.possible(&options.wires)? {
        outcomes.extend(interop.run(cases::PROGRAMS, wire)?);
        outcomes.extend(interop.run(cases::CHECKER, wire)?);
    }
    nic.stop()?;
    Ok(outcomes)
}

/// A daemon on the interface that leads to the card.
fn our_side(options: &Options, card: &Card, tools: &Toolbox) -> Result<Node> {
    let netns = options.target.netns.clone();
    let (way, address) = way_to(card.address, netns.as_deref())?;
    let interface = options.interface.clone().unwrap_or(way);
    ensure!(
        interface != "lo",
        "{} is an address of this host: the card must be in another one",
        card.address
    );
    let spec =
        Spec { netdev: Some(interface.clone()), netns: netns.clone(), ..Spec::new(Io::Auto) };
    let dist = Dist::get()?;
    let daemon = Daemon::start(dist, &spec)?;
    let host = Host { netns, ..Host::here(address, tools) };
    let mut nic = Node::new(daemon, host, dist);
    let gids = gid_table(&nic)?;
    let ours = gids.iter().find(|(_, gid)| *gid == address);
    let Some((index, _)) = ours else {
        bail!("{} is reached from {address}, which {interface} does not have", card.address)
    };
    nic.gid_index = *index;
    Ok(nic)
}

/// The interface and the source address of packets to an address.
fn way_to(address: IpAddr, netns: Option<&str>) -> Result<(String, IpAddr)> {
    let route = Cmd::new("ip").args(["-j", "route", "get", &address.to_string()]).in_netns(netns);
    let route: Value = serde_json::from_str(&route.check()?)?;
    let text = |key: &str| route.pointer(&format!("/0/{key}")).and_then(Value::as_str);
    let no_route = || format!("no route to {address}: {route}");
    let source = text("prefsrc").with_context(no_route)?.parse()?;
    Ok((text("dev").with_context(no_route)?.to_owned(), source))
}
