//! The 40 bytes in front of every received datagram-service message.
//!
//! Where InfiniBand puts the global route header, a RoCEv2 receiver finds the IP header its message
//! came with: an IPv6 header fills the area, an IPv4 header lies at its end behind 20 zero bytes.

use crate::flow::{AddressPair, Flow};
use crate::frame::emit_l3_l4;
use crate::net::{Ipv4Repr, Ipv6Repr, UdpRepr, checksum};
use crate::types::Gid;

/// Bytes of the area.
pub const GRH_LEN: usize = 40;

const IPV4_OFFSET: usize = GRH_LEN - Ipv4Repr::LEN;

/// The area for a datagram of `datagram_len` bytes (transport header to ICRC) received on `flow`
/// with the IPv4 identification `ip_id`.
pub fn grh_area(flow: &Flow, ip_id: u16, datagram_len: usize) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    let mut headers = [0; Ipv6Repr::LEN + UdpRepr::LEN];
    emit_l3_l4(flow, ip_id, datagram_len, &mut headers);
    match flow.addresses() {
        AddressPair::V4(..) => {
            area[IPV4_OFFSET..].copy_from_slice(&headers[..Ipv4Repr::LEN]);
        }
        AddressPair::V6(..) => area.copy_from_slice(&headers[..Ipv6Repr::LEN]),
    }
    area
}

/// The type of IP header in an area of [`grh_area`]: 1 for IPv6, 2 for IPv4.
pub fn header_type(area: &[u8; GRH_LEN]) -> u8 {
    if area[0] >> 4 == 6 { 1 } else { 2 }
}

/// What the area says about the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrhArea {
    V4(Ipv4Repr),
    V6(Ipv6Repr),
}

impl GrhArea {
    /// Tells the families apart as Linux does: version nibble other than 6 means IPv4; a good IPv4
    /// header at offset 20 means IPv4; all else is IPv6.
    pub fn parse(area: &[u8; GRH_LEN]) -> GrhArea {
        let mut ipv4 = [0; Ipv4Repr::LEN];
        ipv4.copy_from_slice(&area[IPV4_OFFSET..]);
        let good_ipv4 = ipv4[0] == 0x45 && checksum(&ipv4) == 0;
        if area[0] >> 4 != 6 || good_ipv4 {
            GrhArea::V4(Ipv4Repr::from_bytes(&ipv4))
        } else {
            GrhArea::V6(Ipv6Repr::from_bytes(area))
        }
    }

    pub fn src(&self) -> Gid {
        match self {
            GrhArea::V4(ip) => ip.src.into(),
            GrhArea::V6(ip) => ip.src.into(),
        }
    }

    pub fn dst(&self) -> Gid {
        match self {
            GrhArea::V4(ip) => ip.dst.into(),
            GrhArea::V6(ip) => ip.dst.into(),
        }
    }

    pub fn traffic_class(&self) -> u8 {
        match self {
            GrhArea::V4(ip) => ip.tos,
            GrhArea::V6(ip) => ip.traffic_class,
        }
    }

    pub fn hop_limit(&self) -> u8 {
        match self {
            GrhArea::V4(ip) => ip.ttl,
            GrhArea::V6(ip) => ip.hop_limit,
        }
    }

    /// 0 for IPv4.
    pub fn flow_label(&self) -> u32 {
        match self {
            GrhArea::V4(_) => 0,
            GrhArea::V6(ip) => ip.flow_label,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    #[test]
    fn ipv4_header_lies_at_the_end() {
        let src: IpAddr = "10.1.0.1".parse().expect("address");
        let dst: IpAddr = "10.1.0.2".parse().expect("address");
        let flow = Flow { tos: 0xa2, hop_limit: 7, ..Flow::new(src, dst, 0xc000) };
        let area = grh_area(&flow, 99, 288 - UdpRepr::LEN);
        assert_eq!(area[..20], [0; 20]);
        let parsed = GrhArea::parse(&area);
        let GrhArea::V4(ip) = parsed else { panic!("not IPv4: {parsed:?}") };
        assert_eq!((ip.total_len, ip.id), (308, 99));
        assert_eq!(header_type(&area), 2);
        assert_eq!((parsed.src(), parsed.dst()), (Gid::from_ip(src), Gid::from_ip(dst)));
        assert_eq!((parsed.traffic_class(), parsed.hop_limit()), (0xa2, 7));

        // The 20 bytes in front are undefined on some NICs and may look like IPv6.
        let mut noisy = area;
        noisy[..20].fill(0x66);
        assert_eq!(GrhArea::parse(&noisy), parsed);
    }

    #[test]
    fn ipv6_header_fills_the_area() {
        let src: IpAddr = "fe80::1".parse().expect("address");
        let dst: IpAddr = "fe80::2".parse().expect("address");
        let flow = Flow { flow_label: 0x5_ba59, ..Flow::new(src, dst, 0xc000) };
        let area = grh_area(&flow, 0, 24);
        assert_eq!(header_type(&area), 1);
        let parsed = GrhArea::parse(&area);
        let GrhArea::V6(ip) = parsed else { panic!("not IPv6: {parsed:?}") };
        assert_eq!((ip.payload_len, ip.next_header), (32, 17));
        assert_eq!((parsed.src(), parsed.dst()), (Gid::from_ip(src), Gid::from_ip(dst)));
        assert_eq!((parsed.flow_label(), parsed.hop_limit()), (0x5_ba59, 64));
    }
}
