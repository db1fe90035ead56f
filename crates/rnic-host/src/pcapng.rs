//! Capture files: pcapng with one Ethernet interface, for Wireshark, tshark, tcpdump and
//! `rnic explain`.
//!
//! The crate pcap-file would only take the place of `Block`, some forty lines, and bring second
//! versions of syn and thiserror into the daemon.

use crate::observe::Captured;
use std::io::{self, Write};
use std::time::SystemTime;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const OPTION_COMMENT: u16 = 1;
const LINKTYPE_ETHERNET: u16 = 1;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;
const OPTION_EPB_DROPCOUNT: u16 = 4;
const OPTION_ISB_IFRECV: u16 = 4;
const OPTION_ISB_IFDROP: u16 = 5;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Time stamps are in 10^-9 s.
const NANOSECONDS: u8 = 9;

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

/// Writes one frame and what is said of it; `dropped` frames before it were lost.
///
/// # Errors
/// As the writer's.
pub fn write_frame(
    to: &mut impl Write,
    captured: &Captured,
    comment: &str,
    dropped: u64,
) -> io::Result<()> {
    let [high, low] = time(captured.at);
    let len = (captured.frame.len() as u32).to_le_bytes();
    let flags = if captured.way.is_own() { OUTBOUND } else { INBOUND };
    let mut block = Block::new(PACKET)
        .add(&0u32.to_le_bytes())
        .add(&high)
        .add(&low)
        .add(&len)
        .add(&len)
        .add(&captured.frame)
        .option(OPTION_EPB_FLAGS, &flags.to_le_bytes());
    if dropped > 0 {
        block = block.option(OPTION_EPB_DROPCOUNT, &dropped.to_le_bytes());
    }
    if !comment.is_empty() {
        block = block.option(OPTION_COMMENT, comment.as_bytes());
    }
    to.write_all(&block.finish())
}

/// Writes how many frames came by, and how many of them were lost.
///
/// # Errors
/// As the writer's.
pub fn write_statistics(
    to: &mut impl Write,
    at: SystemTime,
    received: u64,
    dropped: u64,
) -> io::Result<()> {
    let [high, low] = time(at);
    let block = Block::new(STATISTICS)
        .add(&0u32.to_le_bytes())
        .add(&high)
        .add(&low)
        .option(OPTION_ISB_IFRECV, &received.to_le_bytes())
        .option(OPTION_ISB_IFDROP, &dropped.to_le_bytes());
    to.write_all(&block.finish())
}

/// Upper and lower half of a time stamp.
fn time(at: SystemTime) -> [[u8; 4]; 2] {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanos = since.as_nanos() as u64;
    [(nanos >> 32) as u32, nanos as u32].map(u32::to_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Way;

    /// Kinds and lengths of the blocks of a file.
    fn blocks(mut file: &[u8]) -> Vec<(u32, usize)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (kind, len) = (word(file), word(&file[4..]) as usize);
            assert_eq!(word(&file[len - 4..]) as usize, len, "the length stands at both ends");
            blocks.push((kind, len));
            file = &file[len..];
        }
        blocks
    }

    #[test]
    fn a_file_has_a_block_for_each_frame_and_one_for_what_was_lost() {
        let mut file = Vec::new();
        write_head(&mut file, "rnic0").unwrap();
        let captured =
            Captured { at: SystemTime::UNIX_EPOCH, way: Way::Received, frame: vec![7; 61] };
        write_frame(&mut file, &captured, "", 0).unwrap();
        write_frame(&mut file, &captured, "dropped: icrc", 3).unwrap();
        write_statistics(&mut file, SystemTime::UNIX_EPOCH, 5, 3).unwrap();
        let kinds: Vec<_> = blocks(&file).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE, PACKET, PACKET, STATISTICS]);
        let has = |text: &[u8]| file.windows(text.len()).any(|bytes| bytes == text);
        assert!(has(b"dropped: icrc") && has(&[OPTION_ISB_IFDROP as u8, 0, 8, 0, 3, 0]));
    }
}
