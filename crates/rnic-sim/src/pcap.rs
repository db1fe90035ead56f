//! A pcap file of what the links carried, for a world that failed.

use rnic_core::time::Instant;
use roce_wire::{Flow, FrameHeader, MacAddr};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;

/// The last datagrams that links carried, as many as fit into a number of bytes.
#[derive(Debug)]
pub struct Capture {
    packets: VecDeque<Captured>,
    bytes: usize,
    limit: usize,
}

#[derive(Debug)]
struct Captured {
    at: Instant,
    flow: Flow,
    ip_id: u16,
    bytes: Rc<[u8]>,
}

/// Magic number of classic pcap with nanosecond timestamps.
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 65_535;
const NANOS: u64 = 1_000_000_000;

impl Capture {
    /// Keeps the last `limit` bytes of datagrams.
    pub fn new(limit: usize) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, limit }
    }

    /// Remembers a datagram that left a host, before any fault.
    pub(crate) fn record(&mut self, at: Instant, flow: Flow, ip_id: u16, bytes: Rc<[u8]>) {
        self.bytes += bytes.len();
        self.packets.push_back(Captured { at, flow, ip_id, bytes });
        while self.bytes > self.limit {
            let Some(oldest) = self.packets.pop_front() else { break };
            self.bytes -= oldest.bytes.len();
        }
    }

    /// Datagrams kept.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Nothing was kept.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Writes a file that Wireshark opens.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC_NANOS.to_le_bytes())?;
        out.write_all(&2u16.to_le_bytes())?;
        out.write_all(&4u16.to_le_bytes())?;
        for field in [0, 0, SNAP_LEN, LINK_TYPE_ETHERNET] {
            out.write_all(&field.to_le_bytes())?;
        }
        for packet in &self.packets {
            packet.write(out)?;
        }
        Ok(())
    }
}

impl Captured {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let header = FrameHeader {
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan: None,
            flow: self.flow,
        };
        let mut front = [0; FrameHeader::MAX_LEN];
        let front_len = header.emit(self.ip_id, self.bytes.len(), &mut front);
        let len = as_u32(front_len + self.bytes.len());
        let nanos = self.at.as_nanos();
        let seconds = u32::try_from(nanos / NANOS).unwrap_or(u32::MAX);
        let fraction = u32::try_from(nanos % NANOS).unwrap_or(0);
        for field in [seconds, fraction, len, len] {
            out.write_all(&field.to_le_bytes())?;
        }
        out.write_all(&front[..front_len])?;
        out.write_all(&self.bytes)
    }
}

fn as_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
