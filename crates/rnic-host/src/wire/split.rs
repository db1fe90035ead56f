//! Takes frames apart that a sender's kernel left joined.
//!
//! In generic XDP mode, and over AF_PACKET before Linux 6.2, a train of a local sender arrives as
//! one IP packet without a hint how long its datagrams are. They are found by what consecutive
//! datagrams of a train have in common, and the ICRC decides.

use rnic_core::ports::{RxIpId, RxTrain};
use roce_wire::Flow;
use roce_wire::icrc::{self, IpIdHint};

/// Finds the datagrams of what arrived in `arena` as one and may be a train.
pub(super) fn take_apart(train: &mut RxTrain, arena: &[u8]) {
    let RxIpId::Seen(id) = train.ip_id else { return };
    let start = train.range.offset as usize;
    let bytes = &arena[start..start + train.range.len as usize];
    train.segment_len = segment_len(&train.flow, id, bytes) as u32;
}

/// Bytes of each datagram but the last of what may be a train. `ip_id` is that of the first.
fn segment_len(flow: &Flow, ip_id: u16, bytes: &[u8]) -> usize {
    find(bytes, |first| icrc::verify(flow, IpIdHint::Known(ip_id), first).is_good())
}

/// The same by a check of what may be the first datagram.
fn find(bytes: &[u8], mut is_good: impl FnMut(&[u8]) -> bool) -> usize {
    let Some((key, _)) = bytes.split_first_chunk::<BTH>() else { return bytes.len() };
    if is_good(bytes) {
        return bytes.len();
    }
    let candidates = (SMALLEST..bytes.len().saturating_sub(SMALLEST - 1)).step_by(4);
    let mut left = MAX_CHECKED;
    candidates
        .filter(|at| continues(key, &bytes[*at..]))
        .map_while(|at| {
            left = left.checked_sub(at)?;
            Some(at)
        })
        .find(|at| is_good(&bytes[..*at]))
        .unwrap_or(bytes.len())
}

/// The datagram at `next` can be of the same train as the one that starts with `first`: same
/// P_Key and destination QP.
fn continues(first: &[u8; BTH], next: &[u8]) -> bool {
    next.get(2..4) == Some(&first[2..4]) && next.get(5..8) == Some(&first[5..8])
}

/// Base transport header.
const BTH: usize = 12;
/// A datagram of nothing but BTH and ICRC.
const SMALLEST: usize = BTH + 4;
/// Bytes checked in search of the first datagram, four times the length of the longest train.
/// Bounds the cost of a forged train that could be cut anywhere, for instance one whose payload
/// repeats its header every 64 bytes.
const MAX_CHECKED: usize = 4 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(flow: &Flow, ip_id: u16, len: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len];
        bytes[..BTH].copy_from_slice(&[7, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, fill]);
        icrc::seal(flow, ip_id, &mut bytes);
        bytes
    }

    #[test]
    fn a_train_is_found_and_a_lone_datagram_stays_whole() {
        let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 4791);
        let train: Vec<u8> =
            (0..3u8).flat_map(|k| datagram(&flow, u16::from(k), 1040, k)).collect();
        assert_eq!(segment_len(&flow, 0, &train), 1040);
        assert_eq!(segment_len(&flow, 0, &train[..1540]), 1040);
        let alone = datagram(&flow, 5, 1040, 9);
        assert_eq!(segment_len(&flow, 5, &alone), 1040);
        // Payload that repeats its own header does not cut the datagram.
        let mut tricky = datagram(&flow, 5, 200, 0);
        tricky.copy_within(0..12, 40);
        icrc::seal(&flow, 5, &mut tricky);
        assert_eq!(segment_len(&flow, 5, &tricky), 200);
        for len in 0..20 {
            assert_eq!(segment_len(&flow, 0, &vec![0; len]), len);
        }
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
        assert_eq!(len, bytes.len());
        assert!(checked <= 6 * bytes.len(), "{checked} bytes checked");
    }

    #[test]
    fn payload_that_repeats_its_own_header_hides_nothing() {
        let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 4791);
        let train: Vec<u8> = (0..3u8)
            .flat_map(|k| {
                let mut bytes = datagram(&flow, u16::from(k), 4096 + 32, k);
                for at in (64..4096).step_by(64) {
                    bytes.copy_within(0..BTH, at);
                }
                icrc::seal(&flow, u16::from(k), &mut bytes);
                bytes
            })
            .collect();
        assert_eq!(segment_len(&flow, 0, &train), 4096 + 32);
    }
}
