//! What the kernel says about this process's address space.

use std::{fs, io, ops::Range};

use rnic_abi::os::{Inode, maps};

/// One mapping: a line of `/proc/self/maps`, and what `smaps` adds.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) pages: Range<usize>,
    rights: String,
    offset: u64,
    pub(super) inode: Inode,
    name: String,
    /// `VmFlags`, in `smaps` only.
    flags: Option<String>,
    protection_key: Option<u32>,
}

impl Area {
    /// Whether the program may read and write it.
    pub(super) fn is_writable(&self) -> bool {
        self.rights.starts_with("rw")
    }
}

/// Reads `maps` or `smaps`, in order of addresses.
pub(super) fn read(file: &str) -> io::Result<Vec<Area>> {
    Ok(parse(&fs::read_to_string(format!("/proc/self/{file}"))?))
}

fn parse(text: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in text.lines() {
        if let Some(area) = parse_area(line) {
            areas.push(area);
        } else if let (Some(area), Some((key, value))) = (areas.last_mut(), line.split_once(':')) {
            match key {
                "VmFlags" => area.flags = Some(value.trim().to_owned()),
                "ProtectionKey" => area.protection_key = value.trim().parse().ok(),
                _ => {}
            }
        }
    }
    areas
}

fn parse_area(line: &str) -> Option<Area> {
    let area = maps::Area::parse(line)?;
    let address = |at: u64| usize::try_from(at).ok();
    Some(Area {
        pages: address(area.range.start)?..address(area.range.end)?,
        rights: area.rights.to_owned(),
        offset: area.offset,
        inode: Inode { device: area.device, number: area.inode },
        name: area.name.to_owned(),
        flags: None,
        protection_key: None,
    })
}

/// The mappings that cover a range; `None` when there is a gap.
fn covering<'a>(areas: &'a [Area], pages: &Range<usize>) -> Option<Vec<&'a Area>> {
    let mut next = pages.start;
    let mut found = Vec::new();
    for area in areas {
        if area.pages.end <= next || next >= pages.end {
            continue;
        }
        if area.pages.start > next {
            return None;
        }
        next = area.pages.end;
        found.push(area);
    }
    (next >= pages.end).then_some(found)
}

/// The offset of pages in a file, when all of them map one contiguous part of it.
pub(super) fn offset_in(areas: &[Area], inode: Inode, pages: &Range<usize>) -> Option<u64> {
    let mut expected = None;
    for area in covering(areas, pages)? {
        let into = pages.start.saturating_sub(area.pages.start) as u64;
        let is_next = expected.is_none_or(|(_, offset)| offset == area.offset);
        if area.inode != inode || area.rights != "rw-s" || !is_next {
            return None;
        }
        let (first, _) = expected.unwrap_or((area.offset + into, 0));
        expected = Some((first, area.offset + area.pages.len() as u64));
    }
    expected.map(|(first, _)| first)
}

/// Checks that pages are plain private memory, which can be replaced. Needs `smaps`.
///
/// # Errors
/// What kind of memory they are instead.
pub(super) fn check_exchangeable(areas: &[Area], pages: &Range<usize>) -> Result<(), String> {
    let areas = covering(areas, pages).ok_or("there is no memory")?;
    areas.into_iter().try_for_each(|area| {
        if area.rights.ends_with('s') {
            return Err("it is shared already, in part or otherwise".into());
        }
        if !matches!(area.name.as_str(), "" | "[heap]") {
            return Err(format!("it is {}", area.name));
        }
        if area.rights != "rw-p" || area.inode.number != 0 {
            return Err(format!("it is not plain memory but {}", area.rights));
        }
        let flags = area.flags.as_deref().ok_or("the kernel does not say what it is")?;
        let special = flags.split(' ').find(|flag| !PLAIN.contains(flag));
        if let Some(flag) = special {
            return Err(format!("it is special memory ({}{flag})", meaning(flag)));
        }
        match area.protection_key {
            None | Some(0) => Ok(()),
            Some(_) => Err("it has a protection key".into()),
        }
    })
}

/// `VmFlags` that a memory file can have as well: rights, possible rights, accounting, huge page
/// advice, and soft-dirty.
const PLAIN: [&str; 10] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "hg", "nh", "sd"];

fn meaning(flag: &str) -> &'static str {
    match flag {
        "ht" => "huge pages: ",
        "lo" => "locked: ",
        "gd" => "a stack: ",
        "dc" => "not inherited by children: ",
        "wf" => "wiped in children: ",
        "io" | "pf" => "of a device: ",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0\n\
                        3000-5000 rw-s 00001000 00:01 77         /memfd:rnic-registered (deleted)\n\
                        5000-6000 rw-s 00003000 00:01 77         /memfd:rnic-registered (deleted)\n\
                        6000-7000 rw-s 00009000 00:01 77         /memfd:rnic-registered (deleted)\n\
                        7000-8000 r--s 0000a000 00:01 77         /memfd:rnic-registered (deleted)\n\
                        9000-a000 rw-s 00000000 00:01 78         /memfd:rnic-registered (deleted)\n";
    const OURS: Inode = Inode { device: (0, 1), number: 77 };

    #[test]
    fn a_piece_of_a_file_is_found_where_it_is() {
        let areas = parse(MAPS);
        assert_eq!(areas.len(), 6);
        let at = |start, end| offset_in(&areas, OURS, &(start..end));
        assert_eq!(at(0x3000, 0x5000), Some(0x1000));
        assert_eq!(at(0x4000, 0x6000), Some(0x2000));
        assert_eq!(at(0x6000, 0x7000), Some(0x9000));
        // Not contiguous, not writable, another file, private, unmapped.
        assert_eq!(at(0x5000, 0x7000), None);
        assert_eq!(at(0x6000, 0x8000), None);
        assert_eq!(at(0x9000, 0xa000), None);
        assert_eq!(at(0x2000, 0x4000), None);
        assert_eq!(at(0x7000, 0x9000), None);
        assert_eq!(at(0xa000, 0xb000), None);
    }

    #[test]
    fn only_plain_memory_is_exchanged() {
        let of = |rights, name, rest| {
            let text = format!("1000-3000 {rights} 00000000 00:00 0   {name}\nRss: 4 kB\n{rest}");
            check_exchangeable(&parse(&text), &(0x1000..0x3000))
        };
        let plain = "VmFlags: rd wr mr mw me ac sd \n";
        assert_eq!(of("rw-p", "", plain), Ok(()));
        assert_eq!(of("rw-p", "[heap]", "ProtectionKey: 0\nVmFlags: rd wr nh"), Ok(()));
        for (rights, name, rest) in [
            ("rw-p", "[stack]", plain),
            ("rw-p", "/lib/x.so", plain),
            ("rw-p", "[anon:x]", plain),
            ("r--p", "", plain),
            ("rwxp", "", plain),
            ("rw-s", "", plain),
            ("rw-p", "", ""),
            ("rw-p", "", "VmFlags: rd wr ht"),
            ("rw-p", "", "VmFlags: rd wr lo"),
            ("rw-p", "", "VmFlags: rd wr dc"),
            ("rw-p", "", "VmFlags: rd wr zz"),
            ("rw-p", "", "ProtectionKey: 3\nVmFlags: rd wr"),
        ] {
            of(rights, name, rest).expect_err(&format!("{rights} {name} {rest}"));
        }
        assert!(check_exchangeable(&parse(MAPS), &(0..0x2000)).is_err());
    }
}
