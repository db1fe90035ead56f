//! AF_XDP ports on a veth pair.

mod common;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::frame::{Frame, pattern};
use common::netns::Pair;
use common::raw::RawSocket;
use common::{skipped_without_root, wait_for};
use testbed::{INTERFACE, V4_A, V4_B, V6_A, V6_B};
use xdp_io::Error;
use xdp_io::program::{AttachMode, XdpProgram};
use xdp_io::udp::{TxTrain, UdpConfig, UdpPort};
use xdp_io::xsk::{RxFrame, XdpMode, XskConfig, XskPort};

const PORT: u16 = 4791;
const MODES: [XdpMode; 2] = [XdpMode::Native, XdpMode::Generic];

fn config(interface: &str, mode: XdpMode, addresses: &[IpAddr]) -> XskConfig {
    XskConfig { mode, addresses: addresses.to_vec(), ..XskConfig::new(interface, PORT) }
}

/// A port at each end.
fn ports(pair: &Pair, mode: XdpMode) -> (XskPort, XskPort) {
    let open = |interface, addresses: [IpAddr; 2]| {
        XskPort::open(&config(interface, mode, &addresses)).unwrap()
    };
    (pair.a.run(|| open(INTERFACE, [V4_A, V6_A])), pair.b.run(|| open(INTERFACE, [V4_B, V6_B])))
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

fn send(port: &mut XskPort, frame: &[u8]) {
    let slot = port.reserve(frame.len()).unwrap();
    port.tx_arena_mut()[slot.range()].copy_from_slice(frame);
    assert_eq!(port.submit().queued, 0);
}

/// The name of each frame of the truth table, and whether the port gets it.
fn truth_table(pair: &Pair) -> Vec<(&'static str, Frame, bool)> {
    let macs = (pair.mac_a, pair.mac_b);
    let v4 = Frame::udp(macs, (V4_A, V4_B), PORT, Vec::new());
    let v6 = Frame::udp(macs, (V6_A, V6_B), PORT, Vec::new());
    let tagged =
        |frame: &Frame, tags: &[(u16, u16)]| Frame { tags: tags.to_vec(), ..frame.clone() };
    let foreign4 = "10.88.0.77".parse().unwrap();
    let foreign6 = "fd88::77".parse().unwrap();
    let one = [(0x8100, 5)];
    // Options or an extension header with our port where the UDP port would be without them.
    let at_port_offset = |len| {
        let [high, low] = PORT.to_be_bytes();
        let mut extra = vec![17, 0, high, low, 0, 0, 0, 0];
        extra.truncate(len);
        extra
    };
    vec![
        ("IPv4", v4.clone(), true),
        ("IPv6", v6.clone(), true),
        ("IPv4, VLAN", tagged(&v4, &one), true),
        ("IPv6, VLAN", tagged(&v6, &one), true),
        ("IPv4, 802.1ad", tagged(&v4, &[(0x88a8, 5)]), true),
        ("IPv4, two tags", tagged(&v4, &[(0x88a8, 5), (0x8100, 6)]), false),
        ("IPv4, other port", Frame { dst_port: PORT - 1, ..v4.clone() }, false),
        ("IPv6, other port", Frame { dst_port: PORT + 1, ..v6.clone() }, false),
        ("IPv4, our port as source", Frame { src_port: PORT, dst_port: 9, ..v4.clone() }, false),
        ("IPv4, foreign address", Frame { dst: foreign4, ..v4.clone() }, false),
        ("IPv6, foreign address", Frame { dst: foreign6, ..v6.clone() }, false),
        ("IPv4, first fragment", Frame { fragment: 0x2000, ..v4.clone() }, false),
        ("IPv4, later fragment", Frame { fragment: 0x0010, ..v4.clone() }, false),
        ("IPv4, DF clear", Frame { fragment: 0, ..v4.clone() }, true),
        ("IPv4, options", Frame { extra: at_port_offset(4), ..v4.clone() }, false),
        ("IPv6, extension", Frame { extra: at_port_offset(8), ..v6.clone() }, false),
        ("IPv4, TCP", Frame { protocol: 6, ..v4.clone() }, false),
        ("IPv6, TCP", Frame { protocol: 6, ..v6.clone() }, false),
    ]
}

/// Sends `frame` with a mark and returns whether the port (true) or the kernel (false) got it.
fn steered(sender: &RawSocket, sniffer: &RawSocket, port: &mut XskPort, frame: &Frame) -> bool {
    static MARKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mark = MARKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mark = pattern(24, 0xabcd_0000 + mark);
    let bytes = Frame { payload: mark.clone(), ..frame.clone() }.build();
    sender.send(&bytes);
    let to_port = wait_for("the frame", || {
        let frames = drain(port);
        if !frames.is_empty() {
            assert_eq!(frames, std::slice::from_ref(&bytes), "the frame must not change");
            return Some(true);
        }
        sniffer.has_received(&mark).then_some(false)
    });
    assert!(!to_port || !sniffer.has_received(&mark), "both the port and the kernel got it");
    assert!(to_port || drain(port).is_empty(), "both the kernel and the port got it");
    to_port
}

#[test]
fn program_steers_only_our_frames() {
    if skipped_without_root("program_steers_only_our_frames") {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(1500);
        let sender = pair.a.run(|| RawSocket::open(INTERFACE));
        let sniffer = pair.b.run(|| RawSocket::open(INTERFACE));
        let open = || XskPort::open(&config(INTERFACE, mode, &[V4_B, V6_B])).unwrap();
        let mut port = pair.b.run(open);
        for (name, frame, expected) in truth_table(&pair) {
            let got = steered(&sender, &sniffer, &mut port, &frame);
            assert_eq!(got, expected, "{name} ({mode:?})");
        }
        // Addresses come and go while the program runs.
        let table = truth_table(&pair);
        for (address, (_, frame, _)) in [V4_B, V6_B].into_iter().zip(&table) {
            port.remove_address(address).unwrap();
            port.remove_address(address).unwrap();
            assert!(!steered(&sender, &sniffer, &mut port, frame), "{address} removed ({mode:?})");
            port.add_address(address).unwrap();
            assert!(steered(&sender, &sniffer, &mut port, frame), "{address} added ({mode:?})");
        }
        // Frames too short for their headers stay with the kernel.
        for len in 15..42 {
            let mut short = table[0].1.build();
            short.truncate(len);
            sender.send(&short);
        }
        assert!(steered(&sender, &sniffer, &mut port, &table[0].1));
    }
}

#[test]
fn frames_of_every_size_cross_unchanged() {
    if skipped_without_root("frames_of_every_size_cross_unchanged") {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(9000);
        let (mut a, mut b) = ports(&pair, mode);
        assert!(a.caps().multi_buffer && !a.caps().zero_copy);
        println!("{mode:?}: {:?}", a.caps());
        let headers = 14 + 20 + 8;
        let sizes = (headers + 18..=4170).chain([7679, 7680, 7681, 8000, 8191, 8192]);
        for len in sizes {
            let payload = pattern(len - headers, len as u64);
            for forth in [true, false] {
                let (from, to) = if forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let (macs, ips) = if forth {
                    ((pair.mac_a, pair.mac_b), (V4_A, V4_B))
                } else {
                    ((pair.mac_b, pair.mac_a), (V4_B, V4_A))
                };
                let frame = Frame::udp(macs, ips, PORT, payload.clone()).build();
                send(from, &frame);
                let got = wait_for("a frame", || drain(to).pop());
                assert!(got == frame, "{len} bytes, {mode:?}: {} bytes differ", got.len());
            }
        }
        for stats in [a.stats(), b.stats()] {
            assert_eq!(
                stats.tx_invalid + stats.rx_dropped + stats.rx_invalid + stats.rx_bad_descriptors,
                0,
                "{stats:?}"
            );
            assert_eq!(stats.tx_frames, stats.rx_frames);
            assert!(stats.rx_linearised > 300, "{stats:?}");
        }
        assert_eq!(a.reserve(8193), Err(xdp_io::TxRefusal::Length));
        assert_eq!(a.reserve(0), Err(xdp_io::TxRefusal::Length));
    }
}

/// A veth pair queues 256 frames for its receiver and drops what exceeds them.
const IN_FLIGHT: u64 = 192;

/// Sends `total` frames of `len` bytes in bursts and checks order and content of each at the other
/// end; returns the time it took.
fn stream(from: &mut XskPort, to: &mut XskPort, header: &[u8], len: usize, total: u64) -> Duration {
    let expected = pattern(len, 7);
    let mut out = [RxFrame::default(); 64];
    let (mut next, mut received) = (0, 0);
    let begin = Instant::now();
    while received < total {
        while next < total && next - received < IN_FLIGHT {
            let Ok(slot) = from.reserve(len) else { break };
            let bytes = &mut from.tx_arena_mut()[slot.range()];
            bytes.copy_from_slice(&expected);
            bytes[..header.len()].copy_from_slice(header);
            bytes[header.len()..header.len() + 8].copy_from_slice(&next.to_le_bytes());
            next += 1;
            if next % 64 == 0 {
                break;
            }
        }
        from.submit();
        let count = to.receive(&mut out);
        for frame in &out[..count] {
            let bytes = &to.rx_arena()[frame.offset..frame.offset + frame.len];
            let body = header.len() + 8;
            let number = u64::from_le_bytes(bytes[header.len()..body].try_into().unwrap());
            assert_eq!(number, received, "lost or out of order");
            assert!(bytes[body..] == expected[body..], "frame {received} is corrupt");
            received += 1;
        }
        to.release_rx();
        assert!(begin.elapsed() < Duration::from_secs(20), "{received} of {total} arrived");
    }
    begin.elapsed()
}

#[test]
fn bursts_lose_and_corrupt_nothing() {
    if skipped_without_root("bursts_lose_and_corrupt_nothing") {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(9000);
        let (mut a, mut b) = ports(&pair, mode);
        for (len, total) in [(64, 100_000), (1082, 50_000), (4170, 30_000), (8000, 10_000)] {
            let payload = vec![0; len - 42];
            let frame = Frame::udp((pair.mac_a, pair.mac_b), (V4_A, V4_B), PORT, payload).build();
            let time = stream(&mut a, &mut b, &frame[..42], len, total).as_secs_f64();
            println!(
                "AF_XDP {mode:?} one thread, {len} bytes: {:.2} Mframe/s, {:.1} Gbit/s",
                total as f64 / time / 1e6,
                (total * len as u64 * 8) as f64 / time / 1e9
            );
        }
        assert_eq!(b.stats().rx_frames, 190_000);
    }
}

#[test]
fn round_trip_time() {
    if skipped_without_root("round_trip_time") {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(9000);
        let (mut a, mut b) = ports(&pair, mode);
        let there = Frame::udp((pair.mac_a, pair.mac_b), (V4_A, V4_B), PORT, vec![0; 22]).build();
        let back = Frame::udp((pair.mac_b, pair.mac_a), (V4_B, V4_A), PORT, vec![0; 22]).build();
        let rounds = 20_000;
        let begin = Instant::now();
        let mut out = [RxFrame::default(); 8];
        for _ in 0..rounds {
            send(&mut a, &there);
            wait_for("the ping", || (b.receive(&mut out) > 0).then_some(()));
            b.release_rx();
            send(&mut b, &back);
            wait_for("the pong", || (a.receive(&mut out) > 0).then_some(()));
            a.release_rx();
        }
        let nanoseconds = begin.elapsed().as_nanos() / rounds;
        println!("AF_XDP {mode:?} one thread, 64 bytes: round trip {nanoseconds} ns");
    }
}

#[test]
fn stalled_receiver_drops_and_recovers() {
    if skipped_without_root("stalled_receiver_drops_and_recovers") {
        return;
    }
    let pair = Pair::new(9000);
    let mut a =
        pair.a.run(|| XskPort::open(&config(INTERFACE, XdpMode::Generic, &[V4_A])).unwrap());
    let small = XskConfig { rx_frames: 64, ..config(INTERFACE, XdpMode::Generic, &[V4_B]) };
    let mut b = pair.b.run(|| XskPort::open(&small).unwrap());
    let frame = |payload| Frame::udp((pair.mac_a, pair.mac_b), (V4_A, V4_B), PORT, payload).build();
    let long = frame(pattern(4000, 1));
    for _ in 0..500 {
        send(&mut a, &long);
    }
    let stats = b.stats();
    assert!(stats.fill_empty + stats.rx_dropped + stats.rx_ring_full > 0, "{stats:?}");
    // 32 frames of two chunks each fit; all are whole.
    let mut whole = 0;
    loop {
        let frames = drain(&mut b);
        if frames.is_empty() {
            break;
        }
        for got in frames {
            assert!(got == long);
            whole += 1;
        }
    }
    assert_eq!(whole, 32);
    let short = frame(pattern(100, 2));
    for _ in 0..1000 {
        send(&mut a, &short);
        assert_eq!(wait_for("a frame", || drain(&mut b).pop()), short);
    }
}

#[test]
fn generic_mode_delivers_an_unsegmented_train_in_one_piece() {
    if skipped_without_root("generic_mode_delivers_an_unsegmented_train_in_one_piece") {
        return;
    }
    for (mode, expected) in [(XdpMode::Generic, 1), (XdpMode::Native, 15)] {
        let pair = Pair::new(9000);
        let mut b = pair.b.run(|| XskPort::open(&config(INTERFACE, mode, &[V4_B])).unwrap());
        let mut a = pair.a.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_A], PORT)).unwrap());
        let payload = pattern(14 * 4112 + 1000, 3);
        let train = TxTrain {
            src: V4_A,
            dst: (V4_B, PORT).into(),
            tos: 2,
            hop_limit: 64,
            segment_len: 4112,
        };
        let slot = a.reserve(&train, payload.len()).unwrap();
        a.tx_arena_mut()[slot.range()].copy_from_slice(&payload);
        a.submit();
        let mut frames = Vec::new();
        wait_for("the train", || {
            frames.extend(drain(&mut b));
            (frames.len() >= expected).then_some(())
        });
        assert_eq!(frames.len(), expected, "{mode:?}");
        let body: Vec<u8> = frames.iter().flat_map(|frame| frame[42..].to_vec()).collect();
        assert!(body == payload, "{mode:?}");
        println!("{mode:?}: train of 15 arrives as {expected} frame(s)");
    }
}

/// Run by the next test in a process of its own.
#[test]
#[ignore = "helper of a_killed_process_leaves_no_program_behind"]
fn hold_a_port_until_killed() {
    let _port = XskPort::open(&config(INTERFACE, XdpMode::Native, &[V4_B])).unwrap();
    println!("\nholding");
    std::thread::sleep(Duration::from_secs(30));
}

#[test]
fn a_killed_process_leaves_no_program_behind() {
    if skipped_without_root("a_killed_process_leaves_no_program_behind") {
        return;
    }
    let pair = Pair::new(9000);
    let spawn = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hold_a_port_until_killed", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut child = pair.b.run(spawn);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines.by_ref().map_while(Result::ok).any(|line| line == "holding");
    assert!(held, "the helper could not open a port");
    assert!(pair.b.ip("link show eth0").contains("xdp"), "no program attached");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the detachment", || (!pair.b.ip("link show eth0").contains("xdp")).then_some(()));
    // The queue is free as well.
    let open = || XskPort::open(&config(INTERFACE, XdpMode::Native, &[V4_B])).map(drop);
    pair.b.run(open).unwrap();
    pair.b.run(open).unwrap();
}

#[test]
fn errors_say_what_is_wrong() {
    if skipped_without_root("errors_say_what_is_wrong") {
        return;
    }
    let pair = Pair::new(1500);
    let open = |config: XskConfig| pair.b.run(move || XskPort::open(&config).map(drop));
    let native = config(INTERFACE, XdpMode::Native, &[]);
    let error = open(XskConfig { interface: "absent0".into(), ..native.clone() }).unwrap_err();
    assert!(matches!(error, Error::InterfaceMissing { .. }), "{error}");
    let error = open(XskConfig { queue: 9, ..native.clone() }).unwrap_err();
    assert!(matches!(error, Error::QueueMissing { queue: 9, .. }), "{error}");
    let error = open(XskConfig { mode: XdpMode::ZeroCopy, ..native.clone() }).unwrap_err();
    assert!(matches!(error, Error::ModeUnsupported { mode: "zero-copy", .. }), "{error}");
    let error = open(XskConfig { interface: "lo".into(), ..native.clone() }).unwrap_err();
    assert!(matches!(error, Error::ModeUnsupported { mode: "native", .. }), "{error}");
    let error = open(XskConfig { rx_frames: 1, ..native.clone() }).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig(_)), "{error}");

    let other = pair
        .b
        .run(|| XdpProgram::attach(INTERFACE, PORT, None, AttachMode::Native))
        .expect("attach");
    for mode in MODES {
        let error = open(XskConfig { mode, ..native.clone() }).unwrap_err();
        assert!(matches!(error, Error::AlreadyAttached { .. }), "{error}");
    }
    drop(other);
    let held = pair.b.run(|| XskPort::open(&native)).unwrap();
    let error = open(native.clone()).unwrap_err();
    assert!(matches!(error, Error::QueueBusy { queue: 0, .. }), "{error}");
    drop(held);

    // Auto falls back from zero-copy, and from native on loopback.
    for (interface, mode) in [(INTERFACE, AttachMode::Native), ("lo", AttachMode::Generic)] {
        let auto = config(interface, XdpMode::Auto, &[]);
        let port = pair.b.run(|| XskPort::open(&auto)).unwrap();
        assert_eq!(port.caps().mode, mode);
    }
}

#[test]
fn missing_capabilities_are_named() {
    if skipped_without_root("missing_capabilities_are_named") {
        return;
    }
    let pair = Pair::new(1500);
    let error = pair.b.run(|| {
        drop_capabilities();
        XskPort::open(&config(INTERFACE, XdpMode::Native, &[])).map(drop).unwrap_err()
    });
    assert!(matches!(error, Error::Privilege { .. }), "{error}");
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    let error = pair.b.run(|| {
        drop_capabilities();
        XdpProgram::attach(INTERFACE, PORT, None, AttachMode::Native).map(drop).unwrap_err()
    });
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

/// Takes all capabilities from the calling thread.
fn drop_capabilities() {
    // _LINUX_CAPABILITY_VERSION_3; three sets of two words.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    // SAFETY: both structures have the layout and size that version 3 prescribes.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(result, 0, "capset");
}

/// Another interface may have got the name meanwhile.
#[test]
fn the_interface_is_that_of_the_index_where_it_is_known() {
    if skipped_without_root("the_interface_is_that_of_the_index_where_it_is_known") {
        return;
    }
    let pair = Pair::new(1500);
    let open = |index| {
        let renamed = XskConfig { index: Some(index), ..config("lo", XdpMode::Native, &[V4_B]) };
        pair.b.run(|| XskPort::open(&renamed).map(drop))
    };
    let index = pair.b.run(|| xdp_io::netdev::index(INTERFACE).unwrap());
    open(index).expect("lo has no driver for this mode, and is not asked");
    assert!(matches!(open(index + 1000), Err(Error::InterfaceMissing { .. })));
}
