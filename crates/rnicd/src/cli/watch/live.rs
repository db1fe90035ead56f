//! What the daemon tells, as a story that goes on: its last steps, for a page in a browser.

mod lanes;
mod steps;

use super::model::Lists;
use lanes::Lanes;
use rnic_host::observe::comments::Comments;
use rnic_host::observe::{Observation, Record, Told};
use rnic_page::{Party, Point, SCHEMA, Series, Step, Story};
use roce_wire::Psn;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// See the [module](self).
pub(super) struct Live {
    device: String,
    /// When it began, in nanoseconds since 1970 (UTC).
    began_ns: u64,
    comments: Comments,
    lanes: Lanes,
    steps: VecDeque<Step>,
    /// Number of the first step that is kept.
    first: u64,
    /// Frames that came.
    frames: u64,
    /// Of each shard.
    budgets: BTreeMap<u8, Budget>,
    /// Events of the half turn of a shard whose frames have not come.
    events: BTreeMap<u8, Vec<Record>>,
    series: BTreeMap<(u32, usize), VecDeque<Point>>,
}

/// What a page does not have yet.
#[derive(Serialize)]
pub(super) struct News<'a> {
    /// Number of the oldest step that is kept: a page forgets those before.
    first: u64,
    /// Number of the first step here.
    from: u64,
    hosts: &'a [Party],
    steps: Vec<&'a Step>,
    series: Vec<Series>,
    /// Where charts begin, in nanoseconds.
    begin: u64,
    frames: u64,
    /// Frames and events that are not shown.
    left_out: u64,
}

/// How much is shown of what comes at once.
#[derive(Default)]
struct Budget {
    window: u64,
    ordinary: u32,
    troubles: u32,
    /// So many ordinary ones may follow, although there were enough.
    behind: u32,
    left_out: u64,
}

impl Budget {
    /// Whether one more is shown that comes at this time.
    fn takes(&mut self, at_ns: u64, is_trouble: bool) -> bool {
        let window = at_ns / WINDOW_NS;
        if window != self.window {
            (self.window, self.ordinary, self.troubles) = (window, 0, 0);
        }
        let (count, most) = match is_trouble {
            true => (&mut self.troubles, MOST_TROUBLES),
            false => (&mut self.ordinary, MOST_ORDINARY),
        };
        *count = count.saturating_add(1);
        let takes = *count <= most || (!is_trouble && self.behind > 0);
        if takes && is_trouble {
            self.behind = BEHIND;
        } else {
            self.behind = self.behind.saturating_sub(1);
        }
        self.left_out += u64::from(!takes);
        takes
    }
}

impl Live {
    /// Of a device, from a time on.
    pub(super) fn new(device: &str, began_ns: u64) -> Self {
        Self {
            device: device.to_owned(),
            began_ns,
            comments: Comments::default(),
            lanes: Lanes::new(device),
            steps: VecDeque::new(),
            first: 0,
            frames: 0,
            budgets: BTreeMap::new(),
            events: BTreeMap::new(),
            series: BTreeMap::new(),
        }
    }

    /// Something that the daemon tells, at this time in nanoseconds since 1970 (UTC).
    pub(super) fn note(&mut self, observation: Observation, now_ns: u64) {
        let (is_turn, shard) = (observation.told == Told::Turn, observation.shard);
        if let Told::Event(record) = &observation.told
            && steps::is_told(record)
        {
            let events = self.events.entry(shard).or_default();
            match events.len() < MOST_EVENTS {
                true => events.push(record.clone()),
                false => self.budgets.entry(shard).or_default().left_out += 1,
            }
        }
        let frames = self.comments.take(observation);
        if !is_turn && frames.is_empty() {
            return;
        }
        let mut events = self.events.remove(&shard).unwrap_or_default().into_iter().peekable();
        for frame in frames {
            self.frames += 1;
            let at_ns = steps::nanos(frame.captured.at);
            while let Some(event) = events.next_if(|event| event.time_ns <= at_ns) {
                self.event(shard, &event, now_ns);
            }
            if self.takes(shard, now_ns, frame.is_trouble) {
                let at = at_ns.saturating_sub(self.began_ns);
                let step = steps::of_frame(&frame, (at, self.frames), &mut self.lanes, &self.steps);
                self.push(step);
            }
        }
        events.for_each(|event| self.event(shard, &event, now_ns));
    }

    fn takes(&mut self, shard: u8, now_ns: u64, is_trouble: bool) -> bool {
        self.budgets.entry(shard).or_default().takes(now_ns, is_trouble)
    }

    fn event(&mut self, shard: u8, record: &Record, now_ns: u64) {
        if self.takes(shard, now_ns, true) {
            let at = record.time_ns.saturating_sub(self.began_ns);
            let step = steps::of_event(record, at, &self.lanes);
            self.push(step);
        }
    }

    fn push(&mut self, step: Step) {
        if self.steps.len() == MOST_STEPS {
            self.steps.pop_front();
            self.first += 1;
        }
        self.steps.push_back(step);
    }

    /// What the daemon has now.
    pub(super) fn update(&mut self, lists: &Lists) {
        let at = lists.at_ns.saturating_sub(self.began_ns);
        let last = self.series.values().filter_map(|points| points.back()).map(|point| point.at);
        if last.max().is_some_and(|last| last > at) {
            // The clock was set back.
            self.series.clear();
        }
        let is_there = |qpn: u32| lists.qps.iter().any(|made| made.object.qpn == qpn);
        self.series.retain(|(qpn, _), _| is_there(*qpn));
        for made in &lists.qps {
            let qp = &made.object;
            let is_known = self.series.contains_key(&(qp.qpn, 0));
            if !is_known && self.series.len() >= MOST_CHARTED * GROUPS.len() {
                continue;
            }
            let in_flight = Psn::new(qp.next_psn).wrapping_sub(qp.una).value();
            let receives = qp.receive_queue.map_or(0, |queue| queue.posted);
            let values = [in_flight, qp.outstanding.saturating_add(qp.posted), receives];
            for (which, value) in values.into_iter().enumerate() {
                let points = self.series.entry((qp.qpn, which)).or_default();
                if points.len() == MOST_POINTS {
                    points.pop_front();
                }
                points.push_back(Point { at, value: value.into() });
            }
        }
    }

    /// Events that came too fast.
    pub(super) fn lost(&self) -> u64 {
        self.comments.lost.events
    }

    /// Frames and events that no page shows.
    fn left_out(&self) -> u64 {
        let lost = self.comments.lost;
        let left_out = self.budgets.values().map(|budget| budget.left_out).sum::<u64>();
        left_out.saturating_add(lost.frames).saturating_add(lost.events)
    }

    fn series(&self) -> Vec<Series> {
        let of = |((qpn, which), points): (&(u32, usize), &VecDeque<Point>)| Series {
            name: format!("queue pair {qpn:#08x}"),
            group: GROUPS[*which].to_owned(),
            host: 0,
            points: points.iter().copied().collect(),
        };
        let mut all: Vec<_> = self.series.iter().map(of).collect();
        all.sort_by(|one, other| one.group.cmp(&other.group));
        all
    }

    /// What a page lacks that has the steps before this number.
    pub(super) fn news(&self, from: u64) -> News<'_> {
        // A page that knows steps which there are not had another server: it gets all.
        let end = self.first + self.steps.len() as u64;
        let from = if from > end { self.first } else { from.max(self.first) };
        let skipped = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        let begins = self.series.values().filter_map(|points| points.front());
        News {
            first: self.first,
            from,
            hosts: self.lanes.parties(),
            steps: self.steps.iter().skip(skipped).collect(),
            series: self.series(),
            begin: begins.map(|point| point.at).min().unwrap_or(0),
            frames: self.frames,
            left_out: self.left_out(),
        }
    }

    /// The story before anything happened; the page asks for what did.
    pub(super) fn story(&self) -> Story {
        Story {
            schema: SCHEMA,
            name: self.device.clone(),
            title: "what its queue pairs do now".to_owned(),
            about: vec![
                "The last packets of all programs, and what went wrong between them. Where more \
                 comes than a page can show, the first of each moment and those with which \
                 something is wrong are here; how many are left out stands above."
                    .to_owned(),
            ],
            hosts: self.lanes.parties().to_vec(),
            steps: Vec::new(),
            series: Vec::new(),
            question: None,
            next: vec!["rnic watch".to_owned(), "rnic capture -w x.pcapng".to_owned()],
        }
    }
}

const GROUPS: [&str; 3] = ["Packets in flight", "Send WQEs in use", "Receive WQEs left"];
/// Queue pairs that have curves.
const MOST_CHARTED: usize = 4;
/// The time of a minute or more.
const MOST_POINTS: usize = 150;
/// What a browser draws anew each second without a pause.
const MOST_STEPS: usize = 600;
const MOST_EVENTS: usize = 1024;
const WINDOW_NS: u64 = 250_000_000;
const MOST_ORDINARY: u32 = 30;
const MOST_TROUBLES: u32 = 60;
const BEHIND: u32 = 4;

#[cfg(test)]
mod tests;
