//! Capture files: pcap and pcapng, of either byte order and any resolution of time.
//!
//! One packet is in memory at a time, so that the length of a file does not matter.

mod next_generation;

use std::io::{self, Read};
use std::time::Duration;

/// Longest packet that is read; tcpdump's longest is 256 KiB.
const LONGEST: usize = 1 << 20;

const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
/// Bytes of a pcap file's head, behind the magic number.
const PCAP_HEAD: usize = 20;
/// Bytes before each packet of a pcap file.
const PCAP_RECORD: usize = 16;
/// The upper bits of the link type tell of a frame check sequence, which is ignored.
const LINK_TYPE_BITS: u32 = 0x0fff_ffff;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("this is no capture file: it begins with neither a pcap nor a pcapng header")]
    NoCapture,
    #[error("the file is damaged behind byte {at}: {what}")]
    Damaged { at: u64, what: &'static str },
    #[error("cannot read the file: {0}")]
    Io(#[from] io::Error),
}

/// How the bytes of a packet begin: a number of the tcpdump project's list of link types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkType(pub u32);

/// A packet of the file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Since 1970. Packets without a time have that of the one before.
    pub at: Duration,
    pub link: LinkType,
    /// What was captured of it.
    pub bytes: &'a [u8],
    /// Bytes that it had on the wire.
    pub whole_len: usize,
    /// What the file says of it; empty where it says nothing.
    pub comment: &'a [u8],
}

/// Where a packet lies in the buffer of the reader.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: Duration,
    link: LinkType,
    start: usize,
    len: usize,
    whole_len: usize,
    /// Where its comment begins, and how long that is.
    comment: (usize, usize),
}

#[derive(Debug)]
enum Format {
    Pcap { nanos: bool, link: LinkType },
    NextGeneration { interfaces: Vec<Interface> },
}

/// What a pcapng file says of an interface.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Units of time in a second.
    units: u64,
}

/// Reads the packets of a file, one by one.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    format: Format,
    last: Duration,
    is_cut: bool,
}

/// The bytes of the file, and how numbers in it are stored.
#[derive(Debug)]
struct Input<R> {
    from: R,
    /// The part of the file that is looked at.
    buffer: Vec<u8>,
    position: u64,
    big_endian: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the head of the file.
    ///
    /// # Errors
    /// When it is no capture.
    pub fn new(from: R) -> Result<Self, FileError> {
        let mut input = Input { from, buffer: Vec::new(), position: 0, big_endian: false };
        if !input.fill(4)? {
            return Err(FileError::NoCapture);
        }
        let format = input.recognize()?;
        Ok(Self { input, format, last: Duration::ZERO, is_cut: false })
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// When the file is damaged or cannot be read.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, FileError> {
        let found = match &mut self.format {
            Format::Pcap { nanos, link } => self.input.pcap_record(*nanos, *link),
            Format::NextGeneration { interfaces } => self.input.next_block(interfaces, self.last),
        };
        let found = match found {
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_cut = true;
                return Ok(None);
            }
            other => other?,
        };
        Ok(found.map(|Found { at, link, start, len, whole_len, comment: (said, said_len) }| {
            self.last = at;
            let buffer = &self.input.buffer;
            let comment = buffer.get(said..said + said_len).unwrap_or_default();
            Packet { at, link, bytes: &buffer[start..start + len], whole_len, comment }
        }))
    }

    /// Bytes of the file that were read.
    pub fn position(&self) -> u64 {
        self.input.position
    }

    /// The file ended within a packet: what wrote it was killed, or still runs.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

impl<R: Read> Input<R> {
    fn recognize(&mut self) -> Result<Format, FileError> {
        let little = u32::from_le_bytes(self.array(0));
        if little == next_generation::SECTION_HEADER {
            self.section()?;
            return Ok(Format::NextGeneration { interfaces: Vec::new() });
        }
        for (big_endian, magic) in [(false, little), (true, little.swap_bytes())] {
            if matches!(magic, MAGIC_MICROS | MAGIC_NANOS) {
                self.big_endian = big_endian;
                if !self.fill(PCAP_HEAD)? {
                    return Err(FileError::NoCapture);
                }
                let link = LinkType(self.number(16) & LINK_TYPE_BITS);
                return Ok(Format::Pcap { nanos: magic == MAGIC_NANOS, link });
            }
        }
        Err(FileError::NoCapture)
    }

    fn pcap_record(&mut self, nanos: bool, link: LinkType) -> Result<Option<Found>, FileError> {
        if !self.fill(PCAP_RECORD)? {
            return Ok(None);
        }
        let (seconds, parts) = (u64::from(self.number(0)), u64::from(self.number(4)));
        let (len, whole_len) = (self.number(8) as usize, self.number(12) as usize);
        let at = Duration::from_secs(seconds)
            + Duration::from_nanos(if nanos { parts } else { parts * 1000 });
        if len > LONGEST {
            return Err(self.damaged("a packet is longer than any network's"));
        }
        self.fill_all(len)?;
        Ok(Some(Found { at, link, start: 0, len, whole_len, comment: (0, 0) }))
    }

    /// Puts the next bytes of the file into the buffer; false at the end of the file.
    fn fill(&mut self, len: usize) -> io::Result<bool> {
        self.buffer.resize(len, 0);
        let mut done = 0;
        while done < len {
            match self.from.read(&mut self.buffer[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.position += len as u64;
        Ok(true)
    }

    fn fill_all(&mut self, len: usize) -> io::Result<()> {
        match self.fill(len)? {
            false if len > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Passes over bytes of the file.
    fn skip(&mut self, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let part = len.min(LONGEST as u64);
            self.fill_all(part as usize)?;
            len -= part;
        }
        Ok(())
    }

    /// Bytes of the buffer; zeros behind its end.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let rest = self.buffer.get(at..).unwrap_or_default();
        rest.first_chunk().copied().unwrap_or([0; N])
    }

    fn number(&self, at: usize) -> u32 {
        let bytes = self.array(at);
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn short(&self, at: usize) -> u16 {
        let bytes = self.array(at);
        if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn damaged(&self, what: &'static str) -> FileError {
        FileError::Damaged { at: self.position, what }
    }
}

#[cfg(test)]
mod tests;
