//! The blocks of a pcapng file.

use super::{FileError, Found, Input, Interface, LONGEST, LinkType};
use std::io::Read;
use std::time::Duration;

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;
const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_RESOLUTION: u16 = 9;
/// Bytes around the body of a block: type and length before it, length behind it.
const AROUND: usize = 12;
/// Body of a packet block before the packet; behind it are only options.
const PACKET_HEAD: usize = 20;
const INTERFACE_HEAD: usize = 8;
const SIMPLE_PACKET_HEAD: usize = 4;
/// A hostile file does not make us keep more.
const MOST_INTERFACES: usize = 4096;
const MICROSECONDS: u64 = 1_000_000;

impl<R: Read> Input<R> {
    /// Reads a section header behind its type, which is the same in either byte order.
    pub(super) fn section(&mut self) -> Result<(), FileError> {
        self.fill_all(8)?;
        self.big_endian = match u32::from_le_bytes(self.array(4)) {
            BYTE_ORDER => false,
            other if other.swap_bytes() == BYTE_ORDER => true,
            _ => return Err(self.damaged("a section has no byte order")),
        };
        let len = self.number(0) as usize;
        let rest = len.checked_sub(AROUND + 4).filter(|_| len.is_multiple_of(4));
        let rest = rest.ok_or_else(|| self.damaged("a section header has an impossible length"))?;
        Ok(self.skip(rest as u64 + 4)?)
    }

    /// Reads blocks up to the next packet. A packet without a time has the `last` one.
    pub(super) fn next_block(
        &mut self,
        interfaces: &mut Vec<Interface>,
        last: Duration,
    ) -> Result<Option<Found>, FileError> {
        while self.fill(4)? {
            let kind = self.number(0);
            if kind == SECTION_HEADER {
                interfaces.clear();
                self.section()?;
                continue;
            }
            self.fill_all(4)?;
            let len = self.number(0) as usize;
            let body = len.checked_sub(AROUND).filter(|_| len.is_multiple_of(4));
            let body = body.ok_or_else(|| self.damaged("a block has an impossible length"))?;
            if !matches!(kind, INTERFACE | PACKET | SIMPLE_PACKET) {
                self.skip(body as u64 + 4)?;
                continue;
            }
            if body > LONGEST {
                return Err(self.damaged("a block is longer than any packet"));
            }
            let head = match kind {
                INTERFACE => INTERFACE_HEAD,
                PACKET => PACKET_HEAD,
                _ => SIMPLE_PACKET_HEAD,
            };
            if body < head {
                return Err(self.damaged("a block is too short for its kind"));
            }
            self.fill_all(body + 4)?;
            self.buffer.truncate(body);
            match kind {
                INTERFACE => self.interface(interfaces)?,
                PACKET => return self.packet(interfaces).map(Some),
                _ => return self.simple_packet(interfaces, last).map(Some),
            }
        }
        Ok(None)
    }

    fn interface(&mut self, interfaces: &mut Vec<Interface>) -> Result<(), FileError> {
        if interfaces.len() == MOST_INTERFACES {
            return Err(self.damaged("there are too many interfaces"));
        }
        let link = LinkType(u32::from(self.short(0)));
        let mut units = MICROSECONDS;
        let mut at = INTERFACE_HEAD;
        while at + 4 <= self.buffer.len() {
            let (option, len) = (self.short(at), usize::from(self.short(at + 2)));
            match (option, self.buffer.get(at + 4)) {
                (OPTION_END, _) => break,
                (OPTION_RESOLUTION, Some(&code)) if len == 1 => {
                    units = units_of(code)
                        .ok_or_else(|| self.damaged("an interface has an impossible clock"))?;
                }
                _ => {}
            }
            at += 4 + len.next_multiple_of(4);
        }
        interfaces.push(Interface { link, units });
        Ok(())
    }

    fn packet(&self, interfaces: &[Interface]) -> Result<Found, FileError> {
        let interface = interfaces.get(self.number(0) as usize);
        let interface =
            *interface.ok_or_else(|| self.damaged("a packet is of no known interface"))?;
        let time = u64::from(self.number(4)) << 32 | u64::from(self.number(8));
        let (len, whole_len) = (self.number(12) as usize, self.number(16) as usize);
        if len > self.buffer.len().saturating_sub(PACKET_HEAD) {
            return Err(self.damaged("a packet is longer than its block"));
        }
        let parts = u128::from(time % interface.units) * 1_000_000_000;
        let nanos = (parts / u128::from(interface.units)) as u32;
        let at = Duration::new(time / interface.units, nanos);
        let comment = self.comment(PACKET_HEAD + len.next_multiple_of(4));
        Ok(Found { at, link: interface.link, start: PACKET_HEAD, len, whole_len, comment })
    }

    /// Where the first comment begins among the options that begin here, and its length.
    fn comment(&self, mut at: usize) -> (usize, usize) {
        while at + 4 <= self.buffer.len() {
            let (option, len) = (self.short(at), usize::from(self.short(at + 2)));
            match option {
                OPTION_END => break,
                OPTION_COMMENT => return (at + 4, len),
                _ => at += 4 + len.next_multiple_of(4),
            }
        }
        (0, 0)
    }

    /// It is of the first interface, and all of it that the block has room for.
    fn simple_packet(&self, interfaces: &[Interface], at: Duration) -> Result<Found, FileError> {
        let interface = interfaces.first();
        let link = interface.ok_or_else(|| self.damaged("a packet is of no known interface"))?.link;
        let whole_len = self.number(0) as usize;
        let len = whole_len.min(self.buffer.len().saturating_sub(SIMPLE_PACKET_HEAD));
        Ok(Found { at, link, start: SIMPLE_PACKET_HEAD, len, whole_len, comment: (0, 0) })
    }
}

/// Units of time in a second: a power of ten, or of two where the upper bit is set.
fn units_of(code: u8) -> Option<u64> {
    let exponent = u32::from(code & 0x7f);
    if code & 0x80 == 0 { 10u64.checked_pow(exponent) } else { 2u64.checked_pow(exponent) }
}
