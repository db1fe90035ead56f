//! Trains: datagrams of equal length, but for the last, that one packet carries.
//!
//! A kernel joins what it sends or receives together (UDP segmentation and receive offloads), and
//! does not tell how long the datagrams are to a packet socket before Linux 6.2, to an XDP program
//! in generic mode, or in a capture. The length is found by what consecutive datagrams of a train
//! have in common, and the ICRC decides.

use crate::datagram::ICRC_LEN;
use crate::flow::Flow;
use crate::headers::Bth;
use crate::icrc::{self, IpIdHint};
use core::ops::Range;

/// Length of the first datagram of a UDP payload that may be a train: that of each datagram but
/// the last, which may be shorter. `None` where no beginning has a good ICRC. `ip_id` is the
/// identification in the IPv4 header, which is that of the first.
pub fn segment_len(flow: &Flow, ip_id: u16, bytes: &[u8]) -> Option<usize> {
    find(bytes, |first| icrc::verify(flow, IpIdHint::Known(ip_id), first).is_good())
}

/// The same by a check of what may be the first datagram.
fn find(bytes: &[u8], mut is_good: impl FnMut(&[u8]) -> bool) -> Option<usize> {
    if bytes.len() >= SMALLEST && is_good(bytes) {
        return Some(bytes.len());
    }
    let candidates = (SMALLEST..bytes.len().saturating_sub(SMALLEST - 1)).step_by(4);
    let mut left = MAX_CHECKED;
    candidates
        .filter(|at| continues(bytes, &bytes[*at..]))
        .map_while(|at| {
            left = left.checked_sub(at)?;
            Some(at)
        })
        .find(|at| is_good(&bytes[..*at]))
}

/// The datagram at `next` can be of the same train as the one that starts with `first`: same
/// P_Key, and same destination QP. Datagrams of one UD queue pair may be for several QPs, but name
/// the same source QP.
fn continues(first: &[u8], next: &[u8]) -> bool {
    let is_same = |range: Range<usize>| {
        let part = next.get(range.clone());
        part.is_some() && part == first.get(range)
    };
    let is_ud = |bytes: &[u8]| bytes.first().is_some_and(|opcode| opcode >> 5 == UD);
    is_same(2..4) && (is_same(5..8) || is_ud(first) && is_ud(next) && is_same(17..20))
}

/// Transport of UD, in the upper three bits of the opcode.
const UD: u8 = 3;
/// A datagram of nothing but BTH and ICRC.
pub const SMALLEST: usize = Bth::LEN + ICRC_LEN;
/// Bytes checked in search of the first datagram, four times the length of the longest train.
/// Bounds the cost of a forged train that could be cut anywhere, for instance one whose payload
/// repeats its header every 64 bytes.
const MAX_CHECKED: usize = 4 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(flow: &Flow, ip_id: u16, len: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len];
        bytes[..Bth::LEN].copy_from_slice(&[7, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, fill]);
        icrc::seal(flow, ip_id, &mut bytes);
        bytes
    }

    fn flow() -> Flow {
        Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 4791)
    }

    #[test]
    fn a_train_is_found_and_a_lone_datagram_stays_whole() {
        let flow = flow();
        let train: Vec<u8> =
            (0..3u8).flat_map(|k| datagram(&flow, u16::from(k), 1040, k)).collect();
        assert_eq!(segment_len(&flow, 0, &train), Some(1040));
        assert_eq!(segment_len(&flow, 0, &train[..1540]), Some(1040));
        let alone = datagram(&flow, 5, 1040, 9);
        assert_eq!(segment_len(&flow, 5, &alone), Some(1040));
        assert_eq!(segment_len(&flow, 6, &alone), None);
        // Payload that repeats its own header does not cut the datagram.
        let mut tricky = datagram(&flow, 5, 200, 0);
        tricky.copy_within(0..12, 40);
        icrc::seal(&flow, 5, &mut tricky);
        assert_eq!(segment_len(&flow, 5, &tricky), Some(200));
        for len in 0..20 {
            assert_eq!(segment_len(&flow, 0, &vec![0; len]), None);
        }
    }

    #[test]
    fn a_train_of_datagrams_may_be_for_several_queue_pairs() {
        let flow = flow();
        let mut train = Vec::new();
        for k in 0..3u8 {
            let mut bytes = datagram(&flow, u16::from(k), 280, k);
            bytes[0] = 0x64;
            bytes[7] = k;
            bytes[12..20].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 9]);
            icrc::seal(&flow, u16::from(k), &mut bytes);
            train.extend(bytes);
        }
        assert_eq!(segment_len(&flow, 0, &train), Some(280));
    }

    /// Every multiple of four bytes looks like the start of a further datagram.
    #[test]
    fn a_train_that_could_be_cut_anywhere_costs_no_more_than_its_length() {
        let bytes: Vec<u8> = (0..61_600).map(|at| [7, 1, 0xff, 0xfe][at % 4]).collect();
        let mut checked = 0;
        let len = find(&bytes, |first| {
            checked += first.len();
            false
        });
        assert_eq!(len, None);
        assert!(checked <= 6 * bytes.len(), "{checked} bytes checked");
    }

    #[test]
    fn payload_that_repeats_its_own_header_hides_nothing() {
        let flow = flow();
        let train: Vec<u8> = (0..3u8)
            .flat_map(|k| {
                let mut bytes = datagram(&flow, u16::from(k), 4096 + 32, k);
                for at in (64..4096).step_by(64) {
                    bytes.copy_within(0..Bth::LEN, at);
                }
                icrc::seal(&flow, u16::from(k), &mut bytes);
                bytes
            })
            .collect();
        assert_eq!(segment_len(&flow, 0, &train), Some(4096 + 32));
    }
}
