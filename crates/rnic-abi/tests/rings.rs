//! Rings against a `VecDeque`, and against a peer that writes whatever it likes.
#![cfg(not(loom))]

use proptest::prelude::*;
use rnic_abi::cpu_hints::CpuHints;
use rnic_abi::cq::{ArmKind, CqConsumer, CqOverflow, CqProducer, cq_words};
use rnic_abi::cqe::Cqe;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, MAX_RECORDS, Poller, RecordIndex, SUMMARY};
use rnic_abi::verbs::WcOpcode;
use rnic_abi::words::{LINE, Words};
use rnic_abi::work_queue::{ProducerOverrun, QueueShape, WorkConsumer, WorkProducer};
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![3 => Just(Step::Write), 3 => Just(Step::Read), 2 => Just(Step::GiveBack)];
    prop::collection::vec(step, 0..200)
}

/// The engine's side of a completion queue's ring that was just made.
fn empty(capacity: u32) -> CqProducer {
    CqProducer::new(Words::heap(cq_words(capacity).unwrap()), capacity).unwrap()
}

fn completion(number: u64) -> Cqe {
    let mut cqe = Cqe::new(number, 1, WcOpcode::Send);
    assert!(cqe.carry(&vec![number.to_le_bytes()[0]; (number % 65) as usize]));
    cqe
}

proptest! {
    #[test]
    fn a_work_queue_is_a_bounded_fifo(steps in steps(), order in 0_u32..4, blocks in 1_u32..4) {
        let shape = QueueShape { capacity: 1_u32 << order, stride: blocks * 8 };
        let words = Words::heap(shape.words().unwrap());
        let mut consumer = WorkConsumer::new(words.clone(), shape).unwrap();
        let mut producer = WorkProducer::new(words, shape).unwrap();
        let (mut queued, mut held, mut next) = (VecDeque::new(), VecDeque::new(), 0_u64);
        for step in steps {
            match step {
                Step::Write => {
                    let full = queued.len() + held.len() == shape.capacity as usize;
                    prop_assert_eq!(producer.free() == 0, full);
                    if !full {
                        let wqe: Vec<u64> = (0..u64::from(shape.stride)).map(|i| next + i).collect();
                        queued.push_back((producer.push(&wqe), next));
                        next += 100;
                    }
                }
                Step::Read => {
                    let available = consumer.available(producer.producer());
                    prop_assert_eq!(available, Ok(queued.len() as u32));
                    if let Some((index, first)) = queued.pop_front() {
                        let mut wqe = vec![0; shape.stride as usize];
                        prop_assert_eq!(consumer.fetch(&mut wqe), index);
                        prop_assert!(wqe.iter().zip(first..).all(|(word, expected)| *word == expected));
                        held.push_back(index);
                    }
                }
                Step::GiveBack => {
                    if let Some(index) = held.pop_front() {
                        consumer.release(index.wrapping_add(1));
                    }
                }
            }
            prop_assert_eq!(producer.in_use() as usize, queued.len() + held.len());
        }
    }

    #[test]
    fn a_completion_queue_is_a_bounded_fifo(steps in steps(), order in 0_u32..4) {
        let capacity = 1_u32 << order;
        let words = Words::heap(cq_words(capacity).unwrap());
        let mut producer = CqProducer::new(words.clone(), capacity).unwrap();
        let mut consumer = CqConsumer::new(words, capacity).unwrap();
        let (mut queued, mut next) = (VecDeque::new(), 0);
        for step in steps {
            match step {
                Step::Write => {
                    let full = queued.len() == capacity as usize;
                    let expected = if full { Err(CqOverflow) } else { Ok(()) };
                    prop_assert_eq!(producer.push(&completion(next)), expected);
                    if !full {
                        queued.push_back(next);
                        next += 1;
                    }
                }
                Step::Read => {
                    let expected = queued.pop_front().map(completion);
                    let polled = consumer.poll();
                    prop_assert_eq!(polled.map(|cqe| cqe.wr_id), expected.map(|cqe| cqe.wr_id));
                    if let (Some(polled), Some(expected)) = (polled, expected) {
                        let len = expected.carried_len();
                        prop_assert_eq!(polled.carried()[..len].to_vec(), &expected.carried()[..len]);
                    }
                }
                Step::GiveBack => {}
            }
        }
    }

    /// Any producer index gives an error or a number of slots that the ring really has.
    #[test]
    fn any_producer_index_is_bounded(index in any::<u32>(), fetched in 0_u32..8, released in 0_u32..8) {
        let shape = QueueShape { capacity: 8, stride: 8 };
        let words = Words::heap(shape.words().unwrap());
        let mut consumer = WorkConsumer::new(words, shape).unwrap();
        for _ in 0..fetched {
            consumer.fetch(&mut [0; 8]);
        }
        consumer.release(released.min(fetched));
        match consumer.available(index) {
            Ok(available) => {
                prop_assert_eq!(index, consumer.next_index() + available);
                prop_assert!(available + fetched - released.min(fetched) <= 8);
            }
            Err(ProducerOverrun) => prop_assert!(index.wrapping_sub(released.min(fetched)) > 8
                || index < fetched),
        }
    }

    /// The engine never panics, and never counts more free slots than the ring has.
    #[test]
    fn any_consumer_index_is_survived(values in prop::collection::vec(any::<(u64, u64)>(), 1..50)) {
        let words = Words::heap(cq_words(4).unwrap());
        let mut producer = CqProducer::new(words.clone(), 4).unwrap();
        for (consumer, arm) in values {
            words.set(0, consumer);
            words.set(LINE, arm);
            for _ in 0..5 {
                let before = producer.written();
                let pushed = producer.push(&completion(1)).is_ok();
                prop_assert_eq!(producer.written(), before + u64::from(pushed));
            }
            let _ = producer.take_arm(true);
            let _ = producer.resized(empty(8));
        }
    }

    #[test]
    fn doorbells_visit_what_was_rung(
        rings in prop::collection::vec(prop::collection::btree_set(0..MAX_RECORDS as u32, 0..200), 1..5),
        budget in 1_usize..300,
    ) {
        let area = Words::heap(AREA_WORDS);
        let mut doorbells = Doorbells::new(area.clone()).unwrap();
        let bell = Bell::new(area).unwrap();
        for rung in rings {
            for index in &rung {
                prop_assert!(!bell.ring(RecordIndex::new(*index).unwrap(), index ^ 5));
            }
            let mut seen = BTreeSet::new();
            let mut again = true;
            while again {
                let mut words = BTreeSet::new();
                again = doorbells.take(budget, |record| {
                    words.insert(record.value() / 64);
                    seen.insert(record.value());
                });
                prop_assert!(words.len() <= budget);
            }
            prop_assert!(!doorbells.is_rung());
            for index in &rung {
                prop_assert_eq!(doorbells.producer(RecordIndex::new(*index).unwrap()), index ^ 5);
            }
            prop_assert_eq!(seen, rung);
        }
    }

    #[test]
    fn any_doorbell_area_is_survived(garbage in prop::collection::vec((SUMMARY, any::<u64>()), 0..500)) {
        let area = Words::heap(AREA_WORDS);
        let mut doorbells = Doorbells::new(area.clone()).unwrap();
        for (at, value) in garbage {
            area.set(at, value);
        }
        let mut turns = 0;
        while doorbells.take(16, |record| assert!((record.value() as usize) < MAX_RECORDS)) {
            turns += 1;
        }
        prop_assert!(turns <= MAX_RECORDS / 64 / 16);
        prop_assert!(!doorbells.is_rung());
        let _ = doorbells.client_cpu();
    }
}

/// Queues that ring without end do not keep those behind them from being visited.
#[test]
fn a_busy_queue_does_not_starve_another() {
    let area = Words::heap(AREA_WORDS);
    let mut doorbells = Doorbells::new(area.clone()).unwrap();
    let bell = Bell::new(area).unwrap();
    let record = |index| RecordIndex::new(index).unwrap();
    let last = MAX_RECORDS as u32 - 1;
    let _ = bell.ring(record(last), 1);
    let mut seen = false;
    for _ in 0..4 {
        let _ = bell.ring(record(0), 1);
        let _ = bell.ring(record(64), 1);
        doorbells.take(1, |visited| seen |= visited == record(last));
    }
    assert!(seen);
}

#[test]
fn a_context_that_rings_everything_costs_a_bounded_visit() {
    let area = Words::heap(AREA_WORDS);
    let mut doorbells = Doorbells::new(area.clone()).unwrap();
    for at in SUMMARY.skip(1) {
        area.set(at, u64::MAX);
    }
    let mut visits = 0;
    assert!(doorbells.take(10, |_| visits += 1));
    assert_eq!(visits, 640);
    while doorbells.take(10, |_| visits += 1) {}
    assert_eq!(visits, MAX_RECORDS);
}

#[test]
fn a_doorbell_takes_the_request_to_sleep_back() {
    let area = Words::heap(AREA_WORDS);
    let mut doorbells = Doorbells::new(area.clone()).unwrap();
    let bell = Bell::new(area).unwrap();
    let record = RecordIndex::new(77).unwrap();
    assert!(doorbells.prepare_sleep());
    assert!(bell.ring(record, 1));
    assert!(bell.ring(record, 2), "every ring tells until the engine is awake");
    assert!(!doorbells.prepare_sleep());
    assert!(!bell.ring(record, 3));
    assert!(!doorbells.take(1, |_| {}));
    assert!(doorbells.prepare_sleep());
    doorbells.awake();
    assert!(!bell.ring(record, 4));
    doorbells.reset(record);
    assert_eq!(doorbells.producer(record), 0);
}

/// A ring in memory that was another ring before is empty.
#[test]
fn reused_memory_holds_no_old_completions() {
    let words = Words::heap(cq_words(4).unwrap());
    let mut producer = CqProducer::new(words.clone(), 4).unwrap();
    producer.push(&completion(1)).unwrap();
    let mut producer = CqProducer::new(words.clone(), 2).unwrap();
    let mut consumer = CqConsumer::new(words, 2).unwrap();
    assert_eq!(consumer.poll(), None);
    assert!(!producer.take_arm(true));
    producer.push(&completion(2)).unwrap();
    assert_eq!(consumer.poll().unwrap().wr_id, 2);
}

#[test]
fn a_resized_queue_starts_with_what_was_not_polled() {
    let words = Words::heap(cq_words(4).unwrap());
    let mut producer = CqProducer::new(words.clone(), 4).unwrap();
    let mut consumer = CqConsumer::new(words, 4).unwrap();
    for number in 1..=4 {
        producer.push(&completion(number)).unwrap();
    }
    assert_eq!(consumer.poll().unwrap().wr_id, 1);
    producer.push(&completion(5)).unwrap();
    assert!(producer.resized(empty(2)).is_none(), "four do not fit");
    let words = Words::heap(cq_words(8).unwrap());
    let mut producer = producer.resized(CqProducer::new(words.clone(), 8).unwrap()).unwrap();
    let mut consumer = CqConsumer::new(words, 8).unwrap();
    producer.push(&completion(6)).unwrap();
    let polled: Vec<u64> = std::iter::from_fn(|| consumer.poll()).map(|cqe| cqe.wr_id).collect();
    assert_eq!(polled, [2, 3, 4, 5, 6]);
}

#[test]
fn an_arming_fires_once_and_for_its_kind() {
    let words = Words::heap(cq_words(4).unwrap());
    let producer = CqProducer::new(words.clone(), 4).unwrap();
    let consumer = CqConsumer::new(words, 4).unwrap();
    assert!(!producer.take_arm(true));
    consumer.arm().set(ArmKind::Solicited);
    assert!(!producer.take_arm(false));
    assert!(producer.take_arm(true));
    assert!(!producer.take_arm(true));
    consumer.arm().set(ArmKind::Any);
    consumer.arm().set(ArmKind::Solicited);
    assert!(producer.take_arm(false), "an arming for any completion is not weakened");
}

#[test]
fn a_sleeper_is_woken_once_and_never_sleeps_on_a_completion() {
    let words = Words::heap(cq_words(4).unwrap());
    let mut producer = CqProducer::new(words.clone(), 4).unwrap();
    let mut consumer = CqConsumer::new(words, 4).unwrap();
    assert!(producer.take_sleepers().is_none());
    let sleep = consumer.prepare_sleep().unwrap();
    let word = producer.take_sleepers().unwrap();
    assert!(std::ptr::eq(word, sleep.word()));
    assert!(producer.take_sleepers().is_none());
    consumer.others_sleep();
    assert!(producer.take_sleepers().is_some());
    producer.push(&completion(1)).unwrap();
    assert!(consumer.prepare_sleep().is_none());
    consumer.poll().unwrap();
    assert!(consumer.prepare_sleep().is_some());
}

#[test]
fn cpu_hints_reach_the_program() {
    let area = Words::heap(AREA_WORDS);
    let doorbells = Doorbells::new(area.clone()).unwrap();
    let bell = Bell::new(area).unwrap();
    assert!(!bell.cpu_hints().reports_cpu());
    doorbells.ask(CpuHints { report_cpu: true, ..CpuHints::default() });
    assert!(bell.cpu_hints().reports_cpu());
}

#[test]
fn threads_that_poll_are_counted_once() {
    let area = Words::heap(AREA_WORDS);
    let doorbells = Doorbells::new(area.clone()).unwrap();
    let bell = Bell::new(area).unwrap();
    assert_eq!(doorbells.take_pollers(), 0);
    for thread in (0..10).chain(0..10).chain(64..70) {
        bell.publish_poller(Poller::new(thread));
    }
    assert_eq!([doorbells.take_pollers(), doorbells.take_pollers()], [10, 0]);
    (0..1000).for_each(|thread| bell.publish_poller(Poller::new(thread)));
    assert_eq!(doorbells.take_pollers(), 64);
}

#[test]
fn an_arming_moves_to_the_larger_ring() {
    let ring = |capacity| Words::heap(cq_words(capacity).unwrap());
    let (small, large) = (ring(4), ring(8));
    let producer = CqProducer::new(small.clone(), 4).unwrap();
    let consumer = CqConsumer::new(small, 4).unwrap();
    consumer.arm().set(ArmKind::Solicited);
    let producer = producer.resized(CqProducer::new(large.clone(), 8).unwrap()).unwrap();
    assert!(!producer.take_arm(false));
    assert!(producer.take_arm(true));
    assert!(!CqConsumer::new(large, 8).unwrap().arm().take() && !consumer.arm().take());
}

#[test]
fn polling_one_endless_batch_makes_room() {
    let words = Words::heap(cq_words(16).unwrap());
    let mut producer = CqProducer::new(words.clone(), 16).unwrap();
    let mut consumer = CqConsumer::new(words, 16).unwrap();
    for n in 0..12 {
        producer.push(&completion(n)).unwrap();
    }
    for n in 0..1000 {
        assert_eq!(consumer.poll().map(|cqe| cqe.wr_id), Some(n));
        assert!(producer.push(&completion(n + 12)).is_ok(), "after {n} completions");
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let shape = |capacity, stride| QueueShape { capacity, stride }.words();
    assert_eq!(shape(4, 8), Some(16 + 32));
    for (capacity, stride) in
        [(0, 8), (3, 8), (1 << 17, 8), (4, 0), (4, 12), (4, 208), (4, u32::MAX)]
    {
        assert_eq!(shape(capacity, stride), None);
    }
    assert_eq!(cq_words(4), Some(32 + 64));
    assert!([0, 3, 1 << 23].into_iter().all(|capacity| cq_words(capacity).is_none()));
    assert!(CqProducer::new(Words::heap(95), 4).is_none());
    assert!(Doorbells::new(Words::heap(AREA_WORDS - 1)).is_none());
    assert!(Bell::new(Words::heap(AREA_WORDS)).is_none(), "it is not initialised");
    assert!(Words::heap(8).slice(usize::MAX, 2).is_none());
}
