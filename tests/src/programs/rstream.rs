//! Reads what rdma-core's `rstream` prints.

use anyhow::{Context, Result};

/// What `rstream` found in one test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Bytes a second, of both directions in turns.
    pub rate: f64,
    /// Half a round trip of the transfers of one turn, in microseconds.
    pub transfer: f64,
}

/// The last test of a report.
///
/// # Errors
/// When there is none.
pub fn row(text: &str) -> Result<Row> {
    let found = text.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (transfer, gigabits) =
            (words.next()?.parse().ok()?, words.next()?.parse::<f64>().ok()?);
        Some(Row { rate: gigabits * 1e9 / 8.0, transfer })
    });
    found.with_context(|| format!("rstream printed no row:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_rate_and_time() {
        let text = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                    custom    64k     20k     1       2.4g        2.17s      9.68      54.18\n";
        assert_eq!(row(text).unwrap(), Row { rate: 1.21e9, transfer: 54.18 });
        assert!(row("name bytes usec/xfer\n").is_err());
    }
}
