//! Receive side: RX ring to frames, and chunks back to the fill ring.

use super::RxFrame;
use super::config::XskStats;
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::umem::{CHUNK, Umem};

/// A frame of more descriptors than this is broken: the longest packet has 17 fragments and a
/// linear part.
const MAX_DESCRIPTORS: u32 = 64;

/// Which chunks the caller holds, and how much of the bounce area.
pub(super) struct Receiver {
    /// Chunk addresses to give back; its capacity is the number of chunks.
    held: Vec<u64>,
    bounce_used: usize,
    frames: u64,
    linearised: u64,
    oversized: u64,
    bad_descriptors: u64,
}

/// Outcome of looking at the next frame in the ring.
enum Next {
    Frame(RxFrame, u32),
    Drop(u32),
    /// Not complete yet, or no room for it until the next release.
    Wait,
}

impl Receiver {
    pub(super) fn new(chunks: usize) -> Receiver {
        Receiver {
            held: Vec::with_capacity(chunks),
            bounce_used: 0,
            frames: 0,
            linearised: 0,
            oversized: 0,
            bad_descriptors: 0,
        }
    }

    pub(super) fn receive(
        &mut self,
        ring: &mut Consumer<Descriptor>,
        umem: &mut Umem,
        out: &mut [RxFrame],
    ) -> usize {
        let mut filled = 0;
        let mut stepped = false;
        while filled < out.len() && ring.available() > 0 {
            let descriptors = match self.next(ring, umem) {
                Next::Frame(frame, descriptors) => {
                    out[filled] = frame;
                    filled += 1;
                    descriptors
                }
                Next::Drop(descriptors) => descriptors,
                Next::Wait => break,
            };
            self.hold(ring, descriptors);
            stepped = true;
        }
        if stepped {
            ring.release();
        }
        self.frames += filled as u64;
        filled
    }

    fn next(&mut self, ring: &mut Consumer<Descriptor>, umem: &mut Umem) -> Next {
        let first = ring.peek(0);
        if first.options & CONTINUED == 0 {
            return match umem.rx_offset(first.address, first.len) {
                Some(offset) => Next::Frame(RxFrame { offset, len: first.len as usize }, 1),
                None => {
                    self.bad_descriptors += 1;
                    Next::Drop(1)
                }
            };
        }
        let Some((descriptors, len)) = measure(ring) else { return Next::Wait };
        if len > umem.bounce_len() || descriptors > MAX_DESCRIPTORS {
            self.oversized += 1;
            return Next::Drop(descriptors);
        }
        if self.bounce_used + len > umem.bounce_len() {
            return Next::Wait;
        }
        let start = self.bounce_used;
        let mut end = start;
        for ahead in 0..descriptors {
            let piece = ring.peek(ahead);
            let Some(from) = umem.rx_offset(piece.address, piece.len) else {
                self.bad_descriptors += 1;
                return Next::Drop(descriptors);
            };
            umem.linearise(from, end, piece.len as usize);
            end += piece.len as usize;
        }
        // The next frame starts at a cache line.
        self.bounce_used = end.next_multiple_of(64).min(umem.bounce_len());
        self.linearised += 1;
        Next::Frame(RxFrame { offset: start, len }, descriptors)
    }

    /// Notes the chunks of the frame just looked at and steps over it.
    fn hold(&mut self, ring: &mut Consumer<Descriptor>, descriptors: u32) {
        for ahead in 0..descriptors {
            // The capacity is the number of chunks, and the kernel has each chunk once.
            if self.held.len() < self.held.capacity() {
                let chunk = ring.peek(ahead).address / CHUNK as u64 * CHUNK as u64;
                self.held.push(chunk);
            }
        }
        ring.advance(descriptors);
    }

    pub(super) fn release(&mut self, fill: &mut Producer<u64>) {
        self.bounce_used = 0;
        if self.held.is_empty() {
            return;
        }
        for chunk in self.held.drain(..) {
            // The ring has room for every chunk there is.
            let pushed = fill.push(chunk);
            debug_assert!(pushed, "fill ring smaller than the number of chunks");
        }
        fill.publish();
    }

    pub(super) fn add_stats(&self, stats: &mut XskStats) {
        stats.rx_frames = self.frames;
        stats.rx_linearised = self.linearised;
        stats.rx_oversized = self.oversized;
        stats.rx_bad_descriptors = self.bad_descriptors;
    }
}

/// Descriptors and bytes of the frame at the front of the ring, or `None` when its end has not
/// arrived.
fn measure(ring: &mut Consumer<Descriptor>) -> Option<(u32, usize)> {
    let mut available = ring.available();
    let (mut descriptors, mut len) = (0, 0);
    loop {
        if descriptors == available {
            ring.refresh();
            available = ring.available();
            if descriptors == available {
                return None;
            }
        }
        let piece = ring.peek(descriptors);
        descriptors += 1;
        len += piece.len as usize;
        if piece.options & CONTINUED == 0 {
            return Some((descriptors, len));
        }
    }
}
