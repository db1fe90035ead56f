//! The pieces of the data path, one by one: `cargo bench -p rnic-bench --bench micro`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use divan::counter::BytesCount;
use divan::{Bencher, black_box_drop};
use rnic_abi::cq::{CqConsumer, CqProducer, cq_words};
use rnic_abi::cqe::Cqe;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::verbs::WcOpcode;
use rnic_abi::words::Words;
use rnic_abi::work_queue::{QueueShape, WorkConsumer, WorkProducer};
use roce_wire::{Bth, Datagram, Flow, HeaderRepr, IpIdHint, Opcode, Psn, Qpn, icrc};

/// Payload bytes: an acknowledgement's, a small message's, those of the usual path MTUs.
const PAYLOADS: [usize; 4] = [0, 64, 1024, 4096];

fn main() {
    divan::main();
}

fn flow() -> Flow {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Flow::new(address(1), address(2), 49_152)
}

fn headers(payload: usize) -> HeaderRepr {
    HeaderRepr::new(Bth::new(Opcode::RcWriteMiddle, Qpn::new(17), Psn::new(4711)))
        .with_payload_len(payload)
}

/// A finished datagram.
fn datagram(payload: usize) -> Vec<u8> {
    let headers = headers(payload);
    let mut bytes = vec![0x5a; headers.datagram_len(payload)];
    headers.emit(&mut bytes);
    icrc::seal(&flow(), 0, &mut bytes);
    bytes
}

#[divan::bench(args = PAYLOADS)]
fn parse(bencher: Bencher<'_, '_>, payload: usize) {
    let bytes = datagram(payload);
    bencher.bench_local(|| black_box_drop(Datagram::parse(black_box(&bytes))));
}

#[divan::bench]
fn emit_headers(bencher: Bencher<'_, '_>) {
    let headers = headers(4096);
    let mut bytes = vec![0; headers.datagram_len(4096)];
    bencher.bench_local(|| black_box(&headers).emit(black_box(&mut bytes)));
}

#[divan::bench(args = PAYLOADS)]
fn seal_icrc(bencher: Bencher<'_, '_>, payload: usize) {
    let (flow, mut bytes) = (flow(), datagram(payload));
    let bencher = bencher.counter(BytesCount::new(bytes.len()));
    bencher.bench_local(|| icrc::seal(black_box(&flow), 0, black_box(&mut bytes)));
}

#[divan::bench(args = PAYLOADS)]
fn verify_icrc(bencher: Bencher<'_, '_>, payload: usize) {
    let (flow, bytes) = (flow(), datagram(payload));
    let bencher = bencher.counter(BytesCount::new(bytes.len()));
    let id = IpIdHint::Known(0);
    bencher.bench_local(|| icrc::verify(black_box(&flow), id, black_box(&bytes)).is_good());
}

/// One WQE from the application to the engine.
#[divan::bench]
fn work_queue(bencher: Bencher<'_, '_>) {
    let shape = QueueShape { capacity: 128, stride: 16 };
    let words = Words::heap(shape.words().expect("a shape that exists"));
    let mut producer = WorkProducer::new(words.clone(), shape).expect("enough memory");
    let mut consumer = WorkConsumer::new(words, shape).expect("enough memory");
    let (wqe, mut copy) = ([7; 10], [0; 10]);
    bencher.bench_local(|| {
        producer.push(black_box(&wqe));
        consumer.fetch(&mut copy);
        consumer.release(consumer.next_index());
        black_box(&copy);
    });
}

/// One CQE from the engine to the application.
#[divan::bench]
fn completion_queue(bencher: Bencher<'_, '_>) {
    let words = Words::heap(cq_words(128).expect("a capacity that exists"));
    let mut producer = CqProducer::new(words.clone(), 128).expect("enough memory");
    let mut consumer = CqConsumer::new(words, 128).expect("enough memory");
    let cqe = Cqe::new(1, 17, WcOpcode::Send);
    bencher.bench_local(|| {
        producer.push(black_box(&cqe)).expect("an empty queue");
        black_box(consumer.poll());
    });
}

/// One doorbell, rung and found.
#[divan::bench]
fn doorbell(bencher: Bencher<'_, '_>) {
    let area = Words::heap(AREA_WORDS);
    let bell = Bell::new(area.clone()).expect("enough memory");
    let mut doorbells = Doorbells::new(area).expect("enough memory");
    let record = RecordIndex::new(9).expect("a record that exists");
    bencher.bench_local(|| {
        let _ = bell.ring(black_box(record), 1);
        doorbells.take(64, |found| {
            black_box(found);
        })
    });
}
