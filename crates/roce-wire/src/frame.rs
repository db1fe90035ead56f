//! Whole Ethernet frames: a datagram with its Ethernet, IP and UDP headers.

use core::net::IpAddr;
use core::ops::Range;

use crate::ROCE_PORT;
use crate::flow::{AddressPair, Flow};
use crate::icrc::{self, IcrcCheck};
use crate::net::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, EthernetRepr, Ipv4Repr, Ipv6Repr, MacAddr,
    PROTOCOL_UDP, UdpRepr, VlanTag, checksum,
};

/// Why a frame is not a RoCEv2 packet we accept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum FrameError {
    /// Shorter than its headers, or than a length field says.
    #[error("frame shorter than its headers say")]
    Truncated,
    /// Neither IPv4, IPv6 nor RoCEv1.
    #[error("EtherType {0:#06x} is not IP")]
    EtherType(u16),
    /// A RoCEv1 frame; this stack speaks RoCEv2.
    #[error("RoCEv1 frame")]
    RoceV1,
    /// The IP version does not fit the EtherType.
    #[error("IP version {0}")]
    IpVersion(u8),
    /// IPv4 options are present.
    #[error("IPv4 options")]
    IpOptions,
    /// A fragment of an IPv4 packet.
    #[error("IPv4 fragment")]
    Fragment,
    /// The IPv4 header checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// Not UDP.
    #[error("IP protocol {0} is not UDP")]
    Protocol(u8),
    /// IP and UDP disagree about the length.
    #[error("IP and UDP lengths disagree")]
    LengthMismatch,
    /// UDP for another port.
    #[error("UDP port {0} is not {ROCE_PORT}")]
    UdpPort(u16),
}

/// A checked view of an Ethernet frame that carries RoCEv2.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub dst_mac: MacAddr,
    pub src_mac: MacAddr,
    pub vlan: Option<VlanTag>,
    pub flow: Flow,
    /// IPv4 identification; 0 for IPv6.
    pub ip_id: u16,
    pub udp_checksum: u16,
    bytes: &'a [u8],
    l3_offset: usize,
    payload_start: usize,
    payload_end: usize,
}

/// What IPv4 and IPv6 headers have in common, and the IP payload.
struct Network<'a> {
    src: IpAddr,
    dst: IpAddr,
    tos: u8,
    hop_limit: u8,
    flow_label: u32,
    id: u16,
    df: bool,
    header_len: usize,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks all headers, including the IPv4 header checksum. Bytes after the IP packet (Ethernet
    /// padding) are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let (ethernet, l3) = EthernetRepr::parse(bytes).ok_or(FrameError::Truncated)?;
        let network = match ethernet.ethertype {
            ETHERTYPE_IPV4 => parse_ipv4(l3)?,
            ETHERTYPE_IPV6 => parse_ipv6(l3)?,
            ETHERTYPE_ROCE_V1 => return Err(FrameError::RoceV1),
            other => return Err(FrameError::EtherType(other)),
        };
        let udp_bytes = network.payload.first_chunk().ok_or(FrameError::Truncated)?;
        let udp = UdpRepr::from_bytes(udp_bytes);
        if udp.dport != ROCE_PORT {
            return Err(FrameError::UdpPort(udp.dport));
        }
        if usize::from(udp.len) != network.payload.len() {
            return Err(FrameError::LengthMismatch);
        }
        let l3_offset = ethernet.header_len();
        let payload_start = l3_offset + network.header_len + UdpRepr::LEN;
        Ok(Frame {
            dst_mac: ethernet.dst,
            src_mac: ethernet.src,
            vlan: ethernet.vlan,
            flow: Flow {
                src: network.src,
                dst: network.dst,
                sport: udp.sport,
                tos: network.tos,
                hop_limit: network.hop_limit,
                flow_label: network.flow_label,
                df: network.df,
            },
            ip_id: network.id,
            udp_checksum: udp.checksum,
            bytes,
            l3_offset,
            payload_start,
            payload_end: payload_start + network.payload.len() - UdpRepr::LEN,
        })
    }

    /// The datagram: base transport header to ICRC.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload_range()]
    }

    /// Where the datagram lies in the frame.
    pub fn payload_range(&self) -> Range<usize> {
        self.payload_start..self.payload_end
    }

    /// The packet from its IP header on, without Ethernet padding.
    pub fn l3_bytes(&self) -> &'a [u8] {
        &self.bytes[self.l3_offset..self.payload_end]
    }

    /// Checks the ICRC against the real headers.
    pub fn verify_icrc(&self) -> IcrcCheck {
        icrc::verify_frame(self.l3_bytes())
    }

    /// The header a sender needs to produce this frame.
    pub fn header(&self) -> FrameHeader {
        FrameHeader {
            dst_mac: self.dst_mac,
            src_mac: self.src_mac,
            vlan: self.vlan,
            flow: self.flow,
        }
    }
}

fn parse_ipv4(l3: &[u8]) -> Result<Network<'_>, FrameError> {
    let (header, rest) = l3.split_first_chunk().ok_or(FrameError::Truncated)?;
    match (header[0] >> 4, header[0] & 0xf) {
        (4, 5) => {}
        (4, _) => return Err(FrameError::IpOptions),
        (version, _) => return Err(FrameError::IpVersion(version)),
    }
    if checksum(header) != 0 {
        return Err(FrameError::IpChecksum);
    }
    let ip = Ipv4Repr::from_bytes(header);
    if ip.flags_and_offset & Ipv4Repr::FRAGMENT_MASK != 0 {
        return Err(FrameError::Fragment);
    }
    if ip.protocol != PROTOCOL_UDP {
        return Err(FrameError::Protocol(ip.protocol));
    }
    let payload_len =
        usize::from(ip.total_len).checked_sub(Ipv4Repr::LEN).ok_or(FrameError::LengthMismatch)?;
    Ok(Network {
        src: IpAddr::V4(ip.src),
        dst: IpAddr::V4(ip.dst),
        tos: ip.tos,
        hop_limit: ip.ttl,
        flow_label: 0,
        id: ip.id,
        df: ip.flags_and_offset & Ipv4Repr::DONT_FRAGMENT != 0,
        header_len: Ipv4Repr::LEN,
        payload: rest.get(..payload_len).ok_or(FrameError::Truncated)?,
    })
}

fn parse_ipv6(l3: &[u8]) -> Result<Network<'_>, FrameError> {
    let (header, rest) = l3.split_first_chunk().ok_or(FrameError::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(FrameError::IpVersion(header[0] >> 4));
    }
    let ip = Ipv6Repr::from_bytes(header);
    if ip.next_header != PROTOCOL_UDP {
        return Err(FrameError::Protocol(ip.next_header));
    }
    Ok(Network {
        src: IpAddr::V6(ip.src),
        dst: IpAddr::V6(ip.dst),
        tos: ip.traffic_class,
        hop_limit: ip.hop_limit,
        flow_label: ip.flow_label,
        id: 0,
        df: true,
        header_len: Ipv6Repr::LEN,
        payload: rest.get(..usize::from(ip.payload_len)).ok_or(FrameError::Truncated)?,
    })
}

/// Everything in front of a datagram: Ethernet, IP and UDP headers as this stack sends them (UDP
/// checksum 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    pub dst_mac: MacAddr,
    pub src_mac: MacAddr,
    pub vlan: Option<VlanTag>,
    pub flow: Flow,
}

impl FrameHeader {
    /// The longest header: VLAN tag and IPv6.
    pub const MAX_LEN: usize =
        EthernetRepr::LEN + EthernetRepr::VLAN_LEN + Ipv6Repr::LEN + UdpRepr::LEN;

    /// Bytes in front of the datagram.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        let vlan = if self.vlan.is_some() { EthernetRepr::VLAN_LEN } else { 0 };
        EthernetRepr::LEN + vlan + self.flow.l3_l4_len()
    }

    /// Writes the headers for a datagram of `datagram_len` bytes and returns their length, which is
    /// where the datagram goes. `ip_id` is the IPv4 identification, unused for IPv6.
    ///
    /// # Panics
    /// If `buf` is shorter than [`FrameHeader::len`].
    pub fn emit(&self, ip_id: u16, datagram_len: usize, buf: &mut [u8]) -> usize {
        let ethertype = if self.flow.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let ethernet =
            EthernetRepr { dst: self.dst_mac, src: self.src_mac, vlan: self.vlan, ethertype };
        let at = ethernet.emit(buf);
        at + emit_l3_l4(&self.flow, ip_id, datagram_len, &mut buf[at..])
    }
}

/// Writes the IP and UDP headers of a datagram of `datagram_len` bytes and returns their length.
///
/// # Panics
/// If `buf` is shorter than [`Flow::l3_l4_len`].
pub fn emit_l3_l4(flow: &Flow, ip_id: u16, datagram_len: usize, buf: &mut [u8]) -> usize {
    let udp_len = (UdpRepr::LEN + datagram_len) as u16;
    let udp = UdpRepr { sport: flow.sport, dport: ROCE_PORT, len: udp_len, checksum: 0 };
    let at = match flow.addresses() {
        AddressPair::V4(src, dst) => {
            let ip = Ipv4Repr {
                tos: flow.tos,
                total_len: udp_len.wrapping_add(Ipv4Repr::LEN as u16),
                id: ip_id,
                flags_and_offset: if flow.df { Ipv4Repr::DONT_FRAGMENT } else { 0 },
                ttl: flow.hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                src,
                dst,
            };
            buf[..Ipv4Repr::LEN].copy_from_slice(&ip.with_checksum().to_bytes());
            Ipv4Repr::LEN
        }
        AddressPair::V6(src, dst) => {
            let ip = Ipv6Repr {
                traffic_class: flow.tos,
                flow_label: flow.flow_label,
                payload_len: udp_len,
                next_header: PROTOCOL_UDP,
                hop_limit: flow.hop_limit,
                src,
                dst,
            };
            buf[..Ipv6Repr::LEN].copy_from_slice(&ip.to_bytes());
            Ipv6Repr::LEN
        }
    };
    buf[at..at + UdpRepr::LEN].copy_from_slice(&udp.to_bytes());
    at + UdpRepr::LEN
}

#[cfg(test)]
mod tests;
