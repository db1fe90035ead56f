//! How rdma_cm names services and tells addresses: service identifiers and the header it puts in
//! front of the application's private data in a REQ or SIDR_REQ.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// rdma_cm's port spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    IpOverIb = 0x0002,
    /// Connected queue pairs.
    Tcp = 0x0106,
    /// Datagram queue pairs.
    Udp = 0x0111,
    Ib = 0x013f,
}

impl PortSpace {
    pub const fn from_u16(value: u16) -> Option<PortSpace> {
        match value {
            0x0002 => Some(PortSpace::IpOverIb),
            0x0106 => Some(PortSpace::Tcp),
            0x0111 => Some(PortSpace::Udp),
            0x013f => Some(PortSpace::Ib),
            _ => None,
        }
    }
}

/// The service identifier of a port.
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space as u64) << 16 | port as u64
}

/// Port space and port of a service identifier that rdma_cm made; `None` for other services.
pub fn service_id_parts(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = u16::try_from(service_id >> 16).ok()?;
    Some((PortSpace::from_u16(space)?, service_id as u16))
}

/// The header in front of private data: the IP addresses and port rdma_cm connects from and to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmaHeader {
    pub src_port: u16,
    pub src: IpAddr,
    pub dst: IpAddr,
}

impl CmaHeader {
    pub const LEN: usize = 36;

    const VERSION: u8 = 0;

    /// Reads the header at the front of private data; `None` if the version is not ours or the
    /// address family is neither IPv4 nor IPv6.
    pub fn parse(private_data: &[u8]) -> Option<CmaHeader> {
        let b = private_data.first_chunk::<{ Self::LEN }>()?;
        if b[0] != Self::VERSION {
            return None;
        }
        let address: fn(&[u8]) -> Option<IpAddr> = match b[1] >> 4 {
            4 => |bytes| Some(Ipv4Addr::from(*bytes.last_chunk::<4>()?).into()),
            6 => |bytes| Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
            _ => return None,
        };
        Some(CmaHeader {
            src_port: u16::from_be_bytes([b[2], b[3]]),
            src: address(&b[4..20])?,
            dst: address(&b[20..36])?,
        })
    }

    /// The header's bytes. Two addresses of different families are both written as IPv6.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = Self::VERSION;
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                b[1] = 0x40;
                b[16..20].copy_from_slice(&src.octets());
                b[32..36].copy_from_slice(&dst.octets());
            }
            (src, dst) => {
                b[1] = 0x60;
                b[4..20].copy_from_slice(&crate::Gid::from_ip(src).0);
                b[20..36].copy_from_slice(&crate::Gid::from_ip(dst).0);
            }
        }
        b
    }
}
