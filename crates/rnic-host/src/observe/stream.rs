//! Observations on their way to another process: from an engine process to the daemon as messages,
//! from the daemon to `rnic` as bytes of a pipe.

use super::{Captured, Feed, Item, Record, Wants, Watcher, What, record};
use crossbeam_channel::RecvTimeoutError;
use rnic_abi::control::{MAX_MESSAGE, decode, encode};
use rnic_abi::os::Connection;
use rnic_core::qpn::MAX_SHARDS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// What was not taken in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lost {
    /// Frames.
    pub frames: u64,
    /// Events.
    pub events: u64,
}

impl Lost {
    /// Nothing was lost.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Counts more.
    pub fn add(&mut self, more: Self) {
        self.frames = self.frames.saturating_add(more.frames);
        self.events = self.events.saturating_add(more.events);
    }
}

/// Something that a watcher sees.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Observation {
    /// The shard of the device, which is one engine.
    pub shard: u8,
    /// What the shard lost before this and after its one before.
    pub lost: Lost,
    /// What it is.
    pub told: Told,
}

/// What an [`Observation`] is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Told {
    /// A frame came by.
    Frame(Captured),
    /// Something happened.
    Event(Record),
    /// Half a turn of the engine is over: its frames and events before this belong together.
    Turn,
}

impl From<What> for Told {
    fn from(what: What) -> Self {
        match what {
            What::Frame(captured) => Self::Frame(captured),
            What::Event(at, event) => Self::Event(Record::new(at, &event)),
            What::Record(record) => Self::Event(record),
            What::Turn => Self::Turn,
        }
    }
}

impl Told {
    /// An engine process has no clock but that of this host: what it says of the time is believed
    /// as far as it may be.
    pub(super) fn believed_at(mut self, now: SystemTime) -> Self {
        let oldest = now.checked_sub(OLDEST).unwrap_or(now);
        match &mut self {
            Self::Frame(captured) => captured.at = captured.at.clamp(oldest, now),
            Self::Event(record) => {
                let [oldest, now] = [oldest, now].map(record::nanos);
                record.time_ns = record.time_ns.clamp(oldest, now);
            }
            Self::Turn => {}
        }
        self
    }
}

/// The next of a feed, or what is lost and has nothing behind it; `Ok(None)` when nothing comes for
/// a while.
pub(super) fn next(feed: &Feed) -> Result<Option<Observation>, RecvTimeoutError> {
    match feed.items.recv_timeout(LOOK_UP) {
        Ok(Item { shard, lost, what }) => {
            Ok(Some(Observation { shard, lost, told: Told::from(what) }))
        }
        Err(error) => match (losses(feed).next(), error) {
            (Some(loss), _) => Ok(Some(loss)),
            (None, RecvTimeoutError::Timeout) => Ok(None),
            (None, RecvTimeoutError::Disconnected) => Err(error),
        },
    }
}

/// What shards have lost since they put something.
fn losses(feed: &Feed) -> impl Iterator<Item = Observation> {
    let of =
        move |shard: u8| Observation { shard, lost: feed.losses.take(shard), told: Told::Turn };
    (0..MAX_SHARDS).map(of).filter(|observation| !observation.lost.is_none())
}

/// Sends what a feed has, until the other end is closed. In a thread of its own.
pub fn export(feed: &Feed, socket: &Connection) {
    loop {
        match next(feed) {
            Ok(Some(observation)) => {
                if socket.send_message(&observation, &[]).is_err() {
                    return;
                }
            }
            Ok(None) if !is_closed(socket) => {}
            _ => return,
        }
    }
}

/// What is believed of a message from another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Belief {
    /// It was seen, and this was lost before.
    Told {
        /// What it lost.
        lost: Lost,
        /// What it is.
        told: Told,
    },
    /// The engine cannot have seen it, as it is about queue pairs of another one.
    Foreign(Lost),
}

/// The message makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// Judges a message of the engine of a shard, which was asked for something.
///
/// # Errors
/// When it makes no sense.
pub fn believe(message: &[u8], shard: u8, wants: Wants) -> Result<Belief, Nonsense> {
    let Observation { lost, told, .. } = decode(message).map_err(|_| Nonsense)?;
    let (is_sane, is_own) = match &told {
        Told::Frame(captured) => (wants.frames && captured.is_sane(), captured.is_of(shard)),
        Told::Event(record) => (wants.events && record.is_sane(), record.is_of(shard)),
        Told::Turn => (true, true),
    };
    match (is_sane, is_own) {
        (false, _) => Err(Nonsense),
        (true, true) => Ok(Belief::Told { lost, told }),
        (true, false) => {
            let mut all = lost;
            all.add(match told {
                Told::Frame(_) => Lost { frames: 1, events: 0 },
                Told::Event(_) | Told::Turn => Lost { frames: 0, events: 1 },
            });
            Ok(Belief::Foreign(all))
        }
    }
}

/// Shows what an engine [sends](export), until the other end is closed, sends what
/// makes no sense, or no process watches any more. In a thread of its own. What the engine cannot
/// have seen is not shown, and counts as lost.
pub fn import(watcher: &Watcher, socket: &Connection) {
    let mut buffer = vec![0; MAX_MESSAGE];
    while !watcher.is_over() {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        if poll(&mut fds, Timespec::try_from(LOOK_UP).ok().as_ref()).is_err() {
            return;
        }
        match socket.try_recv_plain(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(len @ 1..) => {
                let belief = believe(&buffer[..len], watcher.shard, watcher.wants);
                let (lost, told) = match belief {
                    Ok(Belief::Told { lost, told }) => (lost, Some(told)),
                    Ok(Belief::Foreign(lost)) => (lost, None),
                    Err(Nonsense) => return,
                };
                watcher.count_lost(0, lost.frames);
                watcher.count_lost(1, lost.events);
                match told.map(|told| told.believed_at(SystemTime::now())) {
                    Some(Told::Frame(captured)) => watcher.put(What::Frame(captured)),
                    Some(Told::Event(record)) => watcher.put(What::Record(record)),
                    Some(Told::Turn) => watcher.put(What::Turn),
                    None => {}
                }
            }
            _ => return,
        }
    }
}

fn put(observation: &Observation, to: &mut impl Write) -> io::Result<()> {
    let bytes = encode(observation).map_err(|_| io::ErrorKind::InvalidData)?;
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(&bytes)
}

/// Writes what a feed has, until `stop` is set, the engine is gone, or the reader is.
///
/// # Errors
/// As the writer's.
pub fn write(feed: &Feed, stop: &AtomicBool, to: impl Write) -> io::Result<()> {
    let mut to = io::BufWriter::new(to);
    while !stop.load(Ordering::Relaxed) {
        match next(feed) {
            Ok(Some(observation)) => {
                put(&observation, &mut to)?;
                if feed.items.is_empty() {
                    to.flush()?;
                }
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    for loss in losses(feed) {
        put(&loss, &mut to)?;
    }
    to.flush()
}

/// Reads the next that was [written](write()); `None` at the end.
///
/// # Errors
/// `InvalidData` for what is none; as the reader's.
pub fn read(from: &mut impl Read) -> io::Result<Option<Observation>> {
    let mut len = [0; 4];
    match from.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    decode(&bytes).map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn is_closed(socket: &Connection) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// An observation may wait so long on its way.
const OLDEST: Duration = Duration::from_secs(60);
/// How soon the end is noticed when there is nothing to tell.
const LOOK_UP: Duration = Duration::from_millis(100);
