//! Reads what `ibv_*_pingpong` prints.

use anyhow::{Context, Result};

/// What a pingpong measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Pingpong {
    /// Bytes that went over the wire in both directions together.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// Microseconds of one round trip.
    pub round_trip: f64,
}

/// The two lines of results.
///
/// # Errors
/// When they are not there.
pub fn result(text: &str) -> Result<Pingpong> {
    read(text).with_context(|| format!("a pingpong printed no result:\n{text}"))
}

fn read(text: &str) -> Option<Pingpong> {
    let words = |mark: &str| {
        let line = text.lines().find(|line| line.contains(mark))?;
        Some(line.split_whitespace().collect::<Vec<_>>())
    };
    let (volume, time) = (words(" bytes in ")?, words(" iters in ")?);
    let per_iteration = time.iter().position(|word| *word == "usec/iter")?;
    Some(Pingpong {
        bytes: volume.first()?.parse().ok()?,
        iterations: time.first()?.parse().ok()?,
        round_trip: time.get(per_iteration.checked_sub(1)?)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "  local address:  LID 0x0000, QPN 0x000011, PSN 0x16d4b4, GID ::\n\
             8192000 bytes in 0.45 seconds = 146.01 Mbit/sec\n\
             1000 iters in 0.45 seconds = 448.85 usec/iter\n";
        let expected = Pingpong { bytes: 8_192_000, iterations: 1000, round_trip: 448.85 };
        assert_eq!(result(text).unwrap(), expected);
    }

    #[test]
    fn a_failed_run_has_no_result() {
        assert!(result("Couldn't connect to 10.0.0.1:18515\n").is_err());
    }
}
