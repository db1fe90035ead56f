//! The frames of the last seconds.

use rnic_host::observe::comments::Commented;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// See the [module](self). A frame's age is counted from when it came here: its own time is that of
/// a clock which can be set, and may be invented by another user's engine process.
pub(super) struct Ring {
    length: Duration,
    frames: VecDeque<(Instant, Commented)>,
    bytes: usize,
    /// Newer than `length`, and left out for want of memory.
    left_out: u64,
}

impl Ring {
    /// Keeps frames that are not older than this when the last one comes.
    pub(super) fn new(length: Duration) -> Self {
        Self { length, frames: VecDeque::new(), bytes: 0, left_out: 0 }
    }

    /// Keeps one more, which comes now.
    pub(super) fn push(&mut self, now: Instant, frame: Commented) {
        self.bytes += size(&frame);
        self.frames.push_back((now, frame));
        while let Some((came, oldest)) = self.frames.front() {
            let age = now.saturating_duration_since(*came);
            let (is_old, is_full) = (age > self.length, self.bytes > MAX_BYTES);
            if !is_old && !is_full {
                break;
            }
            self.left_out += u64::from(!is_old);
            self.bytes -= size(oldest);
            self.frames.pop_front();
        }
    }

    /// The frames, and how many of the same time were left out.
    pub(super) fn into_frames(self) -> (Vec<Commented>, u64) {
        (self.frames.into_iter().map(|(_, frame)| frame).collect(), self.left_out)
    }
}

fn size(frame: &Commented) -> usize {
    size_of::<Commented>() + frame.captured.frame.len() + frame.comment.len()
}

/// `30s`, `2m`, `1h`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    let seconds = seconds.filter(|seconds| (1..=3600).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("{text:?} is not a time from 1s to 1h: give a number of s, m or h, as in 30s")
    })
}

const MAX_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_host::observe::{Captured, Way};
    use std::time::SystemTime;

    fn frame(seconds: u64, len: usize) -> Commented {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Commented {
            shard: 0,
            captured: Captured { at, way: Way::Sent, frame: vec![0; len] },
            qpns: [None; 2],
            opcode: None,
            is_trouble: false,
            comment: String::new(),
            lost: 0,
        }
    }

    #[test]
    fn what_is_older_or_too_much_is_left_out() {
        let (mut ring, began) = (Ring::new(Duration::from_secs(2)), Instant::now());
        let later = |seconds| began + Duration::from_secs(seconds);
        (0..5).for_each(|second| ring.push(later(second), frame(second, 1)));
        let (frames, left_out) = ring.into_frames();
        assert_eq!((frames.len(), left_out), (3, 0));
        let mut ring = Ring::new(Duration::from_secs(2));
        (0..3).for_each(|_| ring.push(began, frame(0, MAX_BYTES / 2)));
        let (frames, left_out) = ring.into_frames();
        assert_eq!((frames.len(), left_out), (1, 2));
    }

    #[test]
    fn a_frame_with_a_time_of_its_own_neither_displaces_others_nor_stays() {
        let (mut ring, began) = (Ring::new(Duration::from_secs(2)), Instant::now());
        (0..3).for_each(|_| ring.push(began, frame(100, 1)));
        ring.push(began, frame(1_000_000, 2));
        assert_eq!(ring.frames.len(), 4, "one that is from the future displaces the others");
        ring.push(began + Duration::from_secs(3), frame(103, 3));
        assert_eq!(ring.frames.len(), 1, "it stays for ever");
    }

    #[test]
    fn times_have_a_unit_and_a_range() {
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "0s", "2h", "30", "-1s", "99999999999999999999s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
