//! The base transport header and its extension headers, bit by bit.
//!
//! Each struct converts to and from an array of exactly its wire length, reserved bits included, so
//! that no byte is lost. All fields are big-endian on the wire.

use crate::opcode::Opcode;
use crate::types::{Msn, PKey, Psn, QKey, Qpn, RKey};

/// Base transport header.
///
/// The transport version is not a field: only version 0 exists, [`crate::Datagram::parse`] refuses
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    pub opcode: Opcode,
    /// The receiver should raise a solicited completion event; last or only packet of a message.
    pub solicited: bool,
    /// Migration state. NICs send 1; Linux rxe and congestion notifications send 0.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0 ..= 3.
    pub pad: u8,
    pub pkey: PKey,
    pub fecn: bool,
    /// Set only in congestion notification packets.
    pub becn: bool,
    /// Reserved, 6 bits: sent as zero, but Huawei NICs do not. Not covered by the ICRC.
    pub resv6: u8,
    pub dest_qp: Qpn,
    /// The requester wants an acknowledgement of this packet.
    pub ack_req: bool,
    /// Reserved, 7 bits, covered by the ICRC.
    pub resv7: u8,
    pub psn: Psn,
}

impl Bth {
    pub const LEN: usize = 12;

    /// A header as NICs send it: migrated state, default partition, everything else zero.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// The congestion notification header for the sender's queue pair `dest_qp`.
    pub const fn cnp(dest_qp: Qpn) -> Bth {
        let mut bth = Bth::new(Opcode::Cnp, dest_qp, Psn::ZERO);
        bth.mig_req = false;
        bth.becn = true;
        bth
    }

    /// The opcode is passed because the caller already had to find out whether it is known.
    #[inline(always)]
    pub(crate) fn from_bytes(opcode: Opcode, b: &[u8; Self::LEN]) -> Bth {
        Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: Self::pad_of(b),
            pkey: PKey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            resv6: b[4] & 0x3f,
            dest_qp: Qpn::new(be32(b, 4)),
            ack_req: b[8] & 0x80 != 0,
            resv7: b[8] & 0x7f,
            psn: Psn::new(be32(b, 8)),
        }
    }

    /// Writes the header to the front of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[..Self::LEN].copy_from_slice(&self.to_bytes());
        Self::LEN
    }

    /// The pad count of a header.
    #[inline]
    pub(crate) fn pad_of(b: &[u8; Self::LEN]) -> u8 {
        (b[1] >> 4) & 3
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let flags = flag(self.solicited, 7) | flag(self.mig_req, 6) | (self.pad & 3) << 4;
        let marks = flag(self.fecn, 7) | flag(self.becn, 6) | self.resv6 & 0x3f;
        let ack_req = flag(self.ack_req, 7) | self.resv7 & 0x7f;
        let [high, low] = self.pkey.0.to_be_bytes();
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&[self.opcode.code(), flags, high, low]);
        b[4..8].copy_from_slice(&with_top_byte(marks, self.dest_qp.value()));
        b[8..].copy_from_slice(&with_top_byte(ack_req, self.psn.value()));
        b
    }
}

/// RDMA extended header: where a WRITE or READ goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    pub va: u64,
    pub rkey: RKey,
    /// Bytes of the whole message, up to 2^31 in a valid request.
    pub dma_len: u32,
}

impl Reth {
    pub const LEN: usize = 16;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Reth {
        Reth { va: be64(b, 0), rkey: RKey(be32(b, 8)), dma_len: be32(b, 12) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
}

/// Atomic extended header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Must be a multiple of 8 in a valid request.
    pub va: u64,
    pub rkey: RKey,
    /// New value of a compare-and-swap, addend of a fetch-and-add.
    pub swap_or_add: u64,
    /// Ignored by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    pub const LEN: usize = 28;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> AtomicEth {
        AtomicEth {
            va: be64(b, 0),
            rkey: RKey(be32(b, 8)),
            swap_or_add: be64(b, 12),
            compare: be64(b, 20),
        }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// Acknowledge extended header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    pub syndrome: Syndrome,
    pub msn: Msn,
}

impl Aeth {
    pub const LEN: usize = 4;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Aeth {
        Aeth { syndrome: Syndrome::from_u8(b[0]), msn: Msn::new(be24([b[1], b[2], b[3]])) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        with_top_byte(self.syndrome.to_u8(), self.msn.value())
    }
}

/// What an AETH says about the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledged. The 5-bit code tells the receive credits, see [`credit_count`].
    Ack { credits: u8 },
    /// No receive buffer: retry after the time of the 5-bit code, see [`rnr_timer_ns`].
    RnrNak { timer: u8 },
    /// Refused.
    Nak(NakCode),
    /// None of the defined syndromes; to be ignored. Holds the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// Credit code for "this responder does not advertise credits".
    pub const NO_CREDIT_INFO: u8 = 31;
    /// Acknowledgement without credit information.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Self::NO_CREDIT_INFO };

    pub const fn from_u8(byte: u8) -> Syndrome {
        let low = byte & 0x1f;
        match byte >> 5 {
            0b000 => Syndrome::Ack { credits: low },
            0b001 => Syndrome::RnrNak { timer: low },
            0b011 => match NakCode::from_u8(low) {
                Some(code) => Syndrome::Nak(code),
                None => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }

    pub const fn to_u8(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Reason of a negative acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    PsnSequence = 0,
    InvalidRequest = 1,
    RemoteAccess = 2,
    RemoteOperational = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// From the low five bits of the syndrome; `None` for reserved codes.
    pub const fn from_u8(code: u8) -> Option<NakCode> {
        match code {
            0 => Some(NakCode::PsnSequence),
            1 => Some(NakCode::InvalidRequest),
            2 => Some(NakCode::RemoteAccess),
            3 => Some(NakCode::RemoteOperational),
            4 => Some(NakCode::InvalidRdRequest),
            _ => None,
        }
    }
}

/// Nanoseconds a requester waits at least after an RNR NAK with this 5-bit timer code.
///
/// Code 0 is the longest wait, not the shortest.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    const UNIT_NS: u64 = 10_000;
    RNR_TIMER_UNITS[(code & 0x1f) as usize] as u64 * UNIT_NS
}

/// Receive credits of this 5-bit code; `None` when the responder gives no credit information.
pub const fn credit_count(code: u8) -> Option<u16> {
    let code = code & 0x1f;
    if code == Syndrome::NO_CREDIT_INFO { None } else { Some(CREDITS[code as usize]) }
}

/// The largest credit code that does not promise more than `count` receive buffers.
pub fn credit_code(count: u32) -> u8 {
    // partition_point of a sorted table of 31 entries; entry 0 is 0, so the result is at least 1.
    let above = CREDITS.partition_point(|&credits| u32::from(credits) <= count);
    above.saturating_sub(1) as u8
}

/// Datagram extended header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    pub qkey: QKey,
    pub reserved: u8,
    pub src_qp: Qpn,
}

impl Deth {
    pub const LEN: usize = 8;

    pub const fn new(qkey: QKey, src_qp: Qpn) -> Deth {
        Deth { qkey, reserved: 0, src_qp }
    }

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Deth {
        Deth { qkey: QKey(be32(b, 0)), reserved: b[4], src_qp: Qpn::new(be24([b[5], b[6], b[7]])) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        b[4..].copy_from_slice(&with_top_byte(self.reserved, self.src_qp.value()));
        b
    }
}

/// Extended reliable connected header: the shared receive queue a request goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcEth {
    pub reserved: u8,
    /// XRC shared receive queue number, 24 bits.
    pub srq: u32,
}

impl XrcEth {
    pub const LEN: usize = 4;

    pub const fn new(srq: u32) -> XrcEth {
        XrcEth { reserved: 0, srq }
    }

    pub fn from_bytes(b: &[u8; Self::LEN]) -> XrcEth {
        XrcEth { reserved: b[0], srq: be24([b[1], b[2], b[3]]) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        with_top_byte(self.reserved, self.srq)
    }
}

/// Reliable datagram extended header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdeth {
    pub reserved: u8,
    /// End-to-end context number, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    pub const LEN: usize = 4;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Rdeth {
        Rdeth { reserved: b[0], ee_context: be24([b[1], b[2], b[3]]) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        with_top_byte(self.reserved, self.ee_context)
    }
}

/// Value an atomic operation found before it changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    pub original: u64,
}

impl AtomicAckEth {
    pub const LEN: usize = 8;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> AtomicAckEth {
        AtomicAckEth { original: u64::from_be_bytes(*b) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }
}

/// Immediate data: four bytes that reach the application as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    pub const LEN: usize = 4;
}

/// Invalidate extended header: the key that the receiver of a SEND invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ieth {
    pub rkey: RKey,
}

impl Ieth {
    pub const LEN: usize = 4;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Ieth {
        Ieth { rkey: RKey(u32::from_be_bytes(*b)) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.rkey.0.to_be_bytes()
    }
}

/// Flush extended header: what a FLUSH covers and how deep it goes. All 32 bits are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth(pub u32);

impl Feth {
    pub const LEN: usize = 4;
    /// Placement type bit: data is visible to everyone.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement type bit: data survives power loss.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity level: the range of the RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity level: the whole memory region.
    pub const WHOLE_REGION: u8 = 1;

    /// `placement` has 4 bits, `selectivity` 2.
    pub const fn new(placement: u8, selectivity: u8) -> Feth {
        Feth(((selectivity as u32 & 3) << 4) | (placement as u32 & 0xf))
    }

    pub const fn placement(self) -> u8 {
        (self.0 & 0xf) as u8
    }

    pub const fn selectivity(self) -> u8 {
        ((self.0 >> 4) & 3) as u8
    }

    pub fn from_bytes(b: &[u8; Self::LEN]) -> Feth {
        Feth(u32::from_be_bytes(*b))
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

/// The 16 reserved bytes of a congestion notification packet; sent as zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CnpBody(pub [u8; 16]);

impl CnpBody {
    pub const LEN: usize = 16;
}

const fn flag(set: bool, bit: u32) -> u8 {
    (set as u8) << bit
}

fn be24(b: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, b[0], b[1], b[2]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

/// One byte followed by a 24-bit number.
fn with_top_byte(top: u8, low: u32) -> [u8; 4] {
    (u32::from(top) << 24 | low & 0x00ff_ffff).to_be_bytes()
}

/// RNR NAK timer codes in units of 10 us.
#[rustfmt::skip]
const RNR_TIMER_UNITS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Credit codes 0 ..= 30.
#[rustfmt::skip]
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

#[cfg(test)]
mod tests;
