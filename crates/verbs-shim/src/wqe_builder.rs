//! One send WQE being written, in memory of this process, before it is copied to its slot in one
//! go.

use std::mem::MaybeUninit;

use rnic_abi::{
    verbs::{SendFlags, WrOpcode},
    words::WORD,
    wqe::{CONTROL_WORDS, MAX_INLINE, MAX_SGE, MAX_SLOT_WORDS, SGE_WORDS, SendControl, Sge},
};

use crate::{error::Errno, lkey_table::LkeyTable, qp::SendRules};

/// Longest payload that the library copies into the WQE without being asked to: one packet of the
/// smallest path MTU. The engine then needs no system call to read it.
const CARRY_LIMIT: usize = 256;

/// A WQE: control block, SGEs, data.
pub(crate) struct SendWqeBuilder {
    pub(crate) control: SendControl,
    /// Words up to the end of the SGEs and data are written.
    words: [MaybeUninit<u64>; MAX_SLOT_WORDS],
    /// Payload bytes that the SGEs name.
    payload: u64,
}

impl SendWqeBuilder {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            control: SendControl::new(WrOpcode::Send, SendFlags::empty(), 0),
            words: [const { MaybeUninit::uninit() }; MAX_SLOT_WORDS],
            payload: 0,
        }
    }

    /// Starts over with a new control block.
    #[inline]
    pub(crate) fn begin(&mut self, control: SendControl) {
        self.control = control;
        self.payload = 0;
    }

    /// Sets the SGEs. One without bytes means nothing.
    ///
    /// # Errors
    /// EINVAL when there are more than the queue pair was made for.
    #[inline]
    pub(crate) fn set_sges(
        &mut self,
        rules: &SendRules,
        sges: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Errno> {
        if sges.len() > (rules.max_sge as usize).min(MAX_SGE) {
            return Err(Errno(libc::EINVAL));
        }
        self.control.num_sge = 0;
        self.control.data_len = 0;
        self.payload = 0;
        for sge in sges.filter(|sge| sge.length > 0) {
            let at = self.control.data_at();
            let [address, rest] = sge.encode();
            self.words[at].write(address);
            self.words[at + 1].write(rest);
            self.control.num_sge += 1;
            self.payload += u64::from(sge.length);
        }
        Ok(())
    }

    /// Sets the payload to a copy of the bytes of `pieces`.
    ///
    /// # Errors
    /// EINVAL when it is longer than the queue pair was made for.
    ///
    /// # Safety
    /// Each piece is readable memory.
    #[inline]
    pub(crate) unsafe fn set_inline(
        &mut self,
        max_inline: u32,
        pieces: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<(), Errno> {
        self.control.flags |= SendFlags::INLINE;
        self.control.num_sge = 0;
        let mut data = DataWriter::new(&mut self.words[CONTROL_WORDS..], max_inline as usize);
        for (from, length) in pieces {
            // SAFETY: by contract.
            if !unsafe { data.append(from, length) } {
                return Err(Errno(libc::EINVAL));
            }
        }
        self.control.data_len = data.finish();
        Ok(())
    }

    /// Adds a copy of what the SGEs name, when it is small and nothing forbids to read it already
    /// now: a fenced request may send what an earlier READ is still writing.
    #[inline]
    pub(crate) fn carry(&mut self, mrs: &LkeyTable, stride: usize) {
        use WrOpcode::{Send, SendImm, SendInv, Write, WriteImm};
        let at = self.control.data_at();
        let room = stride.saturating_sub(at) * WORD;
        if self.payload == 0
            || self.payload > room.min(CARRY_LIMIT) as u64
            || !matches!(self.control.opcode, Send | SendImm | SendInv | Write | WriteImm)
            || self.control.flags.intersects(SendFlags::FENCE | SendFlags::INLINE)
        {
            return;
        }
        let (head, tail) = self.words.split_at_mut(at);
        let mut data = DataWriter::new(tail, room);
        for sge in head[CONTROL_WORDS..].as_chunks::<SGE_WORDS>().0 {
            // SAFETY: the words from the control block to the end of the SGEs are written.
            let sge = Sge::decode(unsafe { [sge[0].assume_init(), sge[1].assume_init()] });
            let Some(region) = mrs.find(sge.lkey) else { return };
            let Some(from) = region.locate(sge.addr, sge.length.into()) else { return };
            // SAFETY: the program registered this memory and posted it to be read.
            if !unsafe { data.append(from, sge.length as usize) } {
                return;
            }
        }
        self.control.data_len = data.finish();
        self.control.carried = true;
    }

    /// The finished WQE.
    #[inline]
    pub(crate) fn encoded(&mut self) -> &[u64] {
        for (to, from) in self.words.iter_mut().zip(self.control.encode()) {
            to.write(from);
        }
        let written = &self.words[..self.control.words()];
        // SAFETY: the control block was just written, the SGEs and the data as they were set.
        unsafe { &*(std::ptr::from_ref(written) as *const [u64]) }
    }
}

/// Packs bytes into words.
struct DataWriter<'a> {
    words: &'a mut [MaybeUninit<u64>],
    length: usize,
    limit: usize,
}

impl<'a> DataWriter<'a> {
    #[inline]
    fn new(words: &'a mut [MaybeUninit<u64>], limit: usize) -> Self {
        let limit = limit.min(MAX_INLINE).min(words.len() * WORD);
        Self { words, length: 0, limit }
    }

    /// Copies bytes; false when they do not fit.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes.
    #[inline]
    unsafe fn append(&mut self, from: *const u8, length: usize) -> bool {
        if length > self.limit - self.length {
            return false;
        }
        if length > 0 {
            let last = (self.length + length - 1) / WORD;
            // It may be filled in part only. A word that an earlier piece began was cleared then.
            if last * WORD >= self.length {
                self.words[last].write(0);
            }
            // SAFETY: within the words, as checked against the limit; `from` by contract.
            unsafe {
                let to = self.words.as_mut_ptr().cast::<u8>().add(self.length);
                std::ptr::copy_nonoverlapping(from, to, length);
            }
            self.length += length;
        }
        true
    }

    /// Bytes written.
    #[inline]
    fn finish(self) -> u16 {
        // At most MAX_INLINE.
        u16::try_from(self.length).unwrap_or(u16::MAX)
    }
}
