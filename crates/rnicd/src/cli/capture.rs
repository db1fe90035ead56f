//! `rnic capture`: frames as lines, or as a file for Wireshark, with what became of each.

mod filter;
mod ring;

use super::client::Client;
use super::tell;
use super::watching::{Watching, create, time_of_day};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use filter::Filter;
use ring::Ring;
use rnic_host::observe::comments::{Commented, Comments};
use rnic_host::observe::{Told, Wants, Way};
use rnic_host::pcapng;
use roce_wire::{Datagram, Frame};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// What to capture, and where to.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    place: super::Place,
    /// Write a pcapng file for Wireshark instead of printing lines; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Stop after this many frames, at least 1 [default: run until interrupted]
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    filter: Filter,
    /// Keep the frames of the last so many seconds (30s, 2m; at most 1h) and 256 MiB, and write
    /// them at the end
    #[arg(long, value_name = "TIME", value_parser = ring::time, requires = "write")]
    last: Option<Duration>,
    /// Stop when something goes wrong: a completion with an error, a refused request, a queue pair
    /// or completion queue that fails
    #[arg(long, value_name = "WHAT")]
    until: Option<Until>,
}

/// What ends a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Until {
    /// A program or its connection is in trouble
    Error,
}

/// Captures until the count is reached, something goes wrong if that is waited for, the daemon
/// ends, or the user interrupts.
pub(super) fn capture(options: &Options) -> Result<()> {
    let client = Client::connect(options.place.socket.as_deref())?;
    client.tell();
    let name = client.device_name()?;
    let mut watching = Watching::begin(client, Wants { frames: true, events: true })?;
    // Then only: a user who may not watch keeps an earlier capture of that name.
    let mut output = Output::open(options)?;
    output.begin(&name)?;
    let mut comments = Comments::default();
    let mut cause = None;
    let is_done = |output: &Output| options.count.is_some_and(|count| output.frames >= count);
    while !is_done(&output)
        && let Some(observation) = watching.next()?
    {
        if let Told::Event(record) = &observation.told
            && options.until == Some(Until::Error)
            && record.is_error
        {
            cause.get_or_insert_with(|| record.event.clone());
        }
        let is_turn = observation.told == Told::Turn;
        for frame in comments.take(observation) {
            output.take(options, frame)?;
        }
        // What belongs to the error is complete.
        if output.is_over || (is_turn && cause.is_some()) {
            break;
        }
    }
    for frame in comments.rest() {
        output.take(options, frame)?;
    }
    output.finish(comments.lost.frames)?;
    let forgotten = comments.forgotten();
    if forgotten > 0 {
        tell(format_args!(
            "{forgotten} comments may be missing: too many packets were on their way"
        ));
    }
    if let Some(cause) = cause {
        tell(format_args!("stopped: {cause}"));
    }
    Ok(())
}

/// Where frames go.
struct Output {
    file: Option<Box<dyn Write>>,
    ring: Option<Ring>,
    /// Shown, and seen.
    frames: u64,
    seen: u64,
    /// The reader has seen enough.
    is_over: bool,
}

impl Output {
    fn open(options: &Options) -> Result<Self> {
        let file = options.write.as_deref().map(create).transpose()?;
        let ring = options.last.map(Ring::new);
        Ok(Self { file, ring, frames: 0, seen: 0, is_over: false })
    }

    /// The head of the file tells that all packets from now on follow.
    fn begin(&mut self, device: &str) -> Result<()> {
        match &mut self.file {
            Some(file) => {
                pcapng::write_head(file, device).and_then(|()| file.flush()).context("cannot write")
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, options: &Options, frame: Commented) -> Result<()> {
        self.seen += 1;
        if !options.filter.matches(&frame) || options.count.is_some_and(|all| self.frames >= all) {
            return Ok(());
        }
        self.frames += 1;
        match &mut self.ring {
            Some(ring) => ring.push(Instant::now(), frame),
            None => return self.show(&frame),
        }
        Ok(())
    }

    fn show(&mut self, frame: &Commented) -> Result<()> {
        let written = match &mut self.file {
            // At once: a reader may follow the file.
            Some(file) => {
                let mut block = Vec::new();
                pcapng::write_frame(&mut block, &frame.captured, &frame.comment, frame.lost)
                    .and_then(|()| file.write_all(&block))
                    .and_then(|()| file.flush())
            }
            None => writeln!(io::stdout(), "{}", line(frame)),
        };
        match written {
            // A reader that has seen enough (`| head`) is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_over = true,
            other => other.context("cannot write")?,
        }
        Ok(())
    }

    fn finish(mut self, lost: u64) -> Result<()> {
        if let Some(ring) = self.ring.take() {
            let (frames, left_out) = ring.into_frames();
            self.frames = frames.len() as u64;
            for frame in &frames {
                self.show(frame)?;
            }
            if left_out > 0 {
                tell(format_args!("{left_out} older frames were not kept"));
            }
        }
        if let Some(file) = &mut self.file
            && !self.is_over
        {
            pcapng::write_statistics(file, SystemTime::now(), self.seen.saturating_add(lost), lost)
                .and_then(|()| file.flush())
                .context("cannot write")?;
        }
        tell(format_args!("{} {} captured", self.frames, frames(self.frames)));
        if lost > 0 {
            tell(format_args!(
                "{lost} {} lost: they came faster than they were written",
                frames(lost)
            ));
        }
        Ok(())
    }
}

fn frames(number: u64) -> &'static str {
    if number == 1 { "frame" } else { "frames" }
}

/// Time of day (UTC), direction, peers, packet, what is said of it.
fn line(frame: &Commented) -> String {
    let captured = &frame.captured;
    let since = captured.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = time_of_day(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    let direction = match captured.way {
        Way::Sent => "out ",
        Way::Received => "in  ",
        Way::Looped => "loop",
        Way::Unsent => "none",
    };
    let text = match Frame::parse(&captured.frame) {
        Ok(frame) => match Datagram::parse(frame.payload()) {
            Ok(datagram) => format!("{} > {} {datagram}", frame.flow.src, frame.flow.dst),
            Err(error) => format!("{} > {} {error}", frame.flow.src, frame.flow.dst),
        },
        Err(error) => error.to_string(),
    };
    let comment = match &*frame.comment {
        "" => String::new(),
        comment => format!(" [{comment}]"),
    };
    format!("{time} {direction} {text}{comment}")
}
