//! Every interleaving of completing, polling and arming.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rnic_abi::cq::{ArmKind, CqConsumer, CqOverflow, CqProducer, cq_words};
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::WcOpcode;
use rnic_abi::words::Words;

fn ring(capacity: u32) -> (CqProducer, CqConsumer) {
    let words = Words::heap(cq_words(capacity).unwrap());
    let producer = CqProducer::new(words.clone(), capacity).unwrap();
    (producer, CqConsumer::new(words, capacity).unwrap())
}

/// Every word depends on the number, so that a torn completion cannot pass for a whole one.
fn completion(number: u64) -> Cqe {
    let opcode = if number.is_multiple_of(2) { WcOpcode::Send } else { WcOpcode::Recv };
    let mut cqe = Cqe::new(number, number as u32 + 7, opcode);
    cqe.timestamp = !number;
    cqe
}

#[test]
pub(crate) fn completions_arrive_whole_and_in_order_across_the_wrap() {
    const COMPLETIONS: u64 = 3;
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let polling = thread::spawn(move || {
            for number in 1..=COMPLETIONS {
                let polled = loop {
                    match consumer.poll() {
                        Some(cqe) => break cqe,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(polled, completion(number));
            }
        });
        for number in 1..=COMPLETIONS {
            while producer.push(&completion(number)) == Err(CqOverflow) {
                thread::yield_now();
            }
        }
        polling.join().unwrap();
    });
}

/// What did not fit is refused and never overwrites what was not polled.
#[test]
pub(crate) fn an_overflow_is_reported_and_overwrites_nothing() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let polling = thread::spawn(move || {
            let first = consumer.poll();
            (first, consumer)
        });
        let pushed: Vec<u64> =
            (1..=2).filter(|number| producer.push(&completion(*number)).is_ok()).collect();
        let (first, mut consumer) = polling.join().unwrap();
        let polled: Vec<Cqe> = first.into_iter().chain(consumer.poll()).collect();
        let expected: Vec<Cqe> = pushed.into_iter().map(completion).collect();
        assert_eq!(polled, expected);
    });
}

fn no_event_is_missed(kind: ArmKind, solicited: bool) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring(2);
        let event = Arc::new(AtomicBool::new(false));
        let send = Arc::clone(&event);
        let completing = thread::spawn(move || {
            let mut cqe = completion(1);
            cqe.flags.set(CqeFlags::SOLICITED, solicited);
            producer.push(&cqe).unwrap();
            CqProducer::fence_before_arm_check();
            if producer.take_arm(solicited) {
                send.store(true, Ordering::Relaxed);
            }
        });
        consumer.arm().set(kind);
        let polled = consumer.poll().is_some();
        completing.join().unwrap();
        let told = event.load(Ordering::Relaxed);
        assert!(polled || told, "the application waits for an event that never comes");
    });
}

#[test]
pub(crate) fn no_event_is_missed_when_armed_for_any() {
    no_event_is_missed(ArmKind::Any, false);
}

#[test]
pub(crate) fn no_event_is_missed_when_armed_for_solicited() {
    no_event_is_missed(ArmKind::Solicited, true);
}

/// A thread must not sleep while there is a completion, and the engine must not leave a sleeper
/// asleep after writing one. A change of the word before the kernel looks at it is a wake-up too.
#[test]
pub(crate) fn a_poller_that_sleeps_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let woken = Arc::new(AtomicBool::new(false));
        let wake = Arc::clone(&woken);
        let completing = thread::spawn(move || {
            producer.push(&completion(1)).unwrap();
            CqProducer::fence_before_arm_check();
            if producer.take_sleepers().is_some() {
                wake.store(true, Ordering::Relaxed);
            }
        });
        let polled = consumer.poll().is_some();
        let sleeps = !polled && consumer.prepare_sleep().is_some();
        completing.join().unwrap();
        let told = woken.load(Ordering::Relaxed);
        assert!(!sleeps || told, "a thread sleeps beside its completion");
    });
}

/// One arming is one event, whatever is completed after it.
#[test]
pub(crate) fn one_arming_is_at_most_one_event() {
    loom::model(|| {
        let (mut producer, consumer) = ring(2);
        let completing = thread::spawn(move || {
            let mut events = 0;
            for number in 1..=2 {
                producer.push(&completion(number)).unwrap();
                CqProducer::fence_before_arm_check();
                events += u32::from(producer.take_arm(false));
            }
            (producer, events)
        });
        consumer.arm().set(ArmKind::Any);
        let (producer, events) = completing.join().unwrap();
        assert_eq!(events + u32::from(producer.take_arm(false)), 1);
    });
}
