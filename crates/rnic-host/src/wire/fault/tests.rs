use super::super::loopback::Loopback;
use super::*;
use crate::wire::FAULT;
use rnic_core::ports::{HopId, TxIpId};
use rnic_net::HopTable;
use roce_wire::Flow;

/// A loopback that is a whole wire.
struct Line(Loopback);

impl Wire for Line {
    fn caps(&self) -> WireCaps {
        let tx_ip_id = TxIpId::Ours;
        WireCaps { max_datagram: 4192, max_segments: 64, max_train: 65536, tx_ip_id }
    }
    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        self.0.receive(trains);
    }
    fn rx(&self, _: ArenaId) -> &[u8] {
        self.0.rx()
    }
    fn release(&mut self) {}
    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        self.0.reserve(train)
    }
    fn cancel_from(&mut self, _: &TxSlot) {
        self.0.cancel_last();
    }
    fn tx(&mut self, _: ArenaId) -> &mut [u8] {
        self.0.tx()
    }
    fn submit(&mut self) {
        self.0.submit();
    }
}

struct World {
    wire: FaultWire<Line>,
    sent: u32,
    /// Numbers, whether intact, whether marked, and the identification.
    seen: Vec<(u32, bool, bool, u16)>,
}

const LEN: u32 = 40;

fn datagram(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; LEN as usize];
    bytes[..5].copy_from_slice(&[number as u8 % 8, 0, 0xff, 0xff, 0]);
    bytes[5..8].copy_from_slice(&[0, 0, number as u8 % 3]);
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

impl World {
    fn new(faults: &[&str], seed: u64) -> Self {
        let line = Line(Loopback::new(ArenaId(0), TxIpId::Ours));
        let mut wire = FaultWire::new(CaptureWire::new(line, HopTable::default()), FAULT);
        let faults = faults.iter().map(|text| text.parse().unwrap()).collect();
        wire.change(FaultChange::Add(faults, Some(seed))).unwrap();
        Self { wire, sent: 0, seen: Vec::new() }
    }

    fn send(&mut self, segments: u32) {
        let address = "10.0.0.1".parse().unwrap();
        let flow = Flow::new(address, address, 9);
        let (hop, ip_id) = (HopId(0), self.sent as u16);
        let train =
            TxTrain { flow, hop, segments, segment_len: LEN, last_len: LEN, ip_id, to_self: false };
        let slot = self.wire.reserve(&train).unwrap();
        for k in 0..segments {
            let at = (slot.offset + k * slot.stride) as usize;
            let bytes = datagram(self.sent);
            self.wire.tx(slot.arena)[at..at + LEN as usize].copy_from_slice(&bytes);
            self.sent += 1;
        }
        self.wire.submit();
    }

    fn take(&mut self) -> usize {
        let mut trains = Vec::with_capacity(64);
        self.wire.receive(&mut trains);
        for train in &trains {
            let bytes = slice(self.wire.rx(train.arena), train.range);
            for (k, got) in bytes.chunks(train.segment_len as usize).enumerate() {
                let number = u32::from_be_bytes([0, got[9], got[10], got[11]]);
                let marked = train.flow.tos & 3 == 3;
                let id = train.ip_id.likely(k as u16);
                self.seen.push((number, got == datagram(number), marked, id));
            }
        }
        self.wire.release();
        trains.len()
    }

    /// Sends `trains` trains of eight and takes all that comes of them.
    fn run(mut self, trains: u32) -> Self {
        for _ in 0..trains {
            self.send(8);
            self.take();
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) || self.wire.has_backlog() {
            self.take();
        }
        self
    }

    fn numbers(&self) -> Vec<u32> {
        self.seen.iter().map(|seen| seen.0).collect()
    }

    fn count(&self, name: &str) -> u64 {
        self.wire.counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count)
    }
}

#[test]
fn without_faults_nothing_changes() {
    let mut world = World::new(&["drop=0"], 1);
    world.send(8);
    assert_eq!(world.take(), 1, "the train stays one");
    let world = World::new(&[], 1).run(10);
    assert_eq!(world.numbers(), (0..80).collect::<Vec<_>>());
    assert!(world.wire.counters().iter().all(|(_, count)| *count == 0));
}

#[test]
fn losses_are_as_many_as_counted_and_depend_on_the_seed_alone() {
    let lost = |seed| World::new(&["drop=0.1"], seed).run(100);
    let (a, b, c) = (lost(7), lost(7), lost(8));
    assert_eq!(a.numbers(), b.numbers());
    assert_ne!(a.numbers(), c.numbers());
    let dropped = a.count("fault_dropped");
    assert_eq!(a.seen.len() as u64 + dropped, 800);
    assert!((40..160).contains(&dropped), "{dropped}");
    // The identifications of those behind a lost one are still right.
    assert!(a.seen.iter().all(|(number, intact, _, id)| *intact && *id == *number as u16));
}

#[test]
fn every_kind_does_what_it_says() {
    let world = World::new(&["duplicate=0.2"], 3).run(20);
    assert_eq!(world.seen.len() as u64, 160 + world.count("fault_duplicated"));
    let mut numbers = world.numbers();
    numbers.dedup();
    assert_eq!(numbers, (0..160).collect::<Vec<_>>());

    let world = World::new(&["reorder=0.2"], 3).run(20);
    let mut numbers = world.numbers();
    assert_ne!(numbers, (0..160).collect::<Vec<_>>());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..160).collect::<Vec<_>>());
    assert!(world.count("fault_reordered") > 10);

    let world = World::new(&["corrupt=0.2"], 3).run(20);
    let bad = world.seen.iter().filter(|seen| !seen.1 || seen.0 >= 160).count() as u64;
    assert_eq!((world.seen.len(), bad), (160, world.count("fault_corrupted")));

    let world = World::new(&["mark=0.2"], 3).run(20);
    let marked = world.seen.iter().filter(|seen| seen.2).count() as u64;
    assert_eq!((world.seen.len(), marked), (160, world.count("fault_marked")));
    assert!(marked > 10);

    let mut world = World::new(&["delay:20ms=1,count=3"], 3);
    let start = Instant::now();
    world.send(8);
    world.take();
    assert_eq!(world.numbers(), [3, 4, 5, 6, 7]);
    while world.wire.has_backlog() {
        world.take();
    }
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(world.numbers()[5..], [0, 1, 2]);
}

#[test]
fn filters_choose_the_victims() {
    let lost = |fault: &str| {
        let numbers = World::new(&[fault], 1).run(3).numbers();
        (0..24).filter(|n| !numbers.contains(n)).collect::<Vec<u32>>()
    };
    assert_eq!(lost("drop,psn=5-7"), [5, 6, 7]);
    assert_eq!(lost("drop,psn=9"), [9]);
    assert_eq!(lost("drop,opcode=0x3"), [3, 11, 19]);
    assert_eq!(lost("drop,qp=2,opcode=5"), [5]);
    assert_eq!(lost("drop,count=2"), [0, 1]);
}

#[test]
fn counts_choose_the_victims() {
    let lost = |fault: &str| {
        let numbers = World::new(&[fault], 1).run(3).numbers();
        (0..24).filter(|n| !numbers.contains(n)).collect::<Vec<u32>>()
    };
    assert_eq!(lost("drop,nth=10"), [9]);
    assert_eq!(lost("drop,every=7"), [6, 13, 20]);
    assert_eq!(lost("drop,after=20"), [20, 21, 22, 23]);
    assert_eq!(lost("drop,after=3,every=5,count=2"), [7, 12]);
    assert_eq!(lost("drop,opcode=3,nth=2"), [11]);
}

#[test]
fn what_is_sent_is_disturbed_alike() {
    let seen = |fault: &str| World::new(&[fault], 3).run(20);
    let world = seen("drop,dir=sent,nth=10");
    assert_eq!(world.numbers(), (0..160).filter(|n| *n != 9).collect::<Vec<_>>());
    let world = seen("duplicate=0.2,dir=sent");
    assert_eq!(world.seen.len() as u64, 160 + world.count("fault_duplicated"));
    let world = seen("reorder=0.2,dir=sent");
    let mut numbers = world.numbers();
    assert_ne!(numbers, (0..160).collect::<Vec<_>>());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..160).collect::<Vec<_>>());
    let world = seen("corrupt=0.2,dir=sent");
    let bad = world.seen.iter().filter(|seen| !seen.1 || seen.0 >= 160).count() as u64;
    assert_eq!((world.seen.len(), bad), (160, world.count("fault_corrupted")));
    let world = seen("mark=0.2,dir=sent");
    let marked = world.seen.iter().filter(|seen| seen.2).count() as u64;
    assert_eq!((world.seen.len(), marked), (160, world.count("fault_marked")));
    // The identifications that the ICRC covers are still right.
    assert!(world.seen.iter().all(|(number, _, _, id)| *id == *number as u16));
    let mut world = World::new(&["delay:20ms,dir=sent,count=3"], 3);
    let start = Instant::now();
    world.send(8);
    world.take();
    assert_eq!(world.numbers(), [3, 4, 5, 6, 7]);
    while world.wire.has_backlog() {
        world.wire.submit();
        world.take();
    }
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(world.numbers()[5..], [0, 1, 2]);
    world.wire.change(FaultChange::Clear).unwrap();
    world.send(8);
    world.take();
    assert_eq!(world.numbers().len(), 16);
}

#[test]
fn acknowledgements_become_refusals_that_are_sealed() {
    for (fault, syndrome) in [
        ("rnr:3", 0x23),
        ("nak:sequence", 0x60),
        ("nak:invalid", 0x61),
        ("nak:access", 0x62),
        ("nak:operational", 0x63),
        ("rnr:3,dir=sent", 0x23),
        ("nak:access,dir=sent", 0x62),
    ] {
        let mut world = World::new(&[fault], 1);
        let flow = Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap(), 9);
        // An acknowledgement and what is none.
        for (opcode, credits) in
            [(Opcode::RcAck, 31), (Opcode::RcAck, 0x60), (Opcode::RcSendOnly, 0)]
        {
            let mut bytes = datagram(7);
            bytes[0] = opcode.code();
            bytes[SYNDROME] = credits;
            let (hop, segment_len) = (HopId(0), LEN);
            let train = TxTrain {
                flow,
                hop,
                segments: 1,
                segment_len,
                last_len: LEN,
                ip_id: 77,
                to_self: false,
            };
            icrc::seal(&flow, 77, &mut bytes);
            let slot = world.wire.reserve(&train).unwrap();
            let at = slot.offset as usize;
            world.wire.tx(slot.arena)[at..at + LEN as usize].copy_from_slice(&bytes);
        }
        world.wire.submit();
        let mut trains = Vec::with_capacity(64);
        world.wire.receive(&mut trains);
        let syndromes: Vec<_> = trains
            .iter()
            .map(|train| {
                let bytes = slice(world.wire.rx(train.arena), train.range);
                assert!(icrc::verify(&train.flow, train.ip_id.hint(0), bytes).is_good(), "{fault}");
                bytes[SYNDROME]
            })
            .collect();
        assert_eq!(syndromes, [syndrome, 0x60, 0], "{fault}");
        assert_eq!(world.count("fault_refused"), 1);
    }
}

#[test]
fn a_broken_completion_queue_is_that_of_the_receiver() {
    let mut world = World::new(&["cq-error,nth=2"], 1);
    world.send(8);
    world.take();
    assert_eq!(world.numbers().len(), 8, "the packet itself arrives");
    let broken = world.wire.take_broken().unwrap();
    assert_eq!((broken.qpn.value(), broken.receive), (1, true));
    assert_eq!(world.wire.take_broken(), None);
    let name = "fault_cq_errors";
    assert_eq!(world.count(name), 1);
}

#[test]
fn faults_have_numbers_by_which_they_go() {
    let mut world = World::new(&["drop,psn=3", "drop,psn=4"], 1);
    let numbers = |faults: Vec<Fault>| faults.iter().map(|fault| fault.number).collect::<Vec<_>>();
    assert_eq!(numbers(world.wire.change(FaultChange::Keep).unwrap()), [1, 2]);
    assert_eq!(world.wire.change(FaultChange::Remove(vec![1, 9])), Err(NoChange::NoSuch(9)));
    assert_eq!(numbers(world.wire.change(FaultChange::Remove(vec![1])).unwrap()), [2]);
    let more = FaultChange::Add(vec!["drop,psn=5".parse().unwrap()], None);
    assert_eq!(numbers(world.wire.change(more).unwrap()), [2, 3]);
    world.send(8);
    world.take();
    assert_eq!(world.numbers(), [0, 1, 2, 3, 6, 7]);
    assert_eq!(world.wire.fault_counts(), [(2, [1, 1]), (3, [1, 1])]);
}

#[test]
fn more_than_fits_a_burst_comes_later() {
    let mut world = World::new(&["duplicate"], 1);
    for _ in 0..60 {
        world.send(8);
    }
    for _ in 0..100 {
        world.take();
    }
    assert_eq!(world.seen.len(), 960);
    assert_eq!(world.count("fault_dropped"), 0);
}

#[test]
fn both_notations_are_understood_and_one_is_shown() {
    for (written, shown) in [
        ("drop", "drop=1"),
        ("drop=7%", "drop=0.07"),
        ("mark=0.5,qp=17", "mark=0.5,qp=0x000011"),
        ("mark=50%,qp=0x11", "mark=0.5,qp=0x000011"),
        ("delay:3ms=1%", "delay:3000us=0.01"),
        ("delay:1s", "delay:1000000us=1"),
        ("drop,opcode=4,count=3", "drop=1,opcode=RC_SEND_ONLY,count=3"),
        ("drop,opcode=rc_send_only", "drop=1,opcode=RC_SEND_ONLY"),
        ("drop,opcode=0xff", "drop=1,opcode=0xff"),
        ("drop,psn=16-0x20", "drop=1,psn=0x000010-0x000020"),
        ("rnr", "rnr:12=1"),
        ("nak:access,dir=sent", "nak:access=1,dir=sent"),
        ("cq-error=1%", "cq-error=0.01"),
        ("drop,nth=100", "drop=1,after=99,count=1"),
        ("drop,after=3,every=2", "drop=1,after=3,every=2"),
    ] {
        let fault: Fault = written.parse().unwrap();
        assert_eq!(fault.to_string(), shown);
        assert_eq!(shown.parse::<Fault>().unwrap(), fault);
    }
}

#[test]
fn faults_add_up_and_say_how_often_they_struck() {
    let mut world = World::new(&["drop,psn=3"], 1);
    let further = FaultChange::Add(vec!["duplicate,psn=3-5,count=2".parse().unwrap()], None);
    assert_eq!(world.wire.change(further).unwrap().len(), 2);
    world.send(8);
    world.take();
    assert_eq!(world.numbers(), [0, 1, 2, 4, 4, 5, 5, 6, 7]);
    let found = world.wire.change(FaultChange::Keep).unwrap();
    let reports: Vec<_> = found.iter().map(Fault::report).collect();
    assert_eq!((reports[0].struck, reports[0].left), (1, None));
    assert_eq!((reports[1].struck, reports[1].left), (2, Some(0)));
    assert_eq!((reports[1].psn_first, reports[1].psn_last), (Some(3), Some(5)));

    let many = vec![Fault::new(FaultKind::Drop, 1.0); MAX_FAULTS - 1];
    assert_eq!(world.wire.change(FaultChange::Add(many, None)), Err(NoChange::TooMany));
    assert_eq!(world.wire.change(FaultChange::Keep).unwrap(), found);
    assert!(world.wire.change(FaultChange::Clear).unwrap().is_empty());
}

#[test]
fn nonsense_is_explained() {
    for (text, part) in [
        ("dorp", "not one of drop"),
        ("", "not one of drop"),
        ("drop=2", "give 0 to 1, or 0% to 100%"),
        ("drop=101%", "give 0 to 1, or 0% to 100%"),
        ("drop=-1", "not a probability"),
        ("drop=0.1,port=3", "not one of qp"),
        ("drop,qp", "not KEY=VALUE"),
        ("drop,psn=x", "not a number"),
        ("drop,psn=9-3", "the smaller PSN comes first"),
        ("drop,qp=fb2446", "would be 0xfb2446"),
        ("drop,qp=0x1000000", "too much: the most is 16777215"),
        ("delay=0.5", "give delay:250us"),
        ("drop,opcode=256", "the most is 255"),
        ("drop,opcode=RC_SENT", "RC_SEND_ONLY"),
        ("drop,nth=0", "give 1 or more"),
        ("drop,dir=up", "neither dir=sent nor dir=received"),
        ("rnr:32", "the most is 31"),
        ("nak", "one of sequence, invalid"),
        ("nak:rights", "one of sequence, invalid, access"),
        ("cq-error,dir=sent", "dir=received"),
    ] {
        let error = text.parse::<Fault>().unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert_eq!("drop=1".parse::<Fault>().unwrap(), Fault::new(FaultKind::Drop, 1.0));
}
