//! Every interleaving of ringing threads and an engine that looks and goes to sleep.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::words::Words;

fn record(index: u32) -> RecordIndex {
    RecordIndex::new(index).unwrap()
}

fn area() -> (Bell, Doorbells) {
    let words = Words::heap(AREA_WORDS);
    let doorbells = Doorbells::new(words.clone()).unwrap();
    (Bell::new(words).unwrap(), doorbells)
}

/// Takes what was rung and notes the producer index of each queue visited.
fn look(doorbells: &mut Doorbells, seen: &mut [u32; 2]) {
    let mut rung = Vec::new();
    while doorbells.take(1, |record| rung.push(record)) {}
    for record in rung {
        seen[record.value() as usize] = doorbells.producer(record);
    }
}

#[test]
pub(crate) fn two_ringing_threads_lose_no_doorbell() {
    loom::model(|| {
        let (bell, mut doorbells) = area();
        let other = bell.clone();
        let first = thread::spawn(move || _ = bell.ring(record(0), 1));
        let second = thread::spawn(move || _ = other.ring(record(1), 1));
        let mut seen = [0; 2];
        look(&mut doorbells, &mut seen);
        first.join().unwrap();
        second.join().unwrap();
        look(&mut doorbells, &mut seen);
        assert_eq!(seen, [1, 1]);
    });
}

/// The second ring may find its bit still set, and then leaves the summary bits alone.
#[test]
pub(crate) fn a_queue_rung_again_is_seen_again() {
    loom::model(|| {
        let (bell, mut doorbells) = area();
        let ringing = thread::spawn(move || {
            _ = bell.ring(record(0), 1);
            _ = bell.ring(record(0), 2);
        });
        let mut seen = [0; 2];
        look(&mut doorbells, &mut seen);
        look(&mut doorbells, &mut seen);
        ringing.join().unwrap();
        look(&mut doorbells, &mut seen);
        assert_eq!(seen[0], 2);
    });
}

/// A thread that stops in the middle of its ring holds up no other doorbell.
#[test]
pub(crate) fn a_complete_ring_is_seen_at_once() {
    loom::model(|| {
        let (bell, mut doorbells) = area();
        let other = bell.clone();
        let stopped = thread::spawn(move || _ = other.ring(record(1), 1));
        let mut seen = [0; 2];
        _ = bell.ring(record(0), 1);
        look(&mut doorbells, &mut seen);
        assert_eq!(seen[0], 1);
        stopped.join().unwrap();
    });
}

/// Whenever the engine visits a queue, it sees an index at least as new as the ring that sent it.
#[test]
pub(crate) fn a_visit_sees_the_ring_that_caused_it() {
    loom::model(|| {
        let (bell, mut doorbells) = area();
        let ringing = thread::spawn(move || _ = bell.ring(record(0), 1));
        let mut visits = 0;
        doorbells.take(1, |_| visits += 1);
        if visits > 0 {
            assert_eq!(doorbells.producer(record(0)), 1);
        }
        ringing.join().unwrap();
    });
}

#[test]
pub(crate) fn an_engine_that_sleeps_is_woken() {
    loom::model(|| {
        let (bell, mut doorbells) = area();
        let woken = Arc::new(AtomicBool::new(false));
        let wake = Arc::clone(&woken);
        let ringing = thread::spawn(move || {
            for producer in 1..=2 {
                if bell.ring(record(0), producer) {
                    wake.store(true, Ordering::Relaxed);
                }
            }
        });
        let mut seen = [0; 2];
        look(&mut doorbells, &mut seen);
        let sleeps = doorbells.prepare_sleep();
        ringing.join().unwrap();
        if sleeps && !woken.load(Ordering::Relaxed) {
            assert_eq!(seen[0], 2, "the engine sleeps with a doorbell pending");
        }
    });
}
