//! `rnic explain`: what a capture file shows.

use anyhow::{Context, Result};
use clap::Args;
use rnic_explain::{Report, Story};
use std::fs;
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
    /// Also write a page for a browser, with the first packets and those around what went wrong
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
}

/// The report as text.
pub(super) fn explain(options: &Options) -> Result<String> {
    let name = options.file.display();
    let read = if options.file.as_os_str() == "-" {
        read(io::stdin().lock(), None, options)
    } else {
        let file = super::open(&options.file, "`rnic capture -w FILE` writes a capture")?;
        let length = file.metadata().ok().map(|data| data.len());
        read(file, length, options)
    };
    let (report, story) = read.with_context(|| name.to_string())?;
    if let (Some(out), Some(story)) = (&options.html, &story) {
        let page = rnic_explain::html(story);
        fs::write(out, page).with_context(|| format!("cannot write {}", out.display()))?;
    }
    if options.json { Ok(serde_json::to_string_pretty(&report)?) } else { Ok(report.to_string()) }
}

/// Reads with a progress bar, where a person waits and the length is known. A story is made where
/// a page is wanted.
fn read(
    from: impl Read,
    length: Option<u64>,
    options: &Options,
) -> Result<(Report, Option<Story>)> {
    let length = length.filter(|length| *length > 0 && io::stderr().is_terminal());
    let from = io::BufReader::with_capacity(1 << 20, from);
    let progress = |done| {
        if let Some(length) = length {
            // A terminal that went away stops nothing.
            let _ = write!(io::stderr(), "\r{}", bar(done, length));
        }
    };
    let name = options.file.file_name().unwrap_or_default().to_string_lossy();
    let read = match options.html {
        Some(_) => rnic_explain::tell(from, &name, progress).map(|(r, story)| (r, Some(story))),
        None => rnic_explain::explain(from, progress).map(|report| (report, None)),
    };
    if length.is_some() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(read?)
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
        let options = Options { file: "/dev/null".into(), json: false, html: None };
        let error = crate::for_people(&explain(&options).unwrap_err());
        assert!(error.starts_with("/dev/null: this is no capture file"), "{error}");
    }

    /// The packets of the story of a loss, as a capture shows them.
    #[test]
    fn a_page_has_the_packets_that_were_sent_again_and_what_was_found() {
        let folder = std::env::temp_dir().join(format!("rnic-explain-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (pcap, html) = (folder.join("<loss>.pcap"), folder.join("loss.html"));
        let played = rnic_lab::play(rnic_lab::named("loss").unwrap(), &[]).unwrap();
        fs::write(&pcap, played.pcap).unwrap();
        let options = Options { file: pcap, json: false, html: Some(html.clone()) };
        explain(&options).unwrap();
        let page = fs::read_to_string(&html).unwrap();
        fs::remove_dir_all(folder).unwrap();
        let (_, data) = page.split_once("id=\"story\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let story: Story = serde_json::from_str(data).unwrap();
        assert_eq!((story.name.as_str(), story.hosts.len()), ("<loss>.pcap", 2));
        assert!(!story.about.is_empty(), "{:?}", story.about);
        let flights: Vec<_> = story.steps.iter().filter_map(|step| step.flight.as_ref()).collect();
        assert_eq!(flights.len(), 11);
        assert_eq!(flights.iter().filter(|flight| flight.again).count(), 4);
        let mut reasons = story.steps.iter().filter_map(|step| step.reason.as_deref());
        assert!(reasons.any(|reason| reason == "NAK: PSN sequence error"));
        assert!(story.steps.iter().all(|step| step.qp == story.steps[0].qp), "one connection");
    }
}
