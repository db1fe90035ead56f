//! `rnic watch`: what queue pairs do, live.
//!
//! Events and lists of the daemon become a `model`, which `draw` draws; neither knows a terminal, a
//! clock or a daemon. `screen` is the terminal, `picture` a file instead of it. For a browser they
//! become a `live` story, which `web` serves.

mod ask;
mod draw;
mod live;
mod model;
mod picture;
mod screen;
#[cfg(test)]
mod script;
mod trail;
mod view;
mod web;
mod words;

use super::client::Client;
use super::tell;
use super::watching::Watching;
use anyhow::{Context, Result, bail};
use ask::Asking;
use clap::Args;
use live::Live;
use model::{Lists, Model};
use rnic_host::observe::{Observation, Told, Wants};
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use view::View;

/// What to watch, and how.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    place: super::Place,
    /// Begin with this queue pair, decimal or 0x...
    #[arg(long, value_name = "QPN", value_parser = super::counters::qpn)]
    qp: Option<u32>,
    /// Use no terminal: serve a page for a browser at this address, as in 127.0.0.1:8080; with port
    /// 0 at any that is free
    ///
    /// The address of the page is printed. It has a secret part, as all users of this host can
    /// reach the port.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["picture", "qp"])]
    web: Option<SocketAddr>,
    /// Let --web listen where other hosts can reach it; nothing is encrypted
    #[arg(long, requires = "web")]
    web_for_others: bool,
    /// Use no terminal: draw once, after --after, into this SVG file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Columns and rows of the picture
    #[arg(long, value_name = "SIZE", default_value = "80x24", value_parser = picture::size,
          requires = "picture")]
    size: (u16, u16),
    /// Seconds until the picture is drawn
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = super::counters::seconds,
          requires = "picture")]
    after: Duration,
}

/// Watches until the user quits or the daemon ends.
pub(super) fn watch(options: &Options) -> Result<()> {
    if let Some(address) = options.web {
        return serve(options, address);
    }
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if options.picture.is_none() && !has_terminal {
        bail!(
            "standard input and output are no terminal: `rnic watch --picture FILE` needs none, nor \
             do `rnic watch --web`, `rnic trace` and `rnic counters --watch`"
        );
    }
    let mut source = Source::begin(options, false, |_| Model::default())?;
    let view = View { chosen: options.qp, is_open: options.qp.is_some(), ..View::default() };
    let shown = match &options.picture {
        Some(file) => picture::take(&mut source, &view, options.size, options.after, file),
        None => screen::show(&mut source, view),
    };
    tell_of_lost(source.to.lost);
    shown
}

/// Serves a page until the user interrupts or the daemon ends.
fn serve(options: &Options, address: SocketAddr) -> Result<()> {
    if !address.ip().is_loopback() && !options.web_for_others {
        bail!(
            "other hosts may reach {address}, and what the page shows is not encrypted: give an \
             address like 127.0.0.1:8080, or add --web-for-others"
        );
    }
    let mut source =
        Source::begin(options, true, |device| Arc::new(Mutex::new(Live::new(device, now_ns()))))?;
    let url = web::serve(address, &source.to)?;
    let mut out = io::stdout();
    writeln!(out, "{url}").and_then(|()| out.flush()).context("cannot write")?;
    while source.take(TURN)? {}
    tell_of_lost(web::lock(&source.to).lost());
    Ok(())
}

fn tell_of_lost(events: u64) {
    if events > 0 {
        tell(format_args!("{events} events not shown: they came faster than they were taken"));
    }
}

/// Nanoseconds since 1970 (UTC).
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What is made of what the daemon tells.
trait Audience {
    /// Something happened.
    fn hear(&mut self, observation: Observation);
    /// This is what the daemon has now.
    fn update(&mut self, lists: Lists);
}

impl Audience for Model {
    fn hear(&mut self, observation: Observation) {
        self.lose(observation.lost.events);
        if let Told::Event(record) = observation.told {
            self.note(observation.shard, record);
        }
    }

    fn update(&mut self, lists: Lists) {
        self.update(lists);
    }
}

impl Audience for web::Shared {
    fn hear(&mut self, observation: Observation) {
        web::lock(self).note(observation, now_ns());
    }

    fn update(&mut self, lists: Lists) {
        web::lock(self).update(&lists);
    }
}

/// Tells an audience what the daemon tells.
struct Source<A> {
    watching: Watching,
    asking: Asking,
    to: A,
}

impl<A: Audience> Source<A> {
    /// Begins to watch, for an audience of a device with this name.
    fn begin(options: &Options, frames: bool, to: impl FnOnce(&str) -> A) -> Result<Self> {
        let client = Client::connect(options.place.socket.as_deref())?;
        client.tell();
        let to = to(&client.device_name()?);
        let asking = Asking::begin(Client::at(&client.path)?)?;
        let watching = Watching::begin(client, Wants { frames, events: true })?;
        Ok(Self { watching, asking, to })
    }

    /// Takes what comes within a time; false when the user interrupts.
    fn take(&mut self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        loop {
            if self.watching.is_interrupted() {
                return Ok(false);
            }
            let left = until.saturating_duration_since(Instant::now());
            if let Some(observation) = self.watching.within(left)? {
                self.to.hear(observation);
            }
            if left.is_zero() {
                break;
            }
        }
        if let Some(lists) = self.asking.newest()? {
            self.to.update(lists);
        }
        Ok(true)
    }
}

/// How often it is looked what the daemon has.
const TURN: Duration = Duration::from_millis(200);
