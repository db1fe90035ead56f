//! The sets of `select`, for a `poll` of our own.
//!
//! A program may have made its sets larger than [`fd_set`], or smaller: the kernel reads and writes
//! as many bits as the program names, in whole words, and so do these.

use std::ffi::{c_int, c_long, c_ulong};
use std::io;
use std::ptr::null;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd, timespec};

/// The sets of a call.
#[derive(Debug)]
pub struct Sets {
    given: [*mut c_ulong; 3],
    /// Bits below this are read and written.
    count: usize,
    polled: Vec<pollfd>,
}

/// What reading, writing and exceptions are for `poll`: what to ask for, and what counts.
const MEANINGS: [(i16, i16); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

/// Bits of a word, which is what the kernel reads and writes.
const BITS: usize = c_ulong::BITS as usize;

impl Sets {
    /// Sets for reading, writing and exceptions, of which descriptors below `count` are meant.
    ///
    /// # Safety
    /// Each is null, or has so many bits as long as this lives; as in the kernel, it needs no more
    /// than the process may have descriptors without another table for them.
    pub unsafe fn new(count: c_int, given: [*mut fd_set; 3]) -> Self {
        let count = looked_at(usize::try_from(count).unwrap_or(0));
        let given = given.map(<*mut fd_set>::cast::<c_ulong>);
        let mut polled = Vec::new();
        for at in 0..count.div_ceil(BITS) {
            // SAFETY: by contract.
            let words = given.map(|set| unsafe { word(set, at) });
            let mut left = words[0] | words[1] | words[2];
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                let fd = at * BITS + bit;
                let wanted = words.iter().zip(MEANINGS).filter(|(word, _)| *word >> bit & 1 != 0);
                let events = wanted.fold(0, |events, (_, (event, _))| events | event);
                if let Some(fd) = c_int::try_from(fd).ok().filter(|_| fd < count) {
                    polled.push(pollfd { fd, events, revents: 0 });
                }
            }
        }
        Self { given, count, polled }
    }

    /// What to poll, in the order of the descriptors.
    #[must_use]
    pub fn polled(&self) -> &[pollfd] {
        &self.polled
    }

    /// As [`polled`](Self::polled), to be filled in.
    pub fn polled_mut(&mut self) -> &mut [pollfd] {
        &mut self.polled
    }

    /// Has the sets say what was filled in: how many bits are set then, or `None` and all as it was
    /// when a descriptor is not open.
    #[must_use]
    pub fn write(self) -> Option<c_int> {
        if self.polled.iter().any(|polled| polled.revents & POLLNVAL != 0) {
            return None;
        }
        let mut ready = 0;
        for (set, (event, means)) in self.given.into_iter().zip(MEANINGS) {
            if set.is_null() {
                continue;
            }
            for at in 0..self.count.div_ceil(BITS) {
                // SAFETY: below the count, by the contract of `new`.
                unsafe { set.add(at).write_unaligned(0) };
            }
            let is_ready =
                |polled: &&pollfd| polled.events & event != 0 && polled.revents & means != 0;
            for polled in self.polled.iter().filter(is_ready) {
                let fd = polled.fd as usize;
                // SAFETY: as above.
                unsafe {
                    let at = set.add(fd / BITS);
                    at.write_unaligned(at.read_unaligned() | 1 << (fd % BITS));
                }
                ready += 1;
            }
        }
        Some(ready)
    }
}

/// # Safety
/// The set is null, or has this word.
unsafe fn word(set: *const c_ulong, at: usize) -> c_ulong {
    // SAFETY: by contract.
    if set.is_null() { 0 } else { unsafe { set.add(at).read_unaligned() } }
}

/// Of so many bits, those that the kernel looks at: programs that pass `getdtablesize()` have sets
/// of the usual size nevertheless, since there is no bit of a set behind the table of descriptors
/// that the kernel has for the process.
fn looked_at(count: usize) -> usize {
    let mut known = libc::FD_SETSIZE;
    while known < count && goes_beyond(known) {
        known = known.saturating_mul(2);
    }
    count.min(known)
}

/// Whether the process's table has room for more descriptors than these, a multiple of a word's
/// bits. Its size is a power of two. The kernel looks at the bit of a descriptor within the table
/// only: it leaves others as they are, also those of descriptors that are not open.
fn goes_beyond(descriptors: usize) -> bool {
    let mut set: Vec<c_ulong> = vec![0; descriptors / BITS + 1];
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    let none: *const c_ulong = null();
    loop {
        set[descriptors / BITS] = 1;
        let (count, bits) = (descriptors as c_long + 1, set.as_mut_ptr());
        // By no function of the C library, at which a thread may be cancelled.
        // SAFETY: a set of so many bits.
        let ready = unsafe {
            libc::syscall(libc::SYS_pselect6, count, none, none, bits, &raw const now, none)
        };
        if ready >= 0 {
            return set[descriptors / BITS] == 0 || ready > 0;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            error => return error == Some(libc::EBADF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, mem::zeroed, os::fd::AsRawFd, ptr::null_mut};

    type Select = fn(c_int, &mut [c_ulong], &mut [c_ulong]) -> c_int;

    fn bits(words: &[c_ulong]) -> Vec<usize> {
        (0..words.len() * BITS).filter(|bit| words[bit / BITS] >> (bit % BITS) & 1 != 0).collect()
    }

    fn set(words: &mut [c_ulong], fds: &[usize]) {
        fds.iter().for_each(|fd| words[fd / BITS] |= 1 << (fd % BITS));
    }

    /// The kernel's answer, with these sets for reading and writing.
    fn kernels(count: c_int, read: &mut [c_ulong], write: &mut [c_ulong]) -> c_int {
        // SAFETY: sets of so many bits.
        unsafe {
            let mut now = zeroed();
            let (read, write) = (read.as_mut_ptr().cast(), write.as_mut_ptr().cast());
            libc::select(count, read, write, null_mut(), &raw mut now)
        }
    }

    /// Ours, by the kernel's `poll`.
    fn ours(count: c_int, read: &mut [c_ulong], write: &mut [c_ulong]) -> c_int {
        let given = [read.as_mut_ptr().cast(), write.as_mut_ptr().cast(), null_mut()];
        // SAFETY: sets of so many bits.
        let mut sets = unsafe { Sets::new(count, given) };
        let polled = sets.polled_mut();
        // SAFETY: so many entries.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
        sets.write().unwrap_or(-1)
    }

    /// A duplicate of a file that is always ready, at this number or the next free one.
    fn high(from: c_int) -> usize {
        // SAFETY: a structure of numbers, and no pointers.
        unsafe {
            let mut limit = zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            let file = File::open("/dev/null").unwrap();
            usize::try_from(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from)).unwrap()
        }
    }

    #[test]
    fn sets_are_read_and_written_as_by_the_kernel() {
        let [low, far, last] = [high(40), high(1500), high(3000)];
        for count in [low, low + 1, 64, 65, 1024, 1025, far, far + 1, 2048, last, last + 1, 4096] {
            let answers = [kernels as Select, ours].map(|select| {
                let (mut read, mut write) = ([0; 70], [0; 70]);
                // Behind the count they are the program's.
                set(&mut read, &[low, far, last, 4200]);
                set(&mut write, &[low, last, 4201]);
                let ready = select(count as c_int, &mut read, &mut write);
                (ready, bits(&read), bits(&write))
            });
            assert_eq!(answers[0], answers[1], "{count}");
        }
    }

    /// How many descriptors the kernel's table for this process has room for.
    fn table() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        size.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn programs_that_name_more_than_there_can_be_have_small_sets() {
        let before = table();
        let looked_at = looked_at(1 << 24);
        let possible = [before, table()].map(|size| size.max(libc::FD_SETSIZE));
        assert!((possible[0]..=possible[1]).contains(&looked_at), "{looked_at} of {possible:?}");
    }

    #[test]
    fn descriptors_that_are_not_open_leave_sets_as_they_are() {
        let [closed, open] = [700, high(800)];
        for select in [kernels as Select, ours] {
            let (mut read, mut write) = ([0; 16], [0; 16]);
            set(&mut read, &[closed, open]);
            set(&mut write, &[open]);
            assert_eq!(select(1024, &mut read, &mut write), -1);
            assert_eq!((bits(&read), bits(&write)), (vec![closed, open], vec![open]));
        }
    }
}
