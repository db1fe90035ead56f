//! A wire between vectors, and application memory that is one vector.

use rnic_core::ports::{
    ArenaId, Dma, DmaFault, MemRange, Range, RxIpId, RxTrain, SpaceId, TxIpId, TxSlot, TxTrain,
    Wire, WireCaps,
};
use roce_wire::{Datagram, Flow, Opcode, Psn};
use std::collections::VecDeque;

/// One datagram on its way.
#[derive(Clone, Debug)]
pub struct Packet {
    pub flow: Flow,
    pub ip_id: u16,
    pub bytes: Vec<u8>,
}

impl Packet {
    pub fn view(&self) -> Datagram<'_> {
        Datagram::parse(&self.bytes).expect("the engine sent something malformed")
    }

    pub fn opcode(&self) -> Opcode {
        self.view().opcode()
    }

    pub fn psn(&self) -> Psn {
        self.view().bth().psn
    }

    /// AETH syndrome byte and MSN.
    pub fn aeth(&self) -> (u8, u32) {
        let aeth = self.view().aeth().expect("no AETH");
        (aeth.syndrome.to_u8(), aeth.msn.value())
    }
}

pub struct HeapWire {
    pub inbox: VecDeque<Packet>,
    pub outbox: VecDeque<Packet>,
    rx: Vec<u8>,
    tx: Vec<u8>,
    reserved: Vec<(TxTrain, TxSlot)>,
    used: u32,
}

const TX_ARENA: usize = 1 << 20;

impl HeapWire {
    pub fn new() -> Self {
        Self {
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            rx: Vec::new(),
            tx: vec![0xee; TX_ARENA],
            reserved: Vec::new(),
            used: 0,
        }
    }
}

impl Wire for HeapWire {
    fn caps(&self) -> WireCaps {
        let tx_ip_id = TxIpId::Ours;
        WireCaps { max_datagram: 4200, max_segments: 64, max_train: 65_000, tx_ip_id }
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        self.rx.clear();
        while trains.len() < trains.capacity() {
            let Some(packet) = self.inbox.pop_front() else { break };
            let range = Range { offset: self.rx.len() as u32, len: packet.bytes.len() as u32 };
            self.rx.extend(&packet.bytes);
            trains.push(RxTrain {
                flow: packet.flow,
                arena: ArenaId(0),
                range,
                segment_len: range.len,
                ip_id: RxIpId::Seen(packet.ip_id),
                is_internal: false,
            });
        }
    }

    fn rx(&self, _arena: ArenaId) -> &[u8] {
        &self.rx
    }

    fn release(&mut self) {}

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        assert!(train.segments >= 1 && train.segments <= self.caps().max_segments);
        assert!(train.last_len <= train.segment_len);
        assert!(train.segment_len <= self.caps().max_datagram);
        let bytes = train.segments * train.segment_len;
        if (self.used + bytes) as usize > TX_ARENA {
            return None;
        }
        let stride = train.segment_len;
        let slot = TxSlot { arena: ArenaId(0), offset: self.used, stride, is_internal: false };
        self.used += bytes;
        self.reserved.push((*train, slot));
        Some(slot)
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let at = self.reserved.iter().position(|(_, s)| s == slot).expect("no such train");
        self.reserved.truncate(at);
        self.used = slot.offset;
    }

    fn tx(&mut self, _arena: ArenaId) -> &mut [u8] {
        &mut self.tx
    }

    fn submit(&mut self) {
        for (train, slot) in self.reserved.drain(..) {
            for k in 0..train.segments {
                let start = (slot.offset + k * slot.stride) as usize;
                let last = k + 1 == train.segments;
                let len = if last { train.last_len } else { train.segment_len };
                let bytes = self.tx[start..start + len as usize].to_vec();
                let ip_id = train.ip_id.wrapping_add(k as u16);
                self.outbox.push_back(Packet { flow: train.flow, ip_id, bytes });
            }
        }
        self.used = 0;
    }
}

/// One address space.
pub struct HeapDma {
    pub space: SpaceId,
    pub base: u64,
    pub bytes: Vec<u8>,
    pub reads: usize,
    pub writes: usize,
    /// It can be copied from.
    pub lends: bool,
    pub copies: usize,
}

impl HeapDma {
    pub fn new(space: SpaceId, base: u64, len: usize) -> Self {
        Self { space, base, bytes: vec![0; len], reads: 0, writes: 0, lends: false, copies: 0 }
    }

    /// The places of bytes, one by one, up to a fault.
    fn places<'a>(&'a self, ranges: &'a [MemRange]) -> impl Iterator<Item = Option<usize>> + 'a {
        ranges.iter().flat_map(move |range| {
            (range.addr..range.addr + u64::from(range.len)).map(move |addr| {
                let place = addr.checked_sub(self.base)? as usize;
                (place < self.bytes.len()).then_some(place)
            })
        })
    }
}

fn arena_places(ranges: &[Range]) -> impl Iterator<Item = usize> + '_ {
    ranges.iter().flat_map(|range| range.offset as usize..(range.offset + range.len) as usize)
}

impl Dma for HeapDma {
    fn read(
        &mut self,
        space: SpaceId,
        from: &[MemRange],
        arena: &mut [u8],
        to: &[Range],
    ) -> Result<(), DmaFault> {
        assert_eq!(space, self.space);
        self.reads += 1;
        for (done, (place, at)) in (0..).zip(self.places(from).zip(arena_places(to))) {
            arena[at] = self.bytes[place.ok_or(DmaFault { done })?];
        }
        Ok(())
    }

    fn write(
        &mut self,
        space: SpaceId,
        arena: &[u8],
        from: &[Range],
        to: &[MemRange],
        tails: &[u64],
    ) -> Result<(), DmaFault> {
        assert_eq!(space, self.space);
        let total: u64 = to.iter().map(|range| u64::from(range.len)).sum();
        assert_eq!(total, from.iter().map(|range| u64::from(range.len)).sum::<u64>());
        assert!(tails.is_sorted() && tails.iter().all(|tail| *tail < total));
        self.writes += 1;
        let places: Vec<_> = self.places(to).collect();
        for (done, (place, at)) in (0..).zip(places.into_iter().zip(arena_places(from))) {
            self.bytes[place.ok_or(DmaFault { done })?] = arena[at];
        }
        Ok(())
    }

    fn copies_from(&self, space: SpaceId, from: MemRange) -> bool {
        self.lends && space == self.space && self.places(&[from]).all(|place| place.is_some())
    }

    fn copy(
        &mut self,
        source: SpaceId,
        from: &[MemRange],
        target: SpaceId,
        to: &[MemRange],
        _tails: &[u64],
    ) -> Result<(), DmaFault> {
        assert_eq!((source, target), (self.space, self.space));
        self.copies += 1;
        let pairs: Vec<_> = self.places(from).zip(self.places(to)).collect();
        for (done, (from, to)) in (0..).zip(pairs) {
            let from = from.expect("the engine asked whether it can be copied from");
            self.bytes[to.ok_or(DmaFault { done })?] = self.bytes[from];
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        space: SpaceId,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        assert_eq!(space, self.space);
        let range = [MemRange { addr, len: 8 }];
        let places: Option<Vec<usize>> = self.places(&range).collect();
        let start = places.ok_or(DmaFault { done: 0 })?[0];
        let bytes: [u8; 8] = self.bytes[start..start + 8].try_into().unwrap();
        let old = u64::from_ne_bytes(bytes);
        self.bytes[start..start + 8].copy_from_slice(&update(old).to_ne_bytes());
        Ok(old)
    }
}
