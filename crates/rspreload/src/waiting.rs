//! Calls that wait for descriptors.

use std::{ffi::c_int, mem::size_of, slice};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::{
    real::{inside, real, rpoll},
    select,
    signals::Mask,
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

/// Whether an array that compilers know the size of has so many entries; else libc ends the
/// program.
fn fits(count: nfds_t, room: usize) -> bool {
    usize::try_from(count).is_ok_and(|count| count <= room / size_of::<pollfd>())
}

/// Polls descriptors of which some stand for rsockets.
pub(crate) fn poll_all(fds: &mut [pollfd], timeout: c_int) -> c_int {
    let own = |polled: &pollfd| pollfd {
        fd: table::find(polled.fd).unwrap_or(polled.fd),
        events: polled.events,
        revents: 0,
    };
    let mut all: Vec<pollfd> = fds.iter().map(own).collect();
    // SAFETY: as many entries.
    let ready = inside(|| unsafe { rpoll(all.as_mut_ptr(), all.len() as nfds_t, timeout) });
    if ready >= 0 {
        for (polled, own) in fds.iter_mut().zip(all) {
            polled.revents = own.revents;
        }
    }
    ready
}

/// # Safety
/// `fds` has `count` entries.
unsafe fn array<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    // SAFETY: by contract.
    unsafe { slice::from_raw_parts_mut(fds, usize::try_from(count).unwrap_or(0)) }
}

/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by contract.
    unsafe {
        match has_rsockets(fds, count) {
            true => poll_all(array(fds, count), timeout),
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
        match fits(count, room) && has_rsockets(fds, count) {
            true => poll_all(array(fds, count), timeout),
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
        if has_rsockets(fds, count) {
            return Mask::of(mask).poll(array(fds, count), milliseconds(timeout.as_ref()));
        }
        let ppoll: Ppoll = real!(ppoll: fn(
            *mut pollfd, nfds_t, *const timespec, *const sigset_t
        ) -> c_int);
        ppoll(fds, count, timeout, mask)
    }
}

type PpollChecked = unsafe extern "C-unwind" fn(
    *mut pollfd,
    nfds_t,
    *const timespec,
    *const sigset_t,
    usize,
) -> c_int;

/// What compilers make of `ppoll` where they know the size of the array.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        if fits(count, room) && has_rsockets(fds, count) {
            return Mask::of(mask).poll(array(fds, count), milliseconds(timeout.as_ref()));
        }
        let ppoll: PpollChecked = real!(__ppoll_chk: fn(
            *mut pollfd, nfds_t, *const timespec, *const sigset_t, usize
        ) -> c_int);
        ppoll(fds, count, timeout, mask, room)
    }
}

/// Rounded up, so that a program does not come back before its time; -1 for no limit.
fn milliseconds(time: Option<&timespec>) -> c_int {
    let Some(time) = time else { return -1 };
    let part = time.tv_nsec.saturating_add(999_999) / 1_000_000;
    let all = time.tv_sec.saturating_mul(1000).saturating_add(part);
    c_int::try_from(all.max(0)).unwrap_or(c_int::MAX)
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
        if let Some(sets) = select::with_rsockets(count, [read, write, except]) {
            let time = timeout.as_ref().map(|time| timespec {
                tv_sec: time.tv_sec,
                tv_nsec: time.tv_usec.saturating_mul(1000),
            });
            return select::fill(sets, |fds| poll_all(fds, milliseconds(time.as_ref())));
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
        if let Some(sets) = select::with_rsockets(count, [read, write, except]) {
            let mask = Mask::of(mask);
            return select::fill(sets, |fds| mask.poll(fds, milliseconds(timeout.as_ref())));
        }
        let pselect: Pselect = real!(pselect: fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t
        ) -> c_int);
        pselect(count, read, write, except, timeout, mask)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsRawFd, unix::net::UnixDatagram},
        ptr,
    };

    use super::*;

    #[test]
    fn other_descriptors_are_polled_by_libc() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(b"x").unwrap();
        let mut polled = pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let (fds, room) = (&raw mut polled, size_of::<pollfd>());
        // SAFETY: one descriptor each.
        let ready = unsafe {
            [
                poll(fds, 1, 0),
                __poll_chk(fds, 1, 0, room),
                ppoll(fds, 1, ptr::null(), ptr::null()),
                __ppoll_chk(fds, 1, ptr::null(), ptr::null(), room),
            ]
        };
        assert_eq!(ready, [1; 4]);
    }
}
