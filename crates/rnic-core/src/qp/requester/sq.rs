//! The send queue: WQEs copied out of shared memory once, validated, and kept until complete.
//!
//! ```text
//!        retired          acknowledged        cursor           fetched       producer
//! ... free |  to complete  |   in flight   |  to transmit  |  in ring only  |
//! ```
//! The copies live in a shadow ring of the queue's capacity, allocated at the first doorbell.

use crate::clients::Clients;
use crate::command::EngineQueue;
use crate::mr::MrTable;
use crate::transport::TransportRules;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::verbs::{AccessFlags, SendFlags, WcOpcode, WcStatus, WrOpcode};
use rnic_abi::words::{WORD, Words};
use rnic_abi::work_queue::{QueueShape, WorkConsumer};
use rnic_abi::wqe::{CONTROL_WORDS, SGE_WORDS, SendControl, Sge};
use roce_wire::{Feth, Psn};

/// Longest message, bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// What is left to do for a send WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Its packets are sent and acknowledged.
    Wire,
    /// The engine does it when its turn comes. It has no packets.
    Local,
    /// That is done.
    Done,
    /// It completes with this error once everything before it is complete.
    Fault(WcStatus),
}

/// A send WQE that has its place in the sequence of PSNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wr {
    pub(crate) control: SendControl,
    /// Message bytes.
    pub(crate) length: u32,
    /// First PSN.
    pub(crate) first: Psn,
    /// PSNs it uses; none when it was refused at once.
    pub(crate) packets: u32,
    /// It completes by a response of its own, not by an acknowledgement.
    responds: bool,
    pub(crate) work: Work,
}

impl Wr {
    /// One that cannot be understood.
    #[cold]
    fn broken(wr_id: u64, first: Psn) -> Self {
        Self {
            control: SendControl::new(WrOpcode::Send, SendFlags::empty(), wr_id),
            length: 0,
            first,
            packets: 0,
            responds: false,
            work: Work::Fault(malformed()),
        }
    }

    /// One past the last PSN.
    #[inline]
    pub(crate) fn end(&self) -> Psn {
        self.first.wrapping_add(self.packets)
    }

    /// Packets between its first and `psn`, which is not before it. Unsigned: a message of 2^31
    /// bytes may have 2^23 packets.
    #[inline]
    pub(crate) fn packet_of(&self, psn: Psn) -> u32 {
        psn.wrapping_sub(self.first.value()).value()
    }

    /// Completes by a response of its own, not by an acknowledgement.
    #[inline]
    pub(crate) fn is_read_or_atomic(&self) -> bool {
        self.responds
    }

    /// Completes by a READ response without data.
    pub(crate) fn is_answered_empty(&self) -> bool {
        matches!(self.control.opcode, WrOpcode::Flush | WrOpcode::AtomicWrite)
    }

    pub(crate) fn is_atomic(&self) -> bool {
        is_atomic(self.control.opcode)
    }
}

#[inline]
fn is_atomic(opcode: WrOpcode) -> bool {
    matches!(opcode, WrOpcode::CmpSwap | WrOpcode::FetchAdd)
}

/// What a WQE is checked against when it is fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchRules {
    pub(crate) transport: &'static TransportRules,
    pub(crate) pd: u32,
    pub(crate) max_sge: u32,
    pub(crate) mtu: u32,
}

/// The engine's side of a send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: WorkConsumer,
    /// None: nothing is ever posted, as with XRC targets.
    pub(crate) record: Option<RecordIndex>,
    /// Producer index as last seen.
    producer: u32,
    /// Oldest WQE whose completion is not written.
    pub(crate) retired: u32,
    wrs: Vec<Wr>,
    /// SGEs and data of the WQEs, `body_words` each.
    bodies: Vec<u64>,
    body_words: usize,
}

impl SendQueue {
    pub(crate) fn new(queue: EngineQueue) -> Self {
        Self::of(queue.ring, Some(queue.record))
    }

    /// One to which nothing can be posted. A ring of that shape always fits.
    pub(crate) fn none() -> Option<Self> {
        let shape = QueueShape { capacity: 1, stride: CONTROL_WORDS as u32 };
        let ring = WorkConsumer::new(Words::heap(shape.words()?), shape)?;
        Some(Self::of(ring, None))
    }

    fn of(ring: WorkConsumer, record: Option<RecordIndex>) -> Self {
        let body_words = ring.stride().saturating_sub(CONTROL_WORDS);
        Self {
            ring,
            record,
            producer: 0,
            retired: 0,
            wrs: Vec::new(),
            bodies: Vec::new(),
            body_words,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.producer = 0;
        self.retired = 0;
    }

    /// Reads the doorbell record.
    #[inline]
    pub(crate) fn refresh_producer(&mut self, clients: &Clients, client: u32) {
        if let Some(record) = self.record {
            self.producer = clients.producer(client, record);
        }
    }

    /// WQEs posted and not yet fetched. A producer index that cannot be honest posts nothing.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.available(self.producer).unwrap_or(0)
    }

    /// WQEs posted and not yet fetched, as the doorbell record says now.
    pub(crate) fn posted(&self, clients: &Clients, client: u32) -> u32 {
        let producer = self.record.map(|record| clients.producer(client, record));
        producer.and_then(|producer| self.ring.available(producer).ok()).unwrap_or(0)
    }

    /// The producer index is further ahead than the ring is long.
    #[inline]
    pub(crate) fn is_overrun(&self) -> bool {
        self.ring.available(self.producer).is_err()
    }

    /// WQEs that it holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Index of the next WQE to be fetched.
    #[inline]
    pub(crate) fn fetched(&self) -> u32 {
        self.ring.next_index()
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        (index & (self.ring.capacity() - 1)) as usize
    }

    /// A fetched WQE.
    #[inline]
    pub(crate) fn wr(&self, index: u32) -> &Wr {
        &self.wrs[self.slot(index)]
    }

    #[inline]
    pub(crate) fn wr_mut(&mut self, index: u32) -> &mut Wr {
        let slot = self.slot(index);
        &mut self.wrs[slot]
    }

    fn body(&self, index: u32) -> &[u64] {
        let start = self.slot(index) * self.body_words;
        &self.bodies[start..start + self.body_words]
    }

    /// The SGEs of a fetched WQE.
    #[inline]
    pub(crate) fn sges(&self, index: u32) -> impl Iterator<Item = Sge> + '_ {
        sges_of(&self.wr(index).control, self.body(index))
    }

    /// The parts of these SGEs that hold `len` bytes of the message, from `offset` on.
    #[inline]
    pub(crate) fn parts(
        &self,
        index: u32,
        offset: u32,
        len: u32,
    ) -> impl Iterator<Item = Sge> + '_ {
        let (mut skip, mut left) = (offset, len);
        let part = move |sge: Sge| {
            if left == 0 {
                return None;
            }
            let skipped = skip.min(sge.length);
            skip -= skipped;
            let length = left.min(sge.length - skipped);
            left -= length;
            Some(Sge { addr: sge.addr.wrapping_add(skipped.into()), length, ..sge })
        };
        self.sges(index).map_while(part).filter(|part| part.length > 0)
    }

    /// Copies inline or carried data of a fetched WQE, from `offset` on: where a packet begins, so
    /// a multiple of the path MTU.
    pub(crate) fn copy_data(&self, index: u32, offset: usize, out: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(WORD));
        let at = self.wr(index).control.data_at() - CONTROL_WORDS + offset / WORD;
        let words = self.body(index).get(at..).unwrap_or(&[]);
        for (bytes, word) in out.chunks_mut(WORD).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Copies the next WQE, validates the copy and gives it PSNs from `first` on. The ring must
    /// have one [`waiting`](Self::waiting).
    #[inline(always)]
    pub(crate) fn fetch(&mut self, rules: &FetchRules, mrs: &MrTable, first: Psn) -> &Wr {
        if self.wrs.is_empty() {
            self.make_room();
        }
        let mut words = [0; CONTROL_WORDS];
        let index = self.ring.fetch(&mut words);
        let slot = self.slot(index);
        let wr = match SendControl::decode(&words, self.ring.stride()) {
            Ok(control) => {
                let start = slot * self.body_words;
                let len = control.words() - CONTROL_WORDS;
                let body = &mut self.bodies[start..start + len];
                self.ring.copy(index, CONTROL_WORDS, body);
                admit(control, body, rules, mrs, first)
            }
            Err(_) => Wr::broken(words[1], first),
        };
        let place = &mut self.wrs[slot];
        *place = wr;
        place
    }

    #[cold]
    fn make_room(&mut self) {
        let capacity = self.ring.capacity() as usize;
        self.wrs = vec![Wr::broken(0, Psn::ZERO); capacity];
        self.bodies = vec![0; capacity * self.body_words];
    }

    /// WQEs below `retired` are complete: their slots may be used again.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.ring.release(self.retired);
    }

    /// Takes the next WQE of a QP in ERR: index, `wr_id`, opcode of its completion.
    pub(crate) fn flush_next(&mut self) -> Option<(u32, u64, WcOpcode)> {
        let index = self.retired;
        let (wr_id, opcode) = if index == self.fetched() {
            if self.waiting() == 0 {
                return None;
            }
            let mut words = [0; CONTROL_WORDS];
            self.ring.fetch(&mut words);
            (words[1], WcOpcode::Send)
        } else {
            let control = &self.wr(index).control;
            (control.wr_id, control.opcode.completion())
        };
        self.retired = index.wrapping_add(1);
        self.release();
        Some((index, wr_id, opcode))
    }
}

/// The SGEs of a WQE, which are the first words behind its control block.
#[inline]
fn sges_of<'a>(control: &SendControl, body: &'a [u64]) -> impl Iterator<Item = Sge> + use<'a> {
    let count = usize::from(control.num_sge);
    let (pairs, _) = body.as_chunks::<SGE_WORDS>();
    pairs.iter().take(count).map(|pair| Sge::decode(*pair))
}

/// Gives a WQE its place.
#[inline(always)]
fn admit(control: SendControl, body: &[u64], rules: &FetchRules, mrs: &MrTable, first: Psn) -> Wr {
    let responds = responds(control.opcode);
    let (length, packets, work) = match check(&control, body, rules, mrs) {
        Ok(_) if is_local(control.opcode) => (0, 0, Work::Local),
        // Rule: ReadPsns, EmptyMessagePsn
        Ok(length) => (length, length.div_ceil(rules.mtu.max(1)).max(1), Work::Wire),
        Err(status) => (0, 0, Work::Fault(status)),
    };
    Wr { control, length, first, packets, responds, work }
}

/// What the table of completion errors says about WQEs that cannot be executed; otherwise the bytes
/// of the message.
#[inline(always)]
fn check(
    control: &SendControl,
    body: &[u64],
    rules: &FetchRules,
    mrs: &MrTable,
) -> Result<u32, WcStatus> {
    if !rules.transport.allows(control.opcode) {
        return Err(WcStatus::LocQpOpErr);
    }
    let need = match control.opcode {
        WrOpcode::Send
        | WrOpcode::SendImm
        | WrOpcode::SendInv
        | WrOpcode::Write
        | WrOpcode::WriteImm => AccessFlags::empty(),
        _ => match check_other(control, body)? {
            Some(need) => need,
            None => return Ok(0),
        },
    };
    // Rule: MaxSge
    if u32::from(control.num_sge) > rules.max_sge {
        return Err(WcStatus::LocQpOpErr);
    }
    let length = length_of(control, body);
    // Rule: MaxMessage
    if length > MAX_MESSAGE {
        return Err(WcStatus::LocLenErr);
    }
    if control.carried && length != u64::from(control.data_len) {
        return Err(WcStatus::LocQpOpErr);
    }
    let is_word = || control.num_sge == 1 && length == 8;
    // Rule: AtomicSink
    if is_atomic(control.opcode) && !is_word() {
        return Err(WcStatus::LocLenErr);
    }
    // Rule: EmptySgeMeansNothing
    let means = |sge: &Sge| sge.length > 0;
    for sge in sges_of(control, body).filter(means) {
        mrs.check(sge.lkey, rules.pd, sge.addr, u64::from(sge.length), need)
            .map_err(|_| protection_error())?;
    }
    u32::try_from(length).map_err(|_| WcStatus::LocLenErr)
}

/// Bytes of the message.
#[inline]
fn length_of(control: &SendControl, body: &[u64]) -> u64 {
    if control.flags.contains(SendFlags::INLINE) {
        return control.data_len.into();
    }
    sges_of(control, body).map(|sge| u64::from(sge.length)).sum()
}

/// What WQEs need that are neither a SEND nor a WRITE: rights of the SGEs, or none where there are
/// none.
#[inline(never)]
fn check_other(control: &SendControl, body: &[u64]) -> Result<Option<AccessFlags>, WcStatus> {
    let inline = control.flags.contains(SendFlags::INLINE);
    match control.opcode {
        // Rule: LocalWorkHasNoData
        opcode if is_local(opcode) => {
            let has_data = inline || control.carried || control.num_sge > 0;
            if has_data { Err(malformed()) } else { Ok(None) }
        }
        WrOpcode::Flush => check_flush(control).map(|()| None),
        WrOpcode::AtomicWrite => {
            // Rule: AtomicWriteSource
            let fits = length_of(control, body) == 8;
            if fits { Ok(Some(AccessFlags::empty())) } else { Err(WcStatus::LocLenErr) }
        }
        // Rule: InlineSendsOnly
        _ if inline || control.carried => Err(WcStatus::LocQpOpErr),
        // Rule: SinkIsWritable
        _ => Ok(Some(AccessFlags::LOCAL_WRITE)),
    }
}

/// Nothing of it leaves.
fn is_local(opcode: WrOpcode) -> bool {
    matches!(opcode, WrOpcode::BindMw | WrOpcode::LocalInv)
}

/// Such requests complete by a response of their own.
#[inline]
fn responds(opcode: WrOpcode) -> bool {
    use WrOpcode::{AtomicWrite, CmpSwap, FetchAdd, Flush, Read};
    // Rule: FlushHoldsResource
    matches!(opcode, Read | CmpSwap | FetchAdd | Flush | AtomicWrite)
}

/// A FLUSH has no data, and is of a kind that exists. It has no length of its own.
fn check_flush(control: &SendControl) -> Result<(), WcStatus> {
    let feth = feth_of(control);
    // Rule: FlushRequest
    if control.num_sge > 0 || control.data_len > 0 || feth.is_none() {
        return Err(WcStatus::LocQpOpErr);
    }
    if control.compare_add > MAX_MESSAGE { Err(WcStatus::LocLenErr) } else { Ok(()) }
}

/// The header of a FLUSH: what it makes sure of, and of how much.
pub(crate) fn feth_of(control: &SendControl) -> Option<Feth> {
    let [placement, level, rest @ ..] = control.swap.to_le_bytes();
    let kinds = Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE;
    let exists = placement != 0 && placement & !kinds == 0 && level <= Feth::WHOLE_REGION;
    (exists && rest == [0; 6]).then(|| Feth::new(placement, level))
}

/// What a WQE fails with that cannot be understood.
fn malformed() -> WcStatus {
    // Rule: MalformedWqe
    WcStatus::LocQpOpErr
}

/// What an SGE fails with that its key does not allow.
fn protection_error() -> WcStatus {
    // Rule: LocalKeyStatus
    WcStatus::LocProtErr
}
