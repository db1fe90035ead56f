//! Numbers that change over time: PSN windows and queue levels.

use rnic_core::event::Event;
use rnic_page::{Point, Series};
use rnic_sim::world::HostId;
use roce_wire::Psn;
use std::collections::BTreeMap;

use crate::teller::NAMES;

/// The lower end of a PSN window.
const ACKED: &str = "oldest unacknowledged PSN";

/// What changes, by name.
#[derive(Default)]
pub(crate) struct Levels {
    series: BTreeMap<(String, String, HostId), Vec<Point>>,
    /// First PSN of each queue pair: the windows begin at 0.
    first: BTreeMap<(HostId, u32), Psn>,
    waiting: BTreeMap<HostId, i64>,
}

impl Levels {
    fn set(&mut self, group: String, name: &str, host: HostId, at: u64, value: i64) {
        let points = self.series.entry((group, name.to_owned(), host)).or_default();
        if points.last().is_some_and(|last| last.value == value) {
            return;
        }
        points.push(Point { at, value });
    }

    /// An event of an engine.
    pub(crate) fn saw(&mut self, host: HostId, at: u64, event: &Event) {
        match event {
            Event::WqeFetched { qpn, first_psn, .. } => {
                let first = *self.first.entry((host, qpn.value())).or_insert(*first_psn);
                if first == *first_psn {
                    self.window(host, at, qpn.value(), ACKED, first);
                }
            }
            Event::Sent { qpn, packet, .. } if packet.opcode.info().is_request => {
                let next = packet.psn.wrapping_add(1);
                self.window(host, at, qpn.value(), "next PSN to send", next);
            }
            Event::Rewound { qpn, psn: to, .. } => {
                self.window(host, at, qpn.value(), "next PSN to send", *to);
            }
            Event::Acked { qpn, psn } => {
                let next = psn.wrapping_add(1);
                self.window(host, at, qpn.value(), ACKED, next);
            }
            Event::Completed { .. } => self.completions(host, at, 1),
            _ => {}
        }
    }

    fn window(&mut self, host: HostId, at: u64, qpn: u32, name: &str, psn: Psn) {
        let Some(first) = self.first.get(&(host, qpn)) else { return };
        let value = i64::from(psn.distance_from(*first));
        self.set(format!("PSN window of {} {qpn:#08x}", NAMES[host]), name, host, at, value);
    }

    /// Completions were written (1) or polled (-1).
    pub(crate) fn completions(&mut self, host: HostId, at: u64, change: i64) {
        let waiting = self.waiting.entry(host).or_default();
        *waiting += change;
        let value = *waiting;
        self.set(format!("queues of {}", NAMES[host]), "completions to poll", host, at, value);
    }

    /// What is in a queue pair's queues.
    pub(crate) fn queues(
        &mut self,
        host: HostId,
        at: u64,
        (qpn, sends, receives): (u32, u32, usize),
    ) {
        let group = format!("queues of {}", NAMES[host]);
        let receives = i64::try_from(receives).unwrap_or(i64::MAX);
        self.set(group.clone(), &format!("sends in use, {qpn:#08x}"), host, at, sends.into());
        self.set(group, &format!("receives posted, {qpn:#08x}"), host, at, receives);
    }

    /// All of it. What never changed is not worth a line.
    pub(crate) fn series(self) -> Vec<Series> {
        let changing = self.series.into_iter().filter(|(_, points)| points.len() > 1);
        changing.map(|((group, name, host), points)| Series { name, group, host, points }).collect()
    }
}
