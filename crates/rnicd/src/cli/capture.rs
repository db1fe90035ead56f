//! `rnic capture`: frames as lines, or as a file for Wireshark.

use super::client::Client;
use anyhow::{Context, Result};
use clap::Args;
use rnic_host::pcapng;
use rnic_host::wire::Captured;
use roce_wire::{Datagram, Frame};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::SystemTime;

/// What to capture, and where to.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    place: super::Place,
    /// Write a pcapng file for Wireshark instead of printing lines; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Stop after this many frames [default: run until interrupted]
    #[arg(short, long, value_name = "NUMBER")]
    count: Option<u64>,
}

/// Captures until the count is reached, the daemon ends, or the user interrupts.
pub(super) fn capture(options: &Options) -> Result<()> {
    let client = Client::connect(options.place.socket.as_deref())?;
    client.tell();
    let mut file: Option<Box<dyn Write>> = match &options.write {
        Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
        Some(path) => {
            let file = File::create(path);
            Some(Box::new(file.with_context(|| format!("cannot write {}", path.display()))?))
        }
        None => None,
    };
    let (read, write) = io::pipe().context("cannot make a pipe")?;
    client.capture(write.as_fd())?;
    drop(write);
    let mut from = BufReader::new(read);
    let mut frames = 0;
    while options.count.is_none_or(|count| frames < count)
        && let Some(block) = pcapng::read_block(&mut from).context("reading the capture")?
    {
        let captured = pcapng::frame_in(&block);
        frames += u64::from(captured.is_some());
        let written = match (&mut file, captured) {
            // At once: a reader may follow the file.
            (Some(file), _) => file.write_all(&block).and_then(|()| file.flush()),
            (None, Some(captured)) => writeln!(io::stdout(), "{}", line(&captured)),
            (None, None) => Ok(()),
        };
        match written {
            // A reader that has seen enough (`| head`) is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other.context("cannot write")?,
        }
    }
    eprintln!("{frames} {} captured", if frames == 1 { "frame" } else { "frames" });
    Ok(())
}

/// Time of day (UTC), direction, peers, packet.
fn line(captured: &Captured) -> String {
    let since = captured.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (since.as_secs() % 86_400, since.subsec_micros());
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let direction = if captured.sent { "out" } else { "in " };
    let text = match Frame::parse(&captured.frame) {
        Ok(frame) => match Datagram::parse(frame.payload()) {
            Ok(datagram) => format!("{} > {} {datagram}", frame.flow.src, frame.flow.dst),
            Err(error) => format!("{} > {} {error}", frame.flow.src, frame.flow.dst),
        },
        Err(error) => error.to_string(),
    };
    format!("{hours:02}:{minutes:02}:{seconds:02}.{micros:06} {direction} {text}")
}
