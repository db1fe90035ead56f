//! Every interleaving of posting, fetching and releasing across the end of a ring.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::words::{LINE, Words};
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};

const WQES: u64 = 3;

#[test]
pub(crate) fn wqes_arrive_whole_and_in_order_across_the_wrap() {
    loom::model(|| {
        let shape = QueueShape { capacity: 2, stride: LINE as u32 };
        let ring = Words::heap(shape.words().unwrap());
        let mut consumer = WorkConsumer::new(ring.clone(), shape).unwrap();
        let mut producer = WorkProducer::new(ring, shape).unwrap();
        let area = Words::heap(AREA_WORDS);
        let doorbells = Doorbells::new(area.clone()).unwrap();
        let bell = Bell::new(area).unwrap();
        let record = RecordIndex::new(0).unwrap();

        let posting = thread::spawn(move || {
            for wqe in 1..=WQES {
                while producer.free() == 0 {
                    thread::yield_now();
                }
                producer.push(&[wqe, !wqe]);
                bell.publish(record, producer.producer());
            }
        });
        let mut expected = 1;
        while expected <= WQES {
            let available = consumer.available(doorbells.producer(record)).unwrap();
            for _ in 0..available {
                let mut wqe = [0; 2];
                let index = consumer.fetch(&mut wqe);
                assert_eq!(wqe, [expected, !expected]);
                consumer.release(index.wrapping_add(1));
                expected += 1;
            }
            if available == 0 {
                thread::yield_now();
            }
        }
        posting.join().unwrap();
    });
}

/// A receive is published without a ring. When its queue pair fails meanwhile, either the engine
/// sees it in its last look, or the application sees the mark and rings.
#[test]
pub(crate) fn a_receive_posted_while_the_queue_fails_is_seen() {
    loom::model(|| {
        let shape = QueueShape { capacity: 2, stride: LINE as u32 };
        let ring = Words::heap(shape.words().unwrap());
        let mut consumer = WorkConsumer::new(ring.clone(), shape).unwrap();
        let mut producer = WorkProducer::new(ring, shape).unwrap();
        let area = Words::heap(AREA_WORDS);
        let doorbells = Doorbells::new(area.clone()).unwrap();
        let bell = Bell::new(area).unwrap();
        let record = RecordIndex::new(0).unwrap();
        let rung = Arc::new(AtomicBool::new(false));
        let ring = Arc::clone(&rung);

        let posting = thread::spawn(move || {
            producer.push(&[7]);
            bell.publish(record, producer.producer());
            ring.store(producer.must_ring(), Ordering::Relaxed);
        });
        consumer.mark_flushed();
        let seen = consumer.available(doorbells.producer(record)).unwrap();
        posting.join().unwrap();
        let told = rung.load(Ordering::Relaxed);
        assert!(seen == 1 || told, "the receive is never flushed");
    });
}
