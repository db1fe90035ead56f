//! Reads what `iperf3 --json` prints.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The receiver's throughput in bits per second.
///
/// # Errors
/// When the text is not iperf3's JSON, or reports an error of iperf3.
pub fn received_bits_per_second(text: &str) -> Result<f64> {
    let report: Value = serde_json::from_str(text).context("iperf3 printed no JSON")?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let rate = &report["end"]["sum_received"]["bits_per_second"];
    rate.as_f64().context("no end.sum_received.bits_per_second in iperf3's report")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_report_is_read() {
        let text = include_str!("recorded/iperf3.json");
        let rate = received_bits_per_second(text).unwrap();
        assert!((1e9..1e12).contains(&rate), "{rate}");
    }

    #[test]
    fn an_error_of_iperf3_is_passed_on() {
        let text = r#"{"error": "unable to connect to server: Connection refused"}"#;
        let error = received_bits_per_second(text).unwrap_err().to_string();
        assert!(error.contains("Connection refused"), "{error}");
    }
}
