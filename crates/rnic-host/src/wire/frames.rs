//! What the links that carry whole Ethernet frames have in common.

use super::OUTSIDE;
use rnic_core::ports::{Range, RxIpId, RxTrain, TxTrain};
use rnic_net::{Hop, HopTable};
use roce_wire::{Frame, FrameHeader};
use std::time::Instant;
use xdp_io::TxRefusal;

/// Frames refused on receive, by reason.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RefusedFrames {
    /// For another Ethernet address.
    pub(super) foreign: u64,
    /// Of a VLAN that has no interface here.
    pub(super) vlan: u64,
    /// Not RoCEv2, or with broken headers.
    pub(super) malformed: u64,
}

/// The Ethernet side of a link.
pub(super) struct Ethernet {
    hops: HopTable,
    pub(super) refused: RefusedFrames,
}

impl Ethernet {
    /// With our addresses and the next hops.
    pub(super) fn new(hops: HopTable) -> Self {
        Self { hops, refused: RefusedFrames::default() }
    }

    /// The datagrams in the frame of `len` bytes at `offset` of `arena`, as one datagram.
    pub(super) fn strip(&mut self, arena: &[u8], offset: usize, len: usize) -> Option<RxTrain> {
        let bytes = offset.checked_add(len).and_then(|end| arena.get(offset..end));
        let Some(frame) = bytes.and_then(|bytes| Frame::parse(bytes).ok()) else {
            self.refused.malformed += 1;
            return None;
        };
        if frame.dst_mac.0[0] & MULTICAST == 0 && !self.hops.is_own(frame.dst_mac) {
            self.refused.foreign += 1;
            return None;
        }
        // The kernel would drop it: the network that it comes from is not one of this host.
        if frame.vlan.is_some_and(|tag| !self.hops.serves_vlan(tag)) {
            self.refused.vlan += 1;
            return None;
        }
        let payload = frame.payload_range();
        let len = payload.len() as u32;
        Some(RxTrain {
            flow: frame.flow,
            arena: OUTSIDE,
            range: Range { offset: (offset + payload.start) as u32, len },
            segment_len: len,
            ip_id: RxIpId::Seen(frame.ip_id),
            is_internal: false,
        })
    }

    /// When a wire that has no way to the network is tried again; the port says that there is none.
    pub(super) fn set_retry(&self, at: Option<Instant>) {
        self.hops.set_wire_retry(at);
    }

    /// The headers of a train's frames.
    pub(super) fn header(&self, train: &TxTrain) -> Result<FrameHeader, TxRefusal> {
        let Hop { dst_mac, src_mac, vlan } = self.hops.get(train.hop).ok_or(TxRefusal::NoSource)?;
        Ok(FrameHeader { dst_mac, src_mac, vlan, flow: train.flow })
    }
}

/// Clears what follows the datagram in a frame of minimal length.
pub(super) fn pad(frame: &mut [u8], used: usize) {
    if let Some(padding) = frame.get_mut(used..) {
        padding.fill(0);
    }
}

/// Shortest Ethernet frame without FCS. An RC SEND without payload would be two bytes shorter.
pub(super) const MIN_FRAME: usize = 60;
/// The group bit of an Ethernet address.
const MULTICAST: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use roce_wire::{Flow, MacAddr, VlanTag};
    use std::net::IpAddr;

    /// To a group, which is for every Ethernet address.
    fn frame(vlan: Option<VlanTag>) -> Vec<u8> {
        let [src, dst] = ["10.88.0.2", "239.1.2.3"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (dst_mac, src_mac) = (MacAddr::of_group(dst), MacAddr([2; 6]));
        let header = FrameHeader { dst_mac, src_mac, vlan, flow: Flow::new(src, dst, 0xc001) };
        let mut frame = vec![0; header.len() + 16];
        header.emit(0, 16, &mut frame);
        frame
    }

    #[test]
    fn frames_of_a_vlan_without_an_interface_are_refused() {
        let mut ethernet = Ethernet::new(HopTable::default());
        let mut takes = |vlan| {
            let frame = frame(vlan);
            ethernet.strip(&frame, 0, frame.len()).is_some()
        };
        assert!(takes(None));
        assert!(takes(Some(VlanTag::new(5, 0))), "a tag that only gives a priority");
        assert!(!takes(Some(VlanTag::new(5, 7))));
        assert_eq!((ethernet.refused.vlan, ethernet.refused.malformed), (1, 0));
    }
}
