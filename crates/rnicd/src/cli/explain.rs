//! `rnic explain`: what a capture file shows.

use anyhow::{Context, Result};
use clap::Args;
use rnic_explain::Report;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

/// Which file, and how to show what it says.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// A pcap or pcapng file; `-` is standard input
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The report as text.
pub(super) fn explain(options: &Options) -> Result<String> {
    let name = options.file.display();
    let report = if options.file.as_os_str() == "-" {
        read(io::stdin().lock(), None)
    } else {
        let file = File::open(&options.file).with_context(|| format!("cannot open {name}"))?;
        let length = file.metadata().ok().map(|data| data.len());
        read(file, length)
    };
    let report = report.with_context(|| name.to_string())?;
    if options.json { Ok(serde_json::to_string_pretty(&report)?) } else { Ok(report.to_string()) }
}

/// Reads with a progress bar, where a person waits and the length is known.
fn read(from: impl Read, length: Option<u64>) -> Result<Report> {
    let length = length.filter(|length| *length > 0 && io::stderr().is_terminal());
    let report = rnic_explain::explain(io::BufReader::with_capacity(1 << 20, from), |done| {
        if let Some(length) = length {
            // A terminal that went away stops nothing.
            let _ = write!(io::stderr(), "\r{}", bar(done, length));
        }
    });
    if length.is_some() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(report?)
}

fn bar(done: u64, length: u64) -> String {
    const WIDTH: usize = 40;
    let percent = (u128::from(done) * 100 / u128::from(length.max(1))).min(100) as usize;
    let full = percent * WIDTH / 100;
    format!("[{}{}] {percent:3} %", "#".repeat(full), " ".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_to_its_full_width() {
        assert_eq!(bar(0, 8), format!("[{}]   0 %", " ".repeat(40)));
        assert_eq!(bar(4, 8), format!("[{}{}]  50 %", "#".repeat(20), " ".repeat(20)));
        // A file that grows while it is read.
        assert_eq!(bar(9, 8), format!("[{}] 100 %", "#".repeat(40)));
    }

    #[test]
    fn what_is_no_capture_is_named() {
        let options = Options { file: "/dev/null".into(), json: false };
        let error = crate::for_people(&explain(&options).unwrap_err());
        assert!(error.starts_with("/dev/null: this is no capture file"), "{error}");
    }
}
