//! From what was captured to a RoCEv2 frame, whatever the kind of link.

use crate::file::{LinkType, Packet};
use roce_wire::{Frame, FrameError};

/// Bytes of a frame before its EtherType.
const ADDRESSES: usize = 12;
/// Longest packet whose end is made up: the longest IP packet behind the headers of its link.
const LONGEST: usize = (1 << 16) + 32;

/// Where the IP packet begins and, if the link says so, its EtherType.
struct Inside {
    at: usize,
    ether_type: Option<usize>,
}

fn inside(link: LinkType) -> Option<Inside> {
    let (at, ether_type) = match link.0 {
        // BSD loopback; raw IP, with three numbers in use; Linux "any", versions 1 and 2.
        0 | 108 => (4, None),
        12 | 101 | 228 | 229 => (0, None),
        113 => (16, Some(14)),
        276 => (20, Some(0)),
        _ => return None,
    };
    Some(Inside { at, ether_type })
}

/// The reason why a packet is not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Other {
    /// Links of this type are not known.
    Link(LinkType),
    /// It is no RoCEv2 packet.
    Frame(FrameError),
}

/// A frame, and how many bytes of its UDP payload were captured.
pub(crate) struct Seen<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) captured: usize,
}

/// Finds the frame in a packet. `space` holds what has to be put together: a frame whose link has
/// other headers than Ethernet, or whose end was not captured. Zeros stand for the end of the
/// latter, which may begin within the headers of the datagram.
pub(crate) fn frame<'a>(packet: &Packet<'a>, space: &'a mut Vec<u8>) -> Result<Seen<'a>, Other> {
    let is_whole = packet.bytes.len() >= packet.whole_len;
    let missing = packet.whole_len.min(LONGEST).saturating_sub(packet.bytes.len());
    // Ethernet.
    let bytes = if packet.link == LinkType(1) {
        if is_whole {
            packet.bytes
        } else {
            space.clear();
            space.extend_from_slice(packet.bytes);
            space.resize(packet.bytes.len() + missing, 0);
            space
        }
    } else {
        let inside = inside(packet.link).ok_or(Other::Link(packet.link))?;
        let short = Other::Frame(FrameError::Truncated);
        let ip = packet.bytes.get(inside.at..).ok_or(short)?;
        let by_version = || if ip.first()? >> 4 == 6 { Some([0x86, 0xdd]) } else { Some([8, 0]) };
        let ether_type = match inside.ether_type {
            Some(at) => packet.bytes.get(at..).and_then(|rest| rest.first_chunk().copied()),
            None => by_version(),
        };
        space.clear();
        space.resize(ADDRESSES, 0);
        space.extend_from_slice(&ether_type.ok_or(short)?);
        space.extend_from_slice(ip);
        space.resize(space.len() + missing, 0);
        space
    };
    let frame = Frame::parse(bytes).map_err(Other::Frame)?;
    let datagram = frame.payload_range();
    let end = bytes.len() - missing;
    Ok(Seen { frame, captured: end.clamp(datagram.start, datagram.end) - datagram.start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce_wire::{Flow, FrameHeader, MacAddr};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn example() -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
        let flow = Flow { src, dst, sport: 0xc000, tos: 0, hop_limit: 64, flow_label: 0, df: true };
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let header = FrameHeader { dst_mac: mac, src_mac: mac, vlan: None, flow };
        let mut bytes = vec![0; header.len() + 100];
        header.emit(7, 100, &mut bytes);
        bytes
    }

    fn seen(link: u32, bytes: &[u8], whole_len: usize) -> Result<(usize, bool), Other> {
        let (at, link) = (Duration::ZERO, LinkType(link));
        let packet = Packet { at, link, bytes, whole_len, comment: &[] };
        let mut space = Vec::new();
        frame(&packet, &mut space).map(|seen| {
            let len = seen.frame.payload().len();
            (len, seen.captured == len)
        })
    }

    #[test]
    fn frames_are_found_behind_the_headers_of_any_link() {
        let ethernet = example();
        let ip = &ethernet[14..];
        let behind = |head: &[u8]| [head, ip].concat();
        let linux = [&[0; 14][..], &[8, 0]].concat();
        let linux_2 = [&[8, 0][..], &[0; 18]].concat();
        for (link, bytes) in [
            (1, ethernet.clone()),
            (101, ip.to_vec()),
            (0, behind(&[2, 0, 0, 0])),
            (113, behind(&linux)),
            (276, behind(&linux_2)),
        ] {
            assert_eq!(seen(link, &bytes, bytes.len()), Ok((100, true)), "{link}");
        }
        assert_eq!(seen(147, ip, ip.len()), Err(Other::Link(LinkType(147))));
    }

    #[test]
    fn a_packet_whose_end_was_not_captured_keeps_its_length() {
        let bytes = example();
        assert_eq!(seen(1, &bytes[..60], bytes.len()), Ok((100, false)));
        assert_eq!(seen(101, &bytes[14..60], bytes.len() - 14), Ok((100, false)));
        // Not even the headers are there: their zeros are no IP packet.
        assert!(matches!(seen(1, &bytes[..14], bytes.len()), Err(Other::Frame(_))));
    }
}
