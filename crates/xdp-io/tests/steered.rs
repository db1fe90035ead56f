//! UDP sockets of one port that are divided among receivers, on loopback.

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;

use common::frame::pattern;
use common::udp::{LOOP_1, LOOP_6, bind, collect, drain, queue, train};
use common::{skipped_without_root, wait_for};
use xdp_io::Error;
use xdp_io::udp::{SteerBy, SteeredPort, TxTrain, UdpConfig, UdpPort};

/// The byte of the payload that names the receiver, in its upper five bits.
const BY: SteerBy = SteerBy { offset: 5, shift: 3 };
/// Of the host's own network, where no other program uses a port of this number.
const LOOP_9: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
const STEERED: u16 = 47_911;

/// A port of the receiver on what the daemon opened for it.
fn receiver(steered: &SteeredPort, number: u8, owner: u64, addresses: &[IpAddr]) -> UdpPort {
    let mut port = UdpPort::bind(&UdpConfig::new(Vec::new(), STEERED)).unwrap();
    for address in addresses {
        port.add_sockets(*address, steered.sockets(number, owner, *address).unwrap());
    }
    port
}

#[test]
fn datagrams_and_trains_find_the_receiver_that_they_name() {
    if skipped_without_root("datagrams_and_trains_find_the_receiver") {
        return;
    }
    let addresses = [LOOP_9, LOOP_6];
    let steered = Arc::new(SteeredPort::new(STEERED, 0, 1 << 20, BY, false).unwrap());
    let shared = Some(Arc::clone(&steered));
    let own = UdpConfig { shared, ..UdpConfig::new(addresses.to_vec(), STEERED) };
    let own = UdpPort::bind(&own).unwrap();
    let mut ports = vec![own, receiver(&steered, 3, 30, &addresses)];
    ports.push(receiver(&steered, 31, 310, &addresses));
    let mut sender = bind(&[LOOP_1, LOOP_6]);
    // What is named by a number that no receiver has, or too short to name one, is receiver 0's.
    let named = [(0u8, 0), (3, 1), (31, 2), (7, 0)];
    let mut send = |src: IpAddr, dst: IpAddr, number: u8, segments: usize, seed: u64| {
        let mut payload = pattern(segments * 1040, seed);
        for segment in payload.chunks_mut(1040) {
            segment[5] = number << 3 | 5;
        }
        queue(&mut sender, &train(src, (dst, STEERED).into(), 1040), &payload);
        assert_eq!(sender.submit().sent, 1);
        payload
    };
    for round in 0..20 {
        for (src, dst) in [(LOOP_1, LOOP_9), (LOOP_6, LOOP_6)] {
            for (number, at) in named {
                for segments in [1, 16] {
                    let payload = send(src, dst, number, segments, round);
                    let (bytes, _) = collect(&mut ports[at], payload.len());
                    assert!(bytes == payload, "{segments} datagrams for {number}");
                }
            }
        }
    }
    let short = UdpSocket::bind((LOOP_1, 0)).unwrap();
    short.send_to(&[0xff; 4], (LOOP_9, STEERED)).unwrap();
    collect(&mut ports[0], 4);
    // A receiver that others hear no more, whatever it does with its socket.
    steered.close(30);
    let payload = send(LOOP_1, LOOP_9, 3, 1, 99);
    assert!(collect(&mut ports[0], payload.len()).0 == payload);
    // The next owner of its number gets what comes from now on, and a late end of the one before
    // changes nothing.
    let mut next = receiver(&steered, 3, 31, &addresses);
    steered.close(30);
    let payload = send(LOOP_1, LOOP_9, 3, 16, 100);
    assert!(collect(&mut next, payload.len()).0 == payload);
    assert!(drain(&mut ports[1]).is_empty(), "it hears what is for another");
    drop(ports.pop());
    let payload = send(LOOP_1, LOOP_9, 3, 16, 101);
    assert!(collect(&mut next, payload.len()).0 == payload);
    // A closed receiver. Another test that starts a process may have it open for a moment longer.
    wait_for("what is for a closed receiver", || {
        send(LOOP_1, LOOP_9, 31, 16, 102);
        (!drain(&mut ports[0]).is_empty()).then_some(())
    });
}

/// Any user can have receivers by their order.
#[test]
fn receivers_in_order_are_found() {
    let port = STEERED + 3;
    let steered = Arc::new(SteeredPort::in_order(port, 0, 1 << 20, BY));
    let shared = Some(Arc::clone(&steered));
    let config = UdpConfig { shared, ..UdpConfig::new(vec![LOOP_9], port) };
    let mut own = UdpPort::bind(&config).unwrap();
    assert!(UdpSocket::bind((LOOP_9, port)).is_err(), "another program may share the port");
    let sender = UdpSocket::bind((LOOP_1, 0)).unwrap();
    let send = |number: u8, mark: u8| {
        sender.send_to(&[number << 3, mark, 0, 0, 0, number << 3], (LOOP_9, port)).unwrap();
    };
    send(2, 1);
    assert_eq!(collect(&mut own, 6).0[1], 1, "no receiver is the first");
    let mut two = receiver(&steered, 2, 20, &[LOOP_9]);
    for mark in 2..20 {
        send(2, mark);
        assert_eq!(collect(&mut two, 6).0[1], mark);
        for other in [0, 3, 31] {
            send(other, mark);
            assert_eq!(collect(&mut own, 6).0[1], mark);
        }
    }
    // What names one between that has no owner is lost, and waits for none.
    send(1, 20);
    send(2, 21);
    steered.close(20);
    send(2, 22);
    assert!(drain(&mut two).is_empty(), "a receiver hears what is not its own any more");
    let (mut one, mut next) =
        (receiver(&steered, 1, 10, &[LOOP_9]), receiver(&steered, 2, 21, &[LOOP_9]));
    steered.close(20);
    send(1, 23);
    send(2, 24);
    assert_eq!(collect(&mut one, 6).0[1], 23);
    assert_eq!(collect(&mut next, 6).0[1], 24);
    assert!(drain(&mut own).is_empty());
    // The address goes and comes back, and programs still have the sockets that they had before.
    send(0, 25);
    send(2, 26);
    steered.retain(&[]);
    assert!(!steered.serves(2, 21, LOOP_9));
    // The host takes these for its own: the address is that of a local route.
    send(0, 27);
    send(2, 27);
    let mut own_again = UdpPort::bind(&config).unwrap();
    let mut back = receiver(&steered, 2, 21, &[LOOP_9]);
    send(0, 28);
    send(2, 29);
    assert_eq!(collect(&mut own_again, 6).0[1], 28);
    assert_eq!(collect(&mut back, 6).0[1], 29);
    drop((own, one, two, next, own_again, back));
    // Once this daemon has ended another one may have the address.
    drop((config, steered));
    wait_for("the address", || UdpSocket::bind((LOOP_9, port)).ok());
}

/// The socket of an address that was gone is used again, and has forgotten what it was used for.
#[test]
fn an_address_that_comes_back_sends_with_the_fields_that_are_asked_for() {
    let port = STEERED + 4;
    let steered = Arc::new(SteeredPort::in_order(port, 0, 1 << 20, BY));
    let shared = Some(Arc::clone(&steered));
    let config = UdpConfig { shared, ..UdpConfig::new(vec![LOOP_9], port) };
    let mut own = UdpPort::bind(&config).unwrap();
    let _other = receiver(&steered, 2, 20, &[LOOP_9]);
    let mut peer = bind(&[LOOP_1]);
    let to_peer = train(LOOP_9, (LOOP_1, peer.port()).into(), 0);
    // So often that the socket adopts them.
    for _ in 0..100 {
        queue(&mut own, &to_peer, &[1; 40]);
        assert_eq!(own.submit().sent, 1);
        collect(&mut peer, 40);
    }
    steered.retain(&[]);
    drop(own);
    let mut own = UdpPort::bind(&config).unwrap();
    let usual = TxTrain { tos: 0, hop_limit: 64, ..to_peer };
    queue(&mut own, &usual, &[1; 40]);
    assert_eq!(own.submit().sent, 1);
    let (_, trains) = collect(&mut peer, 40);
    assert_eq!((trains[0].tos, trains[0].hop_limit), (0, 64));
}

/// A kernel that joins the datagrams of a flow would lead those of two receivers to one.
#[test]
fn each_receiver_has_flows_of_its_own() {
    if skipped_without_root("each_receiver_has_flows_of_its_own") {
        return;
    }
    let steered = SteeredPort::new(STEERED + 2, 0, 1 << 20, BY, false).unwrap();
    let mut known = vec![STEERED + 2];
    for (number, owner) in [(3, 30), (31, 310)] {
        assert_eq!(steered.source_port(owner), None);
        let mut port = receiver(&steered, number, owner, &[LOOP_9, LOOP_6]);
        for (source, other) in [(LOOP_9, LOOP_1), (LOOP_6, LOOP_6)] {
            let peer = UdpSocket::bind((other, 0)).unwrap();
            queue(&mut port, &train(source, peer.local_addr().unwrap(), 0), &[1; 40]);
            assert_eq!(port.submit().sent, 1);
            let (_, from) = peer.recv_from(&mut [0; 64]).unwrap();
            assert_eq!(Some(from.port()), steered.source_port(owner), "from {source}");
        }
        let own = steered.source_port(owner).unwrap();
        assert!(!known.contains(&own), "another receiver sends from {own}");
        known.push(own);
        steered.close(owner);
        assert_eq!(steered.source_port(owner), None);
    }
}

#[test]
fn a_steered_port_is_had_by_one_owner() {
    if skipped_without_root("a_steered_port_is_had_by_one_owner") {
        return;
    }
    let port = STEERED + 1;
    let new = || Arc::new(SteeredPort::new(port, 0, 1 << 20, BY, false).unwrap());
    let (one, other) = (new(), new());
    let taken = UdpSocket::bind((LOOP_9, port)).unwrap();
    assert!(matches!(one.first_socket(LOOP_9), Err(Error::AddressInUse { .. })));
    drop(taken);
    let _first = one.first_socket(LOOP_9).unwrap();
    assert!(matches!(other.first_socket(LOOP_9), Err(Error::AddressInUse { .. })));
    assert!(UdpSocket::bind((LOOP_9, port)).is_err());
    let kept = one.sockets(9, 1, LOOP_9).unwrap();
    assert!(one.serves(9, 1, LOOP_9) && !one.serves(9, 2, LOOP_9));
    // An address that goes and comes back while a receiver keeps its socket.
    one.retain(&[]);
    drop(_first);
    assert!(!one.serves(9, 1, LOOP_9));
    let shared = Some(Arc::clone(&one));
    let own = UdpConfig { shared, ..UdpConfig::new(vec![LOOP_9], port) };
    let mut own = UdpPort::bind(&own).unwrap();
    let sender = UdpSocket::bind((LOOP_1, 0)).unwrap();
    sender.send_to(&[9 << 3; 40], (LOOP_9, port)).unwrap();
    collect(&mut own, 40);
    let mut nine = UdpPort::bind(&UdpConfig::new(Vec::new(), port)).unwrap();
    nine.add_sockets(LOOP_9, one.sockets(9, 1, LOOP_9).unwrap());
    sender.send_to(&[9 << 3; 40], (LOOP_9, port)).unwrap();
    collect(&mut nine, 40);
    // Once all have closed theirs another owner may have it.
    one.retain(&[]);
    drop((own, nine, kept));
    wait_for("the port", || other.first_socket(LOOP_9).ok());
}
