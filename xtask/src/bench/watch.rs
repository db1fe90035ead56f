//! Whether other processes used the machine during a measurement.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc` (USER_HZ, the same on every Linux).
const TICKS: f64 = 100.0;

/// A measurement in progress.
pub(super) struct Watch {
    /// Processes of ours that outlive the measurement.
    daemons: Vec<u32>,
    began: Instant,
    foreign: f64,
}

impl Watch {
    pub(super) fn start(daemons: &[u32]) -> Result<Self> {
        let daemons = daemons.to_vec();
        let foreign = foreign(&daemons)?;
        Ok(Self { daemons, began: Instant::now(), foreign })
    }

    /// Seconds of a core that others used (and a hypervisor took), per second.
    pub(super) fn finish(self) -> Result<f64> {
        let foreign = foreign(&self.daemons)? - self.foreign;
        Ok((foreign / self.began.elapsed().as_secs_f64()).max(0.0))
    }
}

/// CPU time of all processes except this one and its descendants, in seconds.
fn foreign(daemons: &[u32]) -> Result<f64> {
    let busy = busy(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no cpu line")?;
    let mut own = 0.0;
    for pid in daemons.iter().map(u32::to_string).chain(["self".to_owned()]) {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        own += spent(&text).with_context(|| path)?;
    }
    Ok(busy - own)
}

/// User, nice, system and stolen time of all processors. Interrupts have no owner and are left out.
fn busy(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some((ticks.get(..3)?.iter().sum::<f64>() + ticks.get(7)?) / TICKS)
}

/// User and system time of a process and of the children that it waited for.
fn spent(stat: &str) -> Option<f64> {
    // The name in parentheses can have spaces; the state follows it.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> =
        rest.split_whitespace().skip(11).take(4).filter_map(|word| word.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum::<f64>() / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_counts_and_idle_time_does_not() {
        assert_eq!(busy("cpu  100 20 30 9999 5 6 7 50 0 0\ncpu0 1 2 3"), Some(2.0));
        assert_eq!(busy("intr 1"), None);
    }

    #[test]
    fn a_name_with_spaces_does_not_shift_the_fields() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 100 50 25 25 20 0 1 0";
        assert_eq!(spent(stat), Some(2.0));
    }
}
