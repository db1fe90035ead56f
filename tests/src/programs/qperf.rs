//! Reads what `qperf` prints.

use anyhow::{Context, Result};

/// A value that qperf measured, in seconds, bytes per second or messages per second.
///
/// Use `-uu` (unify units) or not: every unit qperf prints is understood.
///
/// # Errors
/// When no line names the quantity, or its unit is unknown.
pub fn value(text: &str, quantity: &str) -> Result<f64> {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(quantity))
        .with_context(|| format!("qperf printed no {quantity}:\n{text}"))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "=").skip(1);
    let number: f64 = words.next().context("no number")?.parse().context("not a number")?;
    let unit = words.collect::<Vec<_>>().join(" ");
    let scale = match unit.as_str() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "sec" | "bytes/sec" | "/sec" => 1.0,
        "KB/sec" | "K/sec" => 1e3,
        "MB/sec" | "M/sec" => 1e6,
        "GB/sec" | "G/sec" => 1e9,
        _ => anyhow::bail!("unknown unit in qperf's line {line:?}"),
    };
    Ok(number * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_values_are_read() {
        let text = include_str!("recorded/qperf.txt");
        let latency = value(text, "latency").unwrap();
        assert!((1e-6..1e-2).contains(&latency), "{latency}");
        let bandwidth = value(text, "bw").unwrap();
        assert!((1e7..1e11).contains(&bandwidth), "{bandwidth}");
    }

    #[test]
    fn a_missing_quantity_is_an_error() {
        assert!(value("tcp_lat:\n", "latency").is_err());
    }
}
