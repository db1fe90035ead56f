use core::net::{IpAddr, Ipv4Addr};

use super::*;

/// Bytes written as hex with spaces.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn v4_flow(src: [u8; 4], dst: [u8; 4], sport: u16) -> Flow {
    Flow::new(IpAddr::V4(Ipv4Addr::from(src)), IpAddr::V4(Ipv4Addr::from(dst)), sport)
}

#[test]
fn the_ones_prefix_is_precomputed() {
    assert_eq!(crc32fast::hash(&[0xff; 8]), AFTER_ONES);
}

#[test]
fn congestion_notification_of_a_connectx_4() {
    let l3 = hex(
        "45c2003c718c40004011 9161 0a001101 0a001201 0000 12b7 0028 0000 8100ffff 40000118 00000000
         00000000000000000000000000000000 82fd002a",
    );
    let flow = v4_flow([10, 0, 17, 1], [10, 0, 18, 1], 0);
    let datagram = &l3[28..];
    assert_eq!(icrc(&flow, 0x718c, &datagram[..28]), 0x2a00_fd82);
    assert_eq!(verify(&flow, IpIdHint::Known(0x718c), datagram), IcrcCheck::Good);
    assert_eq!(verify(&flow, IpIdHint::Known(0x718d), datagram), IcrcCheck::Bad);
    assert_eq!(verify(&flow, IpIdHint::Predicted(0x718c), datagram), IcrcCheck::Good);
    assert_eq!(
        verify(&flow, IpIdHint::Predicted(0), datagram),
        IcrcCheck::GoodWith { id: 0x718c, df: true }
    );
    assert_eq!(verify_frame(&l3), IcrcCheck::Good);
}

#[test]
fn acknowledgement_of_a_connectx_virtual_function() {
    let flow = v4_flow([0xc0, 0xa8, 0xfa, 0x72], [0xc0, 0xa8, 0xfa, 0x75], 0xcf21);
    let datagram = hex("1140ffff 40000d1e 00466f1e 000e6f02");
    assert_eq!(icrc(&flow, 0x3631, &datagram), 0x3d38_648d);
}

#[test]
fn ipv6_ignores_traffic_class_flow_label_and_hop_limit() {
    let flow = Flow {
        src: "2022::1023".parse().expect("address"),
        dst: "2023::1024".parse().expect("address"),
        sport: 0xc000,
        tos: 226,
        hop_limit: 255,
        flow_label: 0x1_face,
        df: true,
    };
    let datagram = hex("2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000");
    assert_eq!(icrc(&flow, 0, &datagram), 0x3b74_5b3e);
    let other = Flow { tos: 0, hop_limit: 1, flow_label: 0, ..flow };
    assert_eq!(icrc(&other, 77, &datagram), 0x3b74_5b3e);
}

#[test]
fn native_infiniband_uses_the_same_crc() {
    // The sample packet of the InfiniBand specification: no global route header, so the virtual
    // lane nibble and byte 4 of the transport header are masked and nothing stands for an IP
    // header.
    let mut bytes =
        hex("7012375c000e17d2 0a20248700 87b1b3000dec2a 01710a1c015d4002 38f27a05 0000000e
         bb884d85fd5cfba4728bc0690ed4 0000");
    bytes[0] |= 0xf0;
    bytes[8 + BTH_MASKED_BYTE] = 0xff;
    assert_eq!(crc32fast::hash(&bytes).to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
}

#[test]
fn hidden_identifications_are_recovered_at_every_length() {
    let flow = v4_flow([10, 1, 2, 3], [10, 4, 5, 6], 0xc123);
    for len in (16..600).step_by(4).chain([1040, 2064, 4120, 9000, 65504]) {
        let mut datagram: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        let id = (len as u16).wrapping_mul(40503);
        seal(&flow, id, &mut datagram);
        let check = verify(&flow, IpIdHint::Predicted(id ^ 0x8001), &datagram);
        assert_eq!(check, IcrcCheck::GoodWith { id, df: true }, "length {len}");
        assert_eq!(verify(&flow, IpIdHint::Predicted(id), &datagram), IcrcCheck::Good);
    }
}

/// The CRC of a whole IPv4 packet, bit by bit, over what the specification says.
fn icrc_of_packet(l3: &[u8]) -> u32 {
    let mut masked = [&[0xff; 8][..], l3].concat();
    for masked_byte in [1, 8, 10, 11, 26, 27, 32] {
        masked[8 + masked_byte] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in masked {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ GENERATOR } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_flag_is_covered_as_it_is_and_recovered_where_it_is_hidden() {
    let flow = v4_flow([10, 1, 2, 3], [10, 4, 5, 6], 0xc123);
    for (df, guess) in [(false, false), (false, true), (true, false), (true, true)] {
        let (sent, guessed) = (Flow { df, ..flow }, Flow { df: guess, ..flow });
        for len in [16, 20, 300, 1040, 65504] {
            let mut datagram: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let id = 0x1234;
            let mut l3 = vec![0; sent.l3_l4_len()];
            crate::frame::emit_l3_l4(&sent, id, len, &mut l3);
            l3.extend_from_slice(&datagram[..len - ICRC_LEN]);
            seal(&sent, id, &mut datagram);
            let expected = icrc_of_packet(&l3).to_le_bytes();
            assert_eq!(datagram.last_chunk(), Some(&expected), "DF {df}, length {len}");
            let known = verify(&guessed, IpIdHint::Known(id), &datagram);
            assert_eq!(known.is_good(), df == guess);
            let check = verify(&guessed, IpIdHint::Predicted(id), &datagram);
            assert_eq!((check.flow(guessed), check.is_good()), (sent, true), "length {len}");
            let check = verify(&guessed, IpIdHint::Predicted(!id), &datagram);
            assert_eq!(check, IcrcCheck::GoodWith { id, df }, "length {len}");
        }
    }
}

#[test]
fn every_identification_is_recovered() {
    let flow = v4_flow([127, 0, 0, 1], [127, 0, 0, 1], 0xc000);
    let mut datagram = [7u8; 32];
    for id in 1..=u16::MAX {
        seal(&flow, id, &mut datagram);
        let check = verify(&flow, IpIdHint::Predicted(0), &datagram);
        assert_eq!(check, IcrcCheck::GoodWith { id, df: true });
    }
}

#[test]
fn a_hidden_identification_rarely_explains_damage() {
    let flow = v4_flow([10, 0, 0, 1], [10, 0, 0, 2], 0xc000);
    let mut datagram = vec![0x5a; 1040];
    seal(&flow, 0, &mut datagram);
    let mut accepted = [0, 0];
    for bit in 0..datagram.len() * 8 {
        datagram[bit / 8] ^= 1 << (bit % 8);
        let check = verify(&flow, IpIdHint::Predicted(0), &datagram);
        accepted[usize::from(check.flow(flow).df)] += usize::from(check.is_good());
        datagram[bit / 8] ^= 1 << (bit % 8);
    }
    // Byte 4 of the transport header is not covered: its 8 flips must pass. Sixteen bits of
    // strength are left for each value of the flag, so of the other 8312 flips far less than one is
    // expected to pass by chance for each. One does.
    assert_eq!(accepted, [1, 8]);
}

#[test]
fn a_recovered_identification_really_explains_the_crc() {
    let flow = v4_flow([10, 0, 0, 1], [10, 0, 0, 2], 0xc000);
    let mut datagram = [9u8; 64];
    let mut accepted = 0;
    for round in 0..200_000u32 {
        datagram[60..].copy_from_slice(&round.wrapping_mul(0x9e37_79b9).to_le_bytes());
        if let IcrcCheck::GoodWith { id, df } = verify(&flow, IpIdHint::Predicted(0), &datagram) {
            let flow = Flow { df, ..flow };
            assert_eq!(verify(&flow, IpIdHint::Known(id), &datagram), IcrcCheck::Good);
            accepted += 1;
        }
    }
    // One in 32768 is expected to fit by chance.
    assert!((1..18).contains(&accepted), "{accepted} of 200000 accepted");
}

#[test]
fn too_short_or_too_long_is_bad() {
    let flow = v4_flow([10, 0, 0, 1], [10, 0, 0, 2], 0xc000);
    for len in [0, 3, 4, 11] {
        let check = verify(&flow, IpIdHint::Known(0), &vec![0; len]);
        assert_eq!(check, IcrcCheck::Bad, "length {len}");
    }
    let mut too_long = vec![0; 70_000];
    seal(&flow, 0, &mut too_long);
    assert_eq!(verify(&flow, IpIdHint::Known(0), &too_long), IcrcCheck::Bad);
    assert_eq!(verify_frame(&[]), IcrcCheck::Bad);
    assert_eq!(verify_frame(&[0x45; 40]), IcrcCheck::Bad);
    assert_eq!(verify_frame(&[0x60; 40]), IcrcCheck::Bad);
}
