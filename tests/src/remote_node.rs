//! Daemons and programs that are started by shell scripts, so that the same code drives this
//! machine and a guest.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::daemon::Io;
use crate::dist::Dist;
use crate::place::{Job, Place, has_listener};
use crate::process::{Cmd, wait_until};
use crate::rxe::Guest;

/// The limit of a script that is given none.
const SCRIPT: Duration = Duration::from_secs(60);
/// How long a daemon may take until its socket is there, also in an emulated machine.
const READY: Duration = Duration::from_secs(20);
/// How long its log lines may take to arrive.
const LOGGED: Duration = Duration::from_secs(5);
/// Longer than any use of a daemon.
const LIFE: Duration = Duration::from_secs(3600);

/// Runs shell scripts as root.
pub trait Shell: Sync {
    /// Starts a script; what it started in the background goes with it.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, script: &str, limit: Duration) -> Result<Box<dyn Job>>;

    /// Runs a script and returns what it printed.
    ///
    /// # Errors
    /// When its exit status is not zero; the error shows what it printed.
    fn check(&self, script: &str) -> Result<String> {
        let output = self.start(script, SCRIPT)?.wait()?;
        ensure!(output.success(), "{output}");
        Ok(output.stdout)
    }

    /// As [`Shell::check`], also after an interrupt: for cleaning up.
    ///
    /// # Errors
    /// As [`Shell::check`].
    fn clean_up(&self, script: &str) -> Result<()>;
}

/// This machine.
pub struct Here;

impl Shell for Here {
    fn start(&self, script: &str, limit: Duration) -> Result<Box<dyn Job>> {
        Ok(Box::new(Cmd::new("sh").args(["-c", script]).limit(limit).start()?))
    }

    fn clean_up(&self, script: &str) -> Result<()> {
        Cmd::new("sh").args(["-c", script]).limit(SCRIPT).for_cleanup().check().map(drop)
    }
}

/// Where programs are started: a machine, and the namespace, interface and CPU that they use.
#[derive(Clone)]
pub struct RemoteNode<'a> {
    /// The machine.
    pub shell: &'a dyn Shell,
    /// A network namespace of that machine.
    pub netns: Option<String>,
    /// The interface that belongs to the node.
    pub netdev: String,
    /// The address of servers here.
    pub address: IpAddr,
    /// The CPU that programs run on.
    pub cpu: u32,
}

impl RemoteNode<'_> {
    /// A command line that becomes `line`, with these variables set.
    fn script(&self, variables: &str, line: &str) -> String {
        let netns = self.netns.as_ref();
        let enter = netns.map_or(String::new(), |name| format!("/bin/ip netns exec {name} "));
        format!("exec {enter}env {variables} {line}")
    }
}

/// An RDMA device and programs that use it.
#[derive(Clone)]
pub struct Player<'a> {
    /// Where the programs run.
    pub node: RemoteNode<'a>,
    /// `NAME=VALUE` words for their environment.
    pub variables: String,
    /// The device's name.
    pub device: String,
    /// The index of its GID.
    pub gid_index: u32,
}

impl Place for Player<'_> {
    fn device(&self) -> &str {
        &self.device
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.node.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let quoted: Vec<_> = args.iter().map(|arg| format!("'{arg}'")).collect();
        let mask = 1u64 << self.node.cpu;
        let line = format!("taskset {mask:x} {program} {}", quoted.join(" "));
        self.node.shell.start(&self.node.script(&self.variables, &line), limit)
    }

    fn listens(&self, port: u16) -> Result<bool> {
        let script = self.node.script("", "cat /proc/net/tcp /proc/net/tcp6");
        Ok(has_listener(&self.node.shell.check(&script)?, port))
    }
}

/// Where a machine has our programs and libraries.
#[derive(Clone, Debug)]
pub struct Home(String);

impl Home {
    /// The dist folder itself.
    #[must_use]
    pub fn here(dist: &Dist) -> Self {
        Self(dist.root().display().to_string())
    }

    /// Copies what is needed into a guest.
    ///
    /// # Errors
    /// As [`Guest::put`].
    pub fn in_guest(guest: &Guest, dist: &Dist) -> Result<Self> {
        const HOME: &str = "/root/soft-rnic";
        guest.check(&format!("mkdir -p {HOME}/bin {HOME}/lib"))?;
        for program in ["rnicd", "rnic"] {
            guest.put(&dist.bin(program), &format!("{HOME}/bin/{program}"))?;
        }
        for library in ["libibverbs.so.1", "librdmacm.so.1"] {
            guest.put(&dist.lib().join(library), &format!("{HOME}/lib/{library}"))?;
        }
        Ok(Self(HOME.to_owned()))
    }
}

/// One `rnicd` on a node; killed on drop.
pub struct RemoteDaemon<'a> {
    job: Box<dyn Job>,
    home: Home,
    player: Player<'a>,
}

impl<'a> RemoteDaemon<'a> {
    /// Starts it on the node's interface, with packet I/O and further arguments, and waits until
    /// it can be used. Its socket is made in `folder` of the machine.
    ///
    /// # Errors
    /// When it ends or is not ready in time; the error shows what it wrote.
    pub fn start(
        node: &RemoteNode<'a>,
        home: &Home,
        folder: &Path,
        (io, extra): (Io, &str),
    ) -> Result<Self> {
        let socket = format!("{}/{}.sock", folder.display(), node.netdev);
        let Home(root) = home;
        let (io, netdev) = (io.as_str(), &node.netdev);
        let line =
            format!("{root}/bin/rnicd --netdev {netdev} --io {io} {extra} --socket {socket}");
        let mut job = node.shell.start(&node.script("", &line), LIFE)?;
        let announced = format!("device {DEVICE} (");
        wait_until("rnicd's word that its device is there", READY, || {
            if let Some(code) = job.exit_code()? {
                bail!("rnicd ended with {code}: {}", job.said());
            }
            Ok(job.said().contains(&announced))
        })
        .with_context(|| line.clone())?;
        let variables = format!("LD_LIBRARY_PATH={root}/lib RNIC_SOCKET={socket}");
        let player = Player { node: node.clone(), variables, device: DEVICE.into(), gid_index: 0 };
        Ok(Self { job, home: home.clone(), player })
    }

    /// Its device and the programs that use it.
    #[must_use]
    pub fn player(&self) -> &Player<'a> {
        &self.player
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.job.said()
    }

    /// Waits until its log has a text: what a guest's program writes takes a moment.
    ///
    /// # Errors
    /// When it does not come; the error shows the log.
    pub fn expect(&self, text: &str) -> Result<()> {
        let seen = wait_until(text, LOGGED, || Ok(self.job.said().contains(text)));
        seen.with_context(|| self.job.said())
    }

    /// What `rnic WHAT --json` says about it.
    ///
    /// # Errors
    /// When `rnic` fails.
    pub fn ask(&self, what: &str) -> Result<Value> {
        let Player { node, variables, .. } = &self.player;
        let line = format!("{}/bin/rnic {what} --json", self.home.0);
        let text = node.shell.check(&node.script(variables, &line))?;
        serde_json::from_str(&text).with_context(|| format!("`{line}` printed:\n{text}"))
    }
}

/// The name of a daemon's device when it is told none.
const DEVICE: &str = "rnic0";
