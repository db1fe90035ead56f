//! Every interleaving of posting, fetching and releasing across the end of a ring.

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
