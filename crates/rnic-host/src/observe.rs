//! What an engine does, told to watchers: events, and copies of the frames between them, in one
//! order.
//!
//! Each watcher has a queue of its own. What it does not take in time is counted and lost, so that
//! a slow or stopped one slows nothing. Without watchers no event is built and no frame copied.
//!
//! | module | what |
//! |---|---|
//! | `record` | an event as others read it: names and values, JSON |
//! | `stream` | observations on their way to another process |
//! | [`story`] | which message an event is about |
//! | [`comments`] | what became of each captured frame |

pub mod comments;
mod record;
pub mod story;
mod stream;

pub use record::Record;
pub use stream::{Belief, Lost, Nonsense, Observation, Told, believe, export, import, read, write};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rnic_core::qpn::MAX_SHARDS;
use rnic_core::{Event, Instant, Tap};
use roce_wire::{Frame, datagram};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// How a frame came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    /// It left.
    Sent,
    /// It arrived.
    Received,
    /// The device sent it to itself, and has received it.
    Looped,
    /// It was to leave, and a fault kept it from the wire.
    Unsent,
}

impl Way {
    /// It is one of this device's own.
    pub fn is_own(self) -> bool {
        self != Self::Received
    }

    /// It comes in.
    pub fn arrives(self) -> bool {
        matches!(self, Self::Received | Self::Looped)
    }
}

/// A copy of a frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Captured {
    /// When.
    pub at: SystemTime,
    /// How it came by.
    pub way: Way,
    /// From the Ethernet header to the ICRC.
    pub frame: Vec<u8>,
}

impl Captured {
    /// What another process sent may be kept: a watcher's queue holds many frames.
    fn is_sane(&self) -> bool {
        self.frame.len() <= LONGEST_FRAME
    }

    /// An engine of this number may show it: what arrived there is for one of its queue pairs, or
    /// for a group.
    fn is_of(&self, shard: u8) -> bool {
        if !self.way.arrives() {
            return true;
        }
        let Ok(frame) = Frame::parse(&self.frame) else { return false };
        let receiver = datagram::peek(frame.payload()).map(|(_, qpn, _)| qpn);
        frame.flow.dst.is_multicast() || receiver.is_none_or(|qpn| record::is_in(shard, qpn))
    }
}

/// Path MTU 4096 with every header of RoCEv2, IPv6 and Ethernet, rounded up.
const LONGEST_FRAME: usize = 4096 + 192;

/// What a watcher wants to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wants {
    /// Frames.
    pub frames: bool,
    /// Events.
    pub events: bool,
}

/// An entry of a watcher's queue, with the number of the shard that it is about.
#[derive(Clone, Debug)]
struct Item {
    shard: u8,
    /// What the shard lost before this and after its item before.
    lost: Lost,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Frame(Captured),
    Event(SystemTime, Event),
    /// An event of an engine in another process.
    Record(Record),
    /// Half a turn is over: what came before it belongs together.
    Turn,
}

/// What each shard lost since it put something: an engine's losses, also those it claims, are no
/// other one's.
struct Losses {
    of: [[AtomicU64; 2]; MAX_SHARDS as usize],
}

impl Default for Losses {
    fn default() -> Self {
        Self { of: std::array::from_fn(|_| Default::default()) }
    }
}

impl Losses {
    fn count(&self, shard: u8, which: usize, lost: u64) {
        if let Some(of) = self.of.get(usize::from(shard)) {
            of[which].fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// What was counted of a shard, which counts from zero then.
    fn take(&self, shard: u8) -> Lost {
        let take = |of: &AtomicU64| match of.load(Ordering::Relaxed) {
            0 => 0,
            _ => of.swap(0, Ordering::Relaxed),
        };
        let of = self.of.get(usize::from(shard));
        of.map_or(Lost::default(), |[frames, events]| Lost {
            frames: take(frames),
            events: take(events),
        })
    }
}

/// The end of a watcher's queue into which engines put what they see.
#[derive(Clone)]
pub struct Watcher {
    wants: Wants,
    /// Of the engine that has this copy.
    shard: u8,
    queue: Sender<Item>,
    losses: Arc<Losses>,
    /// Something was put since the last half turn.
    is_fresh: Arc<AtomicBool>,
    /// Gone with the feed.
    watched: Weak<()>,
}

impl Watcher {
    /// What it wants to see.
    pub fn wants(&self) -> Wants {
        self.wants
    }

    /// No process reads it any more.
    pub fn is_over(&self) -> bool {
        self.watched.strong_count() == 0
    }

    /// For an engine that sees no more than this.
    #[must_use]
    pub fn wanting(self, wants: Wants) -> Self {
        Self { wants, ..self }
    }

    /// For the engine of a shard.
    #[must_use]
    pub fn of_shard(self, shard: u8) -> Self {
        Self { shard, ..self }
    }

    fn put(&self, what: What) {
        let which = usize::from(!matches!(what, What::Frame(_)));
        let is_turn = matches!(what, What::Turn);
        let lost = self.losses.take(self.shard);
        match self.queue.try_send(Item { shard: self.shard, lost, what }) {
            Ok(()) => self.is_fresh.store(!is_turn, Ordering::Relaxed),
            Err(TrySendError::Full(_)) => {
                self.losses.count(self.shard, 0, lost.frames);
                self.losses.count(self.shard, 1, lost.events);
                // Without the end of a half turn what belongs together is longer.
                self.losses.count(self.shard, which, u64::from(!is_turn));
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Another process may claim any number, which must not make the sum begin anew.
    fn count_lost(&self, which: usize, lost: u64) {
        self.losses.count(self.shard, which, lost.min(u32::MAX.into()));
    }
}

/// The other end. Watching ends when it is dropped.
pub struct Feed {
    items: Receiver<Item>,
    losses: Arc<Losses>,
    _watches: Arc<()>,
}

impl Feed {
    /// The frames that wait.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> Vec<Captured> {
        let frame = |item: Item| match item.what {
            What::Frame(captured) => Some(captured),
            _ => None,
        };
        self.items.try_iter().filter_map(frame).collect()
    }
}

/// A watcher and its feed.
pub fn watch(wants: Wants) -> (Watcher, Feed) {
    let (queue, items) = bounded(ITEMS);
    let losses = Arc::<Losses>::default();
    let watches = Arc::new(());
    let watcher = Watcher {
        wants,
        shard: 0,
        queue,
        losses: Arc::clone(&losses),
        is_fresh: Arc::default(),
        watched: Arc::downgrade(&watches),
    };
    (watcher, Feed { items, losses, _watches: watches })
}

/// All that watch an engine, or a part of what it does.
#[derive(Default)]
pub(crate) struct Watchers {
    all: Vec<Watcher>,
}

impl Watchers {
    /// None is there. What is done for those that are is left out where there never are any.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        cfg!(feature = "unobservable") || self.all.is_empty()
    }

    /// One more. Those that are gone are forgotten, also where nothing is told for long.
    pub(crate) fn add(&mut self, watcher: Watcher) {
        self.all.retain(|watcher| !watcher.is_over());
        self.all.push(watcher);
    }

    /// Shows a frame.
    pub(crate) fn frame(&mut self, captured: &Captured) {
        self.tell(|wants| wants.frames, || What::Frame(captured.clone()));
    }

    /// Tells an event.
    pub(crate) fn event(&mut self, event: Event) {
        let at = SystemTime::now();
        self.tell(|wants| wants.events, || What::Event(at, event));
    }

    /// Half a turn is over.
    pub(crate) fn turn_ends(&mut self) {
        self.all.retain(|watcher| {
            if watcher.is_fresh.load(Ordering::Relaxed) {
                watcher.put(What::Turn);
            }
            !watcher.is_over()
        });
    }

    /// Tells those that want it, and forgets those that are gone.
    fn tell(&mut self, wants: impl Fn(Wants) -> bool, what: impl Fn() -> What) {
        self.all.retain(|watcher| {
            if wants(watcher.wants) {
                watcher.put(what());
            }
            !watcher.is_over()
        });
    }
}

impl Tap for Watchers {
    fn on(&mut self, _now: Instant, event: impl FnOnce() -> Event) {
        self.event(event());
    }
}

/// Frames and events that wait for a watcher.
const ITEMS: usize = 32 * 1024;

#[cfg(test)]
mod tests;
