//! The thread's loop.

use super::cpu_sharing::CpuSharing;
use super::driving::{Driven, KeepsOn, Policy, Watch};
use super::handle::Told;
use super::host::ClientEvents;
use super::idle::{Did, IdlePolicy, Next};
use super::message::Inbox;
use super::monotonic;
use super::nic::Nic;
use super::port::ShardPort;
use super::sleep::{Met, Sleep};
use super::tokens::Token;
use crate::dma::SystemDma;
use crate::observe::Watchers;
use crate::settings::Settings;
use rnic_abi::os::EventFd;
use rnic_core::{ClientId, Engine, EngineConfig, Instant, Turn};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// An engine with everything around it. See [`Held::run`](super::held::Held::run).
pub(super) struct Shard {
    pub(super) nic: Nic,
    pub(super) clients: HashMap<ClientId, Client>,
    pub(super) inbox: Inbox,
    pub(super) epoll: Arc<OwnedFd>,
    pub(super) idle: IdlePolicy,
    pub(super) cpu_sharing: CpuSharing,
    /// When the program that it is in may turn it.
    pub(super) driving: Option<Policy>,
    /// When the epoll set was asked last.
    looked: Instant,
    /// It was logged that the thread cannot wait.
    told: bool,
    pub(super) stopping: bool,
}

/// What the thread keeps of a client.
pub(super) struct Client {
    /// Written by the client when it rings while the engine sleeps.
    pub(super) wake: EventFd,
    /// In another scheduling group.
    pub(super) other_group: bool,
}

impl Shard {
    /// An engine on `wire`, fed by `inbox`, for the calling thread.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(super) fn new(
        engine: EngineConfig,
        wire: ShardPort,
        inbox: Inbox,
        settings: &Settings,
        driven: Option<Driven>,
    ) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let mut engine = Engine::new(engine, monotonic());
        let cpu_sharing = CpuSharing::new(settings.placement, &mut engine);
        let events = ClientEvents::new(Arc::clone(&epoll));
        let shard = Self {
            nic: Nic { engine, wire, dma: SystemDma::new(), events, watchers: Watchers::default() },
            clients: HashMap::new(),
            inbox,
            epoll,
            idle: IdlePolicy::new(settings),
            cpu_sharing,
            driving: driven.map(Policy::new),
            looked: Instant::ZERO,
            told: false,
            stopping: false,
        };
        shard.watch(shard.inbox.wake.as_fd(), Token::Messages)?;
        Ok(shard)
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let data = EventData::new_u64(token.encode());
        Ok(epoll::add(&*self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Makes a turn. Returns how to sleep if there is nothing to do; after that sleep the thread
    /// calls [`woke`](Self::woke) with its result.
    pub(super) fn step(&mut self) -> Option<Sleep> {
        let keeps_on = self.keeps_on();
        let told = self.handle_messages(keeps_on != KeepsOn::No);
        let keeps_on = match keeps_on {
            KeepsOn::No => false,
            KeepsOn::IfAsked => told == Told::Looks,
            KeepsOn::Yes => true,
        };
        let keeps_on = self.lets_rest(keeps_on, told == Told::Commands);
        if keeps_on {
            let now = monotonic();
            self.cpu_sharing.after_turn(now, &mut self.nic.engine);
            if let Some(watch) = self.is_driven(now, Did::Nothing) {
                return Some(self.sleep_watching(watch));
            }
            self.awake(false);
        }
        let owed = self.take_owed();
        let now = monotonic();
        let turn = self.turn(now);
        self.cpu_sharing.after_turn(now, &mut self.nic.engine);
        let others_go_on = self.nic.events.take_passed_on() || told != Told::Nothing;
        let did = match turn.worked || turn.more || owed {
            // A queue pair that was made or modified is visited, without anything to send.
            _ if others_go_on && !(turn.rang || turn.delivered() || turn.more || owed) => {
                Did::Commands
            }
            true => Did::Work,
            false => Did::Nothing,
        };
        if let Some(watch) = self.is_driven(now, did) {
            return Some(self.sleep_watching(watch));
        }
        let may_spin = self.cpu_sharing.may_spin();
        match self.idle.after_turn(now, did, may_spin) {
            Next::Sleep => self.prepare_sleep(now),
            Next::Turn => {
                self.look_around(now, did != Did::Nothing);
                None
            }
        }
    }

    fn sleep_watching(&self, watch: Watch) -> Sleep {
        Sleep::new(&[], &self.epoll, None).watching(watch)
    }

    /// A turn of the engine.
    pub(super) fn turn(&mut self, now: Instant) -> Turn {
        let arrived = self.nic.arrivals(now);
        let (arrived, now) = self.cpu_sharing.after_arrivals(now, arrived, &mut self.nic);
        let departed = self.nic.departures(now);
        self.cpu_sharing.after_departures(departed, &mut self.nic);
        arrived.and(departed)
    }

    /// `None` when something happened meanwhile.
    fn prepare_sleep(&mut self, now: Instant) -> Option<Sleep> {
        let may = self.nic.engine.prepare_sleep() && self.nic.wire.prepare_sleep();
        if may && self.inbox.receiver.is_empty() {
            return Some(Sleep::new(&self.nic.wire.fds(), &self.epoll, self.timeout(now)));
        }
        self.awake(false);
        None
    }

    /// The sleep is over.
    pub(super) fn woke(&mut self, met: rustix::io::Result<Met>) {
        self.awake(met.is_ok_and(|met| met.wire));
        self.nic.events.send_kept();
        let handled =
            met.and_then(|met| if met.epoll { self.handle_ready(monotonic()) } else { Ok(()) });
        if let Err(error) = handled {
            self.cannot_wait(&error);
        }
    }

    pub(super) fn awake(&mut self, by_wire: bool) {
        self.nic.engine.awake();
        self.nic.wire.awake(by_wire);
    }

    /// A user may have forbidden its engine process to wait for as many descriptors as it has.
    #[cold]
    fn cannot_wait(&mut self, error: &Errno) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::error!("waiting for events: {error}");
        }
        // Or it would take a CPU of its own.
        std::thread::sleep(WITHOUT_EVENTS);
    }

    /// Takes what a sleep would have been woken by: a client that was silent for long rings by its
    /// eventfd only, and nothing else tells that a full event socket has room again. An engine that
    /// always has something to do, for others, would not hear of either until it sleeps.
    fn look_around(&mut self, now: Instant, worked: bool) {
        let every = if worked { LOOK_AT_WORK } else { LOOK_IDLE };
        let is_due = now >= self.looked.after(every);
        if !is_due || !(self.nic.engine.any_parked() || self.nic.events.any_full()) {
            return;
        }
        if let Err(error) = self.handle_ready(now) {
            tracing::error!("looking for events: {error}");
        }
        // After what it took, so that events without end leave time for work.
        self.looked = monotonic();
    }

    /// Handles what the epoll set tells.
    fn handle_ready(&mut self, now: Instant) -> rustix::io::Result<()> {
        let mut room = [MaybeUninit::<Event>::uninit(); MAX_READY];
        let epoll = Arc::clone(&self.epoll);
        let (ready, _) = epoll::wait(&*epoll, &mut room, Some(&Timespec::default()))?;
        for event in ready {
            self.handle_event(now, Token::decode(event.data.u64()));
        }
        Ok(())
    }

    /// How long the sleep may be; `None` is for ever.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let deadline = self.nic.engine.next_deadline().map(|deadline| deadline.since(now));
        let backlog = self.nic.wire.has_backlog().then_some(BACKLOG_PATIENCE);
        match (deadline, backlog) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn handle_event(&mut self, now: Instant, token: Option<Token>) {
        match token {
            Some(Token::Messages) => {
                let _ = self.inbox.wake.drain();
            }
            Some(Token::Client(client)) => {
                if let Some(known) = self.clients.get(&client) {
                    let _ = known.wake.drain();
                    self.nic.engine.client_rang(now, client);
                    self.note_ring();
                    self.cpu_sharing.note_wakeup();
                }
            }
            Some(token @ (Token::Events(_) | Token::Channel(..))) => {
                self.nic.events.writable(token)
            }
            None => {}
        }
    }
}

/// Most events handled in one go; a ready descriptor stays ready.
const MAX_READY: usize = 16;
/// How often an engine asks for events that has other things to do, which costs it a system call.
const LOOK_AT_WORK: Duration = Duration::from_micros(200);
/// And one that has nothing to do and does not sleep.
const LOOK_IDLE: Duration = Duration::from_micros(5);
/// How long a thread sleeps that cannot wait for events.
const WITHOUT_EVENTS: Duration = Duration::from_millis(1);
/// How soon to try again what the link did not take.
const BACKLOG_PATIENCE: Duration = Duration::from_micros(200);
