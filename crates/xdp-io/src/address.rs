//! Socket addresses as the bytes the kernel reads and writes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Length of `sockaddr_in`.
const SOCKADDR_IN: usize = 16;
/// Length of `sockaddr_in6`, the longest address this crate exchanges.
pub(crate) const SOCKADDR_MAX: usize = 28;

/// A socket address in the kernel's layout, with the alignment the kernel's structures have.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SockAddr {
    bytes: [u8; SOCKADDR_MAX],
    len: u32,
}

impl SockAddr {
    /// No address; as receive buffer.
    pub(crate) const EMPTY: SockAddr = SockAddr { bytes: [0; SOCKADDR_MAX], len: 0 };

    /// Encodes `address`.
    pub(crate) fn new(address: &SocketAddr) -> SockAddr {
        let mut encoded = SockAddr::EMPTY;
        let bytes = &mut encoded.bytes;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                encoded.len = SOCKADDR_IN as u32;
            }
            SocketAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                encoded.len = SOCKADDR_MAX as u32;
            }
        }
        encoded
    }

    /// The encoded bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.received(self.len as usize)
    }

    /// The first `len` bytes, for a buffer that the kernel filled.
    pub(crate) fn received(&self, len: usize) -> &[u8] {
        &self.bytes[..len.min(SOCKADDR_MAX)]
    }
}

/// Decodes an IPv4 or IPv6 socket address; `None` for anything else.
pub(crate) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope)))
        }
        _ => None,
    }
}

/// Whether it takes an interface to tell which address this is.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// `address` with `port`; a link-local IPv6 address gets `scope` (an interface index).
pub(crate) fn scoped(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => {
            SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope))
        }
        _ => SocketAddr::new(address, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        for text in ["1.2.3.4:4791", "[2001:db8::7]:1", "[fe80::1%5]:4791"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(SockAddr::new(&address).as_bytes()), Some(address));
        }
    }

    #[test]
    fn short_or_foreign_input_is_none() {
        let address = SockAddr::new(&"1.2.3.4:9".parse().unwrap());
        assert_eq!(decode(&address.as_bytes()[..6]), None);
        assert_eq!(decode(&[0xff; 28]), None);
        assert_eq!(decode(&[]), None);
    }
}
