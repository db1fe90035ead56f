//! Frames on their way: delayed, overtaken, paced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::faults::Faults;

/// A frame that waits to be overtaken is sent after this time even without later frames.
const PATIENCE: Duration = Duration::from_millis(1);

struct Held {
    frame: Vec<u8>,
    overtakers_left: u64,
    overtaken: bool,
    until: Instant,
}

/// The frames inside one direction of the link.
pub(super) struct Queue {
    delay: Duration,
    rate: u64,
    ready: VecDeque<(Instant, Vec<u8>)>,
    held: Vec<Held>,
    /// When the transmitter is free again, where there is a rate.
    free_at: Option<Instant>,
    overtaken: u64,
}

impl Queue {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            delay: Duration::from_micros(faults.delay_us),
            rate: faults.rate,
            ready: VecDeque::new(),
            held: Vec::new(),
            free_at: None,
            overtaken: 0,
        }
    }

    /// Frames that at least one later frame overtook.
    pub(super) fn overtaken(&self) -> u64 {
        self.overtaken
    }

    /// Adds a frame that arrived at `now` and is to be overtaken by so many later ones.
    pub(super) fn push(&mut self, frame: Vec<u8>, overtaken_by: u64, now: Instant) {
        if overtaken_by > 0 {
            let until = now + self.delay + PATIENCE;
            let held = Held { frame, overtakers_left: overtaken_by, overtaken: false, until };
            self.held.push(held);
            return;
        }
        for held in &mut self.held {
            self.overtaken += u64::from(!held.overtaken);
            held.overtaken = true;
        }
        self.ready.push_back((now + self.delay, frame));
        self.passed();
        let due = now + self.delay;
        let mut i = 0;
        while i < self.held.len() {
            if self.held[i].overtakers_left == 0 {
                let held = self.held.remove(i);
                self.ready.push_back((due, held.frame));
            } else {
                i += 1;
            }
        }
    }

    /// Another frame was added.
    pub(super) fn passed(&mut self) {
        for held in &mut self.held {
            held.overtakers_left = held.overtakers_left.saturating_sub(1);
        }
    }

    /// The next frame that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Vec<u8>> {
        if let Some(i) = self.held.iter().position(|held| held.until <= now) {
            let held = self.held.remove(i);
            self.ready.push_back((now, held.frame));
        }
        if self.free_at.is_some_and(|free| free > now) {
            return None;
        }
        let (due, _) = self.ready.front()?;
        if *due > now {
            return None;
        }
        let (due, frame) = self.ready.pop_front()?;
        let bit_nanos = (frame.len() as u64 * 8).saturating_mul(1_000_000_000);
        if let Some(took) = bit_nanos.checked_div(self.rate).map(Duration::from_nanos) {
            self.free_at = Some(self.free_at.map_or(due, |free| free.max(due)) + took);
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut Queue, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| queue.pop_due(now)).map(|frame| frame[0]).collect()
    }

    #[test]
    fn a_reordered_frame_is_overtaken_by_as_many_as_it_should() {
        let mut queue = Queue::new(Faults::NONE);
        let now = Instant::now();
        queue.push(vec![1], 2, now);
        for name in 2..6 {
            queue.push(vec![name], 0, now);
        }
        assert_eq!(drain(&mut queue, now), [2, 3, 1, 4, 5]);
        assert_eq!(queue.overtaken(), 1);
    }

    #[test]
    fn a_reordered_frame_without_successors_is_sent() {
        let mut queue = Queue::new(Faults::NONE);
        let now = Instant::now();
        queue.push(vec![1], 2, now);
        assert!(drain(&mut queue, now).is_empty());
        assert_eq!(drain(&mut queue, now + PATIENCE), [1]);
        assert_eq!(queue.overtaken(), 0);
    }

    #[test]
    fn delay_and_rate_are_kept() {
        let mut queue = Queue::new(Faults { delay_us: 100, rate: 8_000_000, ..Faults::NONE });
        let now = Instant::now();
        let at = |us| now + Duration::from_micros(us);
        queue.push(vec![1; 10], 0, now);
        queue.push(vec![2; 10], 0, now);
        assert!(drain(&mut queue, at(99)).is_empty());
        assert_eq!(drain(&mut queue, at(100)), [1]);
        assert!(drain(&mut queue, at(109)).is_empty());
        assert_eq!(drain(&mut queue, at(110)), [2]);
    }
}
