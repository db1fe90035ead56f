//! Takes frames apart that a sender's kernel left joined.
//!
//! In generic XDP mode, and over AF_PACKET before Linux 6.2, a train of a local sender arrives as
//! one IP packet without a hint how long its datagrams are.

use rnic_core::ports::{RxIpId, RxTrain};
use roce_wire::train;

/// Finds the datagrams of what arrived in `arena` as one and may be a train.
pub(super) fn take_apart(received: &mut RxTrain, arena: &[u8]) {
    let RxIpId::Seen(id) = received.ip_id else { return };
    let start = received.range.offset as usize;
    let bytes = &arena[start..start + received.range.len as usize];
    let found = train::segment_len(&received.flow, id, bytes);
    // What has no good ICRC anywhere stays whole, and the engine counts and drops it.
    received.segment_len = found.unwrap_or(bytes.len()) as u32;
}
