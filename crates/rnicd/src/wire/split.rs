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
    let Some((key, _)) = bytes.split_first_chunk::<BTH>() else { return bytes.len() };
    if icrc::verify(flow, IpIdHint::Known(ip_id), bytes).is_good() {
        return bytes.len();
    }
    let candidates = (SMALLEST..bytes.len().saturating_sub(SMALLEST - 1)).step_by(4);
    candidates
        .filter(|at| continues(key, &bytes[*at..]))
        .find(|at| icrc::verify(flow, IpIdHint::Known(ip_id), &bytes[..*at]).is_good())
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
}
