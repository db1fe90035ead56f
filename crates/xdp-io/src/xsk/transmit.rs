//! Transmit side: frames to TX descriptors, system calls, completions.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use super::config::XskStats;
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::umem::{CHUNK, TX_FRAME, Umem};
use crate::{TxErrors, TxRefusal, TxReport, TxSlot, sys};

/// The kernel builds the packet's linear part from the first descriptor; it must hold the headers.
const MIN_FIRST: usize = 128;
/// System calls of one `submit` at most; each sends at least 32 frames unless the kernel is out of
/// memory.
const MAX_KICKS: usize = 256;

/// Replaces a cancelled frame: the kernel skips it.
const NOTHING: Descriptor = Descriptor { address: u64::MAX, len: 1, options: 0 };

/// State of one transmit frame.
#[derive(Clone, Copy, Default)]
struct Frame {
    /// First byte in the transmit arena.
    offset: u32,
    /// Bytes; 0 when it was given up.
    len: u32,
    /// Descriptors the kernel has not completed.
    outstanding: u8,
    /// Reserved and not yet in the ring.
    pending: bool,
}

/// The transmit frames: free, reserved, or with the kernel.
pub(super) struct Transmitter {
    frames: Vec<Frame>,
    /// Free frames; the one freed last, which is still in the cache, is used first.
    free: Vec<u32>,
    /// Reserved frames in order.
    pending: VecDeque<u32>,
    sent: u64,
    /// Frames that were counted as sent and were dropped later.
    not_sent: u64,
    backpressure: u64,
    errors: TxErrors,
}

impl Transmitter {
    pub(super) fn new(frames: usize) -> Transmitter {
        Transmitter {
            frames: vec![Frame::default(); frames],
            free: (0..frames as u32).rev().collect(),
            pending: VecDeque::with_capacity(frames),
            sent: 0,
            not_sent: 0,
            backpressure: 0,
            errors: TxErrors::default(),
        }
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.free.is_empty()
    }

    /// `len` is 1..=[`TX_FRAME`].
    pub(super) fn reserve(&mut self, len: usize) -> Result<TxSlot, TxRefusal> {
        let index = self.free.pop().ok_or(TxRefusal::Full)?;
        let offset = index as usize * TX_FRAME + start_in_frame(len);
        self.frames[index as usize] =
            Frame { offset: offset as u32, len: len as u32, outstanding: 0, pending: true };
        self.pending.push_back(index);
        Ok(TxSlot { offset, len, index })
    }

    pub(super) fn truncate(&mut self, slot: &TxSlot, len: usize) {
        let Some(frame) = self.frames.get_mut(slot.index as usize) else { return };
        let same = frame.pending && frame.offset as usize == slot.offset;
        if same && len <= frame.len as usize {
            frame.len = len as u32;
        }
    }

    /// Moves reserved frames to the ring and has the kernel send until the ring is empty or the
    /// kernel makes no progress. When the kernel refuses, everything queued is dropped: otherwise
    /// the frames would occupy the arena until the interface is up again, and be sent long after
    /// they were due.
    ///
    /// With `copies` the kernel copies frames and drops one that the device's queue has no room
    /// for, or that finds no carrier. It says so with EBUSY, and completes the frame like those
    /// that it has sent.
    pub(super) fn submit(
        &mut self,
        ring: &mut Producer<Descriptor>,
        completion: &mut Consumer<u64>,
        socket: BorrowedFd<'_>,
        (umem, copies): (&Umem, bool),
    ) -> TxReport {
        if self.pending.is_empty() && ring.unconsumed() == 0 {
            return TxReport::default();
        }
        let (mut sent, mut dropped) = (self.enqueue(ring, umem), 0);
        for _ in 0..MAX_KICKS {
            if !ring.needs_wakeup_for_published() {
                break;
            }
            let before = ring.unconsumed();
            let result = sys::kick_tx(socket);
            let after = ring.unconsumed();
            if let Err(error) = result {
                match error.raw_os_error().unwrap_or(0) {
                    libc::EBUSY if copies => dropped += 1,
                    libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENOMEM => {}
                    errno => {
                        self.reap(completion, umem);
                        let waited = self.drop_waiting(errno, ring, umem);
                        self.count(sent, dropped, waited);
                        return TxReport { sent, queued: 0 };
                    }
                }
            }
            sent += self.enqueue(ring, umem);
            if ring.unconsumed() == 0 || after == before {
                break;
            }
        }
        self.count(sent, dropped, 0);
        // A device that needs no system call takes frames from the ring by itself.
        let waiting = if ring.needs_wakeup() { ring.unconsumed() as usize } else { 0 };
        let queued = self.pending.len() + waiting;
        self.backpressure += u64::from(queued > 0);
        self.reap(completion, umem);
        TxReport { sent, queued }
    }

    /// So many frames were put into the ring, and so many, of these or from before, dropped: by the
    /// kernel, or because they waited when it refused to send. Those from before have been counted
    /// as sent. As many of the next ones are not counted, for a counter never goes back.
    fn count(&mut self, sent: usize, dropped: usize, waited: usize) {
        (0..dropped).for_each(|_| self.errors.count(libc::EBUSY));
        self.not_sent += (dropped + waited) as u64;
        let uncounted = self.not_sent.min(sent as u64);
        self.not_sent -= uncounted;
        self.sent += sent as u64 - uncounted;
    }

    /// Gives up the frames in the ring, whose number is returned, and those that were reserved for
    /// it. What the kernel has completed was reaped before.
    fn drop_waiting(&mut self, errno: i32, ring: &mut Producer<Descriptor>, umem: &Umem) -> usize {
        let free = self.free.len();
        ring.replace_unconsumed(|descriptor| {
            if let Some(index) = umem.tx_frame_of(descriptor.address)
                && std::mem::take(&mut self.frames[index].outstanding) > 0
            {
                self.free.push(index as u32);
            }
            NOTHING
        });
        let waited = self.free.len() - free;
        for index in self.pending.drain(..) {
            self.frames[index as usize].pending = false;
            self.free.push(index);
        }
        (free..self.free.len()).for_each(|_| self.errors.count(errno));
        waited
    }

    /// Moves reserved frames to the ring while there is room; returns how many.
    fn enqueue(&mut self, ring: &mut Producer<Descriptor>, umem: &Umem) -> usize {
        let mut moved = 0;
        while let Some(&index) = self.pending.front() {
            let frame = &mut self.frames[index as usize];
            if frame.len > 0 && ring.free(2) < 2 {
                break;
            }
            self.pending.pop_front();
            frame.pending = false;
            if frame.len == 0 {
                self.free.push(index);
                continue;
            }
            let (offset, len) = (frame.offset as usize, frame.len as usize);
            // A descriptor that crosses a chunk border is swallowed by the kernel without a word.
            let first = len.min(CHUNK - offset % CHUNK);
            frame.outstanding = push(ring, umem, offset, first, first < len);
            if first < len {
                frame.outstanding += push(ring, umem, offset + first, len - first, false);
            }
            moved += 1;
        }
        ring.publish();
        moved
    }

    /// Frees the frames the kernel has completed.
    pub(super) fn reap(&mut self, ring: &mut Consumer<u64>, umem: &Umem) {
        let available = ring.available();
        for ahead in 0..available {
            let Some(index) = umem.tx_frame_of(ring.peek(ahead)) else { continue };
            let frame = &mut self.frames[index];
            if frame.outstanding > 0 {
                frame.outstanding -= 1;
                if frame.outstanding == 0 {
                    self.free.push(index as u32);
                }
            }
        }
        if available > 0 {
            ring.advance(available);
            ring.release();
        }
    }

    pub(super) fn add_stats(&self, stats: &mut XskStats) {
        stats.tx_frames = self.sent;
        stats.tx_backpressure = self.backpressure;
        stats.tx_errors = self.errors;
    }
}

/// Writes one descriptor; returns how many were written.
fn push(
    ring: &mut Producer<Descriptor>,
    umem: &Umem,
    offset: usize,
    len: usize,
    continued: bool,
) -> u8 {
    debug_assert!(len > 0 && offset % CHUNK + len <= CHUNK);
    let options = if continued { CONTINUED } else { 0 };
    let address = umem.tx_address(offset);
    u8::from(ring.push(Descriptor { address, len: len as u32, options }))
}

/// Where in its 8 KiB a frame of `len` bytes starts. One that fits a chunk starts there. A longer
/// one is placed around the border of the two chunks so that it is contiguous in the arena, the
/// first descriptor holds at least the headers and the second at most a chunk.
fn start_in_frame(len: usize) -> usize {
    if len <= CHUNK { 0 } else { CHUNK - (len - CHUNK).max(MIN_FIRST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_frames_split_at_the_chunk_border_with_headers_first() {
        for len in 1..=TX_FRAME {
            let start = start_in_frame(len);
            assert!(start + len <= TX_FRAME, "{len}");
            if len > CHUNK {
                let first = CHUNK - start;
                assert!((MIN_FIRST..=CHUNK).contains(&first), "{len}");
                assert!(len - first <= CHUNK, "{len}");
            }
        }
    }

    #[test]
    fn frames_that_are_dropped_after_they_were_counted_take_nothing_back() {
        let mut transmitter = Transmitter::new(2);
        let mut counted = |sent, dropped, waited| {
            transmitter.count(sent, dropped, waited);
            (transmitter.sent, transmitter.errors.total())
        };
        assert_eq!(counted(10, 2, 0), (8, 2));
        assert_eq!(counted(0, 3, 1), (8, 5), "what waited is counted by its reason");
        assert_eq!(counted(3, 0, 0), (8, 5));
        assert_eq!(counted(3, 0, 0), (10, 5));
    }

    #[test]
    fn frames_are_reserved_until_none_is_left_and_cancelled_ones_shrink() {
        let mut transmitter = Transmitter::new(2);
        let first = transmitter.reserve(4170).unwrap();
        let second = transmitter.reserve(64).unwrap();
        assert_eq!(transmitter.reserve(64), Err(TxRefusal::Full));
        assert_eq!(second.offset, TX_FRAME);
        transmitter.truncate(&first, 8000);
        assert_eq!(transmitter.frames[first.index as usize].len, 4170);
        transmitter.truncate(&first, 0);
        assert_eq!(transmitter.frames[first.index as usize].len, 0);
    }
}
