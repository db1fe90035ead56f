//! A user's engine process: `rnicd`, started by a root daemon with an argument that no user gives.
//!
//! It has the ids and groups of its user, no capability and no descriptor but its own, and it is
//! not dumpable: its user can kill or stop it, but not look into it. The engine and the sessions of
//! that user's clients are here, and whatever they take. What only the daemon can do is asked for
//! over a socket, on standard input.

mod admission;
mod confinement;
mod connections;
mod identity;
mod upstream;

use crate::log;
use crate::system;
use crate::users::{EngineWire, FromEngine, Inquiry, Start, ToEngine, Told, first_number};
use admission::Admission;
use anyhow::{Context, Result, bail};
use connections::Relay;
use crossbeam_channel::bounded;
use rnic_abi::control::{MAX_MESSAGE, decode, encode};
use rnic_abi::os::{Connection, Descriptors, EventFd};
use rnic_core::{EngineConfig, Secret};
use rnic_host::inspect::Question;
use rnic_host::memory;
use rnic_host::server::{Registry, Service};
use rnic_host::shard::{OwnEngine, ShardMessage, ShardPort};
use rnic_host::thread;
use rnic_host::wire::{self, Attachment, DeviceWire, ShardWire};
use rnic_net::Change;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upstream::Upstream;
use xdp_io::udp::ReceiverSockets;

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
    let process = EngineProcess::new(start, fds, socket)?;
    let result = process.attend();
    process.end();
    result
}

fn receive_start(socket: &Connection) -> Result<(Start, Descriptors)> {
    let first = socket.recv_message::<ToEngine>().context("no word from the daemon")?;
    let Some((ToEngine::Start(start), fds)) = first else {
        bail!("this is started by rnicd itself: run it without arguments")
    };
    Ok((*start, fds))
}

fn open_wire(start: &Start, fds: Descriptors) -> Result<ShardPort> {
    Ok(match start.wire {
        EngineWire::Sockets(scope_id) => {
            let wire = DeviceWire::of_shard(scope_id, start.network.port.netdev_mtu)?;
            ShardPort::Device(Box::new(wire))
        }
        EngineWire::HandOver => {
            let wire = ShardWire::attach(Attachment::from(fds.exactly::<4>()?));
            ShardPort::Shard(Box::new(wire.context("no memory for the daemon's wire")?))
        }
    })
}

struct EngineProcess {
    upstream: Arc<Upstream>,
    engine: Arc<OwnEngine>,
    service: Arc<Service>,
    admission: Admission,
}

impl EngineProcess {
    fn new(start: Start, fds: Descriptors, socket: Connection) -> Result<Self> {
        let wire = open_wire(&start, fds)?;
        let config = EngineConfig {
            secret: Secret::new(start.secret),
            shard: start.shard,
            port: start.network.port_state(),
            gid_table_len: start.network.port.gid_table_len,
            profile: start.profile.into(),
            ..EngineConfig::new(start.secret)
        };
        let engine =
            OwnEngine::start(start.settings, config, wire).context("cannot start the engine")?;
        let engine = Arc::new(engine);
        let shard = engine.handle().clone();
        let upstream = Arc::new(Upstream::new(socket, start.limits, start.network, shard)?);
        let service = Service {
            device: start.device,
            network: upstream.clone(),
            groups: upstream.clone(),
            engine: engine.handle().clone(),
            engines: engine.clone(),
            connections: Arc::new(Relay::new(upstream.clone())),
            ledger: upstream.clone(),
            owner: start.owner,
            pid: start.daemon,
            io: start.io,
            profile: start.profile,
            registry: Registry::new(first_number(start.shard))?,
            started: Instant::now(),
            stop: EventFd::new()?,
        };
        let service = Arc::new(service);
        let admission = Admission::start(Arc::clone(&service))?;
        Ok(Self { upstream, engine, service, admission })
    }

    /// Does what the daemon says, until it says that this is the end, or is gone.
    fn attend(&self) -> Result<()> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut clients = Clients::default();
        loop {
            let now = Instant::now();
            let (sessions, _) = self.service.registry.counts();
            if let Some(given) = clients.are_gone(sessions, now) {
                self.upstream.tell(&FromEngine::Idle(given));
            }
            let deadlines = [clients.deadline(), log::tell_of_the_rest(now)];
            let timeout = deadlines.into_iter().flatten().min();
            self.wait(timeout.map(|until| until.saturating_duration_since(now)))?;
            // What the daemon sends in a burst is a burst of clients; sessions end meanwhile.
            for _ in 0..MESSAGES_AT_ONCE {
                let (len, fds) = match self.upstream.socket().try_recv(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    received => received.context("the daemon is gone")?,
                };
                if len == 0 {
                    bail!("the daemon is gone");
                }
                let message = decode(&buffer[..len]).ok().context("the daemon is another one")?;
                match message {
                    ToEngine::End => return Ok(()),
                    ToEngine::Client => self.admit(fds, &mut clients),
                    ToEngine::Capture => self.capture(fds),
                    ToEngine::Sockets(address) => {
                        let [receives, sends] = fds.exactly()?;
                        let sockets = ReceiverSockets { receives, sends };
                        self.engine.handle().tell(ShardMessage::Sockets(address, sockets));
                    }
                    ToEngine::Group(group) => {
                        let [socket] = fds.exactly()?;
                        self.engine.handle().tell(ShardMessage::Join(group, socket.into()));
                    }
                    ToEngine::Answer(number, answer) => {
                        self.upstream.answered(number, answer, fds);
                    }
                    message => self.handle(message),
                }
            }
        }
    }

    /// Waits for the daemon, for the end of a session, and for what is given back.
    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let ended = self.service.registry.ended();
        let given = self.upstream.wake();
        let mut fds = [
            PollFd::new(self.upstream.socket(), PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(given.as_fd(), PollFlags::IN),
        ];
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: (time + Duration::from_millis(1)).subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("poll: {error}"),
        }
        let _ = ended.drain();
        let _ = given.drain();
        self.upstream.give_back();
        Ok(())
    }

    fn admit(&self, fds: Descriptors, clients: &mut Clients) {
        clients.given = clients.given.wrapping_add(1);
        clients.last_here = Some(Instant::now());
        if let Ok([connection]) = fds.exactly() {
            self.admission.admit(connection.into());
        }
    }

    /// Shows the daemon what this engine sends and receives.
    fn capture(&self, fds: Descriptors) {
        let Ok([socket]) = fds.exactly() else { return };
        let (tap, feed) = wire::capture();
        let socket = Connection::from(socket);
        let started = thread::spawn("rnic-capture", STACK, move || wire::export(&feed, &socket));
        match started {
            Ok(()) => self.engine.handle().tell(ShardMessage::Capture(tap)),
            Err(error) => tracing::warn!("a capture does not see this user: {error}"),
        }
    }

    fn handle(&self, message: ToEngine) {
        match message {
            ToEngine::Network(network) => {
                let change = Change {
                    port: network.port_state(),
                    addresses: network.addresses.clone(),
                    mtu: network.port.netdev_mtu,
                };
                self.upstream.set_network(network);
                self.engine.handle().tell(ShardMessage::Network(change));
            }
            ToEngine::Ask(number, inquiry) => self.answer(number, inquiry),
            ToEngine::Faults(change) => {
                // What is in force is the daemon's to tell.
                let (answer, _) = bounded(1);
                self.engine.handle().tell(ShardMessage::Faults(change, answer));
            }
            _ => {}
        }
    }

    /// In a thread of its own: the engine may not answer for a second.
    fn answer(&self, number: u32, inquiry: Inquiry) {
        let (upstream, engine) = (Arc::clone(&self.upstream), Arc::clone(&self.engine));
        let service = Arc::clone(&self.service);
        let started = thread::spawn("rnic-inspect", STACK, move || {
            let told = match inquiry {
                Inquiry::Engine(question) => Told::Engine(engine.inspect(question)),
                Inquiry::Sessions => Told::Sessions(service.registry.report()),
            };
            upstream.tell(&FromEngine::Told(number, told));
        });
        if let Err(error) = started {
            tracing::warn!("the daemon's question is not answered: {error}");
        }
    }

    /// Ends the sessions and the engine.
    fn end(&self) {
        let _ = self.service.stop.wake();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while self.service.registry.counts().0 > 0 && Instant::now() < deadline {
            let _ = self.wait(Some(Duration::from_millis(50)));
        }
        if let Some(rnic_host::inspect::Found::Counters(counted)) =
            self.engine.inspect(Question::Counters)
        {
            self.upstream.tell(&FromEngine::Counted(counted));
        }
        self.engine.stop();
    }
}

/// The clients that the daemon has handed over.
#[derive(Default)]
struct Clients {
    given: u32,
    /// When a session was seen last, or a client came; none once the daemon knows that all are
    /// gone.
    last_here: Option<Instant>,
}

impl Clients {
    /// How many there were, when all have been gone for some time.
    fn are_gone(&mut self, sessions: usize, now: Instant) -> Option<u32> {
        if sessions > 0 {
            self.last_here = Some(now);
            return None;
        }
        let since = self.last_here?;
        if now < since + LINGER {
            return None;
        }
        self.last_here = None;
        Some(self.given)
    }

    fn deadline(&self) -> Option<Instant> {
        self.last_here.map(|since| since + LINGER)
    }
}

/// How long the process stays after its last client: programs often come one after the other.
const LINGER: Duration = Duration::from_secs(5);
/// Messages between two looks at the sessions.
const MESSAGES_AT_ONCE: usize = 32;
/// How long sessions may take to end: one may wait for a neighbour that does not answer, or for an
/// engine that its own memory keeps.
const DRAIN_PATIENCE: Duration = Duration::from_millis(300);
/// Bytes that keep the process alive when there are no others.
const RESERVE: usize = 8 << 20;
/// A question needs no more.
const STACK: usize = 256 * 1024;
