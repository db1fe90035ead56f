//! What of a client's address space is memory, as `/proc/PID/maps` tells.

/// The first address from `first` to `last` that has no memory with the rights asked for; `None`
/// when all have, or nobody can tell.
pub(super) fn hole(pid: u32, first: u64, last: u64, writable: bool) -> Option<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    // Empty for a process whose main thread has ended.
    if maps.is_empty() { None } else { hole_in(&maps, first, last, writable) }
}

fn hole_in(maps: &str, first: u64, last: u64, writable: bool) -> Option<u64> {
    let mut next = first;
    for line in maps.lines() {
        let Some((start, end, rights)) = parse(line) else { continue };
        if end <= next {
            continue;
        }
        let usable = rights.starts_with('r') && (!writable || rights.starts_with("rw"));
        if start > next || !usable {
            return Some(next);
        }
        if end > last {
            return None;
        }
        next = end;
    }
    Some(next)
}

/// Start, end and rights of `55d0c0a00000-55d0c0a21000 rw-p ...`.
fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 r--p 00000000 fe:00 1 /bin/x\n\
                        3000-5000 rw-p 00000000 00:00 0\n\
                        5000-6000 ---p 00000000 00:00 0\n\
                        8000-ffffffffff000 rw-p 00000000 00:00 0 [heap]\n";

    #[test]
    fn holes_and_rights_are_found() {
        assert_eq!(hole_in(MAPS, 0x1000, 0x4fff, false), None);
        assert_eq!(hole_in(MAPS, 0x1000, 0x4fff, true), Some(0x1000));
        assert_eq!(hole_in(MAPS, 0x3004, 0x4004, true), None);
        assert_eq!(hole_in(MAPS, 0x3004, 0x5000, true), Some(0x5000));
        assert_eq!(hole_in(MAPS, 0x7000, 0x8fff, false), Some(0x7000));
        assert_eq!(hole_in(MAPS, 0x8000, u64::MAX, false), Some(0x000f_ffff_ffff_f000));
        assert_eq!(hole_in(MAPS, 0x800, 0x1800, false), Some(0x800));
    }

    #[test]
    fn this_process_has_a_stack_that_can_be_written() {
        let here = 0u64;
        let at = std::ptr::from_ref(&here) as u64;
        assert_eq!(hole(std::process::id(), at, at + 7, true), None);
        assert_eq!(hole(std::process::id(), 8, 9, false), Some(8));
    }
}
