//! What wakes the engine's thread when the program that drives does not go on.
//!
//! A look now and then would do as well. But each takes the CPU from the program in the middle of
//! a message: looks every 200 us made one message in five two to five times slower. So the thread
//! sleeps behind a timer, and the turns of the program put it off.
//!
//! A timer of the process (`timer_create`): the threads have different tables of descriptors, so
//! that a timerfd of one could not be set by the other. It sends the first of the signals that the
//! C library keeps for itself, to this thread alone, as the timers of the library do. No program
//! can have a handler for it or wait for it, and none is sent one that is for another thread. It
//! stays blocked in this thread: where it is not, a ring ends the process. So nothing in this
//! thread may set its mask by `pthread_sigmask`, whose masks never have that signal.

#![allow(unsafe_code, reason = "no library wraps timers that signal a thread")]

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Alarm {
    timer: libc::c_int,
    /// Readable when it rings, for the thread that made it.
    rings: OwnedFd,
}

/// `SIGTIMER` of the C library.
const SIGNAL: libc::c_int = 32;
/// As a set, as the kernel has it.
static SET: u64 = 1 << (SIGNAL - 1);

impl Alarm {
    /// One that rings for the calling thread.
    ///
    /// # Errors
    /// When a sandbox refuses the calls, or the user has too many timers or files.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the set stays, the other arguments are local variables, and nothing else uses the
        // signal in this thread. The timer's number is written when the call has succeeded.
        unsafe {
            let (how, len) = (libc::SIG_BLOCK, size_of::<u64>());
            let block = libc::SYS_rt_sigprocmask;
            done(libc::syscall(block, how, &raw const SET, null_mut::<u64>(), len))?;
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let rings = libc::syscall(libc::SYS_signalfd4, -1, &raw const SET, len, flags);
            let rings = OwnedFd::from_raw_fd(done(rings)?);
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = MaybeUninit::<libc::c_int>::uninit();
            let clock = libc::CLOCK_MONOTONIC;
            let create = libc::SYS_timer_create;
            done(libc::syscall(create, clock, &raw const event, timer.as_mut_ptr()))?;
            Ok(Self { timer: timer.assume_init(), rings })
        }
    }

    /// What to wait for, in the thread that made it.
    pub(super) fn fd(&self) -> RawFd {
        self.rings.as_raw_fd()
    }

    /// It rings after so much time, and not before. In any thread. False where a sandbox refuses
    /// that.
    pub(super) fn put_off(&self, wait: Duration) -> bool {
        // SAFETY: all zeroes are a valid value.
        let mut timer: libc::itimerspec = unsafe { zeroed() };
        timer.it_value.tv_sec = wait.as_secs().cast_signed();
        timer.it_value.tv_nsec = wait.subsec_nanos().into();
        let (none, set) = (null_mut::<libc::itimerspec>(), libc::SYS_timer_settime);
        // SAFETY: the timer lives as long as this, and the time is a local variable.
        unsafe { libc::syscall(set, self.timer, 0, &raw const timer, none) == 0 }
    }

    /// Whether it has rung since this was last asked, in the thread that made it.
    pub(super) fn has_rung(&self) -> bool {
        let mut ring = [MaybeUninit::<libc::signalfd_siginfo>::uninit(); 1];
        // SAFETY: room for as much as is asked for.
        let read = unsafe { libc::read(self.fd(), ring.as_mut_ptr().cast(), size_of_val(&ring)) };
        read > 0
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used again.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.timer) };
    }
}

/// What a call that makes something returned.
fn done(result: libc::c_long) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(result).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;

    /// Whether it rings within this time.
    fn rings(alarm: &Alarm, wait: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(alarm.rings.as_fd(), PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        poll(&mut fds, Some(&wait)).unwrap();
        alarm.has_rung()
    }

    #[test]
    fn it_rings_once_in_its_thread_unless_another_one_puts_it_off() {
        let (long, short) = (Duration::from_secs(600), Duration::from_millis(1));
        let soon = Duration::from_millis(999);
        let alarm = Alarm::new().unwrap();
        assert!(alarm.put_off(10 * soon));
        std::thread::scope(|scope| scope.spawn(|| assert!(alarm.put_off(long))).join()).unwrap();
        assert!(!rings(&alarm, 20 * short));
        std::thread::scope(|scope| scope.spawn(|| assert!(alarm.put_off(short))).join()).unwrap();
        assert!(rings(&alarm, soon) && !alarm.has_rung());
        assert!(alarm.put_off(short));
        // The timer's signal is this thread's: another one does not see it.
        std::thread::sleep(10 * short);
        let seen = std::thread::scope(|scope| scope.spawn(|| rings(&alarm, short)).join()).unwrap();
        assert!(!seen && alarm.has_rung());
    }
}
