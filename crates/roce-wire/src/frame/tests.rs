use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::net::{ETHERTYPE_VLAN, Ecn};
use crate::pretty::FrameTree;

fn header(v4: bool, vlan: Option<VlanTag>) -> FrameHeader {
    let (src, dst): (IpAddr, IpAddr) = if v4 {
        (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into())
    } else {
        (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::from_bits(7).into())
    };
    FrameHeader {
        dst_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        src_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        flow: Flow::new(src, dst, 0xc001),
    }
}

fn frame_of(header: &FrameHeader, ip_id: u16, datagram: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    assert_eq!(header.emit(ip_id, datagram.len(), &mut bytes), header.len());
    bytes.extend(datagram);
    bytes
}

/// Parses a good IPv4 frame after `change`, with the header checksum made good again.
fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> FrameError {
    let mut bytes = frame_of(&header(true, None), 1, &[0; 16]);
    change(&mut bytes);
    if bytes.len() >= 34 {
        bytes[24..26].fill(0);
        let sum = checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    Frame::parse(&bytes).expect_err("refused")
}

#[test]
fn refusals_name_their_reason() {
    assert_eq!(refusal(|b| b[12..14].fill(0)), FrameError::EtherType(0));
    assert_eq!(refusal(|b| b[12..14].copy_from_slice(&[0x89, 0x15])), FrameError::RoceV1);
    assert_eq!(refusal(|b| b[14] = 0x65), FrameError::IpVersion(6));
    assert_eq!(refusal(|b| b[14] = 0x46), FrameError::IpOptions);
    assert_eq!(refusal(|b| b[20] |= 0x20), FrameError::Fragment);
    assert_eq!(refusal(|b| b[21] = 1), FrameError::Fragment);
    assert_eq!(refusal(|b| b[23] = 6), FrameError::Protocol(6));
    assert_eq!(refusal(|b| b[17] = 19), FrameError::LengthMismatch);
    assert_eq!(refusal(|b| b[39] += 1), FrameError::LengthMismatch);
    assert_eq!(refusal(|b| b[39] -= 1), FrameError::LengthMismatch);
    assert_eq!(refusal(|b| b[17] -= 1), FrameError::LengthMismatch);
    assert_eq!(refusal(|b| b[17] = 27), FrameError::Truncated);
    assert_eq!(refusal(|b| b[37] += 1), FrameError::UdpPort(4792));
    assert_eq!(refusal(|b| b.truncate(57)), FrameError::Truncated);
    assert_eq!(refusal(|b| b.truncate(13)), FrameError::Truncated);

    let mut bad_sum = frame_of(&header(true, None), 1, &[0; 16]);
    bad_sum[22] ^= 1;
    assert_eq!(Frame::parse(&bad_sum).err(), Some(FrameError::IpChecksum));
    let mut v6 = frame_of(&header(false, None), 0, &[0; 16]);
    v6[20] = 44;
    assert_eq!(Frame::parse(&v6).err(), Some(FrameError::Protocol(44)));
    v6[14] = 0x45;
    assert_eq!(Frame::parse(&v6).err(), Some(FrameError::IpVersion(4)));
}

#[test]
fn a_second_vlan_tag_is_not_for_us() {
    let mut bytes = frame_of(&header(true, Some(VlanTag::new(3, 7))), 1, &[0; 16]);
    bytes.splice(12..12, [0x81, 0, 0, 9]);
    assert_eq!(Frame::parse(&bytes).err(), Some(FrameError::EtherType(ETHERTYPE_VLAN)));
}

#[test]
fn ethernet_padding_is_not_payload() {
    let datagram = [5; 16];
    let mut bytes = frame_of(&header(true, None), 1, &datagram);
    bytes.extend([0xee; 2]);
    let frame = Frame::parse(&bytes).expect("good");
    assert_eq!(frame.payload(), datagram);
    assert_eq!(frame.payload_range(), 42..58);
    assert_eq!(frame.l3_bytes().len(), 44);
}

#[test]
fn congestion_marks_are_read() {
    let mut marked = header(true, None);
    marked.flow.tos = 0xc3;
    let bytes = frame_of(&marked, 0, &[0; 16]);
    let flow = Frame::parse(&bytes).expect("good").flow;
    assert_eq!((flow.ecn(), flow.dscp()), (Ecn::Ce, 48));
}

#[test]
fn mixed_families_travel_as_ipv6() {
    let mut mixed = header(false, None);
    mixed.flow.src = Ipv4Addr::new(10, 0, 0, 9).into();
    let bytes = frame_of(&mixed, 0, &[0; 16]);
    let frame = Frame::parse(&bytes).expect("good");
    assert_eq!(frame.flow.src, IpAddr::V6(Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped()));
    assert_eq!(bytes.len(), mixed.len() + 16);
}

prop_compose! {
    fn any_header()(
        macs: [[u8; 6]; 2], tag in proptest::option::of(any::<u16>()), v4: bool,
        src: [u8; 16], dst: [u8; 16], sport: u16, tos: u8, hop_limit: u8, label: u32,
    ) -> FrameHeader {
        let ip = |b: [u8; 16]| -> IpAddr {
            if v4 { [b[0], b[1], b[2], b[3]].into() } else { b.into() }
        };
        let flow_label = if v4 { 0 } else { label & 0xf_ffff };
        FrameHeader {
            dst_mac: MacAddr(macs[0]),
            src_mac: MacAddr(macs[1]),
            vlan: tag.map(VlanTag),
            flow: Flow { src: ip(src), dst: ip(dst), sport, tos, hop_limit, flow_label, df: true },
        }
    }
}

proptest! {
    #[test]
    fn frames_round_trip(header in any_header(), ip_id: u16, mut datagram: Vec<u8>) {
        datagram.resize((datagram.len() & !3) + 16, 0);
        icrc::seal(&header.flow, ip_id, &mut datagram);
        let bytes = frame_of(&header, ip_id, &datagram);
        let frame = Frame::parse(&bytes).expect("own frame");
        prop_assert_eq!(frame.header(), header);
        prop_assert_eq!(frame.payload(), datagram);
        prop_assert!(frame.flow.df);
        prop_assert_eq!(frame.ip_id, if header.flow.is_ipv4() { ip_id } else { 0 });
        prop_assert_eq!(frame.verify_icrc(), IcrcCheck::Good);
        prop_assert_eq!(icrc::verify_frame(frame.l3_bytes()), IcrcCheck::Good);
    }

    /// Damaged frames and plain noise give a reason or a view none of whose accessors panics.
    #[test]
    fn arbitrary_bytes_are_safe(
        header in any_header(),
        noise in proptest::collection::vec(any::<u8>(), 0..120),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        keep: proptest::sample::Index,
    ) {
        let mut bytes = frame_of(&header, 0, &noise);
        for (at, value) in damage {
            *at.get_mut(&mut bytes) = value;
        }
        bytes.truncate(keep.index(bytes.len() + 1));
        for bytes in [&bytes[..], &noise] {
            prop_assert!(!FrameTree(bytes).to_string().is_empty());
            let _ = icrc::verify_frame(bytes);
            match Frame::parse(bytes) {
                Err(reason) => prop_assert!(!reason.to_string().is_empty()),
                Ok(frame) => {
                    prop_assert_eq!(frame.payload().len(), frame.payload_range().len());
                    prop_assert!(frame.l3_bytes().ends_with(frame.payload()));
                    let _ = frame.verify_icrc();
                    prop_assert!(!frame.to_string().is_empty());
                }
            }
        }
    }
}
