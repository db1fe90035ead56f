//! Calls that wait for descriptors.

use std::{ffi::c_int, ptr, slice};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::{
    real::{inside, real, rpoll, rselect, set_errno},
    table,
};

/// # Safety
/// `fds` has `count` entries.
unsafe fn has_rsockets(fds: *const pollfd, count: nfds_t) -> bool {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by contract.
    !fds.is_null()
        && unsafe { slice::from_raw_parts(fds, count) }
            .iter()
            .any(|polled| table::find(polled.fd).is_some())
}

/// Polls descriptors of which some stand for rsockets.
///
/// # Safety
/// `fds` has `count` entries.
unsafe fn poll_all(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by contract.
    let fds = unsafe { slice::from_raw_parts_mut(fds, usize::try_from(count).unwrap_or(0)) };
    let own = |polled: &pollfd| pollfd {
        fd: table::find(polled.fd).unwrap_or(polled.fd),
        events: polled.events,
        revents: 0,
    };
    let mut all: Vec<pollfd> = fds.iter().map(own).collect();
    // SAFETY: as many entries.
    let ready = inside(|| unsafe { rpoll(all.as_mut_ptr(), count, timeout) });
    if ready >= 0 {
        for (polled, own) in fds.iter_mut().zip(all) {
            polled.revents = own.revents;
        }
    }
    ready
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by contract.
    unsafe {
        match has_rsockets(fds, count) {
            true => poll_all(fds, count, timeout),
            false => real!(poll: fn(*mut pollfd, nfds_t, c_int) -> c_int)(fds, count, timeout),
        }
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        match has_rsockets(fds, count) {
            true => poll_all(fds, count, timeout),
            false => {
                let poll = real!(__poll_chk: fn(*mut pollfd, nfds_t, c_int, usize) -> c_int);
                poll(fds, count, timeout, room)
            }
        }
    }
}

type Ppoll =
    unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        if !has_rsockets(fds, count) {
            let ppoll: Ppoll = real!(ppoll: fn(
                *mut pollfd, nfds_t, *const timespec, *const sigset_t
            ) -> c_int);
            return ppoll(fds, count, timeout, mask);
        }
        let timeout = timeout.as_ref().map_or(-1, milliseconds);
        masked(mask, || poll_all(fds, count, timeout))
    }
}

/// Rounded up, so that a program does not come back before its time.
fn milliseconds(time: &timespec) -> c_int {
    let all = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(all.max(0)).unwrap_or(c_int::MAX)
}

/// Waits with other signals blocked; a signal that comes just before is not noticed.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn masked(mask: *const sigset_t, wait: impl FnOnce() -> c_int) -> c_int {
    if mask.is_null() {
        return wait();
    }
    // SAFETY: by contract, and a local variable.
    unsafe {
        let mut before: sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before);
        let result = wait();
        let errno = crate::real::errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        set_errno(errno);
        result
    }
}

/// The sets of `select`, and those that rsockets are called by.
struct Sets {
    given: [*mut fd_set; 3],
    own: [fd_set; 3],
    /// Descriptors of the program with those of rsockets.
    pairs: Vec<(c_int, c_int)>,
    most: c_int,
}

impl Sets {
    /// `None` when no rsocket is among them, or one that sets have no room for.
    ///
    /// # Safety
    /// All sets are null or valid.
    unsafe fn translate(count: c_int, given: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: sets of bits.
        let mut sets = Self { given, own: unsafe { std::mem::zeroed() }, pairs: vec![], most: 0 };
        let mut some = false;
        for fd in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
            // SAFETY: by contract.
            let is_in = given.map(|set| unsafe { !set.is_null() && libc::FD_ISSET(fd, set) });
            if is_in == [false; 3] {
                continue;
            }
            let socket = table::find(fd);
            some |= socket.is_some();
            let own = socket.unwrap_or(fd);
            if own >= libc::FD_SETSIZE as c_int {
                return None;
            }
            sets.pairs.push((fd, own));
            sets.most = sets.most.max(own + 1);
            for (set, _) in sets.own.iter_mut().zip(is_in).filter(|(_, is_in)| *is_in) {
                // SAFETY: a local set, and below its size.
                unsafe { libc::FD_SET(own, set) };
            }
        }
        some.then_some(sets)
    }

    /// # Safety
    /// All sets are null or valid.
    unsafe fn select(mut self, timeout: *mut timeval) -> c_int {
        let [read, write, except] = self.own.each_mut().map(ptr::from_mut);
        // SAFETY: local sets.
        let ready = inside(|| unsafe { rselect(self.most, read, write, except, timeout) });
        if ready < 0 {
            return ready;
        }
        for (given, own) in self.given.into_iter().zip(&self.own).filter(|(set, _)| !set.is_null())
        {
            // SAFETY: by contract, and below the size of sets.
            unsafe {
                libc::FD_ZERO(given);
                for (fd, of_socket) in &self.pairs {
                    if libc::FD_ISSET(*of_socket, own) {
                        libc::FD_SET(*fd, given);
                    }
                }
            }
        }
        ready
    }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        if let Some(sets) = Sets::translate(count, [read, write, except]) {
            return sets.select(timeout);
        }
        let select = real!(select: fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval
        ) -> c_int);
        select(count, read, write, except, timeout)
    }
}

type Pselect = unsafe extern "C-unwind" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        let Some(sets) = Sets::translate(count, [read, write, except]) else {
            let pselect: Pselect = real!(pselect: fn(
                c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t
            ) -> c_int);
            return pselect(count, read, write, except, timeout, mask);
        };
        let mut time = timeout
            .as_ref()
            .map(|time| timeval { tv_sec: time.tv_sec, tv_usec: (time.tv_nsec + 999) / 1000 });
        let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        masked(mask, || sets.select(time))
    }
}
