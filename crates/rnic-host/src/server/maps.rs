//! What of a client's address space is memory, as `/proc/PID/maps` tells.

use rnic_abi::os::maps::{Area, visit};
use rnic_abi::os::process;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;

/// The first address from `first` to `last` that has no memory with the rights asked for; `None`
/// when all have, or their state is unknown.
pub(super) fn hole(pid: u32, first: u64, last: u64, writable: bool) -> Option<u64> {
    hole_in(File::open(process::folder(pid).ok()?.join("maps")).ok()?, first, last, writable)
}

/// Bytes of the address space of a process, memory or not yet; 0 when they are unknown.
pub(super) fn size(pid: u32) -> u64 {
    let text = process::folder(pid).and_then(|own| std::fs::read_to_string(own.join("statm")));
    let text = text.unwrap_or_default();
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

fn hole_in(maps: impl Read, first: u64, last: u64, writable: bool) -> Option<u64> {
    let mut found = Some(first);
    let mut any = false;
    let look = |area: &Area<'_>| {
        any = true;
        let Some(next) = found else { return ControlFlow::Break(()) };
        if area.range.end <= next {
            return ControlFlow::Continue(());
        }
        let usable = area.rights.starts_with(if writable { "rw" } else { "r" });
        if area.range.start > next || !usable {
            return ControlFlow::Break(());
        }
        if area.range.end > last {
            found = None;
            return ControlFlow::Break(());
        }
        found = Some(area.range.end);
        ControlFlow::Continue(())
    };
    visit(maps, look).ok()?;
    // Empty for a process whose main thread has ended.
    found.filter(|_| any)
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
        assert_eq!(hole_in(MAPS.as_bytes(), 0x1000, 0x4fff, false), None);
        assert_eq!(hole_in(MAPS.as_bytes(), 0x1000, 0x4fff, true), Some(0x1000));
        assert_eq!(hole_in(MAPS.as_bytes(), 0x3004, 0x4004, true), None);
        assert_eq!(hole_in(MAPS.as_bytes(), 0x3004, 0x5000, true), Some(0x5000));
        assert_eq!(hole_in(MAPS.as_bytes(), 0x7000, 0x8fff, false), Some(0x7000));
        assert_eq!(hole_in(MAPS.as_bytes(), 0x8000, u64::MAX, false), Some(0x000f_ffff_ffff_f000));
        assert_eq!(hole_in(MAPS.as_bytes(), 0x800, 0x1800, false), Some(0x800));
    }

    #[test]
    fn a_process_of_which_nothing_is_known_has_no_hole() {
        assert_eq!(hole_in(&[][..], 0x1000, 0x2000, true), None);
    }

    #[test]
    fn this_process_has_a_stack_that_can_be_written() {
        let here = 0u64;
        let at = std::ptr::from_ref(&here) as u64;
        assert_eq!(hole(std::process::id(), at, at + 7, true), None);
        assert_eq!(hole(std::process::id(), 8, 9, false), Some(8));
    }

    #[test]
    fn the_size_of_this_process_is_more_than_its_stack() {
        assert!(size(std::process::id()) > 1 << 20);
        assert_eq!(size(0), 0);
    }
}
