//! Layouts of send and receive WQEs.
//!
//! A send WQE is one 64-byte control block followed by SGEs (16 bytes each) and then by data that
//! travels inside the WQE: either inline data (flag `INLINE`, no SGEs) or a **carried** copy of
//! what the SGEs name, which the library may add to small messages so that the engine needs no
//! DMA. With a carried copy the SGEs stay and the engine still checks their keys and ranges.
//!
//! ```text
//! word 0   opcode 8 | flags 8 | num_sge 8 | has 8 | data_len 16 | 0
//! word 1   wr_id
//! word 2   imm_or_key 32 (immediate: raw network-order bytes; invalidate: rkey) | remote_qpn 32
//! word 3   remote address; bind: start address
//! word 4   rkey 32 | qkey 32;  bind: window rkey 32 | lkey of the MR 32
//! word 5   atomic compare or add; bind, FLUSH: length
//! word 6   atomic swap; bind: access flags; FLUSH: placement 8 | level 8
//! word 7   address handle 32 | XRC SRQ number 32
//! ```
//!
//! An SGE is `address`, then `lkey 32 | length 32`. A receive WQE is two words (`num_sge 8`,
//! `wr_id`) and SGEs.

use crate::verbs::{SendFlags, WrOpcode};
use crate::words::{LINE, WORD};

/// SGEs one WQE can have.
pub const MAX_SGE: usize = 32;
/// Bytes of inline or carried data one send WQE can have.
pub const MAX_INLINE: usize = 1024;
/// Words of the control block.
pub const CONTROL_WORDS: usize = LINE;
/// Words of one SGE.
pub const SGE_WORDS: usize = 2;
/// Words before the SGEs of a receive WQE.
pub const RECV_CONTROL_WORDS: usize = 2;
/// Words of the largest slot.
pub const MAX_SLOT_WORDS: usize = CONTROL_WORDS + MAX_SGE * SGE_WORDS + MAX_INLINE / WORD;

const HAS_CARRIED: u8 = 1;

const _: () = assert!(MAX_SLOT_WORDS.is_multiple_of(LINE));

/// One scatter/gather element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address in the MR's own address space (its iova).
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

impl Sge {
    /// Two words.
    #[inline]
    pub fn encode(self) -> [u64; SGE_WORDS] {
        [self.addr, u64::from(self.lkey) | u64::from(self.length) << 32]
    }

    /// Any two words are some SGE.
    #[inline]
    pub fn decode(words: [u64; SGE_WORDS]) -> Self {
        Self { addr: words[0], lkey: low(words[1]), length: high(words[1]) }
    }
}

/// The control block of a send WQE, as its writer means it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendControl {
    /// What to do.
    pub opcode: WrOpcode,
    /// Flags.
    pub flags: SendFlags,
    /// SGEs that follow.
    pub num_sge: u8,
    /// Bytes of inline or carried data after the SGEs.
    pub data_len: u16,
    /// The data is a copy of what the SGEs name.
    pub carried: bool,
    /// Given back in the CQE.
    pub wr_id: u64,
    /// Immediate data or rkey to invalidate.
    pub imm_or_key: u32,
    /// UD: destination QPN.
    pub remote_qpn: u32,
    /// Remote address, or a window's start.
    pub remote_addr: u64,
    /// Remote key, or a window's new rkey.
    pub rkey: u32,
    /// UD: Q_Key; bind: lkey of the MR.
    pub qkey: u32,
    /// Atomic compare or add; bind, FLUSH: length.
    pub compare_add: u64,
    /// Atomic swap; bind: access flags; FLUSH: placement type, and level in the next byte.
    pub swap: u64,
    /// UD: address handle.
    pub ah: u32,
    /// XRC: SRQ number.
    pub srqn: u32,
}

impl SendControl {
    /// A control block with nothing but opcode, flags and `wr_id`.
    pub fn new(opcode: WrOpcode, flags: SendFlags, wr_id: u64) -> Self {
        Self {
            opcode,
            flags,
            num_sge: 0,
            data_len: 0,
            carried: false,
            wr_id,
            imm_or_key: 0,
            remote_qpn: 0,
            remote_addr: 0,
            rkey: 0,
            qkey: 0,
            compare_add: 0,
            swap: 0,
            ah: 0,
            srqn: 0,
        }
    }

    /// The eight words of the block.
    #[inline]
    pub fn encode(&self) -> [u64; CONTROL_WORDS] {
        let has = if self.carried { HAS_CARRIED } else { 0 };
        [
            u64::from(self.opcode.number())
                | u64::from(self.flags.bits()) << 8
                | u64::from(self.num_sge) << 16
                | u64::from(has) << 24
                | u64::from(self.data_len) << 32,
            self.wr_id,
            pair(self.imm_or_key, self.remote_qpn),
            self.remote_addr,
            pair(self.rkey, self.qkey),
            self.compare_add,
            self.swap,
            pair(self.ah, self.srqn),
        ]
    }

    /// Validates and decodes a copied block.
    ///
    /// # Errors
    /// Says what is impossible in it; `wr_id` (word 1) is usable all the same.
    #[inline]
    pub fn decode(words: &[u64; CONTROL_WORDS], stride: usize) -> Result<Self, BadWqe> {
        let [b0, b1, b2, b3, b4, b5, _, _] = words[0].to_le_bytes();
        let control = Self {
            opcode: WrOpcode::from_number(b0).ok_or(BadWqe::Opcode(b0))?,
            flags: SendFlags::from_bits(b1).ok_or(BadWqe::Flags(b1))?,
            num_sge: b2,
            carried: b3 & HAS_CARRIED != 0,
            data_len: u16::from_le_bytes([b4, b5]),
            wr_id: words[1],
            imm_or_key: low(words[2]),
            remote_qpn: high(words[2]),
            remote_addr: words[3],
            rkey: low(words[4]),
            qkey: high(words[4]),
            compare_add: words[5],
            swap: words[6],
            ah: low(words[7]),
            srqn: high(words[7]),
        };
        if usize::from(control.num_sge) > MAX_SGE
            || usize::from(control.data_len) > MAX_INLINE
            || control.words() > stride
        {
            return Err(control.too_long(stride));
        }
        let inline = control.flags.contains(SendFlags::INLINE);
        if inline && (control.num_sge != 0 || control.carried) {
            return Err(BadWqe::InlineWithSges);
        }
        let may_have_data = (inline || control.carried) && has_payload(control.opcode);
        if control.data_len != 0 && !may_have_data {
            return Err(BadWqe::DataLength(control.data_len));
        }
        Ok(control)
    }

    /// What of a block does not fit.
    #[cold]
    fn too_long(&self, stride: usize) -> BadWqe {
        if usize::from(self.num_sge) > MAX_SGE || self.data_at() > stride {
            return BadWqe::SgeCount(self.num_sge);
        }
        BadWqe::DataLength(self.data_len)
    }

    /// Word of the slot where the SGEs start.
    pub const SGES_AT: usize = CONTROL_WORDS;

    /// Word of the slot where inline or carried data starts.
    #[inline]
    pub fn data_at(&self) -> usize {
        CONTROL_WORDS + usize::from(self.num_sge) * SGE_WORDS
    }

    /// Words of the slot that this WQE uses.
    #[inline]
    pub fn words(&self) -> usize {
        self.data_at() + usize::from(self.data_len).div_ceil(WORD)
    }
}

/// The control words of a receive WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvControl {
    /// SGEs that follow.
    pub num_sge: u8,
    /// Given back in the CQE.
    pub wr_id: u64,
}

impl RecvControl {
    /// Two words.
    #[inline]
    pub fn encode(self) -> [u64; RECV_CONTROL_WORDS] {
        [u64::from(self.num_sge), self.wr_id]
    }

    /// Validates and decodes copied words.
    ///
    /// # Errors
    /// When the SGEs cannot be in the slot; `wr_id` (word 1) is usable all the same.
    #[inline]
    pub fn decode(words: &[u64; RECV_CONTROL_WORDS], stride: usize) -> Result<Self, BadWqe> {
        let num_sge = words[0].to_le_bytes()[0];
        let fits = RECV_CONTROL_WORDS + usize::from(num_sge) * SGE_WORDS <= stride;
        if usize::from(num_sge) > MAX_SGE || !fits {
            return Err(BadWqe::SgeCount(num_sge));
        }
        Ok(Self { num_sge, wr_id: words[1] })
    }
}

/// Why a WQE is refused. The QP goes to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadWqe {
    /// Not an opcode.
    Opcode(u8),
    /// Undefined flag bits.
    Flags(u8),
    /// More SGEs than the slot or the limit allows.
    SgeCount(u8),
    /// More data than the slot or the limit allows, data without a flag that says so, or data of an
    /// operation that sends none.
    DataLength(u16),
    /// Inline data together with SGEs.
    InlineWithSges,
}

/// Words of a send slot for these capabilities, rounded up to whole basic blocks.
pub fn send_stride(max_sge: u32, max_inline: u32) -> usize {
    let sges = (max_sge as usize).min(MAX_SGE) * SGE_WORDS;
    let data = (max_inline as usize).min(MAX_INLINE).div_ceil(WORD);
    // A carried copy needs the SGEs and the data at once.
    (CONTROL_WORDS + sges + data).next_multiple_of(LINE)
}

/// Words of a receive slot for `max_sge`, rounded up to whole basic blocks.
pub fn recv_stride(max_sge: u32) -> usize {
    (RECV_CONTROL_WORDS + (max_sge as usize).min(MAX_SGE) * SGE_WORDS).next_multiple_of(LINE)
}

/// The request carries bytes of the requester's memory.
#[inline]
fn has_payload(opcode: WrOpcode) -> bool {
    use WrOpcode::{AtomicWrite, Send, SendImm, SendInv, Write, WriteImm};
    matches!(opcode, Send | SendImm | SendInv | Write | WriteImm | AtomicWrite)
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn low(word: u64) -> u32 {
    word as u32
}

#[inline]
fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
