//! The sets of `select`.
//!
//! They become an array for `poll`: the number of an rsocket may be larger than sets have room for.

use std::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd};

use crate::{real::set_errno, table};

/// The sets of a call, of which some descriptor stands for an rsocket.
pub(crate) struct Sets {
    given: [*mut fd_set; 3],
    /// Descriptors below this are looked at.
    count: c_int,
    polled: Vec<pollfd>,
}

/// What reading, writing and exceptions are for `poll`: what to ask for, and what counts.
const MEANINGS: [(i16, i16); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

impl Sets {
    /// `None` when no rsocket is among them.
    ///
    /// # Safety
    /// All sets are null, or have so many bits.
    pub(crate) unsafe fn with_rsockets(count: c_int, given: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: by contract.
        let sets = unsafe { Self::new(count, given) };
        sets.polled.iter().any(|polled| table::find(polled.fd).is_some()).then_some(sets)
    }

    /// # Safety
    /// As [`with_rsockets`](Self::with_rsockets).
    unsafe fn new(count: c_int, given: [*mut fd_set; 3]) -> Self {
        let count = count.clamp(0, libc::FD_SETSIZE as c_int);
        let mut polled = Vec::new();
        for fd in 0..count {
            let wanted = given.iter().zip(MEANINGS).filter(|(set, _)| {
                // SAFETY: by contract.
                unsafe { !set.is_null() && libc::FD_ISSET(fd, **set) }
            });
            let events = wanted.fold(0, |events, (_, (event, _))| events | event);
            if events != 0 {
                polled.push(pollfd { fd, events, revents: 0 });
            }
        }
        Self { given, count, polled }
    }

    /// Has them polled, and says which are ready: how many, or -1 and errno.
    pub(crate) fn fill(mut self, poll: impl FnOnce(&mut [pollfd]) -> c_int) -> c_int {
        let failed = poll(&mut self.polled) < 0;
        if failed {
            return -1;
        }
        if self.polled.iter().any(|polled| polled.revents & POLLNVAL != 0) {
            set_errno(libc::EBADF);
            return -1;
        }
        let mut ready = 0;
        for (set, (event, means)) in self.given.into_iter().zip(MEANINGS) {
            if set.is_null() {
                continue;
            }
            // A program may have made no more room than for the bits that it names.
            // SAFETY: a set with so many bits, by the contract of the one that made this.
            (0..self.count).for_each(|fd| unsafe { libc::FD_CLR(fd, set) });
            let is_ready =
                |polled: &&pollfd| polled.events & event != 0 && polled.revents & means != 0;
            for polled in self.polled.iter().filter(is_ready) {
                // SAFETY: as above.
                unsafe { libc::FD_SET(polled.fd, set) };
                ready += 1;
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_rsocket_may_be_larger_than_sets() {
        let fd = 900;
        table::also(fd, 2000);
        // SAFETY: a set of bits.
        unsafe {
            let mut read: fd_set = std::mem::zeroed();
            let given = [&raw mut read, std::ptr::null_mut(), std::ptr::null_mut()];
            assert!(Sets::with_rsockets(fd + 1, given).is_none(), "it is not asked for");
            libc::FD_SET(fd, &raw mut read);
            assert!(Sets::with_rsockets(fd, given).is_none(), "it is not asked for");
            assert!(Sets::with_rsockets(fd + 1, given).is_some());
        }
        table::also(fd, -1);
    }

    #[test]
    fn sets_are_filled_as_far_as_they_are_named() {
        // SAFETY: sets of bits.
        let [mut read, mut write]: [fd_set; 2] = unsafe { std::mem::zeroed() };
        // SAFETY: local sets, and what is behind the named bits is the program's.
        unsafe {
            [3, 5, 7].into_iter().for_each(|fd| libc::FD_SET(fd, &raw mut read));
            [5, 200].into_iter().for_each(|fd| libc::FD_SET(fd, &raw mut write));
            let given = [&raw mut read, &raw mut write, std::ptr::null_mut()];
            let ready = Sets::new(8, given).fill(|fds| {
                let asked: Vec<_> = fds.iter().map(|polled| (polled.fd, polled.events)).collect();
                assert_eq!(asked, [(3, POLLIN), (5, POLLIN | POLLOUT), (7, POLLIN)]);
                // One has hung up, which writing does not hear of.
                [fds[0].revents, fds[1].revents] = [POLLIN, POLLHUP];
                2
            });
            assert_eq!(ready, 2);
            let left = |set| (0..256).filter(|fd| libc::FD_ISSET(*fd, set)).collect::<Vec<_>>();
            assert_eq!(left(&raw const read), [3, 5]);
            assert_eq!(left(&raw const write), [200]);
            let closed = Sets::new(8, given).fill(|fds| {
                fds[0].revents = POLLNVAL;
                1
            });
            assert_eq!((closed, crate::real::errno()), (-1, libc::EBADF));
        }
    }
}
