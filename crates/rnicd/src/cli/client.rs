//! A session with a daemon.

use super::private;
use super::tell;
use anyhow::{Context, Result};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{DeviceInfo, FaultChange, Inspect, Reply, Request};
use rnic_abi::os::{Connection, candidate_socket_paths, named_socket_paths};
use rnic_host::observe::Wants;
use rnic_host::report::Fault;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Client {
    connection: Connection,
    /// Where the daemon listens.
    pub(super) path: PathBuf,
}

/// Why there is no session with a daemon.
#[derive(Debug)]
pub(super) struct Unreachable {
    /// Something listens there.
    pub(super) there: bool,
    why: String,
}

impl Unreachable {
    fn new(error: &io::Error) -> Self {
        let why = match error.kind() {
            ErrorKind::NotFound => "there is no such socket".into(),
            ErrorKind::ConnectionRefused => "its daemon has ended".into(),
            ErrorKind::PermissionDenied => "you may not use it: become a member of the group that \
                                            owns it (`ls -l` shows it), or root"
                .into(),
            ErrorKind::WouldBlock => {
                "its daemon does not answer: it is stopped (`kill -CONT` continues it), or the \
                 machine is very busy"
                    .into()
            }
            _ => error.to_string(),
        };
        let there = !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        Self { there, why }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unreachable {}

/// Where to look for a daemon, and which setting named the place.
pub(super) struct Places {
    pub(super) paths: Vec<PathBuf>,
    /// The setting with which the user named the paths; then no other daemon is used.
    pub(super) named: Option<&'static str>,
}

impl Places {
    /// At `socket`, else where `RNIC_SOCKET` says, else where daemons are by default.
    pub(super) fn new(socket: Option<&Path>) -> Self {
        if let Some(path) = socket {
            return Self { paths: vec![path.to_path_buf()], named: Some("--socket") };
        }
        let paths = named_socket_paths();
        if !paths.is_empty() {
            return Self { paths, named: Some("RNIC_SOCKET") };
        }
        Self { paths: candidate_socket_paths(), named: None }
    }

    /// The same for a program with another working directory.
    ///
    /// # Errors
    /// When there is no working directory to which a path is relative.
    pub(super) fn absolute(mut self) -> Result<Self> {
        for path in &mut self.paths {
            *path = std::path::absolute(&path)
                .with_context(|| format!("cannot find the folder of {}", path.display()))?;
        }
        Ok(self)
    }

    /// Private daemons of `rnic run` are looked for too, unless the user named a place.
    pub(super) fn and_private(mut self) -> Self {
        if self.named.is_none() {
            self.paths.extend(private::sockets());
        }
        self
    }

    /// The first daemon that answers, or one line for each place.
    ///
    /// # Errors
    /// What is wrong with each place.
    pub(super) fn first(&self) -> Result<Client, Vec<(&Path, Unreachable)>> {
        let mut tried = Vec::new();
        for path in &self.paths {
            match Client::at(path) {
                Ok(client) => return Ok(client),
                Err(error) => tried.push((path.as_path(), error)),
            }
        }
        Err(tried)
    }

    /// Says that there is no daemon, and what to do.
    pub(super) fn explain(&self, tried: &[(&Path, Unreachable)]) -> anyhow::Error {
        let mut text = match self.named {
            Some(by) => format!("no daemon answers where {by} says"),
            None => "no daemon answers".to_owned(),
        };
        for (path, why) in tried {
            text += &format!("\n  {}: {why}", path.display());
        }
        text += match self.named {
            Some("RNIC_SOCKET") => {
                "\nStart `rnicd` with the same RNIC_SOCKET, or unset it: `rnic run -- COMMAND` then \
                 starts a private daemon when there is none."
            }
            Some(_) => "\nStart one there with `rnicd --socket PATH`, or leave --socket out.",
            None => {
                "\nStart one with `rnicd --netdev IFACE` or `rnicd --io udp`, or use `rnic run -- \
                 COMMAND`, which starts a private one that ends with its last client."
            }
        };
        anyhow::Error::msg(text)
    }
}

impl Client {
    /// Connects to the daemon at `socket`, or to the first that is found.
    pub(super) fn connect(socket: Option<&Path>) -> Result<Self> {
        let places = Places::new(socket).and_private();
        places.first().map_err(|tried| places.explain(&tried))
    }

    /// Connects to the daemon at `path`. One that is stopped is given up: the kernel connects, and
    /// there may be other daemons.
    pub(super) fn at(path: &Path) -> Result<Self, Unreachable> {
        let connected = Connection::connect_within(path, PATIENCE);
        let connection = connected.map_err(|error| Unreachable::new(&error))?;
        let client = Self { connection, path: path.to_path_buf() };
        if let Err(error) = client.call(&Request::Hello { abi: ABI_VERSION }) {
            return Err(match error.downcast_ref::<io::Error>() {
                Some(late) if late.kind() == ErrorKind::WouldBlock => Unreachable::new(late),
                _ => Unreachable { there: true, why: format!("{error:#}") },
            });
        }
        // A report may take a daemon with many busy users longer.
        client.connection.wait_for_ever().map_err(|error| Unreachable::new(&error))?;
        Ok(client)
    }

    /// True for a private daemon: it ends with its last client, and only `rnic` finds it.
    pub(super) fn is_private(&self) -> bool {
        private::is_one(&self.path)
    }

    /// True for a daemon of the user that this process is of.
    pub(super) fn is_of_this_user(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.connection.peer_credentials().is_ok_and(|peer| peer.uid == own)
    }

    /// Tells which daemon it is, beside what is printed.
    pub(super) fn tell(&self) {
        let process = match self.connection.peer_credentials() {
            Ok(peer) => format!("process {}", peer.pid),
            Err(_) => "in another pid namespace".to_owned(),
        };
        let private = if self.is_private() { " (private to `rnic run`)" } else { "" };
        tell(format_args!("rnicd {process}, socket {}{private}", self.path.display()));
    }

    fn call(&self, request: &Request) -> Result<Reply> {
        let (answer, _) = self.connection.call(request, &[]).context("the daemon went away")?;
        answer.map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// The daemon's devices.
    pub(super) fn devices(&self) -> Result<Vec<DeviceInfo>> {
        match self.call(&Request::ListDevices)? {
            Reply::Devices(devices) => Ok(devices),
            _ => Err(unexpected_reply()),
        }
    }

    /// The name of the daemon's device.
    pub(super) fn device_name(&self) -> Result<String> {
        let device = self.devices()?.into_iter().next();
        Ok(device.context("this daemon has no device")?.name)
    }

    /// One report of the daemon.
    pub(super) fn inspect<T: DeserializeOwned>(&self, what: Inspect) -> Result<T> {
        Ok(serde_json::from_str(&self.report(&Request::Inspect { what, from: 0 })?.0)?)
    }

    /// A list of reports, which comes in pages.
    pub(super) fn list<T: DeserializeOwned>(&self, what: Inspect) -> Result<Vec<T>> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let (json, next) = self.report(&Request::Inspect { what, from })?;
            all.extend(serde_json::from_str::<Vec<T>>(&json)?);
            match next {
                Some(next) if next > from => from = next,
                _ => return Ok(all),
            }
        }
    }

    /// What the daemon reports, as JSON, and where a list goes on.
    fn report(&self, request: &Request) -> Result<(String, Option<u32>)> {
        match self.call(request)? {
            Reply::Inspected { json, next } => Ok((json, next)),
            _ => Err(unexpected_reply()),
        }
    }

    /// Has the daemon write to `to` what happens.
    pub(super) fn observe(
        &self,
        Wants { frames, events }: Wants,
        to: BorrowedFd<'_>,
    ) -> Result<()> {
        let request = Request::Observe { frames, events };
        let (answer, _) = self.connection.call(&request, &[to]).context("the daemon went away")?;
        answer.map(|_| ()).map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// Changes the faults in force. Returns those that then are.
    pub(super) fn faults(&self, change: FaultChange) -> Result<Vec<Fault>> {
        Ok(serde_json::from_str(&self.report(&Request::Faults(change))?.0)?)
    }
}

/// How long a daemon may take to connect and to greet. A busy machine is quicker.
const PATIENCE: Duration = Duration::from_secs(5);

fn unexpected_reply() -> anyhow::Error {
    anyhow::anyhow!("protocol error: unexpected reply from rnicd (are both of one version?)")
}
