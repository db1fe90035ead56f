//! The headers around a datagram: Ethernet with one VLAN tag, IPv4, IPv6, UDP.
//!
//! Each `Repr` holds every bit of its header. Whole packets are the business of [`crate::frame`].

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// RoCEv1: a global route header follows at once.
pub const ETHERTYPE_ROCE_V1: u16 = 0x8915;
pub const PROTOCOL_UDP: u8 = 17;

/// Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Where frames to a group go: the last 23 bits of an IPv4 group (RFC 1112, 6.4), the last 32
    /// of an IPv6 group (RFC 2464, 7).
    #[must_use]
    pub const fn of_group(group: IpAddr) -> MacAddr {
        match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                MacAddr([0x01, 0, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(group) => {
                let [.., a, b, c, d] = group.octets();
                MacAddr([0x33, 0x33, a, b, c, d])
            }
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddr({self})")
    }
}

/// 802.1Q tag control information: priority (3 bits), drop eligible (1), VLAN id (12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VlanTag(pub u16);

impl VlanTag {
    /// `priority` has 3 bits, `id` 12.
    pub const fn new(priority: u8, id: u16) -> VlanTag {
        VlanTag(((priority as u16 & 7) << 13) | (id & 0xfff))
    }

    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    pub const fn id(self) -> u16 {
        self.0 & 0xfff
    }
}

/// Explicit congestion notification, the low two bits of TOS or traffic class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ecn {
    NotEct = 0,
    Ect1 = 1,
    Ect0 = 2,
    /// A switch was congested.
    Ce = 3,
}

impl Ecn {
    pub const fn from_tos(tos: u8) -> Ecn {
        match tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// Ethernet header with at most one VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetRepr {
    pub dst: MacAddr,
    pub src: MacAddr,
    pub vlan: Option<VlanTag>,
    pub ethertype: u16,
}

impl EthernetRepr {
    /// Without a tag.
    pub const LEN: usize = 14;
    pub const VLAN_LEN: usize = 4;

    /// Header and what follows it; `None` when too short.
    pub fn parse(bytes: &[u8]) -> Option<(EthernetRepr, &[u8])> {
        let (dst, rest) = bytes.split_first_chunk()?;
        let (src, rest) = rest.split_first_chunk()?;
        let (mut ethertype, mut rest) = take_u16(rest)?;
        let mut vlan = None;
        if ethertype == ETHERTYPE_VLAN {
            let (tag, after_tag) = take_u16(rest)?;
            vlan = Some(VlanTag(tag));
            (ethertype, rest) = take_u16(after_tag)?;
        }
        Some((EthernetRepr { dst: MacAddr(*dst), src: MacAddr(*src), vlan, ethertype }, rest))
    }

    pub const fn header_len(&self) -> usize {
        Self::LEN + if self.vlan.is_some() { Self::VLAN_LEN } else { 0 }
    }

    /// Writes the header and returns its length.
    ///
    /// # Panics
    /// If `buf` is too short.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[..6].copy_from_slice(&self.dst.0);
        buf[6..12].copy_from_slice(&self.src.0);
        let mut at = 12;
        if let Some(VlanTag(tag)) = self.vlan {
            buf[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            buf[14..16].copy_from_slice(&tag.to_be_bytes());
            at = 16;
        }
        buf[at..at + 2].copy_from_slice(&self.ethertype.to_be_bytes());
        at + 2
    }
}

/// IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Repr {
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    pub id: u16,
    /// Three flag bits (reserved, don't fragment, more fragments) and the fragment offset.
    pub flags_and_offset: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: u16,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
}

impl Ipv4Repr {
    pub const LEN: usize = 20;
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// The "more fragments" bit and the fragment offset: zero in a whole packet.
    pub const FRAGMENT_MASK: u16 = 0x3fff;

    /// Reads a header whose version and length byte is 0x45; the checksum is read, not checked
    /// ([`checksum`] of a good header is 0).
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Ipv4Repr {
        Ipv4Repr {
            tos: b[1],
            total_len: be16(b, 2),
            id: be16(b, 4),
            flags_and_offset: be16(b, 6),
            ttl: b[8],
            protocol: b[9],
            checksum: be16(b, 10),
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        }
    }

    /// The header with `checksum` as it stands.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = 0x45;
        b[1] = self.tos;
        b[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        b[4..6].copy_from_slice(&self.id.to_be_bytes());
        b[6..8].copy_from_slice(&self.flags_and_offset.to_be_bytes());
        b[8] = self.ttl;
        b[9] = self.protocol;
        b[10..12].copy_from_slice(&self.checksum.to_be_bytes());
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..].copy_from_slice(&self.dst.octets());
        b
    }

    /// The same header with the checksum that makes it valid.
    #[must_use]
    pub fn with_checksum(mut self) -> Ipv4Repr {
        self.checksum = 0;
        self.checksum = checksum(&self.to_bytes());
        self
    }
}

/// IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Repr {
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
}

impl Ipv6Repr {
    pub const LEN: usize = 40;

    /// Reads a header whose version is 6.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Ipv6Repr {
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        let mut src = [0; 16];
        let mut dst = [0; 16];
        src.copy_from_slice(&b[8..24]);
        dst.copy_from_slice(&b[24..]);
        Ipv6Repr {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_len: be16(b, 4),
            next_header: b[6],
            hop_limit: b[7],
            src: Ipv6Addr::from(src),
            dst: Ipv6Addr::from(dst),
        }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..].copy_from_slice(&self.dst.octets());
        b
    }
}

/// UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRepr {
    pub sport: u16,
    pub dport: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// RoCEv2 sends 0 and does not check it.
    pub checksum: u16,
}

impl UdpRepr {
    pub const LEN: usize = 8;

    pub fn from_bytes(b: &[u8; Self::LEN]) -> UdpRepr {
        UdpRepr { sport: be16(b, 0), dport: be16(b, 2), len: be16(b, 4), checksum: be16(b, 6) }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..2].copy_from_slice(&self.sport.to_be_bytes());
        b[2..4].copy_from_slice(&self.dport.to_be_bytes());
        b[4..6].copy_from_slice(&self.len.to_be_bytes());
        b[6..].copy_from_slice(&self.checksum.to_be_bytes());
        b
    }
}

/// The Internet checksum: ones' complement of the ones' complement sum of 16-bit words. Over a
/// header with a correct checksum in it the result is 0.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(be16(word, 0));
    }
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk()?;
    Some((u16::from_be_bytes(*head), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_ethernet_addresses_of_their_own() {
        for (group, mac) in [
            ("239.129.2.3", "01:00:5e:01:02:03"),
            ("224.0.0.251", "01:00:5e:00:00:fb"),
            ("ff0e::1:8203:4791", "33:33:82:03:47:91"),
        ] {
            assert_eq!(std::format!("{}", MacAddr::of_group(group.parse().unwrap())), mac);
        }
    }

    #[test]
    fn checksum_of_a_valid_header_is_zero() {
        let header = Ipv4Repr {
            tos: 2,
            total_len: 60,
            id: 0x718c,
            flags_and_offset: Ipv4Repr::DONT_FRAGMENT,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            checksum: 0,
            src: Ipv4Addr::new(10, 0, 17, 1),
            dst: Ipv4Addr::new(10, 0, 18, 1),
        };
        let bytes = header.with_checksum().to_bytes();
        assert_eq!(checksum(&bytes), 0);
        assert_eq!(Ipv4Repr::from_bytes(&bytes), header.with_checksum());
        assert_eq!(checksum(&[1]), !0x0100);
        assert_eq!(checksum(&[]), 0xffff);
    }
}
