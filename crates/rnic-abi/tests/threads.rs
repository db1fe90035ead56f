//! An application and an engine on real threads, through many laps of small rings.
#![cfg(not(loom))]

use rnic_abi::cq::{ArmKind, CqConsumer, CqProducer, cq_words};
use rnic_abi::cqe::Cqe;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::verbs::WcOpcode;
use rnic_abi::words::Words;
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const QUEUES: u32 = 3;
/// Nothing takes this long unless a wake-up or event was missed.
const PATIENCE: Duration = Duration::from_secs(60);
const WQES_PER_QUEUE: u64 = 100_000;
const SHAPE: QueueShape = QueueShape { capacity: 16, stride: 16 };

/// Far apart, so that all levels of the bitmap are used.
fn record(queue: u32) -> RecordIndex {
    RecordIndex::new(queue * 40_000).unwrap()
}

fn wqe(number: u64) -> [u64; 16] {
    std::array::from_fn(|i| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64)
}

/// Posts to one queue and polls its CQ; sleeps on the channel when the queue is full.
fn application(
    bell: &Bell,
    queue: u32,
    mut posting: WorkProducer,
    mut cq: CqConsumer,
    wake: &Sender<()>,
    events: &Receiver<()>,
) {
    let (mut posted, mut polled) = (0, 0);
    while polled < WQES_PER_QUEUE {
        let mut progress = false;
        // What is under way fits the CQ, as the verbs API asks of its users.
        while posted < WQES_PER_QUEUE && posted - polled < 16 && posting.free() > 0 {
            posting.push(&wqe(posted));
            posted += 1;
            progress = true;
            if bell.ring(record(queue), posting.producer()) {
                wake.send(()).unwrap();
            }
        }
        while let Some(cqe) = cq.poll() {
            assert_eq!((cqe.wr_id, cqe.qpn), (polled, queue));
            polled += 1;
            progress = true;
        }
        if !progress && polled < WQES_PER_QUEUE {
            cq.arm().set(ArmKind::Any);
            if let Some(cqe) = cq.poll() {
                assert_eq!((cqe.wr_id, cqe.qpn), (polled, queue));
                polled += 1;
            } else {
                events.recv_timeout(PATIENCE).expect("a completion event");
            }
        }
    }
}

struct Served {
    work: WorkConsumer,
    cq: CqProducer,
    events: Sender<()>,
    done: u64,
}

impl Served {
    fn serve(&mut self, queue: u32, producer: u32) {
        for _ in 0..self.work.available(producer).unwrap() {
            let mut copy = [0; 16];
            let index = self.work.fetch(&mut copy);
            assert_eq!(copy, wqe(self.done), "WQE {index} of queue {queue}");
            self.work.release(index.wrapping_add(1));
            self.cq.push(&Cqe::new(self.done, queue, WcOpcode::Send)).unwrap();
            self.done += 1;
        }
    }
}

fn engine(mut doorbells: Doorbells, mut queues: Vec<Served>, wakes: &Receiver<()>) {
    while queues.iter().any(|queue| queue.done < WQES_PER_QUEUE) {
        let mut rung = Vec::new();
        while doorbells.take(1, |record| rung.push(record.value() / 40_000)) {}
        for queue in &rung {
            queues[*queue as usize].serve(*queue, doorbells.producer(record(*queue)));
        }
        CqProducer::fence_before_arm_check();
        for queue in &rung {
            let queue = &queues[*queue as usize];
            if queue.cq.take_arm(false) {
                // The application may have polled everything already, and be gone.
                let _ = queue.events.send(());
            }
        }
        if rung.is_empty() && doorbells.prepare_sleep() {
            wakes.recv_timeout(PATIENCE).expect("a wake-up");
            while wakes.try_recv().is_ok() {}
            doorbells.awake();
        }
    }
}

/// Both sides sleep whenever they have nothing to do: a wake-up or an event that is missed fails
/// the test, and so does a lost or torn descriptor.
#[test]
fn nothing_is_lost_torn_or_slept_through() {
    let area = Words::heap(AREA_WORDS);
    let doorbells = Doorbells::new(area.clone()).unwrap();
    let bell = Bell::new(area).unwrap();
    let (wake, wakes) = channel();
    thread::scope(|scope| {
        let mut served = Vec::new();
        for queue in 0..QUEUES {
            let ring = Words::heap(SHAPE.words().unwrap());
            let completions = Words::heap(cq_words(SHAPE.capacity).unwrap());
            let work = WorkConsumer::new(ring.clone(), SHAPE).unwrap();
            let cq = CqProducer::new(completions.clone(), SHAPE.capacity).unwrap();
            let (events, told) = channel();
            served.push(Served { work, cq, events, done: 0 });
            let posting = WorkProducer::new(ring, SHAPE).unwrap();
            let polling = CqConsumer::new(completions, SHAPE.capacity).unwrap();
            let (bell, wake) = (bell.clone(), wake.clone());
            scope.spawn(move || application(&bell, queue, posting, polling, &wake, &told));
        }
        drop(wake);
        engine(doorbells, served, &wakes);
    });
}
