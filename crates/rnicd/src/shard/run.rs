//! The thread's loop.

use super::host::ClientEvents;
use super::idle::{IdlePolicy, Next};
use super::message::{CommandResult, Inbox, Message, NewClient};
use super::placement::{Placement, Polling, Posting};
use super::port::Port;
use super::tokens::Token;
use crate::config::Config;
use crate::dma::{Space, SystemDma};
use crate::inspect::{self, Found, Numbers, Question};
use crate::net::Change;
use crate::system::{self, User};
use rnic_abi::os::EventFd;
use rnic_core::command::{self, CommandError};
use rnic_core::ports::Ports;
use rnic_core::{ClientCommand, ClientId, Command, Engine, EngineConfig, Instant, Outcome, Turn};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// An engine with everything around it. See [`run`](Self::run).
pub(crate) struct Shard {
    pub(super) engine: Engine,
    wire: Port,
    dma: SystemDma,
    pub(super) events: ClientEvents,
    clients: HashMap<ClientId, Client>,
    inbox: Inbox,
    epoll: Arc<OwnedFd>,
    idle: IdlePolicy,
    placement: Placement,
    /// What an epoll told, until it is handled.
    ready: Vec<Event>,
    /// When it was asked last.
    looked: Instant,
    /// The user whose rights the thread has for the time being.
    acts_as: Option<User>,
    /// The thread may have other rights than that user.
    is_unfit: bool,
    stopping: bool,
    /// Something was delivered, and the program that shares the CPU has not run since.
    owes_way: bool,
    /// There was more to send than the last turn could.
    has_backlog: bool,
    gave_way: Instant,
    posting: Posting,
    polling: Polling,
}

/// What the thread keeps of a client.
struct Client {
    /// Written by the client when it rings while the engine sleeps.
    wake: EventFd,
    /// In another scheduling group.
    stranger: bool,
}

impl Shard {
    /// An engine on `wire`, fed by `inbox`, for the calling thread.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn new(
        engine: EngineConfig,
        wire: Port,
        inbox: Inbox,
        config: &Config,
    ) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let shard = Self {
            engine: Engine::new(engine, monotonic()),
            wire,
            dma: SystemDma::new(),
            events: ClientEvents::new(Arc::clone(&epoll)),
            clients: HashMap::new(),
            inbox,
            epoll,
            idle: IdlePolicy::new(config),
            placement: Placement::new(config.placement),
            ready: Vec::with_capacity(MAX_READY),
            looked: Instant::ZERO,
            acts_as: None,
            is_unfit: false,
            stopping: false,
            owes_way: false,
            has_backlog: false,
            posting: Posting::default(),
            polling: Polling::default(),
            gave_way: Instant::ZERO,
        };
        shard.watch(shard.inbox.wake.as_fd(), Token::Messages)?;
        Ok(shard)
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let data = EventData::new_u64(token.encode());
        Ok(epoll::add(&*self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Turns the engine until told to stop. Returns what it has counted.
    pub(crate) fn run(mut self) -> Numbers {
        while !self.stopping {
            self.step();
        }
        match self.inspect(Question::Counters) {
            Found::Numbers(counted) => counted,
            Found::Objects { .. } => Numbers::new(),
        }
    }

    /// A turn, and a sleep where there is nothing to do.
    pub(super) fn step(&mut self) {
        let told = self.handle_messages();
        let now = monotonic();
        let turn = self.turn(now);
        self.placement.after_turn(now, &mut self.engine);
        let worked = told || turn.worked || turn.more;
        let may_spin = self.placement.may_spin();
        match self.idle.after_turn(now, worked, may_spin) {
            Next::Sleep => self.sleep(now),
            Next::Turn => self.look_around(now, worked),
        }
    }

    /// A turn of the engine. Programs that share the CPU run as soon as something was delivered,
    /// and before anything is sent; in a stream not at once, but now and then. Those that post one
    /// request after the other also run when what they posted is sent.
    fn turn(&mut self, mut now: Instant) -> Turn {
        let mut turn = self.arrivals(now);
        self.owes_way |= turn.delivered();
        let streams = self.has_backlog && now < self.gave_way.after(STREAM);
        if self.owes_way && !streams && self.placement.hands_over() {
            self.look_for_data(now, &mut turn);
            now = self.let_take(now, &mut turn);
        }
        let departures = self.departures(now);
        self.has_backlog = departures.more;
        self.polling.conclude(departures.rang);
        let all_sent = departures.rang && !departures.more;
        let asks_for_more = self.posting.asks(all_sent, departures.rang);
        if (departures.delivered() || asks_for_more) && self.placement.hands_over() {
            self.give_way();
        }
        turn.and(departures)
    }

    /// A completion came without data. When an answer follows it on the wire, the program must see
    /// both at once: a client that spins on its receive buffer never yields.
    fn look_for_data(&mut self, mut now: Instant, turn: &mut Turn) {
        let patience = now.after(LINGER);
        while turn.completed && !turn.placed && self.wire.expects_more() && now < patience {
            let next = self.arrivals(now);
            *turn = turn.and(next);
            now = monotonic();
        }
    }

    /// Lets programs take what was delivered. Returns the time.
    fn let_take(&mut self, now: Instant, turn: &mut Turn) -> Instant {
        let only_completed = turn.completed && !turn.placed;
        if only_completed && !self.polling.asks() {
            self.owes_way = false;
            return now;
        }
        let back = self.give_way();
        if only_completed {
            self.polling.ran(now, back);
        }
        self.linger(back, turn)
    }

    /// Data came without the completion that a program which answers it may be waiting for. An ACK
    /// that left now would reach the peer before that answer and find its program looking at
    /// memory, where it never yields. Returns the time.
    fn linger(&mut self, mut now: Instant, turn: &mut Turn) -> Instant {
        let patience = now.after(LINGER);
        while turn.placed && !turn.completed && self.wire.expects_more() && now < patience {
            let next = self.arrivals(now);
            *turn = turn.and(next);
            now = if next.delivered() { self.give_way() } else { monotonic() };
        }
        now
    }

    /// Lets the program run that shares the CPU. Returns the time.
    fn give_way(&mut self) -> Instant {
        let before = monotonic();
        let mut now = before;
        // The program may owe the scheduler a slice more than the engine does, which then goes on
        // at once.
        for _ in 0..MAX_YIELDS {
            rustix::thread::sched_yield();
            let after = monotonic();
            let was_away = after.since(now) > AWAY;
            now = after;
            if was_away {
                break;
            }
        }
        self.placement.was_away(before, now, &mut self.engine);
        self.owes_way = false;
        self.gave_way = now;
        now
    }

    fn arrivals(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.events };
        self.engine.arrivals(now, &mut ports, &mut ())
    }

    fn departures(&mut self, now: Instant) -> Turn {
        let mut ports = Ports { wire: &mut self.wire, dma: &mut self.dma, host: &mut self.events };
        self.engine.departures(now, &mut ports, &mut ())
    }

    fn sleep(&mut self, now: Instant) {
        if self.engine.prepare_sleep() && self.inbox.receiver.is_empty() {
            let timeout = self.timeout(now);
            if let Err(error) = self.wait(timeout.as_ref()) {
                tracing::error!("waiting for events: {error}");
            }
        }
        self.engine.awake();
        let now = monotonic();
        self.handle_ready(now);
    }

    /// Takes what a sleep would have been woken by: a client that was silent for long rings by its
    /// eventfd only, and nothing else tells that a full event socket has room again. An engine that
    /// always has something to do, for others, would not hear of either until it sleeps.
    fn look_around(&mut self, now: Instant, worked: bool) {
        let every = if worked { LOOK_AT_WORK } else { LOOK_IDLE };
        let is_due = now >= self.looked.after(every);
        if !is_due || !(self.engine.any_parked() || self.events.any_full()) {
            return;
        }
        self.ready.clear();
        if let Err(error) = self.ask_epoll() {
            tracing::error!("looking for events: {error}");
        }
        self.handle_ready(now);
        // After what it took, so that events without end leave time for work.
        self.looked = monotonic();
    }

    fn handle_ready(&mut self, now: Instant) {
        let mut ready = std::mem::take(&mut self.ready);
        for event in ready.drain(..) {
            self.handle_event(now, Token::decode(event.data.u64()));
        }
        self.ready = ready;
    }

    /// What is ready now, into `ready`.
    fn ask_epoll(&mut self) -> rustix::io::Result<()> {
        let room = rustix::buffer::spare_capacity(&mut self.ready);
        epoll::wait(&*self.epoll, room, Some(&Timespec::default()))?;
        Ok(())
    }

    /// Waits for the wire or for an event, which is then in `ready`. The wire's descriptors are in
    /// no epoll set: there, every packet would make the kernel walk the wait queue,
    /// and over a virtual link the sender would pay for that.
    fn wait(&mut self, timeout: Option<&Timespec>) -> rustix::io::Result<()> {
        self.ready.clear();
        let wire = self.wire.fds();
        let all = wire.iter().copied().chain([self.epoll.as_fd()]);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match event::poll(&mut fds, timeout) {
            Err(Errno::INTR) => return Ok(()),
            result => result?,
        };
        if fds.last().is_some_and(|epoll| !epoll.revents().is_empty()) {
            self.ask_epoll()?;
        }
        Ok(())
    }

    /// How long the sleep may be; `None` is for ever.
    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let deadline = self.engine.next_deadline().map(|deadline| deadline.since(now));
        let backlog = self.wire.has_backlog().then_some(BACKLOG_PATIENCE);
        let wait = match (deadline, backlog) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    fn handle_event(&mut self, now: Instant, token: Option<Token>) {
        match token {
            Some(Token::Messages) => {
                let _ = self.inbox.wake.drain();
            }
            Some(Token::Client(client)) => {
                if let Some(known) = self.clients.get(&client) {
                    let _ = known.wake.drain();
                    self.engine.client_rang(now, client);
                    self.posting.woken();
                }
            }
            Some(token @ (Token::Events(_) | Token::Channel(..))) => self.events.writable(token),
            None => {}
        }
    }

    /// True when there were any.
    fn handle_messages(&mut self) -> bool {
        // The look is a load; the attempt would be a fence, every turn.
        if self.inbox.receiver.is_empty() {
            return false;
        }
        let mut any = false;
        // A flood of commands must not keep packets waiting.
        for _ in 0..MAX_MESSAGES {
            let Ok(message) = self.inbox.receiver.try_recv() else { break };
            // Nor must those who only look.
            let was_a_look = matches!(message, Message::Inspect(..));
            self.handle_message(message);
            any = true;
            if was_a_look {
                break;
            }
        }
        any
    }

    fn handle_message(&mut self, message: Message) {
        let now = monotonic();
        match message {
            Message::Execute(command, answer) => {
                let _ = answer.send(self.execute(now, command));
            }
            Message::AddClient(new, answer) => {
                let _ = answer.send(self.add_client(now, *new));
            }
            Message::RemoveClient(client, space, answer) => {
                let outcome = self.engine.execute(now, Command::RemoveClient { client });
                self.dma.remove(space);
                self.events.remove_client(client);
                if let Some(known) = self.clients.remove(&client) {
                    let _ = epoll::delete(&*self.epoll, known.wake.as_fd());
                }
                self.look_for_strangers();
                let _ = answer.send(outcome);
            }
            Message::AddSpace(id, space) => self.dma.insert(id, space),
            Message::RemoveSpace(id, answer) => {
                let _ = answer.send(self.dma.remove(id));
            }
            Message::AddChannel(client, channel, socket) => {
                self.events.add_channel(client, channel, socket);
            }
            Message::RemoveChannel(client, channel) => self.events.remove_channel(client, channel),
            Message::Network(Change { port, addresses, mtu }) => {
                self.as_root(|wire| wire.follow(&addresses, mtu));
                if let Err(error) = self.engine.execute(now, Command::SetPort(port)) {
                    tracing::error!("the engine refuses a port state: {}", error.reason);
                }
            }
            Message::ActAs(user) => {
                self.acts_as = Some(user);
                self.became(user, system::act_as(user));
            }
            Message::AddShard(number, branch, inlet) => {
                self.wire.add_shard(branch);
                self.events.add_inlet(number, inlet);
            }
            Message::EndShard(serial) => {
                self.wire.end_shard(serial);
                self.events.remove_inlet(serial);
            }
            Message::Inspect(question, answer) => {
                let _ = answer.send(self.inspect(question));
            }
            Message::Capture(tap) => self.wire.capture(tap),
            Message::Faults(change, answer) => {
                let _ = answer.send(self.wire.change_faults(change));
            }
            Message::Stop => self.stopping = true,
        }
    }

    /// Does something to the wire for which a user has no right.
    fn as_root(&mut self, act: impl FnOnce(&mut Port)) {
        let Some(user) = self.acts_as else { return act(&mut self.wire) };
        let changed = system::act_as_root();
        act(&mut self.wire);
        self.became(user, changed.and_then(|()| system::act_as(user)));
    }

    fn became(&mut self, user: User, result: io::Result<()>) {
        self.is_unfit = result.is_err();
        if let Err(error) = result {
            tracing::error!("an engine cannot act as user {}: {error}", user.0);
            // With more rights than its clients it must not touch their memory.
            self.dma = SystemDma::new();
        }
    }

    fn inspect(&mut self, question: Question) -> Found {
        let lost = self.events.lost_in_hand_over();
        inspect::answer(&self.engine, &self.dma, &mut self.wire, lost, question)
    }

    fn look_for_strangers(&mut self) {
        let strangers = self.clients.values().any(|client| client.stranger);
        self.placement.set_strangers(strangers, &mut self.engine);
    }

    fn execute(&mut self, now: Instant, command: Command) -> CommandResult {
        let destroyed_cq = match &command {
            Command::Client(client, ClientCommand::DestroyCq { cq }) => Some((*client, *cq)),
            _ => None,
        };
        let mut outcome = self.engine.execute(now, command)?;
        if let (Some((client, cq)), Outcome::CqGone { completion_events, .. }) =
            (destroyed_cq, &mut outcome)
        {
            // Those never arrive, so they cannot be acknowledged.
            *completion_events -= self.events.forget_cq(client, cq).min(*completion_events);
        }
        Ok(outcome)
    }

    fn add_client(&mut self, now: Instant, new: NewClient) -> CommandResult {
        if self.is_unfit {
            let reason = "the engine cannot act as the client's user";
            return Err(CommandError { errno: command::Errno::Perm, reason });
        }
        let NewClient { client, space, process, doorbells, wake, events, stranger } = new;
        let outcome = self.engine.execute(now, Command::AddClient { client, space, doorbells })?;
        if let Err(error) = self.watch(wake.as_fd(), Token::Client(client)) {
            tracing::error!("a client cannot wake its engine: {error}");
        }
        self.dma.insert(space, Space::Process(process));
        self.events.add_client(client, events);
        self.clients.insert(client, Client { wake, stranger });
        self.look_for_strangers();
        Ok(outcome)
    }
}

/// What completions are stamped with, in every engine: programs compare it with the clock that
/// `ibv_query_rt_values_ex` reads, which is this one.
fn monotonic() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Most messages between two turns.
const MAX_MESSAGES: usize = 16;
/// Most events handled in one go; a ready descriptor stays ready.
const MAX_READY: usize = 16;
/// How often an engine asks for events that has other things to do, which costs it a system call.
const LOOK_AT_WORK: Duration = Duration::from_micros(50);
/// And one that has nothing to do and does not sleep.
const LOOK_IDLE: Duration = Duration::from_micros(5);
const MAX_YIELDS: u32 = 3;
/// No other thread ran while a yield took less.
const AWAY: Duration = Duration::from_nanos(900);
/// How long an engine that has something to send keeps what it delivered to itself.
const STREAM: Duration = Duration::from_micros(100);
/// How much later than the other of two packets that were sent together one may come: a link
/// without trains carries the first all the way before it takes the second.
const LINGER: Duration = Duration::from_micros(4);
/// How soon to try again what the link did not take.
const BACKLOG_PATIENCE: Duration = Duration::from_micros(200);
