//! Every captured frame parses, has a good ICRC, and comes out of `emit` byte for byte.

mod decoded;
mod pcap;

use pcap::{Captured, all_pcaps, read_pcap};
use roce_wire::cm::CmMad;
use roce_wire::icrc::{IcrcCheck, IpIdHint, verify, verify_frame};
use roce_wire::mad::MAD_LEN;
use roce_wire::net::{
    ETHERTYPE_IPV4, ETHERTYPE_ROCE_V1, EthernetRepr, Ipv4Repr, Ipv6Repr, UdpRepr,
};
use roce_wire::pretty::FrameTree;
use roce_wire::{Datagram, Frame, FrameError, Opcode, Qpn};

/// All RoCEv2 frames of all captures with the frame views on them.
fn for_each_frame(mut check: impl FnMut(&Captured, Frame<'_>, Datagram<'_>)) -> usize {
    let mut count = 0;
    for captured in all_pcaps().iter().flat_map(|path| read_pcap(path)) {
        let name = &captured.name;
        let frame = match Frame::parse(&captured.bytes) {
            Err(FrameError::RoceV1) => continue,
            result => result.unwrap_or_else(|reason| panic!("{name}: {reason}")),
        };
        let datagram =
            Datagram::parse(frame.payload()).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        check(&captured, frame, datagram);
        count += 1;
    }
    count
}

#[test]
fn the_captures_are_all_there() {
    let files = all_pcaps();
    assert_eq!(files.len(), 38);
    let count: usize = files.iter().map(|path| read_pcap(path).len()).sum();
    assert_eq!(count, 1800);
    assert_eq!(for_each_frame(|_, _, _| {}), count - 3);
}

#[test]
fn every_icrc_is_good() {
    for_each_frame(|captured, frame, datagram| {
        let name = &captured.name;
        assert_eq!(frame.verify_icrc(), IcrcCheck::Good, "{name}");
        assert!(frame.flow.df, "{name}: every sender sets don't fragment");
        let known = IpIdHint::Known(frame.ip_id);
        assert_eq!(verify(&frame.flow, known, datagram.bytes()), IcrcCheck::Good, "{name}");
    });
}

#[test]
fn hidden_identifications_are_recovered() {
    for_each_frame(|captured, frame, datagram| {
        let wrong = IpIdHint::Predicted(!frame.ip_id);
        let expected = if frame.flow.is_ipv4() {
            IcrcCheck::GoodWith { id: frame.ip_id, df: true }
        } else {
            IcrcCheck::Good
        };
        let found = verify(&frame.flow, wrong, datagram.bytes());
        assert_eq!(found, expected, "{}", captured.name);
    });
}

#[test]
fn datagrams_are_emitted_as_they_came() {
    for_each_frame(|captured, frame, datagram| {
        let name = &captured.name;
        let headers = datagram.headers();
        assert!(headers.is_consistent(), "{name}");
        let mut emitted = vec![0xaa; headers.datagram_len(datagram.payload_len())];
        let at = headers.emit(&mut emitted);
        assert_eq!(at, datagram.payload_offset(), "{name}");
        emitted[at..at + datagram.payload_len()].copy_from_slice(datagram.payload());
        headers.write_pad_and_icrc(&frame.flow, frame.ip_id, &mut emitted);
        assert_eq!(emitted, datagram.bytes(), "{name}");
    });
}

#[test]
fn network_headers_are_emitted_as_they_came() {
    let mut with_udp_checksum = Vec::new();
    for_each_frame(|captured, frame, _| {
        let name = &captured.name;
        let start = frame.payload_range().start;
        assert_eq!(reemit_network_headers(&captured.bytes), captured.bytes[..start], "{name}");

        let mut emitted = vec![0xaa; frame.header().len()];
        let len = frame.header().emit(frame.ip_id, frame.payload().len(), &mut emitted);
        assert_eq!(len, emitted.len(), "{name}");
        if frame.udp_checksum != 0 {
            // We never send one; everything else must agree.
            with_udp_checksum.push(name.clone());
            emitted[start - 2..].copy_from_slice(&frame.udp_checksum.to_be_bytes());
        }
        assert_eq!(emitted, captured.bytes[..start], "{name}");
    });
    // Two are golden vectors of scapy and one of gem5, which computed it.
    let expected = ["captured.pcap #2", "captured.pcap #5", "captured.pcap #21"];
    assert_eq!(with_udp_checksum, expected);
}

/// Ethernet, IP and UDP headers through the structs that hold all of their bits.
fn reemit_network_headers(bytes: &[u8]) -> Vec<u8> {
    let (ethernet, l3) = EthernetRepr::parse(bytes).expect("Ethernet");
    let mut out = vec![0; ethernet.header_len()];
    ethernet.emit(&mut out);
    let udp = if ethernet.ethertype == ETHERTYPE_IPV4 {
        let ip = Ipv4Repr::from_bytes(l3.first_chunk().expect("IPv4"));
        assert_eq!(ip, ip.with_checksum());
        out.extend(ip.to_bytes());
        &l3[Ipv4Repr::LEN..]
    } else {
        out.extend(Ipv6Repr::from_bytes(l3.first_chunk().expect("IPv6")).to_bytes());
        &l3[Ipv6Repr::LEN..]
    };
    out.extend(UdpRepr::from_bytes(udp.first_chunk().expect("UDP")).to_bytes());
    out
}

#[test]
fn connection_management_messages_are_emitted_as_they_came() {
    let mut seen = std::collections::BTreeMap::new();
    for_each_frame(|captured, _, datagram| {
        let gsi = datagram.opcode() == Opcode::UdSendOnly && datagram.bth().dest_qp == Qpn::GSI;
        if !gsi {
            return;
        }
        let name = &captured.name;
        let mad =
            CmMad::parse(datagram.payload()).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let sent: &[u8; MAD_LEN] = datagram.payload().try_into().expect("a whole MAD");
        assert_eq!(&mad.to_bytes(), sent, "{name}");
        *seen.entry(mad.message.name()).or_insert(0) += 1;
    });
    println!("{seen:?}");
    let names: Vec<&str> = seen.into_keys().collect();
    assert_eq!(names, ["DREP", "DREQ", "MRA", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"]);
}

#[test]
fn roce_v1_frames_are_recognised_and_their_icrc_is_the_same_crc() {
    let mut count = 0;
    for captured in all_pcaps().iter().flat_map(|path| read_pcap(path)) {
        let (ethernet, l3) = EthernetRepr::parse(&captured.bytes).expect("Ethernet");
        if ethernet.ethertype == ETHERTYPE_ROCE_V1 {
            assert_eq!(Frame::parse(&captured.bytes).err(), Some(FrameError::RoceV1));
            assert_eq!(verify_frame(l3), IcrcCheck::Good, "{}", captured.name);
            count += 1;
        }
    }
    assert_eq!(count, 3);
}

#[test]
fn any_flipped_bit_that_is_covered_makes_the_icrc_bad() {
    // Masked: TOS, TTL and checksum of IPv4, checksum of UDP, byte 4 of the transport header.
    let masked_v4 = [1, 8, 10, 11, 26, 27, 32];
    let masked_v6 = |byte: usize| matches!(byte, 1..4 | 7 | 46 | 47 | 52);
    let mut seen = std::collections::HashSet::new();
    for_each_frame(|captured, frame, datagram| {
        // One frame of each kind is enough, and of long ones the front.
        if !seen.insert((frame.flow.is_ipv4(), datagram.opcode())) {
            return;
        }
        let mut l3 = frame.l3_bytes().to_vec();
        for bit in 0..l3.len().min(160) * 8 {
            let byte = bit / 8;
            l3[byte] ^= 1 << (bit % 8);
            let masked = if frame.flow.is_ipv4() {
                masked_v4.contains(&byte)
            } else {
                masked_v6(byte) || (byte == 0 && bit % 8 < 4)
            };
            assert_eq!(verify_frame(&l3).is_good(), masked, "{} bit {bit}", captured.name);
            l3[byte] ^= 1 << (bit % 8);
        }
    });
}

#[test]
fn every_frame_can_be_printed() {
    for_each_frame(|captured, frame, datagram| {
        let line = frame.to_string();
        assert!(line.contains(datagram.opcode().name()), "{}: {line}", captured.name);
        let tree = FrameTree(&captured.bytes).to_string();
        assert!(tree.ends_with(" good"), "{}: {tree}", captured.name);
    });
}
