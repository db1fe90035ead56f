//! What the view shows: made of the events and of the lists that the daemon tells, and of nothing
//! else. Times are told with them.

use super::trail::Trail;
use rnic_core::QpCounters;
use rnic_core::qpn::shard_of;
use rnic_host::observe::Record;
use rnic_host::report::{Cq, Made, Qp, Status};
use roce_wire::Qpn;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What the daemon has, at a time.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    /// When, in nanoseconds since 1970 (UTC).
    pub(super) at_ns: u64,
    pub(super) status: Status,
    pub(super) qps: Vec<Made<Qp>>,
    pub(super) cqs: Vec<Cq>,
    pub(super) counters: BTreeMap<String, u64>,
}

/// Things per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Rates {
    pub(super) tx_bytes: u64,
    pub(super) tx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) rx_packets: u64,
    pub(super) again: u64,
}

/// Numbers at a time, to compare with later ones.
#[derive(Clone, Debug)]
struct Sample {
    at_ns: u64,
    events: u64,
    port: Rates,
    qps: HashMap<u32, Rates>,
}

/// What is known of the newest numbers of each shard: no engine takes the room of another one's.
#[derive(Clone, Debug, Default)]
struct Newest<V> {
    all: HashMap<(u8, u32), V>,
    /// Oldest first.
    order: BTreeMap<u8, VecDeque<u32>>,
}

impl<V: Default> Newest<V> {
    /// Of a number of a shard, which shares the room for so many with the others.
    fn of(&mut self, (shard, number): (u8, u32), most: usize) -> &mut V {
        if !self.all.contains_key(&(shard, number)) {
            self.order.entry(shard).or_default().push_back(number);
            let most = (most / self.order.len()).max(1);
            let order = self.order.entry(shard).or_default();
            for oldest in order.drain(..order.len().saturating_sub(most)) {
                self.all.remove(&(shard, oldest));
            }
        }
        self.all.entry((shard, number)).or_default()
    }
}

/// An event, and the queue pair of this device that it is about.
type Seen = (Option<u32>, Record);

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    lists: Option<Lists>,
    /// Oldest first.
    samples: VecDeque<Sample>,
    trails: Newest<Trail>,
    /// Which queue pair of a shard sent to a queue pair last.
    senders: Newest<u32>,
    /// The last events, newest last: those that tell of trouble, and all.
    troubles: VecDeque<Seen>,
    all: VecDeque<Seen>,
    /// Events that came, and those that were lost before.
    pub(super) seen: u64,
    pub(super) lost: u64,
}

impl Model {
    /// Events that were lost before the next one.
    pub(super) fn lose(&mut self, events: u64) {
        self.lost = self.lost.saturating_add(events);
    }

    /// An event of a shard.
    pub(super) fn note(&mut self, shard: u8, record: Record) {
        self.seen += 1;
        if let (Some(qpn), Some(to)) = (record.number("qpn"), record.number("dest_qpn"))
            && record.event == "sent"
        {
            *self.senders.of((shard, to), MOST_SENDERS) = qpn;
        }
        let about = self.about(shard, &record);
        let trail = match (record.number("qpn"), about) {
            (Some(qpn), _) => Some(self.trails.of((shard, qpn), MOST_TRAILS)),
            // Peers may send to any number: that makes none known.
            (None, Some(qpn)) => self.trails.all.get_mut(&(shard, qpn)),
            (None, None) => None,
        };
        if let Some(trail) = trail {
            trail.note(&record);
        }
        if is_trouble(&record) {
            push(&mut self.troubles, (about, record.clone()));
        }
        push(&mut self.all, (about, record));
    }

    /// What the daemon has now.
    pub(super) fn update(&mut self, lists: Lists) {
        // Where the clock was set back, there is nothing to compare with.
        if self.samples.back().is_some_and(|last| last.at_ns > lists.at_ns) {
            self.samples.clear();
        }
        let qps = lists.qps.iter().map(|made| (made.object.qpn, of_qp(&made.object.counters)));
        self.samples.push_back(Sample {
            at_ns: lists.at_ns,
            events: self.seen,
            port: of_port(&lists.counters),
            qps: qps.collect(),
        });
        let is_old = |sample: &Sample| lists.at_ns.saturating_sub(sample.at_ns) > RATE_NS;
        while self.samples.len() > 2 && self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.lists = Some(lists);
    }

    /// The queue pair of this device that an event of a shard is about.
    fn about(&self, shard: u8, record: &Record) -> Option<u32> {
        record.number("qpn").or_else(|| {
            let to = record.number("dest_qpn")?;
            let sender = || self.senders.all.get(&(shard, to)).copied();
            if record.flag("outgoing") { sender() } else { Some(to) }
        })
    }

    /// What the daemon had when it was asked last.
    pub(super) fn lists(&self) -> Option<&Lists> {
        self.lists.as_ref()
    }

    /// The queue pairs, in the order of their numbers.
    pub(super) fn qps(&self) -> &[Made<Qp>] {
        self.lists.as_ref().map_or(&[], |lists| &lists.qps)
    }

    /// The queue pair with this number.
    pub(super) fn qp(&self, qpn: u32) -> Option<&Made<Qp>> {
        self.qps().iter().find(|made| made.object.qpn == qpn)
    }

    /// The completion queue with this handle.
    pub(super) fn cq(&self, handle: u32, client: u32) -> Option<&Cq> {
        let cqs = &self.lists.as_ref()?.cqs;
        cqs.iter().find(|cq| cq.cq == handle && cq.client == client)
    }

    /// What a queue pair did lately.
    pub(super) fn trail(&self, qpn: u32) -> Option<&Trail> {
        self.trails.all.get(&(shard_of(Qpn::new(qpn)), qpn))
    }

    /// The last events, newest first, and the queue pairs that they are about: all, or those that
    /// tell of trouble.
    pub(super) fn events(&self, all: bool) -> impl Iterator<Item = &Seen> {
        if all { self.all.iter().rev() } else { self.troubles.iter().rev() }
    }

    /// Of the port.
    pub(super) fn port_rates(&self) -> Rates {
        self.rates(|sample| Some(sample.port))
    }

    /// Of a queue pair.
    pub(super) fn qp_rates(&self, qpn: u32) -> Rates {
        self.rates(|sample| sample.qps.get(&qpn).copied())
    }

    /// Events per second.
    pub(super) fn event_rate(&self) -> u64 {
        self.span().map_or(0, |(old, new, ns)| per_second(old.events, new.events, ns))
    }

    fn rates(&self, of: impl Fn(&Sample) -> Option<Rates>) -> Rates {
        let Some((old, new, ns)) = self.span() else { return Rates::default() };
        let (Some(old), Some(new)) = (of(old), of(new)) else { return Rates::default() };
        Rates {
            tx_bytes: per_second(old.tx_bytes, new.tx_bytes, ns),
            tx_packets: per_second(old.tx_packets, new.tx_packets, ns),
            rx_bytes: per_second(old.rx_bytes, new.rx_bytes, ns),
            rx_packets: per_second(old.rx_packets, new.rx_packets, ns),
            again: per_second(old.again, new.again, ns),
        }
    }

    fn span(&self) -> Option<(&Sample, &Sample, u64)> {
        let (old, new) = (self.samples.front()?, self.samples.back()?);
        let ns = new.at_ns.saturating_sub(old.at_ns);
        (ns > 0).then_some((old, new, ns))
    }
}

fn push(events: &mut VecDeque<Seen>, seen: Seen) {
    if events.len() == MOST_EVENTS {
        events.pop_front();
    }
    events.push_back(seen);
}

/// What is not a part of every undisturbed message.
fn is_trouble(record: &Record) -> bool {
    let names = ["rewound", "dropped", "nak", "rnr_nak", "fault", "state", "bind_refused"];
    record.is_error || names.contains(&&*record.event)
}

fn per_second(old: u64, new: u64, ns: u64) -> u64 {
    let number = u128::from(new.saturating_sub(old)) * 1_000_000_000 / u128::from(ns);
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn of_qp(counters: &QpCounters) -> Rates {
    Rates {
        tx_bytes: counters.tx_bytes,
        tx_packets: counters.tx_packets,
        rx_bytes: counters.rx_bytes,
        rx_packets: counters.rx_packets,
        again: counters.retransmitted_packets,
    }
}

fn of_port(counters: &BTreeMap<String, u64>) -> Rates {
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    Rates {
        tx_bytes: of("tx_bytes"),
        tx_packets: of("tx_packets"),
        rx_bytes: of("rx_bytes"),
        rx_packets: of("rx_packets"),
        again: of("retransmitted_packets"),
    }
}

/// Queue pairs of which it is known what they did.
const MOST_TRAILS: usize = 512;
const MOST_SENDERS: usize = 4096;
const MOST_EVENTS: usize = 256;
/// Rates are those of so many nanoseconds, or of the time between two lists.
const RATE_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::script::{PEER, QPN, fetched, info, lists, record, request};
    use super::*;
    use rnic_core::Event;
    use rnic_core::event::{Disturbance, DropReason};
    use rnic_core::qpn::SHARD_SHIFT;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let mut model = Model::default();
        assert_eq!(model.port_rates(), Rates::default());
        for second in 0..5 {
            model.update(lists(second * 1_000_000_000, second * 1000));
        }
        let rates = model.qp_rates(QPN.value());
        assert_eq!((rates.tx_packets, rates.tx_bytes), (1000, 1_000_000));
        assert_eq!(model.qp_rates(99), Rates::default());
        assert!(model.samples.len() <= 4);
    }

    #[test]
    fn what_a_fault_does_to_a_sent_packet_belongs_to_its_sender() {
        let mut model = Model::default();
        let fault = |outgoing| {
            let packet = Some(info(PEER, 3));
            record(1, &Event::Fault { fault: 1, kind: Disturbance::Drop, outgoing, packet })
        };
        assert_eq!(model.about(0, &fault(true)), None);
        model.note(0, record(0, &request(0, 3, false)));
        assert_eq!(model.about(0, &fault(true)), Some(QPN.value()));
        assert_eq!(model.about(4, &fault(true)), None, "of another engine");
        assert_eq!(model.about(0, &fault(false)), Some(PEER.value()));
    }

    #[test]
    fn what_peers_and_other_engines_invent_displaces_nothing() {
        let mut model = Model::default();
        model.note(0, record(0, &request(0, 3, false)));
        for n in 0..2000 {
            let (reason, packet) = (DropReason::NoQp, Some(info(Qpn::new(0x100 + n), 1)));
            model.note(0, record(0, &Event::Dropped { reason, packet }));
            let (qpn, packet) = (Qpn::new((4 << SHARD_SHIFT) + n), info(PEER, n));
            let (message, retransmit) = (None, false);
            model.note(4, record(0, &Event::Sent { qpn, message, packet, retransmit }));
        }
        assert_eq!(model.trail(QPN.value()).map(|trail| trail.rungs.len()), Some(1));
        assert!(model.trail(0x101).is_none());
        let of_own = model.trails.all.keys().filter(|(shard, _)| *shard == 4).count();
        assert_eq!(of_own, MOST_TRAILS / 2);
        let packet = Some(info(PEER, 3));
        let (fault, kind, outgoing) = (1, Disturbance::Drop, true);
        let fault = record(1, &Event::Fault { fault, kind, outgoing, packet });
        assert_eq!(model.about(0, &fault), Some(QPN.value()));
    }

    #[test]
    fn a_clock_that_is_set_back_ends_what_is_compared() {
        let mut model = Model::default();
        model.update(lists(50_000_000_000, 0));
        model.update(lists(51_000_000_000, 1000));
        for second in 0..5 {
            model.update(lists(second * 1_000_000_000, 2000 + second * 1000));
        }
        assert_eq!(model.qp_rates(QPN.value()).tx_packets, 1000);
        assert!(model.samples.len() <= 4);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut model = Model::default();
        for n in 0..5000 {
            let packet = info(roce_wire::Qpn::new(n), n);
            let qpn = roce_wire::Qpn::new(n + 5000);
            let sent = Event::Sent { qpn, message: None, packet, retransmit: true };
            model.note(0, record(0, &sent));
            model.note(0, record(0, &fetched(n, n, n)));
        }
        assert!(model.trails.all.len() <= MOST_TRAILS);
        assert!(model.senders.all.len() <= MOST_SENDERS);
        assert_eq!(model.events(true).count(), MOST_EVENTS);
        assert_eq!((model.seen, model.events(false).count()), (10_000, 0));
        model.lose(7);
        assert_eq!(model.lost, 7);
    }
}
