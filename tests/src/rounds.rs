//! What part of a rate is left while somebody disturbs, on a machine whose speed changes.

use anyhow::{Result, ensure};

/// More than this of the calm rate is left: the machine became faster, or something else that is
/// not the disturber held up the calm.
const MOST_LEFT: f64 = 1.2;
/// How much the calm before and after a round may differ.
const MOST_CHANGE: f64 = 1.5;

/// Measures `rounds` windows with a disturber, each between two calm ones of the same length, and
/// returns what part of the calm rate was left, in the median round. A round whose calm changed, or
/// that left more than there can be, measured something else than the disturber: it is repeated.
///
/// # Errors
/// As the measurements, and when two thirds of all rounds measured nothing.
pub fn share_left(
    rounds: usize,
    mut calm: impl FnMut() -> Result<f64>,
    mut disturbed: impl FnMut() -> Result<f64>,
) -> Result<f64> {
    let (mut shares, mut spoiled) = (Vec::new(), Vec::new());
    let mut before = calm()?;
    while shares.len() < rounds {
        let rate = disturbed()?;
        let after = calm()?;
        let share = 2.0 * rate / (before + after);
        let change = before.max(after) / before.min(after);
        let line = format!("{rate:.0} MB/s between {before:.0} and {after:.0} MB/s");
        if share <= MOST_LEFT && change <= MOST_CHANGE {
            eprintln!("{line}: {:.0}%", 100.0 * share);
            shares.push(share);
        } else {
            eprintln!("{line}: not measured");
            spoiled.push(line);
            ensure!(
                spoiled.len() <= 2 * rounds,
                "not measured: the machine's speed changes too much:\n  {}",
                spoiled.join("\n  ")
            );
        }
        before = after;
    }
    shares.sort_by(f64::total_cmp);
    Ok(shares[shares.len() / 2])
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
    fn share(rounds: usize, calm: &[f64], disturbed: &[f64]) -> Result<f64> {
        let (mut calm, mut disturbed) = (calm.iter(), disturbed.iter());
        let result = share_left(
            rounds,
            || Ok(*calm.next().expect("a calm window too many")),
            || Ok(*disturbed.next().expect("a disturbed window too many")),
        );
        assert!(calm.next().is_none() && disturbed.next().is_none(), "windows are left");
        result
    }

    #[test]
    fn the_median_round_is_compared_with_the_calm_around_it() {
        let share = share(3, &[10.0, 12.0, 10.0, 10.0], &[5.5, 9.0, 11.0]).unwrap();
        assert_eq!(share, 9.0 / 11.0);
    }

    #[test]
    fn half_of_the_rate_is_half_of_it() {
        assert_eq!(share(3, &[10.0; 4], &[5.0; 3]).unwrap(), 0.5);
    }

    #[test]
    fn a_round_that_measured_something_else_is_repeated() {
        // The calm was held up, so that more than all is left; then it changed.
        let share = share(1, &[10.0, 10.0, 16.0, 16.0], &[30.0, 10.0, 8.0]).unwrap();
        assert_eq!(share, 0.5);
    }

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        let error = share(1, &[10.0; 4], &[35.0; 3]).unwrap_err().to_string();
        assert!(error.contains("not measured") && error.contains("35 MB/s"), "{error}");
    }

    #[test]
    fn an_attack_has_three_rounds_or_more() {
        assert_eq!((rounds_in(60.0, 5.0), rounds_in(61.0, 5.0), rounds_in(1.0, 5.0)), (6, 7, 3));
    }
}
