//! A user's engine process: `rnicd`, started by a root daemon with an argument that no user gives.
//!
//! It has the ids and groups of its user, no capability and no descriptor but its own, and it is
//! not dumpable: its user can kill or stop it, but not look into it. The engine and the sessions of
//! that user's clients are here, and whatever they take. What only the daemon can do is asked for
//! over a socket, on standard input.

mod confinement;
mod identity;

use crate::log;
use crate::system;
use anyhow::{Context, Result};
use rnic_abi::control::encode;
use rnic_abi::os::{Connection, Descriptors};
use rnic_host::memory;
use rnic_host::satellite::protocol::{FromEngine, Start};
use rnic_host::satellite::{Place, Satellite, receive_start};
use rnic_host::server::ClientMemory;
use std::os::fd::AsFd;
use std::time::Instant;

/// Runs until the daemon needs it no more, or is gone.
///
/// # Errors
/// When it cannot start; the text says why.
pub fn run() -> Result<()> {
    Begun::new()?.serve()
}

/// A process that is its user's, confined, and has met no client yet.
pub struct Begun {
    start: Start,
    fds: Descriptors,
    socket: Connection,
}

impl Begun {
    /// Makes this process one.
    ///
    /// # Errors
    /// When it cannot start; the text says why.
    pub fn new() -> Result<Self> {
        // Started from /proc/self/exe, it would be called "exe".
        let _ = rustix::thread::set_name(c"rnicd-user");
        let socket = identity::take_socket()?;
        let (start, fds) = receive_start(&socket)?;
        identity::become_user(start.uid, start.gid)
            .with_context(|| format!("cannot act as user {} and group {}", start.uid, start.gid))?;
        confinement::confine()?;
        start_log(&start.log, &socket)?;
        Ok(Self { start, fds, socket })
    }

    /// Serves clients.
    ///
    /// # Errors
    /// When it cannot.
    pub fn serve(self) -> Result<()> {
        serve(self.start, self.fds, self.socket).inspect_err(|error| tracing::error!("{error:#}"))
    }

    /// The user that it is for.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.start.uid
    }

    /// All that ties it to the daemon, for a program that does something else with it: the socket,
    /// and the descriptors that came with the first message.
    #[must_use]
    pub fn into_ties(self) -> (Connection, Descriptors) {
        (self.socket, self.fds)
    }
}

/// In a message each: standard error is the daemon's.
fn start_log(filter: &str, socket: &Connection) -> Result<()> {
    let socket = socket.as_fd().try_clone_to_owned().context("too many open files")?;
    let socket = Connection::from(socket);
    log::start_through(filter, move |severity, line| {
        // Lost when the daemon has too much to read: no thread waits to log.
        if let Ok(bytes) = encode(&FromEngine::Log(severity, line)) {
            let _ = socket.try_send(&bytes, &[]);
        }
    })
}

fn serve(start: Start, fds: Descriptors, socket: Connection) -> Result<()> {
    system::raise_descriptor_limit();
    system::prepare_for_little_memory();
    memory::keep_reserve(RESERVE);
    let satellite = Satellite::new(start, fds, socket, ClientMemory::OfProcesses)?;
    let result = satellite.attend(&mut OwnProcess);
    satellite.end();
    result
}

/// A satellite that is all there is in its process.
struct OwnProcess;

impl Place for OwnProcess {
    /// The daemon may have sent another client meanwhile: it says whether this is the end.
    fn is_idle(&mut self, satellite: &Satellite, clients: u32) -> bool {
        satellite.tell(&FromEngine::Idle(clients));
        false
    }

    fn look(&mut self, now: Instant) -> Option<Instant> {
        log::tell_of_the_rest(now)
    }
}

/// Bytes that keep the process alive when there are no others.
const RESERVE: usize = 8 << 20;
