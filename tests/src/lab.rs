//! What a system test starts from.
//!
//! [`Lab::open`] checks that the machine can run the test and reports a skip where it cannot;
//! [`Pair`] is the usual stage: two namespaces, a veth between them, one daemon in each.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::daemon::{Daemon, Io, Spec};
use crate::dist::Dist;
use crate::netns::{self, End, NetPair};
use crate::packages::Toolbox;
use crate::place::{Host, Node};
use crate::process::{engine_in_program, is_root};
use crate::{inspect, interrupt, paths, rxe};

/// A file that collects one line for everything that the summary of a run must mention, such as
/// skips of all test programs.
pub const NOTES_ENV: &str = "RNIC_TEST_NOTES";

/// Prefix of the note about a dialogue that was repeated for a reason outside our code.
pub const AGAIN: &str = "again:";
/// Prefix of the note about a test that this machine or user cannot run.
pub const SKIPPED: &str = "SKIPPED";
/// Prefix of the note about a test whose measurement was disturbed by other work each time.
pub const NOT_MEASURED: &str = "NOT MEASURED";

/// `1` makes tests take their long form, which `cargo xtask test --long` runs.
pub const LONG_ENV: &str = "RNIC_LONG";

/// Whether tests take their long form.
#[must_use]
pub fn long_form() -> bool {
    std::env::var_os(LONG_ENV).is_some_and(|value| value == "1")
}

/// Whether a test has to be left out because it is only part of the long form; says so.
#[must_use]
pub fn only_in_long_form(test: &str) -> bool {
    if !long_form() {
        eprintln!("{test} is part of the long form: cargo xtask test --long, or {LONG_ENV}=1");
    }
    !long_form()
}

/// How long an attack takes, in seconds: 10 minutes in the long form, else `normal`, unless
/// `RNIC_ATTACK_SECONDS` says otherwise.
///
/// # Errors
/// When that is no number.
pub fn attack_seconds(normal: f64) -> Result<f64> {
    match std::env::var("RNIC_ATTACK_SECONDS") {
        Ok(text) => text.parse().context("RNIC_ATTACK_SECONDS is a number of seconds"),
        Err(_) if long_form() => Ok(600.0),
        Err(_) => Ok(normal),
    }
}

/// Tests share cores, ports and the machine's namespaces: one at a time.
static SERIAL: Mutex<()> = Mutex::new(());

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing that an ordinary user has not.
    Nothing,
    /// Root, for namespaces and raw sockets.
    Root,
    /// Root and `/dev/net/tun`, for a guest.
    Guest,
}

/// A prepared machine. Hold it for the whole test.
pub struct Lab {
    /// The programs that were asked for.
    pub tools: Toolbox,
    _serial: MutexGuard<'static, ()>,
}

impl Lab {
    /// Prepares the machine for the test called `test`, which uses `programs`.
    ///
    /// Returns nothing after reporting a skip when this machine or user cannot run it.
    ///
    /// # Errors
    /// When a program cannot be had.
    ///
    /// # Panics
    /// When a skip is not allowed because `CI` is `true`.
    pub fn open(test: &str, need: Need, programs: &[&str]) -> Result<Option<Self>> {
        let serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        interrupt::install()?;
        if let Some(reason) = need.obstacle() {
            skip(test, reason);
            return Ok(None);
        }
        let mut all = programs.to_vec();
        if need != Need::Nothing {
            all.push("ip");
        }
        if need == Need::Guest {
            all.extend(rxe::HOST_PROGRAMS);
        }
        let tools = Toolbox::provide(&all)?;
        paths::sweep()?;
        if need != Need::Nothing {
            netns::sweep()?;
        }
        Ok(Some(Self { tools, _serial: serial }))
    }

    /// As [`Lab::open`], for a test that is only part of the long form; `None` in the ordinary
    /// form.
    ///
    /// That is no skip. What only the long form tests is a combination of what the ordinary form
    /// tests too, such as a second kind of packet I/O with a second address family.
    ///
    /// # Errors
    /// As [`Lab::open`].
    ///
    /// # Panics
    /// As [`Lab::open`].
    pub fn open_long(test: &str, need: Need, programs: &[&str]) -> Result<Option<Self>> {
        if only_in_long_form(test) {
            return Ok(None);
        }
        Self::open(test, need, programs)
    }

    /// Two daemons on a fresh veth pair.
    ///
    /// # Errors
    /// When the pair cannot be made or a daemon is not ready.
    pub fn pair(&self, io: Io, mtu: u32) -> Result<Pair> {
        Pair::start(Dist::get()?, &self.tools, io, mtu)
    }
}

impl Need {
    /// Why this machine or user does not meet the need.
    fn obstacle(self) -> Option<&'static str> {
        if self == Self::Nothing {
            return None;
        }
        if !is_root() {
            return Some("needs root for network namespaces");
        }
        let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
        (self == Self::Guest && tun.is_err()).then_some("needs /dev/net/tun")
    }
}

/// Reports that a test was not run.
///
/// # Panics
/// When `CI` is `true`: there, what is skipped is not tested.
pub fn skip(test: &str, reason: &str) {
    let line = format!("{SKIPPED} {test}: {reason}");
    note(&line);
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{line} (CI=true allows no skip)");
}

/// Prints a line now and again in the summary of the run.
pub fn note(line: &str) {
    eprintln!("{line}");
    if let Some(path) = std::env::var_os(NOTES_ENV) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }
}

/// Two namespaces, a veth between them, a daemon in each.
pub struct Pair {
    /// 10.77.0.1
    pub left: Node,
    /// 10.77.0.2
    pub right: Node,
    /// The wire; it goes after the daemons.
    pub net: NetPair,
}

impl Pair {
    /// Makes the namespaces and starts the daemons.
    ///
    /// # Errors
    /// When the pair cannot be made or a daemon is not ready.
    pub fn start(dist: &'static Dist, tools: &Toolbox, io: Io, mtu: u32) -> Result<Self> {
        let net = NetPair::new(mtu)?;
        let node = |end: &End, cpu| -> Result<Node> {
            let daemon = Daemon::start(dist, &at_end(end, io))
                .with_context(|| format!("a daemon with --io {}", io.as_str()))?;
            Ok(Node::new(daemon, Host { cpu: cpu_of(cpu), ..Host::at_end(end, tools) }, dist))
        };
        // Programs that poll measure the scheduler when they share a CPU.
        let (left, right) = (node(&net.left, 0)?, node(&net.right, 1)?);
        Ok(Self { left, right, net })
    }

    /// What both daemons know of a failure between them.
    #[must_use]
    pub fn evidence(&self) -> String {
        let [left, right] =
            [&self.left, &self.right].map(|node| inspect::evidence(&node.daemon, node.dist));
        format!("left:\n{left}\nright:\n{right}")
    }

    /// Stops both daemons.
    ///
    /// # Errors
    /// When one does not end cleanly.
    pub fn stop(self) -> Result<()> {
        self.left.stop().context("the left daemon")?;
        self.right.stop().context("the right daemon")?;
        Ok(())
    }
}

/// The CPU of the left (0) or right (1) program, when there are two.
#[must_use]
pub fn cpu_of(side: usize) -> Option<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cpus > 1).then_some(side)
}

/// An address of this host for a daemon of this test: on 127.0.0.1 another one may be at work.
#[must_use]
pub fn own_loopback() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | a & 63, b, c).into()
}

/// A daemon without a network: one that gives programs sockets where they have
/// [engines of their own](engine_in_program).
#[must_use]
pub fn alone() -> Spec {
    match engine_in_program() {
        true => Spec { addresses: vec![own_loopback()], ..Spec::new(Io::Udp) },
        false => Spec::new(Io::Loopback),
    }
}

/// The daemon of one end of a veth pair.
#[must_use]
pub fn at_end(end: &End, io: Io) -> Spec {
    Spec {
        netdev: Some(End::INTERFACE.into()),
        netns: Some(end.netns.name().to_owned()),
        ..Spec::new(io)
    }
}
