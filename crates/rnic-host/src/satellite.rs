//! An engine beside the one that has the daemon's wire, with the sessions of its clients.
//!
//! There are three places for one. An **engine process** serves another user's clients, which the
//! daemon hands over. A **function** is in a program of the daemon's own user and serves that
//! program alone, whose memory is its own. With `--engines`, **threads of the daemon** serve
//! clients of the daemon's own user. Each has a slice of the QP numbers and UDP sockets of its own;
//! one without sockets hands its frames over. What only the daemon can do is asked for over a
//! socket: addresses, groups, quotas, connections.

mod admission;
mod connections;
mod given;
pub mod protocol;
mod upstream;

use crate::inspect::{Found, Question};
use crate::observe::{self, Wants};
use crate::server::{ClientMemory, Registry, Service};
use crate::shard::{Driven, OwnEngine, ProgramsEngine, ShardMessage, ShardPort};
use crate::thread;
use crate::wire::{Attachment, DeviceWire, ShardWire};
use admission::Admission;
use anyhow::{Context, Result, bail};
use connections::Relay;
use crossbeam_channel::bounded;
use protocol::{EngineWire, FromEngine, Inquiry, Start, ToEngine, Told, first_number};
use rnic_abi::control::{MAX_MESSAGE, decode};
use rnic_abi::os::{Connection, Descriptors, EventFd};
use rnic_core::{EngineConfig, Secret};
use rnic_net::Change;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upstream::Upstream;
use xdp_io::udp::ReceiverSockets;

/// See the [module](self).
pub struct Satellite {
    upstream: Arc<Upstream>,
    engine: Arc<OwnEngine>,
    shard: u8,
    service: Arc<Service>,
    admission: OnceLock<Admission>,
}

/// What a satellite does beside its work, which depends on where it is.
pub trait Place {
    /// All of so many clients that the daemon has handed over are gone for some time. True when the
    /// satellite ends for that reason.
    fn is_idle(&mut self, satellite: &Satellite, clients: u32) -> bool;

    /// Called now and then. When it is to be called again, if something waits for that.
    fn look(&mut self, now: Instant) -> Option<Instant>;

    /// Where clients come from, other than from the daemon. A message without one asks that the
    /// daemon be told what was counted so far, and is answered once it has been.
    fn door(&self) -> Option<&Connection> {
        None
    }

    /// The other end is closed: no more will come.
    fn close_door(&mut self) {}
}

/// The first message of the daemon.
///
/// # Errors
/// When it is another one, or the daemon is gone.
pub fn receive_start(socket: &Connection) -> Result<(Start, Descriptors)> {
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

impl Satellite {
    /// Starts the engine. `fds` came with the message.
    ///
    /// # Errors
    /// When it cannot start; the text says why.
    pub fn new(
        start: Start,
        fds: Descriptors,
        socket: Connection,
        memory: ClientMemory,
    ) -> Result<Self> {
        Self::driven(start, fds, socket, memory, None)
    }

    /// The same in a program, which may turn the engine.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn driven(
        start: Start,
        fds: Descriptors,
        socket: Connection,
        memory: ClientMemory,
        driven: Option<Driven>,
    ) -> Result<Self> {
        let wire = open_wire(&start, fds)?;
        let config = EngineConfig {
            secret: Secret::new(start.secret),
            shard: start.shard,
            port: start.network.port_state(),
            gid_table_len: start.network.port.gid_table_len,
            profile: start.profile.into(),
            ..EngineConfig::new(start.secret)
        };
        let engine = OwnEngine::start_driven(start.settings, config, wire, driven);
        let engine = engine.context("cannot start the engine")?;
        let engine = Arc::new(engine);
        let handle = engine.handle().clone();
        let upstream = Arc::new(Upstream::new(socket, start.limits, start.network, handle)?);
        let shard = start.shard;
        let service = Service {
            device: start.device,
            network: upstream.clone(),
            groups: upstream.clone(),
            engine: engine.handle().clone(),
            engines: engine.clone(),
            connections: Arc::new(Relay::new(upstream.clone())),
            functions: None,
            more: None,
            ledger: upstream.clone(),
            memory,
            owner: start.owner,
            pid: start.daemon,
            io: start.io,
            profile: start.profile,
            registry: Registry::new(first_number(shard))?,
            started: Instant::now(),
            stop: EventFd::new()?,
        };
        let (service, admission) = (Arc::new(service), OnceLock::new());
        Ok(Self { upstream, engine, shard, service, admission })
    }

    /// The way to turn the engine in threads of the program.
    pub fn programs_engine(&self) -> Option<&ProgramsEngine> {
        self.engine.programs()
    }

    /// Clients that are connected, also those that wait for their session.
    pub fn sessions(&self) -> usize {
        // First: each that does not wait any more is seen below.
        let waiting = self.admission.get().map_or(0, Admission::waiting);
        waiting + self.service.registry.counts().0
    }

    /// Says something to the daemon.
    pub fn tell(&self, message: &FromEngine) {
        self.upstream.tell(message);
    }

    /// Does what the daemon says, until it says that this is the end, is gone, or the place ends.
    ///
    /// # Errors
    /// When the daemon is gone, or the engine.
    pub fn attend(&self, place: &mut impl Place) -> Result<()> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut clients = Clients::new();
        loop {
            let now = Instant::now();
            if let Some(given) = clients.are_gone(self.sessions(), now)
                && place.is_idle(self, given)
            {
                return Ok(());
            }
            let timeout =
                place.look(now).map_or(clients.deadline(), |at| at.min(clients.deadline()));
            self.wait(place.door(), timeout.saturating_duration_since(now))?;
            while let Some(Ok((len, fds))) = place.door().map(|door| door.try_recv(&mut buffer)) {
                match len {
                    0 => place.close_door(),
                    _ if fds.len() == 0 => {
                        self.tell_counted();
                        let _ = place.door().map(|door| door.try_send(&[0], &[]));
                    }
                    _ => self.admit(fds, None, &mut clients)?,
                }
            }
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
                    ToEngine::Client => self.admit(fds, None, &mut clients)?,
                    ToEngine::Opening(name) => self.admit(fds, Some(name), &mut clients)?,
                    message => self.handle(message, fds)?,
                }
            }
        }
    }

    /// Waits for the daemon, for the end of a session or of the engine, and for what is given back.
    fn wait(&self, door: Option<&Connection>, timeout: Duration) -> Result<()> {
        let ended = self.service.registry.ended();
        let given = self.upstream.wake();
        let gone = self.engine.gone();
        let fds = [gone.as_fd(), self.upstream.socket().as_fd(), ended.as_fd(), given.as_fd()];
        let fds = fds.into_iter().chain(door.map(AsFd::as_fd));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(timeout + Duration::from_millis(1)).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("poll: {error}"),
        }
        if !fds[0].revents().is_empty() {
            bail!("the engine has ended");
        }
        let _ = ended.drain();
        let _ = given.drain();
        self.upstream.give_back();
        Ok(())
    }

    /// A client, or one that is opening the device of this name.
    fn admit(
        &self,
        fds: Descriptors,
        opening: Option<String>,
        clients: &mut Clients,
    ) -> Result<()> {
        let admission = match self.admission.get() {
            Some(admission) => admission,
            None => match Admission::start(Arc::clone(&self.service)) {
                Ok(started) => self.admission.get_or_init(|| started),
                Err(error) => {
                    // The next one may find a thread.
                    tracing::error!("a client is not served: {error:#}");
                    return Ok(());
                }
            },
        };
        clients.given = clients.given.wrapping_add(1);
        clients.last_here = Instant::now();
        if let Ok([connection]) = fds.exactly() {
            admission.admit(connection.into(), opening);
        }
        Ok(())
    }

    /// Shows the daemon what happens in this engine.
    fn observe(&self, wants: Wants, fds: Descriptors) {
        let Ok([socket]) = fds.exactly() else { return };
        let (watcher, feed) = observe::watch(wants);
        let socket = Connection::from(socket);
        let started = thread::spawn("rnic-watch", STACK, move || observe::export(&feed, &socket));
        match started {
            Ok(()) => self.engine.handle().tell(ShardMessage::Observe(watcher)),
            Err(error) => tracing::warn!("this user is not observed: {error}"),
        }
    }

    fn handle(&self, message: ToEngine, mut fds: Descriptors) -> Result<()> {
        let engine = self.engine.handle();
        match message {
            ToEngine::Observe(wants) => self.observe(wants, fds),
            ToEngine::Sockets(address) => {
                let mut next = || fds.next().context("sockets without descriptors");
                let (receives, sends) = (next()?, next()?);
                let arrivals = fds.next().map(|counts| (counts, self.shard));
                let sockets = ReceiverSockets { receives, sends, arrivals };
                engine.tell(ShardMessage::Sockets(address, sockets));
            }
            ToEngine::Group(group) => {
                let [socket] = fds.exactly()?;
                engine.tell(ShardMessage::Join(group, socket.into()));
            }
            ToEngine::Answer(number, answer) => self.upstream.answered(number, answer, fds),
            ToEngine::Network(network) => {
                let change = network.change();
                self.upstream.set_network(network);
                engine.tell(ShardMessage::Network(change));
            }
            ToEngine::Ask(number, inquiry) => self.answer(number, inquiry),
            ToEngine::Faults(change) => {
                // What is in force is the daemon's to tell.
                let (answer, _) = bounded(1);
                engine.tell(ShardMessage::Faults(change, answer));
            }
            ToEngine::Start(_) | ToEngine::Client | ToEngine::Opening(_) | ToEngine::End => {}
        }
        Ok(())
    }

    /// In a thread of its own: the engine may not answer for a second.
    fn answer(&self, number: u32, inquiry: Inquiry) {
        let (upstream, engine) = (Arc::clone(&self.upstream), Arc::clone(&self.engine));
        let service = Arc::clone(&self.service);
        let started = thread::spawn("rnic-inspect", STACK, move || {
            let told = match inquiry {
                Inquiry::Engine(question) => Told::Engine(engine.inspect(question)),
                Inquiry::Sessions(from) => Told::Sessions(service.registry.report(from)),
            };
            upstream.tell(&FromEngine::Told(number, told));
        });
        if let Err(error) = started {
            tracing::warn!("the daemon's question is not answered: {error}");
        }
    }

    /// Of a program that ends, its last acknowledgement included.
    fn tell_counted(&self) {
        self.engine.handle().tell(ShardMessage::SendOwed);
        if let Some(Found::Counters(counted)) = self.engine.inspect(Question::Counters) {
            self.tell(&FromEngine::Counted(counted));
        }
    }

    /// Ends the sessions and the engine. Nothing that a session asks of the daemon from now on is
    /// answered.
    pub fn end(&self) {
        self.upstream.give_up();
        // Its sockets first: a daemon that follows one that is dead wants the port.
        let network = Change { addresses: Vec::new(), ..self.upstream.network_now().change() };
        self.engine.handle().tell(ShardMessage::Network(network));
        let _ = self.service.stop.wake();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while self.sessions() > 0 && Instant::now() < deadline {
            let _ = self.wait(None, Duration::from_millis(50));
        }
        self.tell_counted();
        self.engine.stop();
        // A forked child of the program may have a copy.
        let _ = rustix::net::shutdown(self.upstream.socket(), rustix::net::Shutdown::Both);
    }
}

/// The clients that were handed over.
struct Clients {
    given: u32,
    /// When a session was seen last, a client came, or it was told that all are gone.
    last_here: Instant,
}

impl Clients {
    fn new() -> Self {
        Self { given: 0, last_here: Instant::now() }
    }

    /// How many there were, when all have been gone for some time.
    fn are_gone(&mut self, sessions: usize, now: Instant) -> Option<u32> {
        if sessions > 0 {
            self.last_here = now;
        }
        if now < self.deadline() {
            return None;
        }
        self.last_here = now;
        Some(self.given)
    }

    fn deadline(&self) -> Instant {
        self.last_here + LINGER
    }
}

/// How long a satellite stays after its last client: programs often come one after the other.
const LINGER: Duration = Duration::from_secs(2);
/// Messages between two looks at the sessions.
const MESSAGES_AT_ONCE: usize = 32;
/// How long sessions may take to end: one may wait for a neighbour that does not answer, or for an
/// engine that its own memory keeps.
const DRAIN_PATIENCE: Duration = Duration::from_millis(300);
/// A question needs no more.
const STACK: usize = 256 * 1024;
