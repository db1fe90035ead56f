//! `rnic trace`: what the engines do, as JSON.

mod perfetto;

use super::client::Client;
use super::tell;
use super::watching::{Watching, create};
use anyhow::Result;
use clap::Args;
use perfetto::Timeline;
use rnic_core::event::SCHEMA;
use rnic_host::observe::story::{MessageId, Story};
use rnic_host::observe::{Lost, Record, Told, Wants};
use serde_json::{Value, json};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;

/// What to trace, and where to.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    place: super::Place,
    /// Write to a file; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// Stop after this many events, at least 1 [default: run until interrupted]
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only events of these kinds, separated by commas, as in sent,received,dropped
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', value_parser = kind)]
    events: Vec<String>,
    /// Write a timeline of queue pairs, WQEs and packets for the Perfetto viewer
    /// (ui.perfetto.dev) instead of lines
    #[arg(long)]
    perfetto: bool,
}

/// A name that the vocabulary has.
fn kind(text: &str) -> Result<String, String> {
    let names: Vec<_> = rnic_core::Event::schema().into_iter().map(|event| event.name).collect();
    match names.iter().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!("there is no event {text:?}, but {}", names.join(", "))),
    }
}

/// Traces until the count is reached, the daemon ends, or the user interrupts.
pub(super) fn trace(options: &Options) -> Result<()> {
    let client = Client::connect(options.place.socket.as_deref())?;
    client.tell();
    let device = client.device_name()?;
    let watching = Watching::begin(client, Wants { frames: false, events: true })?;
    let mut tracer = Tracer {
        // Then only: a user who may not watch keeps an earlier trace of that name.
        to: BufWriter::new(create(&options.write)?),
        story: Story::default(),
        timeline: options.perfetto.then(Timeline::default),
        lost: Lost::default(),
        events: 0,
    };
    let ended = match tracer.run(options, watching, &device) {
        // A reader that has seen enough (`| head`) is no error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        other => other,
    };
    tell(format_args!("{} {} traced", tracer.events, events(tracer.events)));
    let lost = tracer.lost.events;
    if lost > 0 {
        tell(format_args!("{lost} {} lost: they came faster than they were written", events(lost)));
    }
    let forgotten = tracer.story.forgotten();
    if forgotten > 0 {
        tell(format_args!(
            "{forgotten} messages were forgotten before their end: later events lack their id"
        ));
    }
    let unopened = tracer.timeline.as_ref().map_or(0, Timeline::unopened);
    if unopened > 0 {
        tell(format_args!("{unopened} WQEs have no slice: too many had no end"));
    }
    ended
}

fn events(number: u64) -> &'static str {
    if number == 1 { "event" } else { "events" }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(ErrorKind::BrokenPipe)
}

struct Tracer {
    to: BufWriter<Box<dyn Write>>,
    story: Story,
    timeline: Option<Timeline>,
    lost: Lost,
    events: u64,
}

impl Tracer {
    fn run(&mut self, options: &Options, mut watching: Watching, device: &str) -> Result<()> {
        // The head tells that all events from now on follow.
        match &mut self.timeline {
            Some(_) => write!(self.to, "[")?,
            None => {
                let version = env!("CARGO_PKG_VERSION");
                let head = json!({ "schema": SCHEMA, "device": device, "version": version });
                writeln!(self.to, "{head}")?;
            }
        }
        self.to.flush()?;
        while options.count.is_none_or(|count| self.events < count)
            && let Some(observation) = watching.next()?
        {
            self.lost.add(observation.lost);
            if observation.lost.events > 0 && self.timeline.is_none() {
                writeln!(self.to, "{}", json!({ "lost_events": observation.lost.events }))?;
            }
            match observation.told {
                Told::Event(record) => {
                    let id = self.story.note(&record);
                    if options.events.is_empty() || options.events.contains(&record.event) {
                        self.events += 1;
                        self.tell(observation.shard, &record, id)?;
                    }
                }
                // A reader may follow.
                Told::Turn => self.to.flush()?,
                Told::Frame(_) => {}
            }
        }
        if let Some(timeline) = &self.timeline {
            timeline.finish(&mut self.to)?;
        }
        Ok(self.to.flush()?)
    }

    fn tell(&mut self, shard: u8, record: &Record, id: Option<MessageId>) -> Result<()> {
        match &mut self.timeline {
            Some(timeline) => timeline.tell(&mut self.to, shard, record, id)?,
            None => writeln!(self.to, "{}", line(shard, record, id))?,
        }
        Ok(())
    }
}

/// One event: its time, shard and name, the message that it is about where that is known, and its
/// fields.
fn line(shard: u8, record: &Record, id: Option<MessageId>) -> Value {
    let mut line = json!({ "time_ns": record.time_ns, "shard": shard, "event": record.event });
    if let Value::Object(map) = &mut line {
        map.extend(id.map(|id| ("id".to_owned(), id.to_string().into())));
        map.extend(record.to_json());
    }
    line
}
