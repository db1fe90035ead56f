//! Capture files: pcapng with one Ethernet interface, written by the daemon and read back by
//! `rnic capture`. Other tools (Wireshark, tshark, tcpdump) read the same.
//!
//! The crate pcap-file would only take the place of `Block`, some forty lines, and bring second
//! versions of syn and thiserror into the daemon. Its reader would not replace ours, which passes
//! whole blocks on as they are and understands one kind.

use crate::wire::Captured;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;
const OPTION_EPB_DROPCOUNT: u16 = 4;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Time stamps are in 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Bytes around a block's body: type, length, length again.
const AROUND: usize = 12;
/// Longest block that is read back.
const LONGEST: usize = 128 * 1024;
/// Body of a packet block before the frame.
const PACKET_HEADER: usize = 20;

/// A block being built.
struct Block(Vec<u8>);

impl Block {
    fn new(kind: u32) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        Self(bytes)
    }

    fn add(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn option(self, kind: u16, value: &[u8]) -> Self {
        let [a, b] = kind.to_le_bytes();
        let [c, d] = (value.len() as u16).to_le_bytes();
        self.add(&[a, b, c, d]).add(value)
    }

    fn finish(self) -> Vec<u8> {
        let mut bytes = self.option(0, &[]).0;
        let len = (bytes.len() as u32 + 4).to_le_bytes();
        bytes[4..8].copy_from_slice(&len);
        bytes.extend(len);
        bytes
    }
}

/// Writes the head of a file: one interface called `name`.
pub fn write_head(to: &mut impl Write, name: &str) -> io::Result<()> {
    let section = Block::new(SECTION_HEADER)
        .add(&BYTE_ORDER.to_le_bytes())
        .add(&[1, 0, 0, 0])
        .add(&u64::MAX.to_le_bytes());
    let [link_low, link_high] = LINKTYPE_ETHERNET.to_le_bytes();
    let interface = Block::new(INTERFACE)
        .add(&[link_low, link_high, 0, 0, 0, 0, 0, 0])
        .option(OPTION_IF_NAME, name.as_bytes())
        .option(OPTION_IF_TSRESOL, &[NANOSECONDS]);
    to.write_all(&section.finish())?;
    to.write_all(&interface.finish())
}

/// Writes one frame; `dropped` frames before it were lost.
pub fn write_frame(to: &mut impl Write, captured: &Captured, dropped: u64) -> io::Result<()> {
    let since = captured.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanos = since.as_nanos() as u64;
    let len = (captured.frame.len() as u32).to_le_bytes();
    let flags = if captured.sent { OUTBOUND } else { INBOUND };
    let mut block = Block::new(PACKET)
        .add(&0u32.to_le_bytes())
        .add(&((nanos >> 32) as u32).to_le_bytes())
        .add(&(nanos as u32).to_le_bytes())
        .add(&len)
        .add(&len)
        .add(&captured.frame)
        .option(OPTION_EPB_FLAGS, &flags.to_le_bytes());
    if dropped > 0 {
        block = block.option(OPTION_EPB_DROPCOUNT, &dropped.to_le_bytes());
    }
    to.write_all(&block.finish())
}

/// Reads the next block; `None` at the end.
///
/// # Errors
/// `InvalidData` for what [`write_head`] and [`write_frame`] do not write; as the reader.
pub fn read_block(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 8];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32_at(&head, 4).unwrap_or(0) as usize;
    if !(AROUND..=LONGEST).contains(&len) || !len.is_multiple_of(4) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a pcapng block"));
    }
    let mut block = vec![0; len];
    block[..8].copy_from_slice(&head);
    from.read_exact(&mut block[8..])?;
    Ok(Some(block))
}

/// The frame in a block; `None` when it is a block of another kind.
pub fn frame_in(block: &[u8]) -> Option<Captured> {
    if u32_at(block, 0)? != PACKET {
        return None;
    }
    let nanos = u64::from(u32_at(block, 12)?) << 32 | u64::from(u32_at(block, 16)?);
    let len = u32_at(block, 20)? as usize;
    let frame = block.get(8 + PACKET_HEADER..)?.get(..len)?.to_vec();
    let options = 8 + PACKET_HEADER + len.next_multiple_of(4);
    let sent = u32_at(block, options + 4)? == OUTBOUND;
    Some(Captured { at: SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos), sent, frame })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_back_as_they_were_written() {
        let mut file = Vec::new();
        write_head(&mut file, "rnic0").unwrap();
        let all: Vec<_> = (0..9u8)
            .map(|i| Captured {
                at: SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789),
                sent: i % 2 == 0,
                frame: vec![i; 60 + usize::from(i)],
            })
            .collect();
        for captured in &all {
            write_frame(&mut file, captured, u64::from(captured.sent)).unwrap();
        }
        assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
        let (mut rest, mut seen, mut blocks) = (&file[..], Vec::new(), 0);
        while let Some(block) = read_block(&mut rest).unwrap() {
            assert_eq!(block[4..8], block[block.len() - 4..], "the length stands at both ends");
            seen.extend(frame_in(&block));
            blocks += 1;
        }
        assert_eq!((seen, blocks), (all, 11));
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(read_block(&mut &[0u8; 64][..]).is_err());
        assert!(read_block(&mut &[0xffu8; 64][..]).is_err());
        assert_eq!(read_block(&mut &[0u8; 3][..]).unwrap(), None);
        assert_eq!(frame_in(&[6, 0, 0, 0]), None);
        assert_eq!(frame_in(&[0xff; 40]), None);
    }
}
