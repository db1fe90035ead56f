//! What share of a rate is left under disturbance, on a machine whose speed changes.

use anyhow::Result;

use crate::checker::Pause;
use crate::measure::Reading;

/// With more than this share of the calm rate, something other than the disturber slowed the calm
/// windows, or the machine became faster.
pub const MOST_LEFT: f64 = 1.2;
/// How much the calm windows before and after a round may differ.
const MOST_CHANGE: f64 = 1.5;
/// How much the shares of the middle half of the rounds may differ.
const MOST_SPREAD: f64 = 0.2;

/// Seconds for which others may make no progress.
const PAUSE: f64 = 0.05;

/// How long others stood still in windows of each kind, in seconds.
#[derive(Default)]
pub struct Pauses {
    /// Beside programs that only spin.
    pub calm: Vec<Pause>,
    /// Beside the disturber.
    pub disturbed: Vec<Pause>,
}

impl Pauses {
    /// Pauses of the machine's own making are as frequent beside programs that only spin.
    #[must_use]
    pub fn judge(&self) -> Reading {
        let count = |pauses: &[Pause], of: fn(&Pause) -> f64| {
            pauses.iter().filter(|pause| of(pause) > PAUSE).count()
        };
        let all = [&self.disturbed, &self.calm].map(|pauses| count(pauses, |pause| pause.all));
        let own = [&self.disturbed, &self.calm].map(|pauses| count(pauses, |pause| pause.own));
        let list = |pauses: &[Pause]| {
            let each = pauses.iter().map(|pause| format!("{:.3} ({:.3})", pause.all, pause.own));
            each.collect::<Vec<_>>().join(", ")
        };
        let text = format!(
            "others stood still for more than {PAUSE} s in {} of {} rounds: {} s, beside \
             spinners {} s; what foreign programs do not explain is in parentheses",
            all[0],
            self.disturbed.len(),
            list(&self.disturbed),
            list(&self.calm)
        );
        eprintln!("{text}");
        match own[0] {
            // No more than beside spinners, whatever explains it.
            _ if all[0] <= all[1] => Reading::Good,
            long if long > own[1] && 2 * long > self.disturbed.len() => Reading::Bad(text),
            _ => Reading::Unclear(text),
        }
    }
}

/// What share of the calm rate was left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// In the median round.
    Measured(f64),
    /// The machine's speed changed too much to measure. The share is at most this: the fast ones of
    /// the disturbed windows, divided by the slow ones of the calm windows.
    AtMost(f64),
}

impl Share {
    /// Whether at least so much was left. Changes of the machine's speed cannot explain a share
    /// whose upper bound is too small.
    #[must_use]
    pub fn at_least(self, least: f64) -> Reading {
        match self {
            Self::Measured(share) | Self::AtMost(share) if share < least => {
                Reading::Bad(format!("only {:.0}% of the rate was left", 100.0 * share))
            }
            Self::Measured(_) => Reading::Good,
            Self::AtMost(_) => Reading::Unclear("the machine's speed changes too much".into()),
        }
    }
}

/// Measures `rounds` windows with a disturber, each between two calm ones of the same length, and
/// returns what share of the calm rate was left. A round whose calm windows differ, or whose share
/// is above `most`, measured something else than the disturber. More rounds follow until enough of
/// them agree, at most twice as many.
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
        // Without a limit, the share need only be large enough.
        if shares.len() >= rounds && (most.is_infinite() || agree(&mut shares)) {
            return Ok(Share::Measured(part(&mut shares, 2)));
        }
    }
    Ok(Share::AtMost(part(&mut rates, 3) / part(&mut calms, 1)))
}

/// A quartile: so many quarters of the values are at most this.
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
        assert_eq!(share.at_least(0.5), Reading::Good);
        assert!(matches!(share.at_least(0.6), Reading::Bad(_)));
    }

    #[test]
    fn a_round_that_measured_something_else_is_repeated() {
        // The calm windows were slowed down, so that the share is above 1.
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
    fn changes_of_speed_excuse_only_what_they_explain() {
        let calm = [10.0, 20.0, 10.0, 20.0, 10.0];
        let unclear = share(2, &calm, &[8.0, 9.0, 8.0, 9.0]);
        assert_eq!(unclear, Share::AtMost(0.9));
        assert!(matches!(unclear.at_least(0.8), Reading::Unclear(_)));
        let clear = share(2, &calm, &[5.0, 4.0, 5.0, 4.0]);
        assert!(matches!(clear.at_least(0.8), Reading::Bad(_)));
    }

    #[test]
    fn an_attack_has_three_rounds_or_more() {
        assert_eq!((rounds_in(60.0, 5.0), rounds_in(61.0, 5.0), rounds_in(1.0, 5.0)), (6, 7, 3));
    }
}
