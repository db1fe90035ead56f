//! What part of a rate is left while somebody disturbs, on a machine whose speed changes.

use anyhow::Result;

/// Disturbs for `seconds` in rounds of at most `round` seconds, each between two calm measurements,
/// and returns what part of the calm rate was left, in the median round. Both rates are in MB/s;
/// `disturbed` is given the seconds of its round.
///
/// # Errors
/// As the measurements.
pub fn share_left(
    seconds: f64,
    round: f64,
    mut calm: impl FnMut() -> Result<f64>,
    mut disturbed: impl FnMut(f64) -> Result<f64>,
) -> Result<f64> {
    let mut shares = Vec::new();
    let mut before = calm()?;
    let mut left = seconds;
    while left > 0.0 {
        let rate = disturbed(left.min(round))?;
        let after = calm()?;
        eprintln!("{rate:.0} MB/s between {before:.0} and {after:.0} MB/s");
        shares.push(2.0 * rate / (before + after));
        before = after;
        left -= round;
    }
    shares.sort_by(f64::total_cmp);
    Ok(shares[shares.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_round_is_compared_with_the_calm_around_it() {
        let (mut calm, mut lengths) = ([10.0, 30.0, 10.0, 10.0].into_iter(), Vec::new());
        let disturbed = |seconds| {
            lengths.push(seconds);
            Ok(10.0)
        };
        let share = share_left(25.0, 10.0, || Ok(calm.next().unwrap()), disturbed).unwrap();
        assert_eq!((share, lengths), (0.5, vec![10.0, 10.0, 5.0]));
    }
}
