//! One `rnicd`: started, ready, used, and ended cleanly.

use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::dist::Dist;
use crate::paths::Scratch;
use crate::process::{Cmd, Running, User, tail, wait_until};

/// How long a daemon may take until it says that it is ready.
const READY: Duration = Duration::from_secs(10);
/// How long it may take to drain after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

/// The daemon's packet I/O, the value of `--io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// The best that interface and privileges allow.
    Auto,
    /// Kernel UDP sockets.
    Udp,
    /// AF_XDP sockets.
    AfXdp,
    /// AF_PACKET sockets.
    AfPacket,
    /// Nothing but queue pairs of the same device.
    Loopback,
}

impl Io {
    /// The value as the command line takes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::AfXdp => "af-xdp",
            Self::AfPacket => "af-packet",
            Self::Loopback => "loopback",
        }
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Value of `--io`.
    pub io: Io,
    /// Value of `--device`.
    pub device: String,
    /// Value of `--netdev`.
    pub netdev: Option<String>,
    /// Values of `--address`; none lets the daemon follow the interface.
    pub addresses: Vec<IpAddr>,
    /// The namespace it runs in.
    pub netns: Option<String>,
    /// The user it runs as.
    pub user: Option<User>,
    /// Further arguments.
    pub extra: Vec<String>,
    /// The program that becomes the daemon, as for [`Cmd::through`].
    pub through: Vec<String>,
}

impl Spec {
    /// A daemon with a device called `rnic0`, in our namespace, as ourselves.
    #[must_use]
    pub fn new(io: Io) -> Self {
        Self {
            io,
            device: "rnic0".into(),
            netdev: None,
            addresses: Vec::new(),
            netns: None,
            user: None,
            extra: Vec::new(),
            through: Vec::new(),
        }
    }

    /// The command line of `rnicd`.
    fn command(&self, dist: &Dist, socket: &Path) -> Cmd {
        let netdev = self.netdev.iter().flat_map(|name| ["--netdev".to_owned(), name.clone()]);
        let addresses =
            self.addresses.iter().flat_map(|address| ["--address".to_owned(), address.to_string()]);
        Cmd::new(dist.bin("rnicd"))
            .args(["--io", self.io.as_str(), "--device", &self.device])
            .arg("--socket")
            .arg(socket)
            .args(netdev)
            .args(addresses)
            .args(&self.extra)
            .through(&self.through)
            .in_netns(self.netns.as_deref())
            .as_user(self.user)
    }
}

/// A daemon that is ready; killed on drop unless it was stopped.
pub struct Daemon {
    running: Running,
    scratch: Scratch,
    device: String,
    io: Io,
}

impl Daemon {
    /// Starts it and waits for its `READY=1`.
    ///
    /// # Errors
    /// When it ends or says nothing for ten seconds; the error shows what it wrote.
    pub fn start(dist: &Dist, spec: &Spec) -> Result<Self> {
        Self::start_in(Scratch::new("daemon")?, dist, spec)
    }

    /// The `rnic` command of `dist`, which talks to this daemon.
    #[must_use]
    pub fn rnic(&self, dist: &Dist, args: &[&str]) -> Cmd {
        Cmd::new(dist.bin("rnic")).args(args).env("RNIC_SOCKET", self.socket())
    }

    /// Kills it as an out-of-memory killer would and starts another in its place, on the socket
    /// that it left behind.
    ///
    /// # Errors
    /// When it had ended before, and as [`Daemon::start`].
    pub fn kill_and_restart(self, dist: &Dist, spec: &Spec) -> Result<Self> {
        self.running.signal(rustix::process::Signal::KILL)?;
        self.running.wait()?;
        Self::start_in(self.scratch, dist, spec)
    }

    fn start_in(scratch: Scratch, dist: &Dist, spec: &Spec) -> Result<Self> {
        // What an earlier daemon's folder still has.
        let _ = std::fs::remove_file(scratch.join("notify"));
        let notify = UnixDatagram::bind(scratch.join("notify"))?;
        open_to_all(&scratch.join("notify"))?;
        notify.set_nonblocking(true)?;
        let cmd = spec
            .command(dist, &scratch.join("socket"))
            .env("NOTIFY_SOCKET", scratch.join("notify"));
        let mut running = cmd.start()?;
        let ready = wait_until("READY=1 from rnicd", READY, || {
            if let Some(status) = running.try_status()? {
                bail!("rnicd ended with {status}");
            }
            let mut message = [0; 512];
            let Ok(length) = notify.recv(&mut message) else { return Ok(false) };
            Ok(String::from_utf8_lossy(&message[..length]).lines().any(|line| line == "READY=1"))
        });
        ready.with_context(|| format!("{cmd}\n{}", tail(&last_words(&running), 40)))?;
        Ok(Self { running, scratch, device: spec.device.clone(), io: spec.io })
    }

    /// Whether it can give sockets to programs for engines of their own.
    #[must_use]
    pub fn has_functions(&self) -> bool {
        self.io != Io::Loopback
    }

    /// Its control socket.
    #[must_use]
    pub fn socket(&self) -> std::path::PathBuf {
        self.scratch.join("socket")
    }

    /// The name of its device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.running.stderr()
    }

    /// Ends it with SIGTERM and returns its log.
    ///
    /// # Errors
    /// When it does not end within ten seconds, or not with exit status zero.
    pub fn stop(self) -> Result<String> {
        let output = self.running.terminate(DRAIN)?;
        ensure!(output.success(), "rnicd did not end in order: {output}");
        Ok(output.stderr)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        self.running.signal(signal)
    }
}

/// What a failed daemon wrote; it may take a moment to arrive.
fn last_words(running: &Running) -> String {
    for _ in 0..50 {
        if !running.stderr().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    running.stderr()
}

/// Lets a daemon of another user write to a socket of ours.
fn open_to_all(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?)
}
