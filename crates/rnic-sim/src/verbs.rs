//! What a simulated application hands to its host: work requests and parameters.

use crate::datagrams::To;
use crate::srq::SrqId;
use rnic_abi::verbs::{AccessFlags, QpCaps, QpType, SendFlags, WrOpcode};
use rnic_abi::wqe::Sge;

/// A memory region of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// Engine's handle.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl Mr {
    /// An SGE of `len` bytes from `offset` on.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr + offset, length: len, lkey: self.lkey }
    }

    /// How a peer names the byte at `offset`.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.addr + offset, rkey: self.rkey }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// A completion queue of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqId(pub usize);

/// A queue pair of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QpId(pub usize);

/// A send work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// What to do.
    pub opcode: WrOpcode,
    /// Flags; `INLINE` is set by [`inline`](Self::inline).
    pub flags: SendFlags,
    /// Given back in the completion.
    pub wr_id: u64,
    /// Local memory.
    pub sges: Vec<Sge>,
    /// Payload inside the WQE.
    pub inline: Option<Vec<u8>>,
    /// The library copies the payload into the WQE, next to the SGEs.
    pub carried: bool,
    /// Immediate data, or the key to invalidate.
    pub imm: u32,
    /// Memory of the peer.
    pub remote: Remote,
    /// Where a datagram goes.
    pub to: Option<To>,
    /// XRC: number of the peer's shared receive queue.
    pub srqn: u32,
    /// Atomic compare or add.
    pub compare_add: u64,
    /// Atomic swap.
    pub swap: u64,
    /// Bind: key of the region.
    pub lkey: u32,
}

impl SendWr {
    pub(crate) fn new(opcode: WrOpcode, wr_id: u64, sges: &[Sge], remote: Remote) -> Self {
        Self {
            opcode,
            flags: SendFlags::SIGNALED,
            wr_id,
            sges: sges.to_vec(),
            inline: None,
            carried: false,
            imm: 0,
            remote,
            to: None,
            srqn: 0,
            compare_add: 0,
            swap: 0,
            lkey: 0,
        }
    }

    /// A signaled SEND.
    pub fn send(wr_id: u64, sges: &[Sge]) -> Self {
        Self::new(WrOpcode::Send, wr_id, sges, Remote { addr: 0, rkey: 0 })
    }

    /// As a datagram.
    #[must_use]
    pub fn to(mut self, to: To) -> Self {
        self.to = Some(to);
        self
    }

    /// A signaled RDMA WRITE.
    pub fn write(wr_id: u64, sges: &[Sge], to: Remote) -> Self {
        Self::new(WrOpcode::Write, wr_id, sges, to)
    }

    /// A signaled RDMA READ.
    pub fn read(wr_id: u64, sges: &[Sge], from: Remote) -> Self {
        Self::new(WrOpcode::Read, wr_id, sges, from)
    }

    /// A signaled compare and swap.
    pub fn cmp_swap(wr_id: u64, result: Sge, word: Remote, compare: u64, swap: u64) -> Self {
        let mut wr = Self::new(WrOpcode::CmpSwap, wr_id, &[result], word);
        (wr.compare_add, wr.swap) = (compare, swap);
        wr
    }

    /// A signaled fetch and add.
    pub fn fetch_add(wr_id: u64, result: Sge, word: Remote, add: u64) -> Self {
        let mut wr = Self::new(WrOpcode::FetchAdd, wr_id, &[result], word);
        wr.compare_add = add;
        wr
    }

    /// A signaled ATOMIC_WRITE of these eight bytes.
    pub fn atomic_write(wr_id: u64, word: Sge, to: Remote) -> Self {
        Self::new(WrOpcode::AtomicWrite, wr_id, &[word], to)
    }

    /// A signaled FLUSH to global visibility of a range.
    pub fn flush(wr_id: u64, from: Remote, len: u64) -> Self {
        let mut wr = Self::new(WrOpcode::Flush, wr_id, &[], from);
        (wr.compare_add, wr.swap) = (len, 1);
        wr
    }

    /// With immediate data (SEND and WRITE).
    #[must_use]
    pub fn with_imm(mut self, imm: u32) -> Self {
        self.opcode = match self.opcode {
            WrOpcode::Send => WrOpcode::SendImm,
            WrOpcode::Write => WrOpcode::WriteImm,
            other => other,
        };
        self.imm = imm;
        self
    }

    /// With this payload inside the WQE instead of SGEs.
    #[must_use]
    pub fn inline(mut self, data: &[u8]) -> Self {
        self.sges.clear();
        self.inline = Some(data.to_vec());
        self.flags |= SendFlags::INLINE;
        self
    }

    /// With the library's copy of the payload next to the SGEs.
    #[must_use]
    pub fn carried(mut self) -> Self {
        self.carried = true;
        self
    }

    /// Without a completion.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    /// With more flags.
    #[must_use]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Message bytes.
    pub fn len(&self) -> u64 {
        match &self.inline {
            Some(data) => data.len() as u64,
            None => self.sges.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }

    /// The message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A work request that cannot be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// ENOMEM: the queue is full.
    Full,
    /// EINVAL: it does not fit the queue's capabilities.
    Invalid,
}

/// What to create a queue pair with.
#[derive(Clone, Copy, Debug)]
pub struct QpSetup {
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Transport.
    pub qp_type: QpType,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<SrqId>,
    /// Capabilities.
    pub caps: QpCaps,
    /// Every send is signaled.
    pub sq_sig_all: bool,
}

impl QpSetup {
    /// An RC queue pair of ordinary size.
    pub fn new(pd: u32, cq: CqId) -> Self {
        let caps = QpCaps {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline_data: 256,
        };
        let (qp_type, srq) = (QpType::Rc, None);
        Self { pd, send_cq: cq, recv_cq: cq, qp_type, srq, caps, sq_sig_all: false }
    }
}

/// How to connect a queue pair; the same for both ends but for the PSNs.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Path MTU code.
    pub path_mtu: u8,
    /// First PSN that this end sends.
    pub sq_psn: u32,
    /// First PSN that the peer sends.
    pub rq_psn: u32,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries without progress.
    pub retry_cnt: u8,
    /// RNR retries; 7 is infinite.
    pub rnr_retry: u8,
    /// RNR NAK timer code that this end sends.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do.
    pub access: AccessFlags,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            path_mtu: 3,
            sq_psn: 0x10_0000,
            rq_psn: 0x20_0000,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: full_access(),
        }
    }
}

impl Connection {
    /// The same connection seen from the other end.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { sq_psn: self.rq_psn, rq_psn: self.sq_psn, ..self }
    }

    /// Path MTU in bytes.
    pub fn mtu(&self) -> u32 {
        128 << self.path_mtu
    }

    /// Shortest time after which a lost packet is noticed, nanoseconds.
    pub fn ack_timeout(&self) -> u64 {
        4096 << self.timeout
    }
}

/// Every right over RDMA.
pub fn full_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::FLUSH_GLOBAL
}
