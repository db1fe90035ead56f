//! The signals that `ppoll` and `pselect` let come while they wait.
//!
//! The kernel unblocks these and sleeps in one step. librdmacm's `rpoll` cannot: a signal that
//! comes between the two would be lost, and so would be all that came before. So they stay blocked,
//! a descriptor says when one is there, and only then they are unblocked.

use std::{
    ffi::c_int,
    mem::zeroed,
    ptr,
    time::{Duration, Instant},
};

use libc::{POLLIN, pollfd, sigset_t, timespec};

use crate::{real::set_errno, waiting::poll_all};

/// The signals that are blocked during a call; `None` leaves them as they are.
pub(crate) struct Mask(Option<sigset_t>);

impl Mask {
    /// # Safety
    /// `mask` is null or valid.
    pub(crate) unsafe fn of(mask: *const sigset_t) -> Self {
        // SAFETY: by contract.
        Self(unsafe { mask.as_ref() }.copied())
    }

    /// As `poll`, and as `ppoll` with this mask: -1 and EINTR after a handler.
    pub(crate) fn poll(&self, fds: &mut [pollfd], timeout: c_int) -> c_int {
        let Some(mask) = &self.0 else { return poll_all(fds, timeout) };
        let before = Before::block(mask);
        let let_in = Signals::of(|signal| before.0.has(signal) && !Signals(*mask).has(signal));
        if let_in.is_empty() {
            return poll_all(fds, timeout);
        }
        let Some(watch) = Watch::new(&let_in) else {
            // What `ppoll` may say.
            set_errno(libc::ENOMEM);
            return -1;
        };
        let result = watch.poll(fds, timeout, mask);
        let errno = crate::real::errno();
        drop((watch, before));
        set_errno(errno);
        result
    }
}

/// A set of signals.
struct Signals(sigset_t);

impl Signals {
    fn none() -> Self {
        // SAFETY: bits.
        Self(unsafe { zeroed() })
    }

    fn of(is_in: impl Fn(c_int) -> bool) -> Self {
        let mut set = Self::none();
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| is_in(*signal)) {
            // SAFETY: a set. Those of libc itself are refused.
            unsafe { libc::sigaddset(&raw mut set.0, signal) };
        }
        set
    }

    fn has(&self, signal: c_int) -> bool {
        // SAFETY: a set.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }

    fn is_empty(&self) -> bool {
        !(1..=libc::SIGRTMAX()).any(|signal| self.has(signal))
    }
}

/// The mask that the thread had before, and has again afterwards.
struct Before(Signals);

impl Before {
    /// Blocks these, too.
    fn block(mask: &sigset_t) -> Self {
        let mut before = Signals::none();
        // SAFETY: both are sets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, mask, &raw mut before.0) };
        Self(before)
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0.0, ptr::null_mut()) };
    }
}

/// A descriptor that is readable while one of these signals waits.
struct Watch {
    fd: c_int,
}

impl Watch {
    fn new(signals: &Signals) -> Option<Self> {
        // SAFETY: a set.
        let fd = unsafe { libc::signalfd(-1, &raw const signals.0, libc::SFD_CLOEXEC) };
        (fd >= 0).then_some(Self { fd })
    }

    fn poll(&self, fds: &mut [pollfd], timeout: c_int, mask: &sigset_t) -> c_int {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let begin = Instant::now();
        let mut left = timeout;
        loop {
            let mut all = fds.to_vec();
            all.push(pollfd { fd: self.fd, events: POLLIN, revents: 0 });
            let ready = poll_all(&mut all, left);
            if ready < 0 {
                return ready;
            }
            let has_signal = all.pop().is_some_and(|watch| watch.revents != 0);
            fds.copy_from_slice(&all);
            let ready = ready - c_int::from(has_signal);
            // As in the kernel, a signal waits for the next call where something is ready.
            if ready > 0 || !has_signal {
                return ready;
            }
            if Self::let_in(mask) {
                set_errno(libc::EINTR);
                return -1;
            }
            // Ignored, or taken by another thread.
            left = limit.map_or(-1, |limit| {
                let left = limit.saturating_sub(begin.elapsed()).as_micros().div_ceil(1000);
                c_int::try_from(left).unwrap_or(c_int::MAX)
            });
        }
    }

    /// Has what waits come now: whether a handler has run. In one call of the kernel: what came
    /// between a look at what waits and the moment it is let in would be lost.
    fn let_in(mask: &sigset_t) -> bool {
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let none: *mut pollfd = ptr::null_mut();
        let (mask, len) = (ptr::from_ref(mask), size_of::<u64>());
        // By no function of the C library, at which a thread may be cancelled.
        // SAFETY: no entries; a set has so many bytes in the kernel.
        unsafe { libc::syscall(libc::SYS_ppoll, none, 0, &raw const now, mask, len) < 0 }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // By no function of the C library, at which a thread may be cancelled.
        // SAFETY: its own.
        unsafe { libc::syscall(libc::SYS_close, self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::AsRawFd,
        os::unix::net::UnixDatagram,
        sync::{
            Mutex,
            atomic::{AtomicU32, Ordering},
        },
        thread,
    };

    use super::*;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    /// A signal of its own for a test, with this handler, blocked in this thread.
    fn blocked(signal: c_int, handler: libc::sighandler_t) {
        let set = Signals::of(|other| other == signal);
        // SAFETY: the handler counts.
        unsafe {
            libc::signal(signal, handler);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set.0, ptr::null_mut());
        }
    }

    type Poll = fn(&mut [pollfd], c_int, &sigset_t) -> c_int;

    fn own(fds: &mut [pollfd], timeout: c_int, mask: &sigset_t) -> c_int {
        Mask(Some(*mask)).poll(fds, timeout)
    }

    fn kernels(fds: &mut [pollfd], timeout: c_int, mask: &sigset_t) -> c_int {
        let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(timeout) * 1_000_000 };
        // SAFETY: as many entries as are said.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as u64, &raw const time, mask) }
    }

    /// Result, errno of failures, and how often a handler has run.
    fn outcome(poll: Poll, fd: c_int, timeout: c_int) -> (c_int, c_int, u32) {
        let before = HANDLED.load(Ordering::Relaxed);
        let result =
            poll(&mut [pollfd { fd, events: POLLIN, revents: 0 }], timeout, &Signals::none().0);
        let errno = if result < 0 { crate::real::errno() } else { 0 };
        (result, errno, HANDLED.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn signals_come_as_in_the_kernels_call() {
        // The counter is of all tests here.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap();
        let signal = libc::SIGUSR1;
        let handler = count as *const () as libc::sighandler_t;
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        // SAFETY: no pointers.
        let this = unsafe { libc::pthread_self() };
        let raise = move || {
            // SAFETY: the thread waits for it.
            assert_eq!(unsafe { libc::pthread_kill(this, signal) }, 0);
        };
        let polls: [Poll; 2] = [own, kernels];
        for poll in polls {
            blocked(signal, handler);
            assert_eq!(outcome(poll, fd, 20), (0, 0, 0), "nothing comes");
            for timeout in [900, 0] {
                raise();
                assert_eq!(outcome(poll, fd, timeout), (-1, libc::EINTR, 1), "it came before");
            }
            let later = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                raise();
            });
            assert_eq!(outcome(poll, fd, 900), (-1, libc::EINTR, 1), "it comes meanwhile");
            later.join().unwrap();
            raise();
            theirs.send(b"x").unwrap();
            assert_eq!(outcome(poll, fd, 900), (1, 0, 0), "something is ready");
            ours.recv(&mut [0]).unwrap();
            assert_eq!(outcome(poll, fd, 900), (-1, libc::EINTR, 1), "it has waited");
            blocked(signal, libc::SIG_IGN);
            raise();
            assert_eq!(outcome(poll, fd, 20), (0, 0, 0), "it is ignored");
        }
    }
}
