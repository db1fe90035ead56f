//! One direction of a connection: a requester's random walk and what its responder must see.

use crate::area::Area;
use crate::lent::{self, Lent};
use crate::message::{INLINE, Message, Payload, Taste, Verb};
use crate::receives::Receives;
use crate::trouble::Trouble;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AccessFlags, SendFlags, WcOpcode, WcStatus};
use rnic_abi::wqe::Sge;
use rnic_core::time::Instant;
use rnic_sim::host::SPACE;
use rnic_sim::pair::End;
use rnic_sim::rng::Rng;
use rnic_sim::srq::SrqId;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::World;
use std::collections::VecDeque;

/// Most messages in flight.
pub(crate) const DEPTH: usize = 16;
/// Bytes of the longest message.
pub(crate) const MAX_LEN: u64 = 16_000;

/// The word of a host that every flow to it adds to.
#[derive(Debug)]
pub(crate) struct SharedWord {
    pub(crate) area: Area,
    /// What each add returned, and what it added.
    pub(crate) adds: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) rng: Rng,
    mtu: u64,
    pub(crate) max_len: u64,
    taste: Taste,
    pub(crate) total: u64,
    pub(crate) next: u64,
    pub(crate) in_flight: VecDeque<Message>,
    free: Vec<usize>,
    unsignaled: u32,
    /// Requester: what is sent and where fetched data goes.
    pub(crate) source: Area,
    pub(crate) sink: Area,
    /// Responder: where WRITEs go, what READs fetch, the atomic word.
    pub(crate) target: Area,
    pub(crate) store: Area,
    pub(crate) word: Area,
    word_value: u64,
    /// Responder: what only windows open.
    pub(crate) lent: Option<Lent>,
    /// Responder: its receives. Of XRC there is another queue, for SENDs only, whose protection
    /// domain is another one.
    pub(crate) queues: Vec<Receives>,
    receive_delay: u64,
    /// Messages with a receive completion to come, and their payload.
    expected: VecDeque<(Message, Vec<u8>)>,
    /// The last message that the responder received, and the last of those with a receive
    /// completion that the requester was told is complete.
    pub(crate) received: Option<u64>,
    pub(crate) told: Option<u64>,
    /// Messages to the second queue.
    pub(crate) named: u64,
    /// Receives that completed.
    pub(crate) taken: u64,
    pub(crate) trouble: Trouble,
}

/// How much a flow sends, and of what; how many receives are posted, and how late again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    pub(crate) taste: Taste,
    pub(crate) receives: usize,
    pub(crate) receive_delay: u64,
    /// The responder's end that binds windows, if it lends memory.
    pub(crate) lends: Option<End>,
    /// The responder's domain, of XRC.
    pub(crate) xrcd: Option<u32>,
    /// The shared queue of the responder's receives, if they are not its own, and its protection
    /// domain.
    pub(crate) shared: Option<(SrqId, u32)>,
}

impl Flow {
    pub(crate) fn new(
        world: &mut World,
        (from, to): (End, End),
        mut rng: Rng,
        mtu: u32,
        amount: Amount,
    ) -> Self {
        let mtu = u64::from(mtu);
        let max_len = (mtu * 12).min(MAX_LEN);
        let local = AccessFlags::LOCAL_WRITE;
        let remote_write = local | AccessFlags::REMOTE_WRITE;
        let slots = (DEPTH, max_len);
        // A receive buffer that peers can write is one whose data may not come inside a CQE.
        let reachable = if rng.chance(500_000) { remote_write } else { local };
        let receives = (amount.receives, max_len);
        let pd = amount.shared.map_or(to.pd, |(_, pd)| pd);
        let own = Receives::new(world, to, pd, receives, reachable);
        let mut queues = vec![own.of_queue(amount.shared.map(|(srq, _)| srq))];
        if let Some(xrcd) = amount.xrcd {
            let pd = world.host(to.host).alloc_pd();
            queues.push(Receives::new(world, to, pd, receives, local));
            let domains = [to.pd, pd].into_iter();
            queues = queues
                .into_iter()
                .zip(domains)
                .map(|(queue, pd)| queue.of_domain(world, to, pd, xrcd))
                .collect();
        }
        let kinds = lent::kinds(amount.xrcd.is_some());
        let new = |world: &mut World, end: End, slots, access| {
            Area::new(world, end.host, end.pd, slots, access)
        };
        Self {
            from,
            to,
            mtu,
            max_len,
            taste: amount.taste,
            total: amount.messages,
            next: 0,
            in_flight: VecDeque::new(),
            free: (0..DEPTH).collect(),
            unsignaled: 0,
            source: new(world, from, slots, AccessFlags::empty()),
            sink: new(world, from, slots, local),
            target: new(world, to, slots, remote_write | AccessFlags::FLUSH_GLOBAL),
            store: new(world, to, slots, AccessFlags::REMOTE_READ),
            word: new(world, to, (1, 8), local | AccessFlags::REMOTE_ATOMIC),
            word_value: 0,
            lent: amount.lends.map(|by| Lent::new(world, by, max_len, (kinds, &mut rng))),
            queues,
            receive_delay: amount.receive_delay,
            expected: VecDeque::new(),
            received: None,
            told: None,
            named: 0,
            taken: 0,
            trouble: Trouble::default(),
            rng,
        }
    }

    /// Everything was sent, received and acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        let is_quiet = self.expected.is_empty() && self.lent.as_ref().is_none_or(Lent::is_quiet);
        self.has_sent_all() && is_quiet || self.trouble.has_failed
    }

    /// Everything was sent and acknowledged.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.next == self.total && self.in_flight.iter().all(|message| !message.is_signaled())
    }

    /// Half of it was sent.
    pub(crate) fn is_halfway(&self) -> bool {
        self.next >= self.total / 2
    }

    /// There is something left to post, and room for it.
    pub(crate) fn can_post(&self) -> bool {
        let may = !self.trouble.has_failed && !self.trouble.holds;
        may && self.next < self.total && !self.free.is_empty()
    }

    /// A receive buffer that is posted only later.
    pub(crate) fn next_receive(&self) -> Option<Instant> {
        let next = self.queues.iter().filter_map(Receives::next).min();
        next.filter(|_| !self.trouble.has_failed)
    }

    /// Posts what there is room for.
    pub(crate) fn post(&mut self, world: &mut World, shared: &SharedWord) {
        if self.trouble.has_failed {
            self.post_too_late(world);
            return;
        }
        for queue in &mut self.queues {
            queue.post(world, self.to, &mut self.rng);
        }
        if self.next == self.total || self.trouble.holds || self.rng.chance(300_000) {
            return;
        }
        if let Some(lent) = &mut self.lent {
            lent.post(world, &mut self.rng);
        }
        let room = self.free.len();
        let burst = usize::try_from(1 + self.rng.below(6)).unwrap().min(room);
        let mut wrs = Vec::new();
        for _ in 0..burst {
            if self.next < self.total {
                wrs.push(self.prepare(world, shared));
            }
        }
        let host = world.host(self.from.host);
        host.post_sends(self.from.qp, &wrs).expect("room for all in flight");
        for message in self.in_flight.iter().rev().take(wrs.len()) {
            if message.payload != Payload::Sges {
                // The payload was taken; the application may use its buffer again.
                self.source.refill(world, message.slot, &mut self.rng);
            }
        }
    }

    /// The next message, its memory and what will come of it.
    fn prepare(&mut self, world: &mut World, shared: &SharedWord) -> SendWr {
        let slot = self.free.pop().expect("a slot per message in flight");
        let number = self.next;
        self.next += 1;
        let (mtu, max) = (self.mtu, self.max_len);
        let fresh = (number, slot, world.now());
        let mut message = Message::random(fresh, self.taste, &mut self.rng, (mtu, max));
        // The last one is signaled, and the queue never fills with unsignaled ones.
        if self.next == self.total || self.unsignaled == 6 {
            message.flags |= SendFlags::SIGNALED;
        }
        self.unsignaled = if message.is_signaled() { 0 } else { self.unsignaled + 1 };
        if self.queues.len() > 1 && message.verb == Verb::Send && self.rng.chance(500_000) {
            message.queue = 1;
            self.named += 1;
        }
        let wr = self.describe(world, shared, &mut message);
        let wr = self.queues[message.queue].address(wr);
        self.in_flight.push_back(message);
        wr
    }

    fn describe(
        &mut self,
        world: &mut World,
        shared: &SharedWord,
        message: &mut Message,
    ) -> SendWr {
        let (id, slot, len) = (message.number, message.slot, message.len);
        let cuts = 1 + usize::try_from(self.rng.below(5)).unwrap();
        let wr = match message.verb {
            Verb::Flush => {
                let len = self.rng.below(self.max_len);
                return flagged(SendWr::flush(id, self.target.remote(slot), len), message);
            }
            Verb::AtomicWrite => {
                let (data, sges) = self.payload(world, message, 1);
                self.target.refill(world, slot, &mut self.rng);
                self.target.expect(slot, &data);
                let wr = SendWr::atomic_write(id, sges[0], self.target.remote(slot));
                hand_over(wr, message, &data)
            }
            Verb::Send | Verb::Write => {
                let (data, sges) = self.payload(world, message, cuts);
                let wr = if message.verb == Verb::Write {
                    let remote = self.describe_target(world, message, &data);
                    SendWr::write(id, &sges, remote)
                } else {
                    self.describe_send(message, SendWr::send(id, &sges))
                };
                if message.consumes_receive() {
                    self.expected.push_back((message.clone(), data.clone()));
                }
                let wr = if let Some(imm) = message.imm { wr.with_imm(imm) } else { wr };
                hand_over(wr, message, &data)
            }
            Verb::Read => {
                let (remote, fetched) = self.describe_store(world, message);
                self.sink.refill(world, slot, &mut self.rng);
                message.fetched = Some(fetched);
                let sges = self.sink.sges(slot, len, cuts, &mut self.rng);
                SendWr::read(id, &sges, remote)
            }
            Verb::CmpSwap | Verb::FetchAdd | Verb::SharedAdd => {
                self.sink.refill(world, slot, &mut self.rng);
                self.describe_atomic(shared, message)
            }
        };
        debug_assert!(message.payload != Payload::Inline || len <= INLINE);
        flagged(wr, message)
    }

    /// What a SEND or WRITE carries: new bytes, or what an earlier READ or atomic fetches.
    fn payload(
        &mut self,
        world: &mut World,
        message: &mut Message,
        cuts: usize,
    ) -> (Vec<u8>, Vec<Sge>) {
        let forwards = message.may_forward() && self.rng.chance(700_000);
        let taken = |slot| self.in_flight.iter().any(|m| m.forwards == Some(slot));
        let fetches = |m: &&Message| m.fetched.is_some() && !taken(m.slot);
        let source = if forwards { self.in_flight.iter().rev().find(fetches) } else { None };
        if let Some(source) = source {
            message.len = message.len.min(source.len);
            message.forwards = Some(source.slot);
            let len = usize::try_from(message.len).unwrap();
            let data = source.fetched.as_ref().map_or(&[][..], |bytes| &bytes[..len]).to_vec();
            return (data, self.sink.sges(source.slot, message.len, cuts, &mut self.rng));
        }
        let (slot, len) = (message.slot, message.len);
        self.source.refill(world, slot, &mut self.rng);
        let data = self.source.expected(slot, len).to_vec();
        (data, self.source.sges(slot, len, cuts, &mut self.rng))
    }

    fn describe_atomic(&mut self, shared: &SharedWord, message: &mut Message) -> SendWr {
        let (id, old) = (message.number, self.word_value);
        let result = self.sink.sges(message.slot, 8, 1, &mut self.rng)[0];
        let operand = self.rng.word();
        match message.verb {
            Verb::CmpSwap => {
                let guess = if self.rng.chance(600_000) { old } else { !old };
                if guess == old {
                    self.word_value = operand;
                }
                message.fetched = Some(old.to_ne_bytes().to_vec());
                SendWr::cmp_swap(id, result, self.word.remote(0), guess, operand)
            }
            Verb::FetchAdd => {
                self.word_value = old.wrapping_add(operand);
                message.fetched = Some(old.to_ne_bytes().to_vec());
                SendWr::fetch_add(id, result, self.word.remote(0), operand)
            }
            _ => SendWr::fetch_add(id, result, shared.area.remote(0), shared_addend(id)),
        }
    }

    /// A completion of the requester's send queue.
    pub(crate) fn sent(&mut self, world: &mut World, shared: &mut SharedWord, cqe: &Cqe) {
        if cqe.status != WcStatus::Success {
            self.failed(world, cqe);
            return;
        }
        while let Some(message) = self.in_flight.pop_front() {
            let number = message.number;
            if message.number == cqe.wr_id {
                let wanted = if message.fetched.is_some() { message.len } else { 8 };
                let sends = matches!(message.verb, Verb::Send | Verb::Write | Verb::Flush);
                let fetches = !sends;
                if fetches && u64::from(cqe.byte_len) != wanted {
                    world.fail(&format!("{message:?} completed with {cqe:?}"));
                }
            }
            self.finish(world, shared, message);
            if number == cqe.wr_id {
                return;
            }
        }
        world.fail(&format!("no message has the number of {cqe:?}"));
    }

    /// A message is complete: its effect is there, and nothing else.
    fn finish(&mut self, world: &mut World, shared: &mut SharedWord, message: Message) {
        let (slot, len) = (message.slot, message.len);
        let (from, to) = (self.from.host, self.to.host);
        let what = || format!("{from} to {to}, {message:?}");
        if message.consumes_receive() {
            self.told = Some(message.number);
        }
        match message.verb {
            // All that was written before was just looked at.
            Verb::Send | Verb::Flush => {}
            Verb::AtomicWrite => self.target.check(world, slot, what),
            Verb::Write => {
                let (area, slot) = self.written_by(&message);
                area.check(world, slot, what);
                let end = area.end(slot, len);
                world.host(self.to.host).memory.stop_polling(SPACE, end);
            }
            Verb::Read | Verb::CmpSwap | Verb::FetchAdd => {
                self.sink.expect(slot, message.fetched.as_deref().unwrap_or_default());
                self.sink.check(world, slot, what);
            }
            Verb::SharedAdd => {
                let at = self.sink.end(slot, 0);
                let bytes = world.host(self.from.host).bytes(at, 8).to_vec();
                self.sink.expect(slot, &bytes);
                self.sink.check(world, slot, what);
                let old = u64::from_ne_bytes(bytes.try_into().unwrap());
                shared.adds.push((old, shared_addend(message.number)));
            }
        }
        if let (Some(lent), Some(pane)) = (&mut self.lent, message.pane) {
            lent.give_back(pane);
        }
        // Memory that a later request still sends from is not used again before that is complete.
        if !self.in_flight.iter().any(|later| later.forwards == Some(slot)) {
            self.free.push(slot);
        }
        self.free.extend(message.forwards);
    }

    /// A completion of the responder's receive queue.
    pub(crate) fn received(&mut self, world: &mut World, cqe: &Cqe) {
        if cqe.status != WcStatus::Success {
            self.failed(world, cqe);
            return;
        }
        let Some((message, data)) = self.expected.pop_front() else {
            world.fail(&format!("a message too many: {cqe:?}"))
        };
        self.received = Some(message.number);
        self.taken += 1;
        let queue = &mut self.queues[message.queue];
        let Some(Some(slot)) = queue.posted.pop_front() else { return };
        let opcode = match message.verb {
            Verb::Write => WcOpcode::RecvWriteImm,
            _ => WcOpcode::Recv,
        };
        let solicited = message.flags.contains(SendFlags::SOLICITED);
        let right = cqe.opcode == opcode
            && cqe.wr_id == slot as u64
            && u64::from(cqe.byte_len) == message.len
            && cqe.flags.contains(CqeFlags::IMM) == message.imm.is_some()
            && cqe.flags.contains(CqeFlags::SOLICITED) == solicited
            && cqe.flags.contains(CqeFlags::INV) == message.ends.is_some()
            && message
                .imm
                .or(message.ends.map(|ends| ends.1))
                .is_none_or(|it| it == cqe.imm_or_key);
        if !right {
            world.fail(&format!("{message:?} was received as {cqe:?} in buffer {slot}"));
        }
        if message.verb == Verb::Send {
            queue.buffers.expect(slot, &data);
        }
        let (from, to) = (self.from.host, self.to.host);
        let what = || format!("{from} to {to}, received {message:?}");
        queue.buffers.check(world, slot, what);
        self.check_earlier_writes(world, message.number);
        if let (Some(lent), Some((pane, _))) = (&mut self.lent, message.ends) {
            lent.ended_by_peer(world, pane);
        }
        let later = self.rng.below(self.receive_delay);
        self.queues[message.queue].post_later(world.now().after_nanos(later), slot);
    }

    /// What was written before a message is in place when the message is received.
    fn check_earlier_writes(&self, world: &mut World, number: u64) {
        for write in &self.in_flight {
            let writes = matches!(write.verb, Verb::Write | Verb::AtomicWrite);
            let earlier = write.number <= number && writes;
            let (area, slot) = self.written_by(write);
            if earlier && !area.holds(world, slot, write.len) {
                world.fail(&format!("message {number} overtook the data of {write:?}"));
            }
        }
    }

    fn failed(&mut self, world: &mut World, cqe: &Cqe) {
        self.trouble.has_failed = true;
        if !self.trouble.allows(cqe.status, cqe.flags.contains(CqeFlags::RECV)) {
            world.fail(&format!("unexpected {cqe:?}, {:?}", self.trouble));
        }
    }

    /// At the end every byte of every slot is what it must be.
    pub(crate) fn check_all(&self, world: &mut World) {
        let what = format!("{} to {} at the end", self.from.host, self.to.host);
        let lent = self.lent.iter().map(|lent| &lent.area);
        let buffers = self.queues.iter().map(|queue| &queue.buffers);
        let areas = [&self.source, &self.sink, &self.target, &self.store];
        for area in areas.into_iter().chain(buffers).chain(lent) {
            area.check_all(world, || what.clone());
        }
        let word = world.host(self.to.host).bytes(self.word.end(0, 0), 8).to_vec();
        if word != self.word_value.to_ne_bytes() {
            world.fail(&format!("{what}: the atomic word is {word:02x?}"));
        }
    }
}

/// Signaled or not, and with its other flags.
fn flagged(wr: SendWr, message: &Message) -> SendWr {
    let wr = if message.is_signaled() { wr } else { wr.unsignaled() };
    wr.flags(message.flags)
}

/// With its payload where it is to be.
fn hand_over(wr: SendWr, message: &Message, data: &[u8]) -> SendWr {
    match message.payload {
        Payload::Sges => wr,
        Payload::Inline => wr.inline(data),
        Payload::Carried => wr.carried(),
    }
}

/// What message `number` adds to the shared word: never 0.
fn shared_addend(number: u64) -> u64 {
    number + 1
}
