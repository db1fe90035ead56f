//! Ethernet frames built by hand.

use std::net::IpAddr;

/// What a test frame carries. The checksum of the IPv4 header is right, the UDP checksum 0.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) src_mac: [u8; 6],
    pub(crate) dst_mac: [u8; 6],
    /// VLAN tags, outermost first: (TPID, TCI).
    pub(crate) tags: Vec<(u16, u16)>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// IPv4 flags and fragment offset.
    pub(crate) fragment: u16,
    /// IPv4 identification.
    pub(crate) id: u16,
    /// IPv4 options, or IPv6 extension header bytes; a multiple of 4 (8) bytes.
    pub(crate) extra: Vec<u8>,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn udp(
        macs: ([u8; 6], [u8; 6]),
        ips: (IpAddr, IpAddr),
        port: u16,
        payload: Vec<u8>,
    ) -> Frame {
        Frame {
            src_mac: macs.0,
            dst_mac: macs.1,
            tags: Vec::new(),
            src: ips.0,
            dst: ips.1,
            protocol: 17,
            fragment: 0x4000,
            id: 0,
            extra: Vec::new(),
            src_port: 0xc123,
            dst_port: port,
            payload,
        }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + 80);
        out.extend(self.dst_mac);
        out.extend(self.src_mac);
        for (tpid, tci) in &self.tags {
            out.extend(tpid.to_be_bytes());
            out.extend(tci.to_be_bytes());
        }
        let udp_len = 8 + self.payload.len() as u16;
        let len = udp_len + self.extra.len() as u16;
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out.extend([8, 0]);
                let start = out.len();
                out.extend([0x45 + (self.extra.len() / 4) as u8, 0]);
                out.extend((20 + len).to_be_bytes());
                out.extend(self.id.to_be_bytes());
                out.extend(self.fragment.to_be_bytes());
                out.extend([64, self.protocol, 0, 0]);
                out.extend(src.octets());
                out.extend(dst.octets());
                out.extend(&self.extra);
                let sum = checksum(&out[start..]);
                out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                out.extend(len.to_be_bytes());
                out.extend([if self.extra.is_empty() { self.protocol } else { 0 }, 64]);
                out.extend(src.octets());
                out.extend(dst.octets());
                out.extend(&self.extra);
            }
            _ => panic!("mixed address families"),
        }
        out.extend(self.src_port.to_be_bytes());
        out.extend(self.dst_port.to_be_bytes());
        out.extend(udp_len.to_be_bytes());
        out.extend([0, 0]);
        out.extend(&self.payload);
        out
    }
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 =
        header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

/// Whether a frame without tags is UDP over IPv4: not ARP, say, whose sender may have the same byte
/// in its Ethernet address where IPv4 has the protocol.
pub(crate) fn is_ipv4_udp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 17
}

/// Fills with a sequence that depends on `seed` and the position, so that shifted, mixed or stale
/// bytes show.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    fastrand::Rng::with_seed(seed).fill(bytes);
}

/// A filled vector.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}
