//! What `rnic status|qp|mr|cq|counters` show.
//!
//! Lists may be long, and any client may ask for them without pause. So an engine copies only a few
//! slots of a table between two turns. The session's own thread makes a [report] of
//! them, without what its user may not see.

use crate::dma::SystemDma;
use crate::report::{self, Object, Totals};
use crate::wire::LinkCounters;
use rnic_abi::control::Inspect;
use rnic_abi::verbs::QpType;
use rnic_core::mr::Region;
use rnic_core::slab::{NO_HANDLE, SLOT_BITS, Slab};
use rnic_core::{CqView, Engine, Instant, QpView, TimerReason};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

/// Numbers by name.
pub type Numbers = BTreeMap<Cow<'static, str>, u64>;

/// What an engine is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// How many objects it has.
    Totals,
    /// What it has counted.
    Counters,
    /// What its faults did.
    Faults,
    /// The objects of a kind in a few slots from this one on.
    Objects(Kind, u32),
}

/// Where an object is among all of its kind: a number that orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The engine that has it.
    pub shard: u8,
    /// Its slot there.
    pub slot: u32,
}

impl From<Place> for u32 {
    fn from(place: Place) -> Self {
        Self::from(place.shard) << SLOT_BITS | place.slot
    }
}

impl From<u32> for Place {
    /// Of any number: one that is no object's place leads to none.
    fn from(number: u32) -> Self {
        let shard = u8::try_from(number >> SLOT_BITS).unwrap_or(u8::MAX);
        Self { shard, slot: number & ((1 << SLOT_BITS) - 1) }
    }
}

/// A kind of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    Qps,
    Mrs,
    Cqs,
}

impl Kind {
    /// What a user asked for, when it is a list of objects.
    pub const fn of(what: Inspect) -> Option<Self> {
        match what {
            Inspect::Qps => Some(Self::Qps),
            Inspect::Mrs => Some(Self::Mrs),
            Inspect::Cqs => Some(Self::Cqs),
            Inspect::Status | Inspect::Counters | Inspect::Sessions => None,
        }
    }
}

impl Object {
    /// What it is.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Qp(_) => Kind::Qps,
            Self::Mr(_) => Kind::Mrs,
            Self::Cq(_) => Kind::Cqs,
        }
    }
}

/// What an engine answers.
pub enum Seen {
    /// To [`Question::Totals`].
    Totals(Totals),
    /// To [`Question::Counters`].
    Counters(Numbers),
    /// To [`Question::Faults`]: the number of each, how many packets matched, and how many it
    /// struck.
    Faults(Vec<(u32, [u64; 2])>),
    /// To [`Question::Objects`].
    Objects {
        /// In order of their slots.
        objects: Vec<View>,
        /// Ask for this slot next; `None` behind the last.
        next: Option<u32>,
    },
}

/// What an engine answers, for others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Found {
    /// To [`Question::Totals`].
    Totals(Totals),
    /// To [`Question::Counters`].
    Counters(Numbers),
    /// To [`Question::Faults`].
    Faults(Vec<(u32, [u64; 2])>),
    /// To [`Question::Objects`].
    Objects {
        /// With their slots, in order.
        objects: Vec<(u32, Object)>,
        /// Ask for this slot next; `None` behind the last.
        next: Option<u32>,
    },
}

/// A copy of an object.
pub enum View {
    /// With the time at which it was so.
    Qp(Box<QpView>, Instant),
    Mr(MrView),
    Cq(CqView),
}

/// A memory region, for display.
pub struct MrView {
    mr: u32,
    region: Region,
    memory: &'static str,
}

/// What counts beside an engine: its wire.
pub trait Counts {
    /// Counters of the links.
    fn counters(&mut self) -> LinkCounters;
    /// What faults did, as [`Seen::Faults`].
    fn fault_counts(&self) -> Vec<(u32, [u64; 2])>;
}

/// Answers a question to an engine, in bounded time.
pub fn answer(
    (engine, now): (&Engine, Instant),
    dma: &SystemDma,
    around: [(&'static str, u64); 3],
    wire: &mut impl Counts,
    question: Question,
) -> Seen {
    match question {
        Question::Totals => {
            let [qps, cqs, mrs] = engine.totals().map(|count| count as u64);
            Seen::Totals(Totals { qps, cqs, mrs })
        }
        Question::Counters => {
            let counted = engine.counters().iter().chain(around).chain(wire.counters());
            let all = counted.map(|(name, number)| (Cow::Borrowed(name), number)).collect();
            Seen::Counters(all)
        }
        Question::Faults => Seen::Faults(wire.fault_counts()),
        Question::Objects(kind, from) => {
            let slots = from as usize..(from as usize).saturating_add(SLOTS);
            let (objects, end) = match kind {
                Kind::Qps => {
                    let views = engine.qps_within(slots.clone());
                    (views.map(|view| View::Qp(Box::new(view), now)).collect(), engine.slots()[0])
                }
                Kind::Cqs => {
                    (engine.cqs_within(slots.clone()).map(View::Cq).collect(), engine.slots()[1])
                }
                Kind::Mrs => {
                    let mrs = engine.mrs_within(slots.clone()).map(|(mr, region)| {
                        let memory = dma.way_to(region.mr.space);
                        View::Mr(MrView { mr, region: *region, memory })
                    });
                    (mrs.collect(), engine.slots()[2])
                }
            };
            let next = u32::try_from(slots.end).ok().filter(|_| slots.end < end);
            Seen::Objects { objects, next }
        }
    }
}

impl From<Seen> for Found {
    /// Takes longer than an engine has time for.
    fn from(seen: Seen) -> Self {
        match seen {
            Seen::Totals(totals) => Self::Totals(totals),
            Seen::Counters(counted) => Self::Counters(counted),
            Seen::Faults(counts) => Self::Faults(counts),
            Seen::Objects { objects, next } => {
                let objects = objects.iter().map(|view| (view.slot(), view.report())).collect();
                Self::Objects { objects, next }
            }
        }
    }
}

impl View {
    fn slot(&self) -> u32 {
        let handle = match self {
            Self::Qp(view, _) => view.qp,
            Self::Mr(view) => view.mr,
            Self::Cq(view) => view.cq,
        };
        u32::try_from(Slab::<()>::slot_of(handle)).unwrap_or(u32::MAX)
    }

    fn report(&self) -> Object {
        match self {
            Self::Qp(view, now) => Object::Qp(qp(view, *now)),
            Self::Mr(view) => Object::Mr(mr(view)),
            Self::Cq(view) => Object::Cq(cq(view)),
        }
    }
}

fn name_of(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC_INI",
        QpType::XrcRecv => "XRC_TGT",
    }
}

fn qp(view: &QpView, now: Instant) -> report::Qp {
    let attr = &view.attr;
    // Set on the way to RTR.
    let peer = Some(attr).filter(|attr| attr.path_mtu != 0);
    let receives = view.qp_type != QpType::XrcSend;
    report::Qp {
        qp: view.qp,
        qpn: view.qpn,
        client: view.client.0,
        transport: name_of(view.qp_type).to_owned(),
        state: format!("{:?}", attr.state).to_uppercase(),
        dest_qpn: peer.map(|attr| attr.dest_qpn),
        dgid: peer.map(|attr| Ipv6Addr::from(attr.ah.dgid).to_canonical().to_string()),
        path_mtu: peer.map(|attr| 128u32 << attr.path_mtu),
        outstanding: view.outstanding,
        posted: view.posted,
        max_send_wr: view.caps.max_send_wr,
        receive_queue: view.receives.filter(|_| receives).map(|queue| report::ReceiveQueue {
            posted: queue.posted,
            max_wr: queue.capacity,
            srq: queue.srq,
        }),
        una: view.in_flight.0,
        next_psn: view.in_flight.1,
        sent_psn: view.sent_end,
        free_psn: view.free_psn,
        expected_psn: view.expected_psn,
        timer: view.timer.map(|(reason, until)| timer(reason, until.since(now))),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        retries_left: view.retries_left.0,
        rnr_retry: attr.rnr_retry,
        rnr_retries_left: view.retries_left.1,
        send_cq: Some(view.cqs.0).filter(|cq| *cq != NO_HANDLE),
        recv_cq: receives.then_some(view.cqs.1).filter(|cq| *cq != NO_HANDLE),
        counters: view.counters,
    }
}

fn timer(reason: TimerReason, left: Duration) -> report::Timer {
    let reason = match reason {
        TimerReason::AckTimeout => "ack_timeout",
        TimerReason::RnrWait => "rnr_wait",
        TimerReason::Pause => "pause",
    };
    let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
    report::Timer { reason: reason.to_owned(), left_us }
}

fn mr(view: &MrView) -> report::Mr {
    let mr = &view.region.mr;
    report::Mr {
        mr: view.mr,
        client: mr.client.0,
        pd: mr.pd,
        iova: mr.iova,
        length: mr.length,
        key: view.region.key,
        access: mr.access.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
        memory: view.memory.to_owned(),
        windows: view.region.windows,
    }
}

fn cq(view: &CqView) -> report::Cq {
    report::Cq {
        cq: view.cq,
        client: view.client.0,
        capacity: view.capacity,
        written: view.written,
        polled: view.polled,
        queues: view.users,
        broken: view.broken,
    }
}

/// Adds up what engines have.
pub fn add_up(found: impl IntoIterator<Item = Numbers>) -> Numbers {
    let mut sums = Numbers::new();
    for (name, number) in found.into_iter().flatten() {
        // A user's engine may tell any number.
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(number);
    }
    sums
}

/// Keeps the higher one of each number.
pub fn raise(highest: &mut Numbers, found: impl IntoIterator<Item = (Cow<'static, str>, u64)>) {
    for (name, number) in found {
        let highest = highest.entry(name).or_default();
        *highest = number.max(*highest);
    }
}

/// Slots of a table that are looked at between two turns of an engine: what is copied of them takes
/// about as long as a few packets.
const SLOTS: usize = 64;
