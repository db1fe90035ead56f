//! What a datagram costs on each wire:
//! `cargo test --release -p rnic-host speed -- --ignored --nocapture`.
//!
//! One thread sends and receives, so the figure is the sum of both sides, kernel included; ICRCs
//! are neither made nor checked.

use super::exchange::{self, Side};
use super::{GENERIC, NATIVE, PACKET, SINGLE, UDP, WireConfig, pair_of};
use rnic_core::ports::{RxTrain, TxTrain, Wire};
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_millis(300);

/// Nanoseconds per datagram of `len` bytes, in trains as long as the wire takes.
fn cost(from: &mut Side, to: &mut Side, len: u32) -> f64 {
    let caps = from.wire.caps();
    let segments = caps.max_segments.min(caps.max_train / len);
    let path = from.path(0);
    let train = TxTrain {
        flow: path.flow,
        hop: path.hop,
        segments,
        segment_len: len,
        last_len: len,
        ip_id: 0,
        to_self: false,
    };
    let trains_a_turn = (64 / segments).max(2);
    let mut arrived: Vec<RxTrain> = Vec::with_capacity(64);
    let (start, mut datagrams) = (Instant::now(), 0u64);
    while start.elapsed() < TIME {
        let mut expected = 0;
        for _ in 0..trains_a_turn {
            if from.wire.reserve(&train).is_some() {
                expected += u64::from(segments);
            }
        }
        from.wire.submit();
        let turn = Instant::now();
        while expected > 0 && turn.elapsed() < Duration::from_millis(10) {
            arrived.clear();
            to.wire.receive(&mut arrived);
            for train in &arrived {
                let count = u64::from(train.range.len.div_ceil(train.segment_len));
                expected = expected.saturating_sub(count);
                datagrams += count;
            }
            to.wire.release();
        }
    }
    start.elapsed().as_nanos() as f64 / datagrams as f64
}

fn measure(name: &str, config: WireConfig) {
    let Some((_pair, mut a, mut b)) = pair_of(config, config, 4200) else { return };
    exchange::converse(&mut a, &mut b, 0);
    let costs: Vec<_> =
        [64, 1040, 4136].map(|len| format!("{len} B {:.0} ns", cost(&mut a, &mut b, len))).into();
    println!("{name}: {}", costs.join(", "));
}

#[test]
#[ignore = "information, not a check"]
fn speed_of_wires() {
    measure("udp", UDP);
    measure("af-packet", PACKET);
    measure("af-packet, single frames", SINGLE);
    measure("af-xdp native", NATIVE);
    measure("af-xdp generic", GENERIC);
}
