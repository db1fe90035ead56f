//! The addresses of both ends, and the IP fields around a datagram.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::Ecn;
use crate::types::Qpn;

/// Addresses and the IP and UDP fields that a datagram travels with.
///
/// The UDP destination port is always [`crate::ROCE_PORT`]. Both addresses should be of one family;
/// when they are not, the packet is an IPv6 packet and the IPv4 address appears IPv4-mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// UDP source port: entropy for ECMP, never used to find a queue pair.
    pub sport: u16,
    /// IPv4 TOS or IPv6 traffic class: DSCP in the high six bits, ECN in the low two.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused for IPv4.
    pub flow_label: u32,
    /// IPv4 "don't fragment", which the ICRC covers; unused for IPv6. This stack always sets it,
    /// and so do most. Behind a UDP socket it is a guess.
    pub df: bool,
}

/// The address pair of a flow, in the family its packets use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Flow {
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// A flow with default hop limit, no DSCP, ECN-capable (ECT(0)), not to be fragmented.
    pub const fn new(src: IpAddr, dst: IpAddr, sport: u16) -> Flow {
        Flow {
            src,
            dst,
            sport,
            tos: Ecn::Ect0 as u8,
            hop_limit: Self::DEFAULT_HOP_LIMIT,
            flow_label: 0,
            df: true,
        }
    }

    pub const fn is_ipv4(&self) -> bool {
        self.src.is_ipv4() && self.dst.is_ipv4()
    }

    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    pub const fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// Bytes of the IP and UDP headers of this flow.
    pub const fn l3_l4_len(&self) -> usize {
        let ip = if self.is_ipv4() { crate::net::Ipv4Repr::LEN } else { crate::net::Ipv6Repr::LEN };
        ip + crate::net::UdpRepr::LEN
    }

    /// The way back: addresses swapped, everything else kept.
    #[must_use]
    pub const fn reversed(mut self) -> Flow {
        let src = self.src;
        self.src = self.dst;
        self.dst = src;
        self
    }

    pub(crate) const fn addresses(&self) -> AddressPair {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => AddressPair::V4(src, dst),
            (src, dst) => AddressPair::V6(mapped(src), mapped(dst)),
        }
    }
}

const fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Source port for a flow label, 0xC000 ..= 0xFFFF: the label's 20 bits folded into 14.
pub const fn udp_source_port(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label & 0xf_c000) >> 14;
    0xc000 | (low ^ high) as u16
}

/// Flow label for a connection that was given none. Symmetric: both ends get the same one.
pub const fn flow_label_from_qpns(local: Qpn, remote: Qpn) -> u32 {
    let mut value = local.value() as u64 * remote.value() as u64;
    value ^= value >> 20;
    value ^= value >> 40;
    (value & 0xf_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_match_those_of_linux() {
        let cases = [(0x5_ba59, 0xfa4f), (0x4_d8c6, 0xd8d5), (0x4000, 0xc001), (0xf_ffff, 0xffc0)];
        for (label, port) in cases {
            assert_eq!(udp_source_port(label), port, "label {label:#x}");
        }
        let port_of = |a, b| udp_source_port(flow_label_from_qpns(Qpn::new(a), Qpn::new(b)));
        assert_eq!(port_of(1, 1), 0xc001);
        assert_eq!(port_of(0x12_3456, 0xab_cdef), 0xc3c8);
        assert_eq!(port_of(0xab_cdef, 0x12_3456), 0xc3c8);
    }
}
