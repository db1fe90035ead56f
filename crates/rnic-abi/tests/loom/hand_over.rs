//! Every interleaving of a producer that publishes and a consumer that goes to sleep.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rnic_abi::hand_over::{CONSUMER_WORDS, Consumer, Producer, producer_words};
use rnic_abi::words::Words;

fn ring(capacity: usize) -> (Producer<2>, Consumer<2>) {
    let produced = Words::heap(producer_words(capacity, 2));
    let consumed = Words::heap(CONSUMER_WORDS);
    let producer = Producer::new(produced.clone(), consumed.clone()).unwrap();
    (producer, Consumer::new(consumed, produced).unwrap())
}

/// Also into slots that were used before.
#[test]
pub(crate) fn entries_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let producing = thread::spawn(move || {
            for n in 1..=2 {
                while producer.free_slot().unwrap().is_none() {
                    thread::yield_now();
                }
                producer.push(&[n, 10 * n]);
                producer.publish();
            }
        });
        for n in 1..=2 {
            let entry = loop {
                match consumer.take().unwrap() {
                    Some((_, entry)) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, [n, 10 * n]);
            consumer.release();
        }
        producing.join().unwrap();
    });
}

#[test]
pub(crate) fn a_consumer_that_sleeps_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let woken = Arc::new(AtomicBool::new(false));
        let wakes = Arc::clone(&woken);
        let producing = thread::spawn(move || {
            producer.free_slot().unwrap().unwrap();
            producer.push(&[7, 8]);
            if producer.publish() {
                wakes.store(true, Ordering::Release);
            }
        });
        let sleeps = consumer.prepare_sleep().unwrap();
        producing.join().unwrap();
        assert!(!sleeps || woken.load(Ordering::Acquire), "it sleeps for ever");
    });
}
