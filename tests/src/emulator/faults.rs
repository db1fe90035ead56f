//! What happens to a frame: a pure function of seed and order of arrival.

use fastrand::Rng;

/// Probabilities of each fault, per frame and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Vanishes.
    pub loss: f64,
    /// Arrives twice.
    pub duplicate: f64,
    /// Overtaken by up to [`REORDER_SPAN`] later frames.
    pub reorder: f64,
    /// One bit of the RoCE packet is inverted.
    pub corrupt: f64,
    /// ECN field set to CE (IPv4 and IPv6), checksum mended.
    pub mark: f64,
    /// Every frame is late by this many microseconds.
    pub delay_us: u64,
    /// Bits per second; 0 is unlimited.
    pub rate: u64,
}

/// Frames that may overtake a reordered one.
pub const REORDER_SPAN: u64 = 8;

impl Faults {
    /// No faults: a wire.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        mark: 0.0,
        delay_us: 0,
        rate: 0,
    };

    /// The mixture that every I/O path must survive: 2% loss, 1% duplication, 5% reordering and
    /// 0.1% corruption.
    pub const ROUGH: Self =
        Self { loss: 0.02, duplicate: 0.01, reorder: 0.05, corrupt: 0.001, ..Self::NONE };
}

/// What is done to one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// It vanishes.
    pub lost: bool,
    /// A second copy follows.
    pub duplicated: bool,
    /// This many later frames overtake it.
    pub overtaken_by: u64,
    /// This bit of its UDP payload (modulo the length) is flipped.
    pub flipped_bit: Option<u64>,
    /// Congestion is marked.
    pub marked: bool,
}

/// A reproducible sequence of fates.
#[derive(Debug)]
pub struct Dice {
    random: Rng,
    faults: Faults,
}

impl Dice {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self { random: Rng::with_seed(seed), faults }
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// The fate of the next frame.
    pub fn roll(&mut self) -> Fate {
        // Every frame uses the same number of random numbers, so that one fault does not shift the
        // others.
        let faults = self.faults;
        let (lost, duplicated) = (self.happens(faults.loss), self.happens(faults.duplicate));
        let (reordered, corrupted) = (self.happens(faults.reorder), self.happens(faults.corrupt));
        let marked = self.happens(faults.mark);
        let (span, bit) = (self.random.u64(..), self.random.u64(..));
        Fate {
            lost,
            duplicated,
            overtaken_by: if reordered { 1 + span % REORDER_SPAN } else { 0 },
            flipped_bit: corrupted.then_some(bit),
            marked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_sequence_at_the_rates_asked_for() {
        let fates = |seed| {
            let mut dice = Dice::new(seed, Faults::ROUGH);
            (0..100_000).map(|_| dice.roll()).collect::<Vec<_>>()
        };
        let first = fates(7);
        assert_eq!(first, fates(7));
        assert_ne!(first, fates(8));
        let lost = first.iter().filter(|fate| fate.lost).count();
        assert!((1_800..2_200).contains(&lost), "{lost} of 100000 lost");
        let reordered = first.iter().filter(|fate| fate.overtaken_by > 0).count();
        assert!((4_700..5_300).contains(&reordered), "{reordered} of 100000 reordered");
    }

    #[test]
    fn a_wire_without_faults_does_nothing() {
        let mut dice = Dice::new(1, Faults::NONE);
        assert!((0..1000).all(|_| dice.roll() == Fate::default()));
    }
}
