//! A host that sends management datagrams: floods of requests for connections, and what no peer
//! would say. Its frames share no code with the product.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use pnet_datalink::DataLinkSender;

use crate::frame::{Frame, open_wire};
use crate::netns::End;
use crate::sender_core::{front, with_lengths};

/// Bytes of a management datagram.
const MAD: usize = 256;
/// Attribute identifiers: REQ and the last one.
const REQ: u8 = 0x10;
const APR: u8 = 0x1a;

/// The sender, on the wire of a host.
pub struct MadFlood {
    tx: Box<dyn DataLinkSender>,
    front: Vec<u8>,
    addresses: (Ipv4Addr, Ipv4Addr),
    numbers: fastrand::Rng,
    psn: u32,
}

impl MadFlood {
    /// From this end of a link to the host with this address, whose interface has this MAC address.
    ///
    /// # Errors
    /// When the interface cannot be opened.
    pub fn new(end: &End, (host, mac): (Ipv4Addr, &str)) -> Result<Self> {
        let (tx, _) = end.netns.enter(|| open_wire(End::INTERFACE))??;
        let addresses = (end.ipv4, host);
        let front = front((&end.mac, mac), addresses)?;
        Ok(Self { tx, front, addresses, numbers: fastrand::Rng::with_seed(5), psn: 0 })
    }

    /// A good request for a connection to this port, of a queue pair that has none yet.
    #[must_use]
    pub fn request(&mut self, number: u32, port: u16) -> Vec<u8> {
        let (own, host) = (self.addresses.0.to_ipv6_mapped(), self.addresses.1.to_ipv6_mapped());
        let mut mad = header(REQ);
        put(&mut mad, 24, &number.to_be_bytes());
        put(&mut mad, 32, &(0x0106_0000 | u64::from(port)).to_be_bytes());
        put(&mut mad, 56, &(0x200 + number).to_be_bytes()[1..]);
        // Answers take up to 4 s, RC, 15 retries; path MTU 1024.
        mad[67] = 20 << 3;
        mad[71] = 20 << 3;
        put(&mut mad, 72, &[0xff, 0xff, 3 << 4, 15 << 4]);
        put(&mut mad, 76, &[0xff; 4]);
        put(&mut mad, 80, &own.octets());
        put(&mut mad, 96, &host.octets());
        mad[117] = 64;
        // The header of rdma_cm: IPv4, port, source and destination.
        put(&mut mad, 165, &[0x40]);
        put(&mut mad, 166, &number.to_be_bytes()[2..]);
        put(&mut mad, 180, &self.addresses.0.octets());
        put(&mut mad, 196, &self.addresses.1.octets());
        mad
    }

    /// A message of any kind with any content, of which some are cut short or too long.
    #[must_use]
    pub fn nonsense(&mut self) -> Vec<u8> {
        let mut mad = header(REQ + self.numbers.u8(..=APR - REQ));
        match self.numbers.u8(..8) {
            0 => mad[..24].fill_with(|| self.numbers.u8(..)),
            1 => mad.truncate(4 * self.numbers.usize(..MAD / 4)),
            2 => mad.extend([0; 64]),
            _ => mad[24..].fill_with(|| self.numbers.u8(..)),
        }
        mad
    }

    /// Sends it to QP1. False when the wire has no room, or the message no right length.
    ///
    /// # Errors
    /// When the wire is gone.
    pub fn send(&mut self, mad: &[u8]) -> Result<bool> {
        /// SEND only, of a datagram.
        const OPCODE: u8 = 0x64;
        const ICRC: usize = 4;
        self.psn = (self.psn + 1) & 0x00ff_ffff;
        let mut roce = vec![OPCODE, 0, 0xff, 0xff, 0, 0, 0, 1];
        roce.extend(self.psn.to_be_bytes());
        // Q_Key and queue pair of management.
        roce.extend(0x8001_0000_u32.to_be_bytes());
        roce.extend(1_u32.to_be_bytes());
        roce.extend(mad);
        roce.extend([0; ICRC]);
        let bytes = with_lengths(&self.front, &roce)?;
        let mut frame = Frame::parse(&bytes).context("no frame")?;
        frame.seal();
        Ok(self.tx.send_to(frame.bytes(), None).is_some_and(|sent| sent.is_ok()))
    }
}

/// Of the class of connection management: a method that is sent.
fn header(attribute: u8) -> Vec<u8> {
    let mut mad = vec![0; MAD];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    mad
}

fn put(mad: &mut [u8], at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}
