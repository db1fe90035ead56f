//! Slots of registered memory with known contents, so that every stray byte is noticed.

use rnic_abi::verbs::AccessFlags;
use rnic_abi::wqe::Sge;
use rnic_sim::rng::Rng;
use rnic_sim::verbs::{Mr, Remote};
use rnic_sim::world::{HostId, World};

/// Equal slots of one memory region, and what the application believes is in them.
#[derive(Debug)]
pub(crate) struct Area {
    host: HostId,
    mr: Mr,
    stride: u64,
    slots: Vec<Vec<u8>>,
}

/// Bytes in front of and behind the usable part of a slot.
pub(crate) const GUARD: u64 = 40;

impl Area {
    pub(crate) fn new(
        world: &mut World,
        host: HostId,
        pd: u32,
        (slots, size): (usize, u64),
        access: AccessFlags,
    ) -> Self {
        let stride = (size + 2 * GUARD).next_multiple_of(8);
        let mr = world.host(host).new_mr(pd, stride * slots as u64, access);
        let bytes = usize::try_from(stride).unwrap();
        Self { host, mr, stride, slots: vec![vec![0; bytes]; slots] }
    }

    /// The application fills a slot with new bytes.
    pub(crate) fn refill(&mut self, world: &mut World, slot: usize, rng: &mut Rng) {
        rng.fill(&mut self.slots[slot]);
        world.host(self.host).write_bytes(self.addr(slot), &self.slots[slot]);
    }

    fn addr(&self, slot: usize) -> u64 {
        self.mr.addr + slot as u64 * self.stride
    }

    pub(crate) fn host(&self) -> HostId {
        self.host
    }

    pub(crate) fn mr(&self) -> Mr {
        self.mr
    }

    /// One past the last byte of a message of `len` bytes in a slot.
    pub(crate) fn end(&self, slot: usize, len: u64) -> u64 {
        self.addr(slot) + GUARD + len
    }

    pub(crate) fn remote(&self, slot: usize) -> Remote {
        Remote { addr: self.addr(slot) + GUARD, rkey: self.mr.rkey }
    }

    /// SGEs for `len` bytes of the usable part, from its start on.
    pub(crate) fn sges(&self, slot: usize, len: u64, cuts: usize, rng: &mut Rng) -> Vec<Sge> {
        let mut at = self.addr(slot) + GUARD - self.mr.addr;
        let mut left = len;
        let mut sges = Vec::new();
        for cut in (0..cuts).rev() {
            let take = if cut == 0 { left } else { rng.below(left + 1) };
            sges.push(self.mr.sge(at, u32::try_from(take).unwrap()));
            at += take;
            left -= take;
        }
        sges
    }

    /// What the application believes is in the usable part.
    pub(crate) fn expected(&self, slot: usize, len: u64) -> &[u8] {
        let start = usize::try_from(GUARD).unwrap();
        &self.slots[slot][start..start + usize::try_from(len).unwrap()]
    }

    /// From now on the application believes that `data` is at the start of the usable part.
    pub(crate) fn expect(&mut self, slot: usize, data: &[u8]) {
        let start = usize::try_from(GUARD).unwrap();
        self.slots[slot][start..start + data.len()].copy_from_slice(data);
    }

    /// Compares a slot, guards included, with what is believed.
    pub(crate) fn check(&self, world: &mut World, slot: usize, what: impl FnOnce() -> String) {
        let actual = world.host(self.host).bytes(self.addr(slot), self.stride);
        let believed = &self.slots[slot];
        if actual == believed {
            return;
        }
        if let Some(at) = actual.iter().zip(believed).position(|(a, b)| a != b) {
            let wrong = actual.iter().zip(believed).filter(|(a, b)| a != b).count();
            world.fail(&format!(
                "{}: memory of host {} slot {slot} differs in {wrong} bytes, first at {} \
                 (the message starts at {GUARD})",
                what(),
                self.host,
                at
            ));
        }
    }

    /// Is the message in a slot what is believed, whatever the rest?
    pub(crate) fn holds(&self, world: &mut World, slot: usize, len: u64) -> bool {
        let actual = world.host(self.host).bytes(self.addr(slot) + GUARD, len);
        actual == self.expected(slot, len)
    }

    pub(crate) fn check_all(&self, world: &mut World, what: impl Fn() -> String) {
        for slot in 0..self.slots.len() {
            self.check(world, slot, &what);
        }
    }
}
