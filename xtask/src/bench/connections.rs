//! How fast programs connect by address: rdma-core's `cmtime`, which times the steps of many
//! connections.

use std::time::Duration;

use anyhow::{Context, Result};
use system_tests::daemon::Io;
use system_tests::place::Place;
use system_tests::process::wait_until;

use super::series::Spread;
use super::topology::{self, Fixtures};

/// Connections of a run between two namespaces.
const MANY: u32 = 1000;
/// How many a second there have to be.
const TARGET: f64 = 1000.0;
/// The steps of the client until a connection is up.
const STEPS: [&str; 4] = ["resolve addr", "resolve route", "create qp", "connect"];
/// How long a server may take to listen where that cannot be seen, also in an emulated machine.
const LISTENS: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(300);

/// Between two namespaces: what to show, and whether it is enough.
pub(super) fn between_namespaces(fixtures: &Fixtures, quick: bool) -> Result<(String, bool)> {
    let pair = topology::pair(fixtures, Io::Udp, &[])?;
    let mut rates = Vec::new();
    for _ in 0..if quick { 3 } else { 7 } {
        rates.push(rate(&pair.left, &pair.right, MANY)?);
    }
    pair.stop()?;
    let Spread { median, min, max } = Spread::of(rates).context("no run")?;
    Ok((format!("{median:.0} a second ({min:.0}..{max:.0})"), median >= TARGET))
}

/// Connections a second, from the first address that is resolved to the last connection that is
/// up.
pub(super) fn rate(server: &dyn Place, client: &dyn Place, connections: u32) -> Result<f64> {
    let count = connections.to_string();
    let before = server.cm_listeners()?;
    // It does not end by itself: it is killed at the end of this function.
    let serving = server.start("cmtime", &["-c", &count].map(str::to_owned), LIMIT)?;
    match before {
        Some(before) => wait_until("a listener", LISTENS, || {
            Ok(server.cm_listeners()?.is_some_and(|now| now > before))
        })?,
        None => std::thread::sleep(LISTENS),
    }
    let address = server.rdma_address().to_string();
    let args = ["-s", &address, "-c", &count].map(str::to_owned);
    let called = client.start("cmtime", &args, LIMIT)?.wait()?;
    let seconds = seconds(&called.stdout);
    let seconds = seconds.with_context(|| format!("{called}\nserver: {}", serving.said()))?;
    Ok(f64::from(connections) / seconds)
}

/// What the steps took together.
fn seconds(report: &str) -> Option<f64> {
    let total = |step: &&str| -> Option<f64> {
        let mut lines = report.lines().filter_map(|line| line.split_once(':'));
        let (_, numbers) = lines.find(|(name, _)| name.trim() == *step)?;
        numbers.split_whitespace().next()?.parse().ok()
    };
    let totals: Option<Vec<f64>> = STEPS.iter().map(total).collect();
    Some(totals?.iter().sum::<f64>() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_report_are_added() {
        let report = "connecting\nstep              total ms     max ms     min us  us / conn\n\
                      create id    :        0.31       0.01       0.00       0.31\n\
                      resolve addr :      157.00       0.94      98.00     157.84\n\
                      resolve route:       75.00       0.40      30.00      75.79\n\
                      create qp    :       61.50       0.68      23.00      61.96\n\
                      connect      :      331.50     216.34    2695.00     331.23\n\
                      disconnect   :      111.45      14.81     132.00     111.45\n";
        assert_eq!(seconds(report), Some(0.625));
        assert_eq!(seconds("connecting\nevent: RDMA_CM_EVENT_REJECTED, error: 8\n"), None);
    }
}
