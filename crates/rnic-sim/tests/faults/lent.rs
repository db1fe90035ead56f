//! Memory that a responder lends by windows and takes back, again and again. It is registered for
//! that only, and DMA there is a violation unless a window is bound: from when the bind is posted
//! until the program hears that it ended.

use crate::area::Area;
use crate::flow::Flow;
use crate::message::{Message, Verb};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{AccessFlags, SendFlags, WcOpcode, WcStatus};
use rnic_core::command::WindowType;
use rnic_sim::host::SPACE;
use rnic_sim::pair::End;
use rnic_sim::rng::Rng;
use rnic_sim::verbs::{Remote, SendWr};
use rnic_sim::windows::Mw;
use rnic_sim::world::World;

/// Windows of a flow.
const PANES: usize = 4;
/// Set in the `wr_id` of binds and invalidations.
pub(crate) const LOCAL: u64 = 1 << 42;

/// Types of windows to draw from. A target of XRC binds none, and those of type 2 let only the
/// queue pair through that bound them.
pub(crate) fn kinds(xrc: bool) -> &'static [WindowType] {
    use WindowType::{One, Two};
    if xrc { &[One] } else { &[One, Two, Two] }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Free,
    Binding,
    Bound,
    Ending,
}

/// A window and the slot that it opens.
#[derive(Debug)]
struct Pane {
    mw: Mw,
    kind: WindowType,
    is_zero_based: bool,
    life: Life,
    /// A message uses it.
    is_used: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) area: Area,
    /// The end whose queue pair binds.
    pub(crate) by: End,
    size: u64,
    panes: Vec<Pane>,
    /// Windows that ended.
    pub(crate) ended: u64,
}

impl Lent {
    pub(crate) fn new(
        world: &mut World,
        by: End,
        size: u64,
        (kinds, rng): (&[WindowType], &mut Rng),
    ) -> Self {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let area = Area::new(world, by.host, by.pd, (PANES, size), access);
        let mr = area.mr();
        let host = world.host(by.host);
        host.memory.deregister(SPACE, mr.addr, mr.len);
        let mut pane = || {
            let kind = rng.pick(kinds);
            let mw = host.alloc_mw(by.pd, kind);
            Pane { mw, kind, is_zero_based: false, life: Life::Free, is_used: false }
        };
        let panes = (0..PANES).map(|_| pane()).collect();
        Self { area, by, size, panes, ended: 0 }
    }

    /// Nothing is posted that must still complete.
    pub(crate) fn is_quiet(&self) -> bool {
        self.panes.iter().all(|pane| matches!(pane.life, Life::Free | Life::Bound))
    }

    /// Binds some windows, and ends some that no message uses.
    pub(crate) fn post(&mut self, world: &mut World, rng: &mut Rng) {
        for at in 0..PANES {
            let pane = &self.panes[at];
            if pane.is_used || !rng.chance(200_000) {
                continue;
            }
            let wr = match (pane.life, pane.kind) {
                (Life::Free, _) => self.bind(world, at, rng),
                (Life::Bound, WindowType::One) => {
                    self.panes[at].life = Life::Ending;
                    SendWr::unbind(LOCAL | at as u64, self.panes[at].mw.next_key())
                }
                (Life::Bound, WindowType::Two) => {
                    self.panes[at].life = Life::Ending;
                    SendWr::local_inv(LOCAL | at as u64, self.panes[at].mw.rkey)
                }
                _ => continue,
            };
            let fenced = if rng.chance(200_000) { SendFlags::FENCE } else { SendFlags::empty() };
            let host = world.host(self.by.host);
            host.post_send(self.by.qp, &wr.flags(fenced)).expect("room for all in flight");
        }
    }

    fn bind(&mut self, world: &mut World, at: usize, rng: &mut Rng) -> SendWr {
        let start = self.area.remote(at).addr;
        let memory = &mut world.host(self.by.host).memory;
        memory.register(SPACE, start, self.size, AccessFlags::LOCAL_WRITE);
        let pane = &mut self.panes[at];
        pane.life = Life::Binding;
        pane.mw.rkey = pane.mw.next_key();
        pane.is_zero_based = pane.kind == WindowType::Two && rng.chance(500_000);
        let mut access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        access.set(AccessFlags::ZERO_BASED, pane.is_zero_based);
        let mr = self.area.mr();
        SendWr::bind(LOCAL | at as u64, pane.mw.rkey, (&mr, start - mr.addr, self.size), access)
    }

    /// A bind or invalidation completes.
    pub(crate) fn done(&mut self, world: &mut World, cqe: &Cqe) {
        let at = usize::try_from(cqe.wr_id - LOCAL).expect("a small number");
        let Pane { life, kind, .. } = self.panes[at];
        let opcode = match (life, kind) {
            (Life::Ending, WindowType::Two) => WcOpcode::LocalInv,
            _ => WcOpcode::BindMw,
        };
        if cqe.status != WcStatus::Success || cqe.opcode != opcode {
            world.fail(&format!("a window that is {life:?}: {cqe:?}"));
        }
        match life {
            Life::Binding => self.panes[at].life = Life::Bound,
            _ => self.end(world, at),
        }
    }

    /// The program knows that a window has ended: nothing may touch the memory any more.
    fn end(&mut self, world: &mut World, at: usize) {
        self.panes[at].life = Life::Free;
        self.ended += 1;
        let start = self.area.remote(at).addr;
        world.host(self.by.host).memory.deregister(SPACE, start, self.size);
        self.area.check(world, at, || "memory that was lent".into());
    }

    /// A window for a message, if one is bound.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let is_ready = |pane: &Pane| pane.life == Life::Bound && !pane.is_used;
        let at = self.panes.iter().position(is_ready)?;
        self.panes[at].is_used = true;
        Some(at)
    }

    /// How the message names the memory.
    pub(crate) fn remote(&self, at: usize) -> Remote {
        let Pane { mw, is_zero_based, .. } = self.panes[at];
        let addr = if is_zero_based { 0 } else { self.area.remote(at).addr };
        Remote { addr, rkey: mw.rkey }
    }

    /// The message is complete.
    pub(crate) fn give_back(&mut self, at: usize) {
        self.panes[at].is_used = false;
    }

    /// The requester ends a window with the next SEND, also one that a message uses: its number
    /// and key.
    pub(crate) fn end_by_peer(&mut self) -> Option<(usize, u32)> {
        let may = |pane: &Pane| pane.life == Life::Bound && pane.kind == WindowType::Two;
        let at = self.panes.iter().position(may)?;
        self.panes[at].life = Life::Ending;
        Some((at, self.panes[at].mw.rkey))
    }

    /// The SEND that ended the window arrived.
    pub(crate) fn ended_by_peer(&mut self, world: &mut World, at: usize) {
        self.end(world, at);
    }
}

/// How messages use what is lent.
impl Flow {
    /// Lends the message a window, now and then.
    fn lend(&mut self, message: &mut Message) {
        if self.rng.chance(500_000) {
            message.pane = self.lent.as_mut().and_then(Lent::take);
        }
    }

    /// Where a WRITE leaves its data.
    pub(crate) fn written_by(&self, message: &Message) -> (&Area, usize) {
        match (&self.lent, message.pane) {
            (Some(lent), Some(pane)) => (&lent.area, pane),
            _ => (&self.target, message.slot),
        }
    }

    /// Prepares the memory that a WRITE changes.
    pub(crate) fn describe_target(
        &mut self,
        world: &mut World,
        message: &mut Message,
        data: &[u8],
    ) -> Remote {
        self.lend(message);
        let (area, slot) = match (&mut self.lent, message.pane) {
            (Some(lent), Some(pane)) => (&mut lent.area, pane),
            _ => (&mut self.target, message.slot),
        };
        area.refill(world, slot, &mut self.rng);
        area.expect(slot, data);
        if message.len > 0 {
            let end = area.end(slot, message.len);
            world.host(self.to.host).memory.poll_last_byte(SPACE, end);
        }
        self.remote_of(message, &self.target)
    }

    /// Prepares the memory that a READ fetches, and says what that is.
    pub(crate) fn describe_store(
        &mut self,
        world: &mut World,
        message: &mut Message,
    ) -> (Remote, Vec<u8>) {
        self.lend(message);
        let (area, slot) = match (&mut self.lent, message.pane) {
            (Some(lent), Some(pane)) => (&mut lent.area, pane),
            _ => (&mut self.store, message.slot),
        };
        area.refill(world, slot, &mut self.rng);
        let fetched = area.expected(slot, message.len).to_vec();
        (self.remote_of(message, &self.store), fetched)
    }

    fn remote_of(&self, message: &Message, otherwise: &Area) -> Remote {
        match (&self.lent, message.pane) {
            (Some(lent), Some(pane)) => lent.remote(pane),
            _ => otherwise.remote(message.slot),
        }
    }

    /// A SEND may end a window, behind what uses it.
    pub(crate) fn describe_send(&mut self, message: &mut Message, wr: SendWr) -> SendWr {
        let may = message.imm.is_none() && self.rng.chance(500_000);
        let Some(lent) = self.lent.as_mut().filter(|_| may) else { return wr };
        message.ends = lent.end_by_peer();
        let Some((pane, key)) = message.ends else { return wr };
        let reads = |m: &Message| m.pane == Some(pane) && m.verb == Verb::Read;
        if self.in_flight.iter().any(reads) {
            message.flags |= SendFlags::FENCE;
        }
        wr.invalidating(key)
    }
}
