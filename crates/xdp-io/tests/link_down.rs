//! AF_XDP ports whose interface is down for a while.

mod common;

use common::frame::{Frame, pattern};
use common::netns::Pair;
use common::{skipped_without_root, wait_for};
use testbed::{INTERFACE, V4_A, V4_B};
use xdp_io::xsk::{RxFrame, XdpMode, XskConfig, XskPort};

const PORT: u16 = 4791;
const TX_FRAMES: usize = 128;

fn open(interface: &str, address: std::net::IpAddr, mode: XdpMode) -> XskPort {
    let mut config = XskConfig::new(interface, PORT);
    config.addresses = vec![address];
    config.mode = mode;
    config.tx_frames = TX_FRAMES;
    XskPort::open(&config).unwrap()
}

/// The frames that have arrived.
fn drain(port: &mut XskPort) -> Vec<Vec<u8>> {
    let mut out = [RxFrame::default(); 64];
    let count = port.receive(&mut out);
    let arena = port.rx_arena();
    let frames = out[..count].iter().map(|f| arena[f.offset..f.offset + f.len].to_vec()).collect();
    port.release_rx();
    frames
}

fn reserve(port: &mut XskPort, frame: &[u8]) {
    let slot = port.reserve(frame.len()).expect("a free frame");
    port.tx_arena_mut()[slot.range()].copy_from_slice(frame);
}

/// With frames of one descriptor and of two.
#[test]
fn frames_for_an_interface_that_is_down_are_dropped() {
    if skipped_without_root("frames_for_an_interface_that_is_down_are_dropped") {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let pair = Pair::new(9000);
        let mut a = pair.a.run(|| open(INTERFACE, V4_A, mode));
        let mut b = pair.b.run(|| open(INTERFACE, V4_B, mode));
        let frame = |len, seed| {
            let payload = pattern(len, seed);
            Frame::udp((pair.mac_a, pair.mac_b), (V4_A, V4_B), PORT, payload).build()
        };
        pair.a.ip(&format!("link set {INTERFACE} down"));
        let lost = (frame(100, 1), frame(5000, 2));
        const ROUNDS: usize = 20;
        for _ in 0..ROUNDS {
            // All there are, of which the ring does not hold those of two descriptors at once.
            for k in 0..TX_FRAMES {
                reserve(&mut a, if k % 3 == 0 { &lost.0 } else { &lost.1 });
            }
            assert_eq!(a.submit().queued, 0, "{mode:?}");
        }
        let stats = a.stats();
        assert_eq!(stats.tx_errors.link_down, (ROUNDS * TX_FRAMES) as u64, "{mode:?}: {stats:?}");
        assert_eq!(stats.tx_frames, 0, "{mode:?}");

        pair.a.ip(&format!("link set {INTERFACE} up"));
        wait_for("the link", || {
            pair.a.ip(&format!("link show {INTERFACE}")).contains("state UP").then_some(())
        });
        // What was dropped stays away, and what is new arrives in order.
        for round in 0..1000 {
            let sent = frame(if round % 2 == 0 { 64 } else { 4500 }, 100 + round);
            reserve(&mut a, &sent);
            // At first the kernel has to step over what is left of the dropped ones.
            wait_for("room in the ring", || (a.submit().queued == 0).then_some(()));
            assert!(wait_for("a frame", || drain(&mut b).pop()) == sent, "{mode:?}, {round}");
        }
        assert_eq!(b.stats().rx_frames, 1000);
        assert_eq!(a.stats().tx_frames, 1000);
    }
}

/// The kernel takes such frames from the ring all the same.
#[test]
fn frames_that_find_no_carrier_are_not_counted_as_sent() {
    if skipped_without_root("frames_that_find_no_carrier_are_not_counted_as_sent") {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let pair = Pair::new(9000);
        let mut a = pair.a.run(|| open(INTERFACE, V4_A, mode));
        pair.b.ip(&format!("link set {INTERFACE} down"));
        wait_for("the carrier to go", || {
            pair.a.ip(&format!("link show {INTERFACE}")).contains("NO-CARRIER").then_some(())
        });
        let macs = (pair.mac_a, pair.mac_b);
        let frame = Frame::udp(macs, (V4_A, V4_B), PORT, pattern(100, 1)).build();
        for _ in 0..10 {
            (0..TX_FRAMES / 2).for_each(|_| reserve(&mut a, &frame));
            wait_for("the kernel to take them", || (a.submit().queued == 0).then_some(()));
        }
        let stats = a.stats();
        let all = (TX_FRAMES / 2 * 10) as u64;
        assert_eq!((stats.tx_frames, stats.tx_errors.total()), (0, all), "{mode:?}: {stats:?}");
    }
}
