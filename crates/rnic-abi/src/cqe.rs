//! The completion queue entry: 128 bytes.
//!
//! ```text
//! word 0   wr_id
//! word 1   qpn 32 | status 8 | opcode 8 | flags 8 | sl 8
//! word 2   byte_len 32 | imm_or_key 32
//! word 3   src_qp 32 | vendor_err 32
//! word 4   timestamp, ns
//! word 5   record 32 | wqe_index 32
//! word 6   pkey_index 16 | carried_len 8 | 0
//! word 7   sequence (written last)
//! 8 to 15  carried payload of a small receive
//! ```
//!
//! **Carried payload.** The engine may put the data of a small receive into the CQE instead of
//! writing it to memory; the library copies it to the receive WQE's buffers when it polls. Only
//! for receive MRs that no peer can reach, and the receive slot is held until then.

use crate::verbs::{WcOpcode, WcStatus};
use bitflags::bitflags;

/// Words of one CQE.
pub const CQE_WORDS: usize = 16;
/// Bytes of received data that fit into a CQE.
pub const MAX_CARRIED: usize = 64;

bitflags! {
    /// What else is true of a completion.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct CqeFlags: u8 {
        /// `imm_or_key` is immediate data.
        const IMM = 1;
        /// `imm_or_key` is the rkey that was invalidated.
        const INV = 2;
        /// The first 40 bytes of the buffer are the GRH area (UD).
        const GRH = 4;
        /// It came from the receive side.
        const RECV = 8;
        /// The peer set the solicited-event bit.
        const SOLICITED = 16;
    }
}

/// One completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// From the WQE.
    pub wr_id: u64,
    /// Local QP.
    pub qpn: u32,
    /// Outcome.
    pub status: WcStatus,
    /// What completed; undefined when `status` is not success.
    pub opcode: WcOpcode,
    /// See [`CqeFlags`].
    pub flags: CqeFlags,
    /// UD: service level of the packet.
    pub sl: u8,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data (raw network-order bytes) or invalidated rkey.
    pub imm_or_key: u32,
    /// UD: source QP.
    pub src_qp: u32,
    /// Why, in the daemon's own numbering; shown as `vendor_err`.
    pub vendor_err: u32,
    /// Daemon's monotonic clock, nanoseconds.
    pub timestamp: u64,
    /// Doorbell record of the work queue the WQE came from.
    pub record: u32,
    /// Index of the WQE in its queue.
    pub wqe_index: u32,
    /// P_Key table index of the packet.
    pub pkey_index: u16,
    carried_len: u8,
    carried: [u64; 8],
}

impl Cqe {
    /// A successful completion; assign the rest.
    pub fn new(wr_id: u64, qpn: u32, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            qpn,
            status: WcStatus::Success,
            opcode,
            flags: CqeFlags::empty(),
            sl: 0,
            byte_len: 0,
            imm_or_key: 0,
            src_qp: 0,
            vendor_err: 0,
            timestamp: 0,
            record: 0,
            wqe_index: 0,
            pkey_index: 0,
            carried_len: 0,
            carried: [0; 8],
        }
    }

    /// Puts received data inside; false when it does not fit.
    pub fn carry(&mut self, data: &[u8]) -> bool {
        let Ok(len) = u8::try_from(data.len()) else { return false };
        if data.len() > MAX_CARRIED {
            return false;
        }
        let mut bytes = [0; MAX_CARRIED];
        bytes[..data.len()].copy_from_slice(data);
        for (word, chunk) in self.carried.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        self.carried_len = len;
        true
    }

    /// Nothing is carried any more.
    pub fn drop_carried(&mut self) {
        self.carried_len = 0;
    }

    /// Bytes of carried data.
    #[inline]
    pub fn carried_len(&self) -> usize {
        usize::from(self.carried_len)
    }

    /// The carried data; only the first [`carried_len`](Self::carried_len) bytes mean anything.
    pub fn carried(&self) -> [u8; MAX_CARRIED] {
        let mut bytes = [0; MAX_CARRIED];
        for (word, chunk) in self.carried.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    /// True when a solicited-only arming fires for it.
    pub fn is_solicited(&self) -> bool {
        self.status != WcStatus::Success || self.flags.contains(CqeFlags::SOLICITED)
    }

    /// The words, without the sequence number.
    #[inline]
    pub fn encode(&self) -> [u64; CQE_WORDS] {
        let mut words = [0; CQE_WORDS];
        words[..7].copy_from_slice(&self.encode_head());
        words[8..].copy_from_slice(&self.carried);
        words
    }

    /// The words before the sequence number.
    #[inline]
    pub(crate) fn encode_head(&self) -> [u64; 7] {
        [
            self.wr_id,
            u64::from(self.qpn)
                | u64::from(self.status.number()) << 32
                | u64::from(self.opcode.number()) << 40
                | u64::from(self.flags.bits()) << 48
                | u64::from(self.sl) << 56,
            u64::from(self.byte_len) | u64::from(self.imm_or_key) << 32,
            u64::from(self.src_qp) | u64::from(self.vendor_err) << 32,
            self.timestamp,
            u64::from(self.record) | u64::from(self.wqe_index) << 32,
            u64::from(self.pkey_index) | u64::from(self.carried_len) << 16,
        ]
    }

    /// The words of the second line.
    #[inline]
    pub(crate) fn carried_words(&self) -> &[u64; 8] {
        &self.carried
    }

    #[inline]
    pub(crate) fn carried_len_of(words: &[u64; CQE_WORDS]) -> usize {
        usize::from(words[6].to_le_bytes()[2])
    }

    /// Decodes copied words. Unknown numbers become a general error, never a panic.
    #[inline]
    pub fn decode(words: &[u64; CQE_WORDS]) -> Self {
        let [q0, q1, q2, q3, status, opcode, flags, sl] = words[1].to_le_bytes();
        let [p0, p1, carried_len, ..] = words[6].to_le_bytes();
        let mut carried = [0; 8];
        carried.copy_from_slice(&words[8..]);
        Self {
            wr_id: words[0],
            qpn: u32::from_le_bytes([q0, q1, q2, q3]),
            status: WcStatus::from_number(status).unwrap_or(WcStatus::GeneralErr),
            opcode: WcOpcode::from_number(opcode).unwrap_or(WcOpcode::Send),
            flags: CqeFlags::from_bits_truncate(flags),
            sl,
            byte_len: half(words[2], 0),
            imm_or_key: half(words[2], 1),
            src_qp: half(words[3], 0),
            vendor_err: half(words[3], 1),
            timestamp: words[4],
            record: half(words[5], 0),
            wqe_index: half(words[5], 1),
            pkey_index: u16::from_le_bytes([p0, p1]),
            carried_len: carried_len.min(64),
            carried,
        }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "one half of the word is meant")]
fn half(word: u64, index: u32) -> u32 {
    (word >> (32 * index)) as u32
}

const _: () = assert!(MAX_CARRIED == 64 && CQE_WORDS == 16);
