//! What copies cost, with wide loads and stores and without:
//! `cargo test --release -p rnic-host guarded::speed -- --ignored --nocapture`.

use super::machine::NARROW;
use super::{is_ready, load};
use memmap2::MmapMut;
use std::time::{Duration, Instant};

const PACKETS: usize = 16;
const PAYLOAD: usize = 4096;
/// From one payload of a train to the next.
const STRIDE: usize = PAYLOAD + 16;
const TIME: Duration = Duration::from_millis(300);

/// Bytes per second of payloads that go from pages into a train whose first one lies `behind` the
/// start of a page.
fn rate(source: &MmapMut, train: &mut MmapMut, behind: usize) -> f64 {
    let (start, mut messages) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        for packet in 0..PACKETS {
            let to = &mut train[behind + packet * STRIDE..][..PAYLOAD];
            load(source.as_ptr().addr() + packet * PAYLOAD, to).unwrap();
        }
        messages += 1;
    }
    (messages * PACKETS * PAYLOAD) as f64 / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "information, not a check"]
fn rates_of_copies() {
    assert!(is_ready());
    let mut source = MmapMut::map_anon(PACKETS * PAYLOAD).unwrap();
    let mut train = MmapMut::map_anon((PACKETS + 1) * STRIDE + PAYLOAD).unwrap();
    source.fill(7);
    train.fill(7);
    for behind in [0, 28, PAYLOAD / 2] {
        let [wide, narrow] = [false, true].map(|narrow| {
            NARROW.set(narrow);
            rate(&source, &mut train, behind) / 1e9
        });
        let ratio = wide / narrow;
        println!("{behind} bytes behind: {wide:.1} GB/s, by string {narrow:.1}: {ratio:.2} times");
    }
}
