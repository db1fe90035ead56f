//! UDP ports: on loopback without privilege, and on a veth pair.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::frame::{fill, is_ipv4_udp, pattern};
use common::netns::Pair;
use common::raw::RawSocket;
use common::udp::{LOOP_1, LOOP_2, LOOP_6, bind, collect, drain, queue, train};
use common::{skipped_without_root, wait_for};
use testbed::{INTERFACE, V4_A, V4_B, V6_A, V6_B};
use xdp_io::program::{AttachMode, XdpProgram};
use xdp_io::udp::{RxTrain, TxTrain, UdpConfig, UdpPort, group_socket};
use xdp_io::{Error, TxRefusal, multicast};

const PORT: u16 = 4791;

fn lengths(trains: &[RxTrain]) -> Vec<usize> {
    let mut all = Vec::new();
    for train in trains {
        let mut left = train.len;
        while left > 0 {
            all.push(left.min(train.segment_len));
            left -= all.last().unwrap();
        }
    }
    all
}

#[test]
fn trains_cross_loopback_with_all_their_fields() {
    let mut a = bind(&[LOOP_1, LOOP_6]);
    let mut b = UdpPort::bind(&UdpConfig::new(vec![LOOP_2], 0)).unwrap();
    // Both families at one receiver: ::1 of port a itself.
    for (src, dst) in
        [(LOOP_1, SocketAddr::new(LOOP_2, b.port())), (LOOP_6, (LOOP_6, a.port()).into())]
    {
        for segments in 1..=62usize {
            for last in [1, 500, 1040] {
                let payload = pattern((segments - 1) * 1040 + last, segments as u64);
                queue(&mut a, &train(src, dst, 1040), &payload);
                let report = a.submit();
                assert_eq!((report.sent, report.queued), (1, 0));
                let receiver = if dst.is_ipv4() { &mut b } else { &mut a };
                let (bytes, trains) = collect(receiver, payload.len());
                assert!(bytes == payload, "{segments} segments, last {last}");
                let mut expected = vec![1040; segments - 1];
                expected.push(last);
                assert_eq!(lengths(&trains), expected);
                for got in &trains {
                    assert_eq!((got.src.ip(), got.dst), (src, dst.ip()));
                    assert_eq!((got.tos, got.hop_limit), (0x6a, 77));
                }
            }
        }
    }
    assert_eq!(a.stats().tx_errors.total(), 0);
}

#[test]
fn a_train_has_its_own_fields_whatever_those_before_it_had() {
    let mut a = bind(&[LOOP_1, LOOP_6]);
    let (often, seldom, later) = ((0x6a, 77), (2, 255), (0, 1));
    // Long enough for the sockets to take fields over; never while a train that counts on the old
    // ones is queued.
    let bursts = (0..300).map(|k| match k {
        0..100 => vec![often; 3],
        100..200 => vec![often, seldom, often],
        200..250 => vec![later, often, seldom],
        250..280 => vec![seldom, later, later],
        280..299 => vec![often; 3],
        _ => [vec![often], vec![later; 50]].concat(),
    });
    for fields in bursts {
        for address in [LOOP_1, LOOP_6] {
            let dst = SocketAddr::new(address, a.port());
            for &(tos, hop_limit) in &fields {
                let train = TxTrain { tos, hop_limit, ..train(address, dst, 0) };
                queue(&mut a, &train, &[tos, hop_limit]);
            }
            assert_eq!(a.submit().sent, fields.len());
            let (bytes, trains) = collect(&mut a, 2 * fields.len());
            let of_train = |t: &RxTrain| vec![(t.tos, t.hop_limit); t.len / 2];
            let said: Vec<_> = bytes.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            assert_eq!(said, fields);
            assert_eq!(trains.iter().flat_map(of_train).collect::<Vec<_>>(), fields);
        }
    }
}

#[test]
fn many_trains_leave_in_order_with_one_submit() {
    let mut a = bind(&[LOOP_1, LOOP_2]);
    let mut b = bind(&[LOOP_1]);
    let dst = SocketAddr::new(LOOP_1, b.port());
    // Two sources alternate in runs; order must hold per source.
    let source = |i: u32| if (i / 10).is_multiple_of(2) { LOOP_1 } else { LOOP_2 };
    for i in 0..200u32 {
        queue(&mut a, &train(source(i), dst, 0), &i.to_be_bytes());
    }
    let cancelled = a.reserve(&train(LOOP_1, dst, 0), 100).unwrap();
    a.truncate(&cancelled, 0);
    let shortened = a.reserve(&train(source(200), dst, 0), 100).unwrap();
    a.tx_arena_mut()[shortened.range()][..4].copy_from_slice(&200u32.to_be_bytes());
    a.truncate(&shortened, 4);
    assert_eq!(a.submit().sent, 201);
    let mut next = 0u32;
    wait_for("201 datagrams", || {
        for (got, bytes) in drain(&mut b) {
            assert_eq!(got.src, SocketAddr::new(source(next), a.port()));
            // Equal datagrams of one source may come as a train.
            for number in bytes.chunks(4) {
                assert_eq!(number, next.to_be_bytes());
                next += 1;
            }
        }
        (next == 201).then_some(())
    });
    assert_eq!(a.submit(), xdp_io::TxReport::default());
}

#[test]
fn a_full_arena_is_refused_and_then_reused() {
    let mut a = bind(&[LOOP_1]);
    let mut b = bind(&[LOOP_1]);
    let to_b = train(LOOP_1, (LOOP_1, b.port()).into(), 0);
    for round in 0..3 {
        let mut reserved = 0u64;
        let refusal = loop {
            match a.reserve(&to_b, 60_000) {
                Ok(slot) => {
                    fill(&mut a.tx_arena_mut()[slot.range()], round);
                    reserved += 1;
                }
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal, TxRefusal::Full);
        assert!(reserved > 100, "{reserved}");
        let expected = pattern(60_000, round);
        let mut received = 0;
        let dropped = b.stats().rx_kernel_drops;
        wait_for("all datagrams", || {
            a.submit();
            for (_, bytes) in drain(&mut b) {
                assert!(bytes == expected);
                received += 1;
            }
            // Without privilege the receive buffer is small; what it drops is counted.
            (received + b.stats().rx_kernel_drops - dropped == reserved).then_some(())
        });
    }
    assert!(b.receive_buffer_bytes() > 100_000);
    assert_eq!(a.reserve(&to_b, 0), Err(TxRefusal::Length));
    assert_eq!(a.reserve(&to_b, 65_508), Err(TxRefusal::Length));
    let too_many = train(LOOP_1, (LOOP_1, b.port()).into(), 100);
    assert_eq!(a.reserve(&too_many, 6401), Err(TxRefusal::Length));
    assert_eq!(a.reserve(&train(LOOP_2, to_b.dst, 0), 1), Err(TxRefusal::NoSource));
}

#[test]
fn a_taken_port_and_a_foreign_address_are_named() {
    let held = bind(&[LOOP_1]);
    let config = UdpConfig::new(vec![LOOP_1], held.port());
    let error = UdpPort::bind(&config).map(drop).unwrap_err();
    assert!(matches!(error, Error::AddressInUse { address: LOOP_1, .. }), "{error}");
    assert!(error.to_string().contains("rxe"), "{error}");
    // The same port on another loopback address is free.
    UdpPort::bind(&UdpConfig::new(vec![LOOP_2], held.port())).unwrap();
    let foreign = UdpConfig::new(vec!["192.0.2.7".parse().unwrap()], 0);
    let error = UdpPort::bind(&foreign).map(drop).unwrap_err();
    assert!(matches!(error, Error::AddressNotLocal { .. }), "{error}");
}

#[test]
fn addresses_come_and_go() {
    let mut a = bind(&[LOOP_1]);
    let mut b = bind(&[LOOP_1]);
    let to_b = SocketAddr::new(LOOP_1, b.port());
    a.add_address(LOOP_2).unwrap();
    a.add_address(LOOP_2).unwrap();
    assert_eq!(a.local_addresses().collect::<Vec<_>>(), [LOOP_1, LOOP_2]);
    queue(&mut a, &train(LOOP_2, to_b, 0), b"last words");
    a.remove_address(LOOP_2);
    queue(&mut a, &train(LOOP_1, to_b, 0), b"still here");
    assert_eq!(a.submit().sent, 1);
    assert_eq!(a.stats().tx_errors.no_source, 1);
    assert_eq!(collect(&mut b, 10).0, b"still here");
    a.add_address(LOOP_2).unwrap();
    let to_a = SocketAddr::new(LOOP_2, a.port());
    queue(&mut b, &train(LOOP_1, to_a, 0), b"welcome");
    b.submit();
    let (bytes, trains) = collect(&mut a, 7);
    assert_eq!((bytes.as_slice(), trains[0].dst), (&b"welcome"[..], LOOP_2));
}

#[test]
fn a_wildcard_port_knows_and_chooses_addresses() {
    let mut a = bind(&[IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    let mut b = bind(&[LOOP_1, LOOP_6]);
    for (own, other) in [(LOOP_2, LOOP_1), (LOOP_6, LOOP_6)] {
        queue(&mut b, &train(other, (own, a.port()).into(), 0), b"ping");
        b.submit();
        let (_, trains) = collect(&mut a, 4);
        assert_eq!(trains[0].dst, own);
        queue(&mut a, &train(own, trains[0].src, 0), b"pong");
        a.submit();
        assert_eq!(collect(&mut b, 4).1[0].src.ip(), own);
    }
}

#[test]
fn each_address_has_its_turn_beside_a_busy_one() {
    let addresses: Vec<IpAddr> =
        (1..=5).map(|last| Ipv4Addr::new(127, 0, 7, last).into()).collect();
    let mut a = bind(&[LOOP_1]);
    let mut b = bind(&addresses);
    let mut out = [RxTrain::default(); 8];
    for wanted in [4, 1, 3] {
        let quiet = train(LOOP_1, (addresses[wanted], b.port()).into(), 0);
        queue(&mut a, &quiet, b"at last");
        a.submit();
        let heard = (0..4 * addresses.len()).any(|_| {
            // More than a call takes.
            for _ in 0..=out.len() {
                queue(&mut a, &train(LOOP_1, (addresses[0], b.port()).into(), 0), b"always");
            }
            a.submit();
            let count = b.receive(&mut out);
            b.release_rx();
            out[..count].iter().any(|train| train.dst == addresses[wanted])
        });
        assert!(heard, "{} was overlooked", addresses[wanted]);
    }
}

#[test]
fn the_first_call_after_a_sleep_looks_at_every_address() {
    let addresses: Vec<IpAddr> = (1..=8).map(|host| [127, 0, 2, host].into()).collect();
    let mut port = bind(&addresses);
    let sender = UdpSocket::bind((LOOP_1, 0)).unwrap();
    for address in &addresses {
        sender.send_to(&[7; 40], (*address, port.port())).unwrap();
        port.awake();
        let trains = drain(&mut port);
        assert_eq!(trains.iter().map(|(train, _)| train.dst).collect::<Vec<_>>(), [*address]);
    }
}

#[test]
fn calls_after_a_sleep_look_at_every_address_that_they_have_room_for() {
    let addresses: Vec<IpAddr> = (1..=8).map(|host| [127, 0, 3, host].into()).collect();
    let mut port = bind(&addresses);
    let sender = UdpSocket::bind((LOOP_1, 0)).unwrap();
    for address in &addresses {
        sender.send_to(&[7; 40], (*address, port.port())).unwrap();
    }
    port.awake();
    assert_eq!(port.receive(&mut []), 0);
    let mut heard = Vec::new();
    for _ in &addresses {
        let mut train = [RxTrain::default()];
        assert_eq!(port.receive(&mut train), 1, "after {heard:?}");
        heard.push(train[0].dst);
        port.release_rx();
    }
    heard.sort_unstable();
    assert_eq!(heard, addresses);
}

#[test]
fn what_a_closed_socket_had_to_drop_still_counts() {
    let mut config = UdpConfig::new(vec![LOOP_1, LOOP_2], 0);
    config.socket_buffer_bytes = 4096;
    let mut port = UdpPort::bind(&config).unwrap();
    let sender = UdpSocket::bind((LOOP_1, 0)).unwrap();
    for _ in 0..100 {
        sender.send_to(&[7; 1000], (LOOP_2, port.port())).unwrap();
    }
    let dropped = port.stats().rx_kernel_drops;
    assert!(dropped > 50, "{dropped}");
    port.remove_address(LOOP_2);
    assert_eq!(port.stats().rx_kernel_drops, dropped);
}

#[test]
fn multicast_groups_are_joined_and_left() {
    if skipped_without_root("multicast_groups_are_joined_and_left") {
        return;
    }
    let pair = Pair::new(1500);
    let bind = |interface, addresses: [IpAddr; 2]| {
        let scope_id = xdp_io::netdev::index(interface).unwrap();
        UdpPort::bind(&UdpConfig { scope_id, ..UdpConfig::new(addresses.to_vec(), PORT) }).unwrap()
    };
    let mut a = pair.a.run(|| bind(INTERFACE, [V4_A, V6_A]));
    let mut b = pair.b.run(|| bind(INTERFACE, [V4_B, V6_B]));
    for (group, source) in [("239.1.2.3", V4_A), ("ff0e::4791", V6_A)] {
        let group: IpAddr = group.parse().unwrap();
        let to_group = train(source, (group, PORT).into(), 0);
        let mut left = None;
        pair.b.run(|| {
            let interface = xdp_io::netdev::index(INTERFACE).unwrap();
            let [one, other] = [(); 2].map(|()| group_socket(group, PORT, interface, 1 << 16));
            b.add_group(group, one.unwrap());
            // A member that has left gets nothing, however long its socket stays open.
            let other = other.unwrap();
            multicast::leave(other.as_fd(), interface, group).unwrap();
            left = Some(UdpSocket::from(other));
        });
        let (bytes, trains) = {
            queue(&mut a, &to_group, b"hello");
            assert_eq!(a.submit().sent, 1);
            collect(&mut b, 5)
        };
        assert_eq!((bytes.as_slice(), trains[0].dst), (&b"hello"[..], group));
        assert_eq!(trains[0].src.ip(), source);
        let heard = left.unwrap().recv(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock));
        assert_eq!(b.reserve(&train(group, (source, PORT).into(), 0), 1), Err(TxRefusal::NoSource));
        b.remove_address(group);
        queue(&mut a, &to_group, b"gone");
        a.submit();
        queue(
            &mut a,
            &train(source, (if source == V4_A { V4_B } else { V6_B }, PORT).into(), 0),
            b"end",
        );
        a.submit();
        assert_eq!(collect(&mut b, 3).0, b"end");
    }
}

#[test]
fn refusals_are_counted_and_do_not_hold_up_the_rest() {
    if skipped_without_root("refusals_are_counted_and_do_not_hold_up_the_rest") {
        return;
    }
    let pair = Pair::new(1500);
    let mut a = pair.a.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_A], PORT)).unwrap());
    let mut b = pair.b.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_B], PORT)).unwrap());
    let good = SocketAddr::new(V4_B, PORT);
    let no_route: SocketAddr = "203.0.113.1:4791".parse().unwrap();
    let broadcast: SocketAddr = "10.88.0.255:4791".parse().unwrap();
    queue(&mut a, &train(V4_A, good, 0), b"1");
    queue(&mut a, &train(V4_A, no_route, 0), b"x");
    queue(&mut a, &train(V4_A, good, 0), b"2");
    queue(&mut a, &train(V4_A, good, 0), &[0; 3000]);
    queue(&mut a, &train(V4_A, good, 2000), &[0; 6000]);
    queue(&mut a, &train(V4_A, broadcast, 0), b"x");
    queue(&mut a, &train(V4_A, good, 0), b"3");
    let report = a.submit();
    let errors = a.stats().tx_errors;
    assert_eq!((report.sent, report.queued), (3, 0), "{errors:?}");
    assert_eq!((errors.unreachable, errors.not_permitted), (1, 1), "{errors:?}");
    assert_eq!(errors.too_long + errors.other, 2, "{errors:?}");
    assert_eq!(collect(&mut b, 3).0, b"123");
    pair.a.ip("link set eth0 down");
    queue(&mut a, &train(V4_A, good, 0), b"4");
    a.submit();
    assert!(a.stats().tx_errors.total() > errors.total());
}

#[test]
fn ids_count_up_in_a_train_and_df_is_set() {
    if skipped_without_root("ids_count_up_in_a_train_and_df_is_set") {
        return;
    }
    let pair = Pair::new(9000);
    // Takes segmentation offload from the sender, so that separate packets cross the link.
    let _program =
        pair.b.run(|| XdpProgram::attach(INTERFACE, PORT, None, AttachMode::Native).unwrap());
    let sniffer = pair.b.run(|| RawSocket::open(INTERFACE));
    let bind = || UdpPort::bind(&UdpConfig::new(vec![V4_A, V6_A], PORT)).unwrap();
    let mut a = pair.a.run(bind);
    let _listener = pair.b.run(|| UdpSocket::bind((V4_B, PORT)).unwrap());
    for segments in [1, 2, 3, 15, 31, 62] {
        let payload = pattern((segments - 1) * 1040 + 523, segments as u64);
        queue(&mut a, &train(V4_A, (V4_B, PORT).into(), 1040), &payload);
        assert_eq!(a.submit().sent, 1);
        let mut seen = Vec::new();
        wait_for("the packets", || {
            while let Some(frame) = sniffer.receive() {
                if is_ipv4_udp(&frame) {
                    seen.push(frame);
                }
            }
            (seen.len() == segments).then_some(())
        });
        let mut body = Vec::new();
        for (k, frame) in seen.iter().enumerate() {
            assert_eq!(frame[18..20], (k as u16).to_be_bytes(), "identification of segment {k}");
            assert_eq!(frame[20..22], [0x40, 0], "only DF is set");
            assert_eq!((frame[15], frame[22]), (0x6a, 77), "TOS and TTL");
            body.extend_from_slice(&frame[42..]);
        }
        assert!(body == payload, "{segments} segments");
    }
    queue(&mut a, &train(V6_A, (V6_B, PORT).into(), 1040), &pattern(1500, 9));
    assert_eq!(a.submit().sent, 1);
    let frame = wait_for("an IPv6 packet", || {
        sniffer.receive().filter(|frame| frame[12..14] == [0x86, 0xdd] && frame[20] == 17)
    });
    let word = u32::from_be_bytes(frame[14..18].try_into().unwrap());
    assert_eq!((word >> 20 & 0xff, frame[21]), (0x6a, 77), "traffic class and hop limit");
}

/// Streams trains from `a` to `b` and checks every byte of a sample; prints the rate.
#[test]
fn bulk_trains_over_veth() {
    if skipped_without_root("bulk_trains_over_veth") {
        return;
    }
    let pair = Pair::new(4200);
    let mut a = pair.a.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_A], PORT)).unwrap());
    let mut b = pair.b.run(|| UdpPort::bind(&UdpConfig::new(vec![V4_B], PORT)).unwrap());
    for (segment, count) in [(4112, 15), (1040, 62), (64, 1)] {
        let payload = pattern(segment * count, 11);
        let header = train(V4_A, (V4_B, PORT).into(), segment);
        let total = 20_000u64;
        let (mut sent, mut received, mut units) = (0u64, 0u64, 0u64);
        let mut out = [RxTrain::default(); 32];
        let begin = Instant::now();
        while received < total * payload.len() as u64 {
            while sent < total && sent * payload.len() as u64 - received < 1 << 20 {
                let Ok(slot) = a.reserve(&header, payload.len()) else { break };
                a.tx_arena_mut()[slot.range()].copy_from_slice(&payload);
                sent += 1;
                if sent % 16 == 0 {
                    break;
                }
            }
            a.submit();
            let count = b.receive(&mut out);
            for got in &out[..count] {
                let at = (received % payload.len() as u64) as usize;
                let bytes = &b.rx_arena()[got.offset..got.offset + got.len];
                assert!(got.len > payload.len() - at || bytes == &payload[at..at + got.len]);
                received += got.len as u64;
                units += 1;
            }
            b.release_rx();
            assert!(begin.elapsed() < Duration::from_secs(20), "{received} bytes arrived");
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "UDP one thread, {count} x {segment} bytes: {:.1} Gbit/s, {:.2} M datagrams/s, {:.1} \
             datagrams per train received",
            received as f64 * 8.0 / seconds / 1e9,
            (total * count as u64) as f64 / seconds / 1e6,
            (total * count as u64) as f64 / units as f64,
        );
        assert_eq!(b.stats().rx_kernel_drops, 0);
    }
    let rounds = 10_000;
    let mut out = [RxTrain::default(); 8];
    let begin = Instant::now();
    for _ in 0..rounds {
        queue(&mut a, &train(V4_A, (V4_B, PORT).into(), 0), &[1; 64]);
        a.submit();
        wait_for("the ping", || (b.receive(&mut out) > 0).then_some(()));
        b.release_rx();
        queue(&mut b, &train(V4_B, (V4_A, PORT).into(), 0), &[2; 64]);
        b.submit();
        wait_for("the pong", || (a.receive(&mut out) > 0).then_some(()));
        a.release_rx();
    }
    println!("UDP one thread: round trip {} ns", begin.elapsed().as_nanos() / rounds);
}
