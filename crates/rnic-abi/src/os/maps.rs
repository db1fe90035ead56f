//! What the kernel says about an address space: the lines of `/proc/PID/maps`.

use std::io::{self, Read};
use std::ops::{ControlFlow, Range};

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    /// `rw-p` and the like.
    pub rights: &'a str,
    /// Where in its file it begins.
    pub offset: u64,
    /// Major and minor number of the device with its file.
    pub device: (u32, u32),
    /// Its file there, or 0.
    pub inode: u64,
    /// Name of the file, `[heap]` and the like, or nothing.
    pub name: &'a str,
}

impl<'a> Area<'a> {
    /// Takes a line apart: `55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0     [heap]`.
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = hex(start)?..hex(end)?;
        let rights = fields.next()?;
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = (number(major)?, number(minor)?);
        let inode = fields.next()?.parse().ok()?;
        let name = fields.next().unwrap_or_default().trim();
        Some(Self { range, rights, offset, device, inode, name })
    }
}

/// Shows `visit` each mapping, in order of addresses, until it has seen enough; long names are
/// cut. What another process has mapped may be very long: nothing of it is kept.
///
/// # Errors
/// When reading fails.
pub fn visit(
    mut maps: impl Read,
    mut visit: impl FnMut(&Area<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut piece = [0; PIECE];
    let mut line = Line { bytes: [0; LINE], len: 0 };
    loop {
        let len = match maps.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut parts = piece[..len].split(|byte| *byte == b'\n');
        line.extend(parts.next().unwrap_or_default());
        for next in parts {
            if line.show(&mut visit).is_break() {
                return Ok(());
            }
            line.len = 0;
            line.extend(next);
        }
    }
    let _ = line.show(&mut visit);
    Ok(())
}

/// The beginning of a line.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    fn extend(&mut self, more: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let len = more.len().min(room.len());
        room[..len].copy_from_slice(&more[..len]);
        self.len += len;
    }

    fn show(&self, visit: &mut impl FnMut(&Area<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let text = String::from_utf8_lossy(&self.bytes[..self.len]);
        Area::parse(&text).map_or(ControlFlow::Continue(()), |area| visit(&area))
    }
}

/// Bytes read at a time.
const PIECE: usize = 16 * 1024;
/// Bytes of a line that are looked at; all but the name take less than 100.
const LINE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(buffer.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    #[test]
    fn a_line_is_taken_apart() {
        let line = "7f00-8000 rw-s 00001000 fe:01 77         /memfd:a b (deleted)";
        let area = Area::parse(line).unwrap();
        assert_eq!((area.range.clone(), area.rights), (0x7f00..0x8000, "rw-s"));
        assert_eq!((area.offset, area.device, area.inode), (0x1000, (0xfe, 1), 77));
        assert_eq!(area.name, "/memfd:a b (deleted)");
        assert_eq!(Area::parse("1000-2000 r--p 0 00:00 0").unwrap().name, "");
        for wrong in ["", "1000 rw-p", "VmFlags: rd wr", "x-y rw-p 0 0:0 0", "1-2 rw-p 0 0 0"] {
            assert_eq!(Area::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pieces_of_any_length_give_the_same_lines() {
        let long = "x".repeat(10_000);
        let text = format!(
            "1000-2000 r--p 0 00:00 1 /{long}\n2000-3000 rw-p 0 00:00 0\nnonsense\n\
             5000-6000 rw-p 0 00:00 2 /\u{fc}{long}"
        );
        for step in [1, 2, 3, 100, 4096, 1 << 20] {
            let mut seen = Vec::new();
            let mut note = |area: &Area<'_>| {
                assert!(area.name.len() < LINE + 8);
                seen.push(area.range.start);
                ControlFlow::Continue(())
            };
            visit(Drip(text.as_bytes(), step), &mut note).unwrap();
            assert_eq!(seen, [0x1000, 0x2000, 0x5000], "{step}");
        }
    }

    #[test]
    fn nothing_is_read_after_enough() {
        let text = "1000-2000 r--p 0 00:00 1\n".repeat(100_000);
        let mut rest = Drip(text.as_bytes(), 1000);
        let mut seen = 0;
        let enough = |_: &Area<'_>| {
            seen += 1;
            ControlFlow::Break(())
        };
        visit(&mut rest, enough).unwrap();
        assert_eq!((seen, rest.0.len()), (1, text.len() - 1000));
    }
}
