//! RoCEv2 frames as bytes, independent of our own crates: to check frames, and to forge them; and
//! the wire that they go by.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pnet_datalink::{self as datalink, Channel, Config, DataLinkReceiver, DataLinkSender};

/// Bytes of an Ethernet header without a VLAN tag.
const ETHERNET: usize = 14;
const UDP_HEADER: usize = 8;
const BTH: usize = 12;
const ICRC: usize = 4;

/// A frame with an IP and a UDP header whose lengths are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: Vec<u8>,
    udp: usize,
    end: usize,
}

impl Frame {
    /// A frame, when it is IPv4 without options or IPv6 without extension headers, and holds at
    /// least a BTH and an ICRC.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let udp = match (bytes.get(ETHERNET)? >> 4, be16(bytes, 12)?) {
            (4, 0x0800) => ETHERNET + 20,
            (6, 0x86dd) => ETHERNET + 40,
            _ => return None,
        };
        let is_roce = be16(bytes, udp + 2)? == 4791;
        let length = usize::from(be16(bytes, udp + 4)?);
        let end = udp + length;
        let whole = length >= UDP_HEADER + BTH + ICRC && end <= bytes.len();
        (is_roce && whole).then(|| Self { bytes: bytes.to_vec(), udp, end })
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the BTH is.
    #[must_use]
    pub fn bth(&self) -> usize {
        self.udp + UDP_HEADER
    }

    /// The BTH's opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.bytes[self.bth()]
    }

    /// The PSN.
    #[must_use]
    pub fn psn(&self) -> u32 {
        u32::from_be_bytes(self.array(self.bth() + 8)) & 0x00ff_ffff
    }

    /// Changes one byte behind the Ethernet header; everything else stays as it is.
    pub fn set(&mut self, at: usize, value: u8) {
        self.bytes[at] = value;
    }

    /// Changes the PSN.
    pub fn set_psn(&mut self, psn: u32) {
        let at = self.bth() + 9;
        self.bytes[at..at + 3].copy_from_slice(&psn.to_be_bytes()[1..]);
    }

    /// Changes the destination QP number.
    pub fn set_qpn(&mut self, qpn: u32) {
        let at = self.bth() + 5;
        self.bytes[at..at + 3].copy_from_slice(&qpn.to_be_bytes()[1..]);
    }

    /// Changes the last byte of the source address.
    pub fn set_source_host(&mut self, host: u8) {
        let at = if self.is_v6() { ETHERNET + 23 } else { ETHERNET + 15 };
        self.bytes[at] = host;
    }

    /// Removes the UDP checksum, where IPv4 allows it, so that damage is found by the ICRC check
    /// and not by the kernel before it.
    pub fn leave_udp_checksum_out(&mut self) {
        if !self.is_v6() {
            let at = self.udp + 6;
            self.bytes[at..at + 2].fill(0);
        }
    }

    /// Recomputes checksums after changes: IPv4 header and ICRC. The UDP checksum is removed where
    /// IPv4 allows that, and computed over IPv6.
    pub fn seal(&mut self) {
        let at = self.end - ICRC;
        let icrc = self.computed_icrc();
        self.bytes[at..self.end].copy_from_slice(&icrc.to_le_bytes());
        let udp_sum = self.udp + 6;
        self.bytes[udp_sum..udp_sum + 2].fill(0);
        if self.is_v6() {
            let length = self.end - self.udp;
            let pseudo = ones_sum(&self.bytes[ETHERNET + 8..self.end]);
            let sum = fold(pseudo + length as u64 + 17);
            self.bytes[udp_sum..udp_sum + 2].copy_from_slice(&(!sum).to_be_bytes());
        } else {
            self.bytes[ETHERNET + 10..ETHERNET + 12].fill(0);
            let sum = !fold(ones_sum(&self.bytes[ETHERNET..ETHERNET + 20]));
            self.bytes[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// The ICRC that the frame carries.
    #[must_use]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.array(self.end - ICRC))
    }

    /// The ICRC that it should carry.
    ///
    /// RoCEv2 annex: a CRC-32 over eight bytes of ones (the missing LRH) and the packet from its
    /// IP header on, with ones instead of the fields that a router may change.
    #[must_use]
    pub fn computed_icrc(&self) -> u32 {
        let mut packet = self.bytes[ETHERNET..self.end - ICRC].to_vec();
        let udp = self.udp - ETHERNET;
        if self.is_v6() {
            // Traffic class and flow label, hop limit.
            packet[0] |= 0x0f;
            packet[1..4].fill(0xff);
            packet[7] = 0xff;
        } else {
            // Type of service, time to live, header checksum.
            for at in [1, 8, 10, 11] {
                packet[at] = 0xff;
            }
        }
        // UDP checksum; the byte of FECN and BECN.
        for at in [udp + 6, udp + 7, udp + UDP_HEADER + 4] {
            packet[at] = 0xff;
        }
        crc32([0xff; 8].iter().chain(&packet).copied())
    }

    fn is_v6(&self) -> bool {
        self.udp == ETHERNET + 40
    }

    fn array(&self, at: usize) -> [u8; 4] {
        [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]
    }
}

/// The wire at an interface of this namespace: to send frames on it, and to receive them.
///
/// # Errors
/// When there is no such interface, or the kernel refuses a packet socket.
pub fn open_wire(interface: &str) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    let all = datalink::interfaces();
    let port = all.into_iter().find(|port| port.name == interface).context("no such interface")?;
    let config = Config {
        read_timeout: Some(Duration::from_millis(1)),
        read_buffer_size: 8192,
        write_buffer_size: 8192,
        ..Config::default()
    };
    match datalink::channel(&port, config)? {
        Channel::Ethernet(tx, rx) => Ok((tx, rx)),
        _ => bail!("no Ethernet interface"),
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The RFC 1071 sum, not yet folded.
fn ones_sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs.map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or_default()
}

/// CRC-32 of IEEE 802.3, a byte at a time.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(u32::MAX, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)])
}

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_of_the_check_string() {
        assert_eq!(crc32(b"123456789".iter().copied()), 0xcbf4_3926);
    }

    /// An acknowledgement from 10.77.0.2 to 10.77.0.1, sealed here.
    fn acknowledgement() -> Frame {
        let mut bytes = vec![0; 14 + 20 + 8 + 12 + 4 + 4];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34].copy_from_slice(&[
            0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1,
        ]);
        bytes[34..42].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        bytes[42] = 0x11;
        let mut frame = Frame::parse(&bytes).expect("a frame");
        frame.set_psn(0x12_3456);
        frame.seal();
        frame
    }

    #[test]
    fn a_sealed_frame_is_right_until_it_is_changed() {
        let mut frame = acknowledgement();
        assert_eq!((frame.opcode(), frame.psn()), (0x11, 0x12_3456));
        assert_eq!(frame.icrc(), frame.computed_icrc());
        assert_eq!(fold(ones_sum(&frame.bytes[14..34])), 0xffff);
        // The ICRC ignores the TTL, which routers change, and covers the PSN.
        frame.set(22, 3);
        assert_eq!(frame.icrc(), frame.computed_icrc());
        frame.set_psn(0x12_3457);
        assert_ne!(frame.icrc(), frame.computed_icrc());
    }

    #[test]
    fn what_is_too_short_or_something_else_is_no_frame() {
        let frame = acknowledgement();
        assert!(Frame::parse(&frame.bytes[..40]).is_none());
        assert!(Frame::parse(&[]).is_none());
        let mut other = frame.bytes;
        other[36] = 0;
        assert!(Frame::parse(&other).is_none());
    }
}
