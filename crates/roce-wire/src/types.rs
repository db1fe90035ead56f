//! Small values of the wire: sequence numbers, queue pair numbers, keys, MTU codes, GIDs.
//!
//! Sequence numbers are serial numbers modulo 2^24. They have no `Ord`: "less" is not transitive on
//! a circle. Compare by [`Psn::distance_from`].

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number, modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    pub const ZERO: Psn = Psn(0);

    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK_24)
    }

    pub const fn value(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn wrapping_add(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    #[must_use]
    pub const fn wrapping_sub(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// `self - other` as a signed 24-bit number, -2^23 ..= 2^23 - 1: positive when `self` is ahead.
    pub const fn distance_from(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Steps forward from `self` to `other`, 0 ..= 2^24 - 1: for what is known to lie in that
    /// order.
    pub const fn steps_to(self, other: Psn) -> u32 {
        other.0.wrapping_sub(self.0) & MASK_24
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Message sequence number, modulo 2^24: how many requests a responder has completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    pub const ZERO: Msn = Msn(0);

    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Msn {
        Msn(value & MASK_24)
    }

    pub const fn value(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn wrapping_add(self, count: u32) -> Msn {
        Msn::new(self.0.wrapping_add(count))
    }

    /// `self - other` as a signed 24-bit number.
    pub const fn distance_from(self, other: Msn) -> i32 {
        Psn(self.0).distance_from(Psn(other.0))
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msn({})", self.0)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management; not used on RoCE.
    pub const SMI: Qpn = Qpn(0);
    /// The general services interface, where the connection manager lives.
    pub const GSI: Qpn = Qpn(1);
    /// Destination of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(MASK_24);

    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK_24)
    }

    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Partition key: 15 bits of partition, bit 15 set for a full member.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// Full member of the default partition; the only key of a RoCE port.
    pub const DEFAULT: PKey = PKey(0xffff);

    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Same partition, and at least one side is a full member.
    pub const fn matches(self, other: PKey) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for PKey {
    fn default() -> PKey {
        PKey::DEFAULT
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({:#06x})", self.0)
    }
}

/// Queue key that guards datagram queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP1.
    pub const GSI: QKey = QKey(0x8001_0000);
    /// The key rdma_cm gives to datagram services.
    pub const RDMA_UDP: QKey = QKey(0x0123_4567);

    /// Bit 31 marks keys that only privileged users may set, and, in a work request, "use my queue
    /// pair's own key".
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({:#010x})", self.0)
    }
}

/// Remote key of a memory region or window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RKey(pub u32);

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#010x})", self.0)
    }
}

/// Largest payload of one packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PathMtu {
    Mtu256 = 1,
    Mtu512 = 2,
    Mtu1024 = 3,
    Mtu2048 = 4,
    Mtu4096 = 5,
}

impl PathMtu {
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Room that a link MTU must leave for headers: GRH 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28,
    /// ICRC 4. This is what Linux subtracts, so both ends pick the same path MTU.
    const LINK_OVERHEAD: u32 = 96;

    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// The code used by `ibv_mtu` and by CM messages.
    pub const fn code(self) -> u8 {
        self as u8
    }

    pub const fn from_code(code: u8) -> Option<PathMtu> {
        match code {
            1 => Some(PathMtu::Mtu256),
            2 => Some(PathMtu::Mtu512),
            3 => Some(PathMtu::Mtu1024),
            4 => Some(PathMtu::Mtu2048),
            5 => Some(PathMtu::Mtu4096),
            _ => None,
        }
    }

    /// Largest path MTU that fits a link MTU in bytes; `None` when not even 256 fits.
    pub fn for_link_mtu(link_mtu: u32) -> Option<PathMtu> {
        let room = link_mtu.saturating_sub(Self::LINK_OVERHEAD);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() as u32 <= room)
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Global identifier: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub const ZERO: Gid = Gid([0; 16]);

    pub const fn from_ip(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }

    /// The address this GID stands for; IPv4-mapped GIDs give an IPv4 address.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    pub fn is_ipv4(self) -> bool {
        self.to_ip().is_ipv4()
    }

    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Gid {
        Gid::from_ip(IpAddr::V4(ip))
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Gid {
        Gid::from_ip(IpAddr::V6(ip))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps() {
        let near_end = Psn::new(0xff_fffe);
        assert_eq!(near_end.wrapping_add(3), Psn::new(1));
        assert_eq!(Psn::new(1).distance_from(near_end), 3);
        assert_eq!(near_end.distance_from(Psn::new(1)), -3);
        assert_eq!(Psn::new(1).wrapping_sub(3), near_end);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::ZERO), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::ZERO), (1 << 23) - 1);
        assert_eq!(Psn::new(0xff00_0001), Psn::new(1));
    }

    #[test]
    fn path_mtu_leaves_room_for_headers() {
        let cases = [(351, None), (352, Some(256)), (1500, Some(1024)), (4191, Some(2048))];
        for (link, bytes) in cases {
            assert_eq!(PathMtu::for_link_mtu(link).map(PathMtu::bytes), bytes, "link MTU {link}");
        }
        assert_eq!(PathMtu::for_link_mtu(4192), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::for_link_mtu(u32::MAX), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::for_link_mtu(0), None);
        for mtu in PathMtu::ALL {
            assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
    }

    #[test]
    fn pkey_needs_one_full_member() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0xffff).matches(PKey(0xfffe)));
    }

    #[test]
    fn gid_maps_ipv4() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.to_ip(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(gid.0[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert!(!gid.is_zero() && Gid::ZERO.is_zero());
        let v6: Ipv6Addr = "fe80::1".parse().expect("address");
        assert_eq!(Gid::from(v6).to_ip(), IpAddr::V6(v6));
    }
}
