//! `rnic counters`.

use super::Target;
use super::client::Client;
use super::show::{connect, json, tell_of_silent};
use super::table::{Cell, Column, render};
use anyhow::{Context, Result};
use clap::Args;
use rnic_abi::control::Inspect;
use rnic_host::report::Qp;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Which counters, and how often.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Those of this queue pair, decimal or 0x...
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    qp: Option<u32>,
    /// Show every so many seconds what changed, and how fast, until interrupted; with --json a line
    /// each time
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = seconds
    )]
    watch: Option<Duration>,
}

type Numbers = BTreeMap<String, u64>;

pub(super) fn qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("give a number of 24 bits, e.g. 17 or 0x000011 (`rnic qp` shows them)".into()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give 0.1 to 86400 seconds".into())
}

/// Shows them once, or until the reader has seen enough.
pub(super) fn counters(options: &Options) -> Result<()> {
    let Options { target, qp, watch } = options;
    let client = connect(target)?;
    let mut before = read(&client, *qp)?;
    tell_of_silent(&client);
    let Some(pause) = watch else {
        return show(&if target.json { json(&before)? } else { table(before) }).map(drop);
    };
    let mut read_at = Instant::now();
    loop {
        thread::sleep(*pause);
        let now = read(&client, *qp)?;
        let passed = read_at.elapsed();
        read_at = Instant::now();
        let text =
            if target.json { serde_json::to_string(&now)? } else { changes(&before, &now, passed) };
        if !show(&text)? {
            return Ok(());
        }
        before = now;
    }
}

fn read(client: &Client, qp: Option<u32>) -> Result<Numbers> {
    let Some(qpn) = qp else { return client.inspect(Inspect::Counters) };
    let all: Vec<Qp> = client.list(Inspect::Qps)?;
    let found = all.into_iter().find(|qp| qp.qpn == qpn).with_context(|| {
        format!("there is no queue pair {qpn:#08x}, or it is not yours (`rnic qp` lists them)")
    })?;
    Ok(found.counters.iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Whether the reader wants more: one that has seen enough (`| head`) is no error.
fn show(text: &str) -> Result<bool> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write"),
    }
}

/// Those that are not zero.
fn table(mut numbers: Numbers) -> String {
    numbers.retain(|_, value| *value != 0);
    let columns: [Column<(String, u64)>; 2] =
        [("COUNTER", |(name, _)| Cell::from(&**name)), ("VALUE", |(_, value)| Cell::amount(value))];
    render(&columns, &numbers.into_iter().collect::<Vec<_>>())
}

/// A counter that changed.
struct Change {
    name: String,
    value: u64,
    /// Each second.
    rate: u64,
}

/// Those that changed in that time.
fn changes(before: &Numbers, now: &Numbers, passed: Duration) -> String {
    let changed = now.iter().filter_map(|(name, value)| {
        let more = value.wrapping_sub(before.get(name).copied().unwrap_or_default());
        // Saturates.
        let rate = (more as f64 / passed.as_secs_f64()).round() as u64;
        (more != 0).then(|| Change { name: name.clone(), value: *value, rate })
    });
    let columns: [Column<Change>; 3] = [
        ("COUNTER", |change| Cell::from(&*change.name)),
        ("VALUE", |change| Cell::amount(change.value)),
        ("PER-SECOND", |change| Cell::amount(change.rate)),
    ];
    render(&columns, &changed.collect::<Vec<_>>()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_shown_with_its_rate() {
        let before = Numbers::from([("a".into(), 10), ("b".into(), 5)]);
        let now = Numbers::from([("a".into(), 30), ("b".into(), 5), ("c".into(), 1)]);
        let text = changes(&before, &now, Duration::from_secs(2));
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let wanted =
            [&["COUNTER", "VALUE", "PER-SECOND"][..], &["a", "30", "10"], &["c", "1", "1"]];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn numbers_and_times_have_ranges() {
        assert_eq!(qpn("0x11"), Ok(17));
        assert!(qpn("0x1000000").is_err() && qpn("x").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("1e9").is_err());
    }
}
