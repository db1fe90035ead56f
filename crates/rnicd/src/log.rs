//! The log, and how much of it a client can fill.
//!
//! Some lines are written whenever a client does something. However fast it does so, each place of
//! the program writes a few lines in ten seconds; what it keeps back is counted, and told.

use anyhow::{Context, Result};
use rnic_host::satellite::protocol::Severity;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

/// What the log lets pass, which can be changed while it is written.
#[derive(Clone)]
pub(crate) struct Filter {
    text: Arc<Mutex<String>>,
    change: Arc<dyn Fn(EnvFilter) + Send + Sync>,
}

impl Filter {
    /// One that nothing is written through.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self { text: Arc::new(Mutex::new("off".into())), change: Arc::new(drop) }
    }

    /// As it is on the command line.
    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets other lines pass from now on.
    ///
    /// # Errors
    /// When the filter cannot be parsed.
    pub(crate) fn set(&self, text: &str) -> Result<()> {
        (self.change)(parse(text)?);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text.to_owned();
        Ok(())
    }
}

/// Reads a filter.
///
/// # Errors
/// When it cannot be parsed.
pub(crate) fn parse(filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(filter)
        .with_context(|| format!("log filter {filter:?} (--log); try `info` or `rnic_net=debug`"))
}

/// Starts to log to standard error what passes the filter.
///
/// # Errors
/// When the filter cannot be parsed.
pub(crate) fn start(text: &str) -> Result<Filter> {
    let (filter, handle) = reload::Layer::new(parse(text)?);
    let lines = tracing_subscriber::fmt::layer().with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    if journal_reads_stderr() {
        let lines = lines.with_writer(Sender(for_journal)).with_ansi(false).without_time();
        registry.with(lines.with_level(false)).with(Sparse).init();
    } else {
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let lines = lines.with_writer(std::io::stderr).with_ansi(is_terminal);
        registry.with(lines).with(Sparse).init();
    }
    // It fails only where the log has ended.
    let change = move |filter| drop(handle.reload(filter));
    Ok(Filter { text: Arc::new(Mutex::new(text.to_owned())), change: Arc::new(change) })
}

/// systemd names the stream to its journal by device and inode (systemd.exec(5)): standard error
/// may have been redirected since.
fn journal_reads_stderr() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stream = rustix::fs::fstat(std::io::stderr());
    stream.is_ok_and(|found| named == format!("{}:{}", found.st_dev, found.st_ino))
}

/// The journal has the time itself, and takes the level from a number (sd-daemon(3)).
fn for_journal(severity: Severity, line: String) {
    let level = match severity {
        Severity::Error => 3,
        Severity::Warning => 4,
        Severity::Info => 6,
        Severity::Debug => 7,
    };
    // A long line has lost its end: without one, the next line would be a part of it.
    let line = line.trim_end_matches('\n');
    // A journal that is gone must not end the daemon.
    let _ = io::stderr().write_all(format!("<{level}>{line}\n").as_bytes());
}

/// Starts to `send` the daemon what passes `filter`, also what a panic says. Standard error is
/// given up: a process that has it can write the daemon's lines, read root's terminal, and make
/// the daemon wait when it logs.
///
/// # Errors
/// When the filter cannot be parsed, or there is no null device.
pub(crate) fn start_through(
    filter: &str,
    send: impl Fn(Severity, String) + Send + Sync + 'static,
) -> Result<()> {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Sender(send))
        .with_ansi(false)
        .without_time()
        .with_level(false)
        .with_target(false);
    let filter = EnvFilter::try_new(filter).context("log filter")?;
    tracing_subscriber::registry().with(lines).with(Sparse).with(filter).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    rustix::stdio::dup2_stderr(std::fs::File::open("/dev/null").context("/dev/null")?)?;
    Ok(())
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warning,
        Level::INFO => Severity::Info,
        _ => Severity::Debug,
    }
}

/// Sends each line.
struct Sender<S>(S);

struct Line<'a, S>(&'a S, Severity);

impl<'a, S: Fn(Severity, String) + 'a> MakeWriter<'a> for Sender<S> {
    type Writer = Line<'a, S>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(&self.0, Severity::Info)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        Line(&self.0, severity(*meta.level()))
    }
}

impl<S: Fn(Severity, String)> Write for Line<'_, S> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.0)(self.1, String::from_utf8_lossy(line).chars().take(LONGEST_LINE).collect());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs what an engine process has sent, which may be anything.
pub(crate) fn pass_on(pid: i32, uid: u32, severity: Severity, text: &str) {
    let text = text.trim_end().chars().take(LONGEST_LINE);
    let text: String = text.map(|c| if c.is_control() { ' ' } else { c }).collect();
    match severity {
        Severity::Error => tracing::error!("engine process {pid} of user {uid}: {text}"),
        Severity::Warning => tracing::warn!("engine process {pid} of user {uid}: {text}"),
        Severity::Info => tracing::info!("engine process {pid} of user {uid}: {text}"),
        Severity::Debug => tracing::debug!("engine process {pid} of user {uid}: {text}"),
    }
}

/// Tells how many lines were kept back in times that are over. Returns when to ask again.
pub(crate) fn tell_of_the_rest(now: Instant) -> Option<Instant> {
    let (rest, next) = places().rest(now);
    for (place, count) in rest {
        // Not through the place itself; and a place that repeats this is kept back as any other.
        tracing::warn!("{count} more lines like the last ones of {place} were left out");
    }
    next
}

static PLACES: Mutex<Option<Places>> = Mutex::new(None);

/// The places, for as long as nothing is logged.
fn places() -> Held {
    Held(PLACES.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Held(MutexGuard<'static, Option<Places>>);

impl Held {
    fn rest(mut self, now: Instant) -> (Vec<(String, u64)>, Option<Instant>) {
        self.0.get_or_insert_default().rest(now)
    }

    fn allow(mut self, place: Identifier, name: &str, now: Instant) -> bool {
        self.0.get_or_insert_default().allow(place, name, now)
    }
}

/// Lets events pass that are not too many.
struct Sparse;

impl<S: Subscriber> Layer<S> for Sparse {
    fn event_enabled(&self, event: &Event<'_>, _: LayerContext<'_, S>) -> bool {
        let meta = event.metadata();
        // Debug and trace output is never thinned out: it is only on where it was asked for.
        if *meta.level() > Level::INFO {
            return true;
        }
        places().allow(meta.callsite(), meta.name(), Instant::now())
    }
}

/// What was logged where.
#[derive(Default)]
struct Places(HashMap<Identifier, Place>);

struct Place {
    name: String,
    since: Instant,
    lines: u64,
}

impl Places {
    /// Whether one more line of a place may be written.
    fn allow(&mut self, place: Identifier, name: &str, now: Instant) -> bool {
        let new = || Place { name: name.to_owned(), since: now, lines: 0 };
        let place = self.0.entry(place).or_insert_with(new);
        if now >= place.since + WINDOW && place.lines <= LINES {
            (place.since, place.lines) = (now, 0);
        }
        place.lines += 1;
        place.lines <= LINES
    }

    /// What was kept back in windows that are over, and when the next one is.
    fn rest(&mut self, now: Instant) -> (Vec<(String, u64)>, Option<Instant>) {
        let (mut rest, mut next) = (Vec::new(), None::<Instant>);
        for place in self.0.values_mut().filter(|place| place.lines > LINES) {
            let end = place.since + WINDOW;
            if now < end {
                next = Some(next.map_or(end, |next| next.min(end)));
                continue;
            }
            rest.push((place.name.clone(), place.lines - LINES));
            (place.since, place.lines) = (now, 0);
        }
        (rest, next)
    }
}

/// Lines of one place in one window.
const LINES: u64 = 10;
const WINDOW: Duration = Duration::from_secs(10);
/// Characters of an engine process's line that are passed on.
const LONGEST_LINE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::callsite::Callsite;

    struct Site;

    static SITE: Site = Site;

    impl Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &tracing::Metadata<'_> {
            unreachable!("not called")
        }
    }

    #[test]
    fn a_place_writes_few_lines_and_tells_of_the_rest() {
        let mut places = Places::default();
        let start = Instant::now();
        let mut log = |at| places.allow(Identifier(&SITE), "event src/x.rs:7", start + at);
        let millisecond = Duration::from_millis(1);
        let written = (0..5000).filter(|n| log(*n * millisecond)).count() as u64;
        assert_eq!(written, LINES);
        let (rest, next) = places.rest(start + 5000 * millisecond);
        assert!(rest.is_empty());
        assert_eq!(next, Some(start + WINDOW));
        let (rest, next) = places.rest(start + WINDOW);
        assert_eq!(rest, [("event src/x.rs:7".to_owned(), 5000 - LINES)]);
        assert_eq!(next, None);
        // Then it may write again.
        assert!(places.allow(Identifier(&SITE), "", start + WINDOW));
    }

    #[test]
    fn a_line_now_and_then_is_never_kept_back() {
        let mut places = Places::default();
        let start = Instant::now();
        let mut log = |at| places.allow(Identifier(&SITE), "", start + at);
        assert!((0..1000).all(|n| log(n * (WINDOW / 9))));
    }
}
