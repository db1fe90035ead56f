//! What part of a rate is left under disturbance, on a machine whose speed changes.

use anyhow::{Result, ensure};

use crate::lab::note;

/// More than this of the calm rate is left beside an equal load: the machine became faster, or
/// something else that is not the disturber held up the calm.
pub const MOST_LEFT: f64 = 1.2;
/// How much the calm before and after a round may differ.
const MOST_CHANGE: f64 = 1.5;
/// How much the shares of the middle half of all rounds may differ.
const MOST_SPREAD: f64 = 0.2;

/// What part of the calm rate was left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// In the median round.
    Measured(f64),
    /// The machine's speed changed too much to say; but not more than this, for it is what fast
    /// disturbed windows have of slow calm ones.
    AtMost(f64),
}

impl Share {
    /// That so much was left. A machine with so much other work that it cannot be said is noted in
    /// the summary of the run, and only what no such machine explains is a failure.
    ///
    /// # Errors
    /// When it was less.
    pub fn is_at_least(self, least: f64, test: &str) -> Result<()> {
        let (Self::Measured(share) | Self::AtMost(share)) = self;
        ensure!(share >= least, "{test}: only {:.0}% of the rate was left", 100.0 * share);
        if matches!(self, Self::AtMost(_)) {
            note(&format!("NOT MEASURED {test}: the machine's speed changes too much"));
        }
        Ok(())
    }
}

/// Measures `rounds` windows with a disturber, each between two calm ones of the same length, and
/// returns what part of the calm rate was left. A round whose calm changed, or that left more than
/// `most`, measured something else than the disturber. More rounds follow until there are enough
/// that agree; twice as many are too many.
///
/// # Errors
/// As the measurements.
pub fn share_left(
    rounds: usize,
    most: f64,
    mut calm: impl FnMut() -> Result<f64>,
    mut disturbed: impl FnMut() -> Result<f64>,
) -> Result<Share> {
    let (mut shares, mut rates, mut calms) = (Vec::new(), Vec::new(), vec![calm()?]);
    while rates.len() < 2 * rounds {
        let (before, rate, after) = (calms[calms.len() - 1], disturbed()?, calm()?);
        rates.push(rate);
        calms.push(after);
        let share = 2.0 * rate / (before + after);
        eprint!("{rate:.0} MB/s between {before:.0} and {after:.0} MB/s: ");
        if share <= most && before.max(after) / before.min(after) <= MOST_CHANGE {
            eprintln!("{:.0}%", 100.0 * share);
            shares.push(share);
        } else {
            eprintln!("not measured");
        }
        let agree = |shares: &mut [f64]| part(shares, 3) - part(shares, 1) <= MOST_SPREAD;
        // Beyond `most` nothing is compared but that it is enough.
        if shares.len() >= rounds && (most.is_infinite() || agree(&mut shares)) {
            return Ok(Share::Measured(part(&mut shares, 2)));
        }
    }
    Ok(Share::AtMost(part(&mut rates, 3) / part(&mut calms, 1)))
}

/// What so many quarters of the values are not above.
fn part(values: &mut [f64], quarters: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * quarters / 4]
}

/// How many rounds of two `window`s fit into so many seconds: at least three.
#[must_use]
pub fn rounds_in(seconds: f64, window: f64) -> usize {
    // Saturates.
    ((seconds / (2.0 * window)).ceil() as usize).max(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share, from the calm and the disturbed rates in their order.
    fn share(rounds: usize, calm: &[f64], disturbed: &[f64]) -> Share {
        let (mut calm, mut disturbed) = (calm.iter(), disturbed.iter());
        let result = share_left(
            rounds,
            MOST_LEFT,
            || Ok(*calm.next().expect("a calm window too many")),
            || Ok(*disturbed.next().expect("a disturbed window too many")),
        );
        assert!(calm.next().is_none() && disturbed.next().is_none(), "windows are left");
        result.unwrap()
    }

    #[test]
    fn the_median_round_is_compared_with_the_calm_around_it() {
        let share = share(3, &[10.0, 12.0, 10.0, 10.0], &[8.2, 8.8, 9.4]);
        assert_eq!(share, Share::Measured(8.8 / 11.0));
    }

    #[test]
    fn half_of_the_rate_is_half_of_it() {
        let share = share(3, &[10.0; 4], &[5.0; 3]);
        assert_eq!(share, Share::Measured(0.5));
        assert!(share.is_at_least(0.5, "").is_ok() && share.is_at_least(0.6, "").is_err());
    }

    #[test]
    fn a_round_that_measured_something_else_is_repeated() {
        // The calm was held up, so that more than all is left.
        assert_eq!(share(2, &[10.0; 4], &[30.0, 5.0, 5.0]), Share::Measured(0.5));
        // It changed.
        assert_eq!(share(1, &[10.0, 16.0, 16.0], &[10.0, 8.0]), Share::Measured(0.5));
    }

    #[test]
    fn rounds_that_do_not_agree_are_followed_by_others() {
        let disturbed = [8.0, 11.0, 8.0, 9.0, 9.5];
        assert_eq!(share(3, &[10.0; 6], &disturbed), Share::Measured(0.9));
    }

    #[test]
    fn a_machine_that_changes_too_much_excuses_only_what_it_explains() {
        let calm = [10.0, 20.0, 10.0, 20.0, 10.0];
        let unclear = share(2, &calm, &[8.0, 9.0, 8.0, 9.0]);
        assert_eq!(unclear, Share::AtMost(0.9));
        assert!(unclear.is_at_least(0.8, "a test of not measuring").is_ok());
        let clear = share(2, &calm, &[5.0, 4.0, 5.0, 4.0]);
        assert!(clear.is_at_least(0.8, "").is_err());
    }

    #[test]
    fn an_attack_has_three_rounds_or_more() {
        assert_eq!((rounds_in(60.0, 5.0), rounds_in(61.0, 5.0), rounds_in(1.0, 5.0)), (6, 7, 3));
    }
}
