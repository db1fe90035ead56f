//! How threads wait for an rsocket.
//!
//! Several threads may sleep for the same one, and any of them, or one that does not sleep, may
//! take the completions that another waits for. Therefore a thread that handles something wakes
//! those that sleep. Each thread has an event descriptor of its own for that, which only it
//! empties: with a common one a thread that sleeps again would find it readable until all others
//! have run.

use std::{
    cell::RefCell,
    ffi::c_int,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, MutexGuard},
    time::{Duration, Instant},
};

use libc::{POLLIN, pollfd};
use rnic_abi::os::{blocking, signals};

use super::settings::Settings;
use crate::error::{Errno, Result};

/// Wakes one thread, wherever it sleeps.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Event>);

/// A child made by fork shares the descriptor with its parent, and must neither fill nor empty it.
/// The child may also have closed its own copy, and have something else at that number.
struct Event {
    fd: ManuallyDrop<OwnedFd>,
    process: u32,
}

impl Event {
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: it is dropped here only.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl Waker {
    /// That of this thread; `None` where it has none and there are no more descriptors.
    pub(crate) fn own() -> Option<Self> {
        thread_local! {
            static OWN: RefCell<Option<Waker>> = const { RefCell::new(None) };
        }
        let own = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            match own.as_ref().filter(|waker| waker.0.is_own()) {
                Some(waker) => Some(waker.clone()),
                None => Some(own.insert(Self::new()?).clone()),
            }
        });
        // At the exit of the program the thread has none any more.
        own.unwrap_or_else(|_| Self::new())
    }

    fn new() -> Option<Self> {
        let fd = ManuallyDrop::new(event_descriptor(0).ok()?);
        Some(Self(Arc::new(Event { fd, process: std::process::id() })))
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn event(&self) -> &OwnedFd {
        &self.0.fd
    }
}

/// The threads that sleep for an rsocket.
#[derive(Default)]
pub(crate) struct Sleepers(Vec<Sleeper>);

struct Sleeper {
    waker: Waker,
    told: bool,
}

impl Sleepers {
    /// There is something to look at.
    pub(crate) fn tell(&mut self) {
        for sleeper in self.0.iter_mut().filter(|sleeper| !sleeper.told) {
            sleeper.told = true;
            // In a child made by fork there are those of its parent, too.
            if sleeper.waker.0.is_own() {
                signal(sleeper.waker.event());
            }
        }
    }

    fn enter(&mut self, waker: &Waker) {
        self.0.push(Sleeper { waker: waker.clone(), told: false });
    }

    /// `polled`: its descriptor was seen to be readable, whatever has made it so.
    fn leave(&mut self, waker: &Waker, polled: bool) {
        let at = self.0.iter().position(|sleeper| sleeper.waker.is(waker));
        let told = at.is_some_and(|at| self.0.swap_remove(at).told);
        if told || polled {
            drain(waker.event());
        }
    }
}

/// What threads can wait for.
pub(crate) trait Waits {
    type Core;

    fn lock(&self) -> MutexGuard<'_, Self::Core>;

    fn sleepers(core: &mut Self::Core) -> &mut Sleepers;

    /// Handles what has happened meanwhile.
    fn advance(&self, core: &mut Self::Core);

    /// From now on what happens makes a descriptor readable. True when something may have happened
    /// just before, which is handled then.
    fn arm(&self, core: &mut Self::Core) -> bool;

    /// Which descriptors become readable.
    fn descriptors(&self, core: &Self::Core) -> [c_int; 2];

    /// Takes what made these descriptors readable.
    fn take(&self, core: &mut Self::Core, readable: [bool; 2]);

    /// A thread is about to poll these descriptors; then it calls [`awake`](Self::awake).
    fn asleep(&self, core: &mut Self::Core, waker: Option<&Waker>) -> [pollfd; 3] {
        if let Some(waker) = waker {
            Self::sleepers(core).enter(waker);
        }
        let [first, second] = self.descriptors(core);
        let wakes = waker.map_or(-1, |waker| waker.event().as_raw_fd());
        [first, second, wakes].map(readable)
    }

    /// The thread has polled, or does not have to.
    fn awake(&self, core: &mut Self::Core, waker: Option<&Waker>, polled: &[pollfd]) {
        let seen = |at| polled.get(at).is_some_and(|polled: &pollfd| polled.revents != 0);
        if let Some(waker) = waker {
            Self::sleepers(core).leave(waker, seen(2));
        }
        let happened = [0, 1].map(seen);
        self.take(core, happened);
        if happened != [false; 2] {
            // Others may wait for what was taken here.
            Self::sleepers(core).tell();
        }
    }
}

/// Waits until something is the case: looks for it for a while, then sleeps. With a time, fails
/// with ETIMEDOUT then.
pub(crate) fn wait<'a, W: Waits>(
    of: &'a W,
    mut core: MutexGuard<'a, W::Core>,
    (nonblocking, until): (bool, Option<Instant>),
    ready: impl Fn(&W::Core) -> bool,
) -> Result<MutexGuard<'a, W::Core>> {
    of.advance(&mut core);
    if ready(&core) {
        return Ok(core);
    }
    if nonblocking {
        return Err(Errno(libc::EAGAIN));
    }
    let begin = Instant::now();
    while begin.elapsed() < Settings::get().polling {
        drop(core);
        std::hint::spin_loop();
        core = of.lock();
        of.advance(&mut core);
        if ready(&core) {
            return Ok(core);
        }
    }
    loop {
        if of.arm(&mut core) && ready(&core) {
            return Ok(core);
        }
        core = sleep(of, core, until)?;
        of.advance(&mut core);
        if ready(&core) {
            return Ok(core);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(Errno(libc::ETIMEDOUT));
        }
    }
}

/// Sleeps until something happens, or a signal comes.
fn sleep<'a, W: Waits>(
    of: &'a W,
    mut core: MutexGuard<'a, W::Core>,
    until: Option<Instant>,
) -> Result<MutexGuard<'a, W::Core>> {
    let waker = Waker::own();
    let polled = of.asleep(&mut core, waker.as_ref());
    drop(core);
    let mut asleep = Asleep { of, waker, polled };
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = timeout(left, asleep.waker.as_ref());
    let slept = blocking::poll(&mut asleep.polled, timeout);
    let error = Errno::last();
    drop(asleep);
    if slept < 0 && !(error == Errno(libc::EINTR) && signals::restarts()) {
        return Err(error);
    }
    Ok(of.lock())
}

/// This thread sleeps. It may be cancelled then, and does not sleep any more either.
struct Asleep<'a, W: Waits> {
    of: &'a W,
    waker: Option<Waker>,
    polled: [pollfd; 3],
}

impl<W: Waits> Drop for Asleep<'_, W> {
    fn drop(&mut self) {
        self.of.awake(&mut self.of.lock(), self.waker.as_ref(), &self.polled);
    }
}

/// For `poll`: at least so much time. A thread that cannot be woken looks itself now and then.
pub(crate) fn timeout(left: Option<Duration>, waker: Option<&Waker>) -> c_int {
    let left =
        if waker.is_some() { left } else { Some(left.map_or(LOOKS, |left| left.min(LOOKS))) };
    left.map_or(-1, |left| c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX))
}

/// How long a thread without a waker sleeps.
const LOOKS: Duration = Duration::from_millis(10);

pub(crate) fn readable(fd: c_int) -> pollfd {
    pollfd { fd, events: POLLIN, revents: 0 }
}

/// Whether it is readable now.
pub(crate) fn is_readable(fd: c_int) -> bool {
    blocking::poll(&mut [readable(fd)], 0) == 1
}

/// A descriptor that is readable once it is signalled.
pub(crate) fn event_descriptor(flags: c_int) -> Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// By no function of the C library, at which a thread may be cancelled: this one holds locks.
pub(crate) fn signal(event: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: eight bytes. It cannot fail: the counter never comes near its limit.
    unsafe { libc::syscall(libc::SYS_write, event.as_raw_fd(), &raw const one, 8) };
}

/// Takes one signal, or all of an event without `EFD_SEMAPHORE`; false when there is none. As
/// [`signal`], it is no place where a thread may be cancelled.
pub(crate) fn drain(event: &OwnedFd) -> bool {
    let mut count = 0_u64;
    // SAFETY: eight bytes.
    unsafe { libc::syscall(libc::SYS_read, event.as_raw_fd(), &raw mut count, 8) == 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_that_sleeps_is_told_once() {
        let [first, second] = [(); 2].map(|()| std::thread::spawn(Waker::own).join());
        let [first, second] = [first, second].map(|made| made.unwrap().unwrap());
        let is_told = |waker: &Waker| is_readable(waker.event().as_raw_fd());
        let mut sleepers = Sleepers::default();
        sleepers.tell();
        sleepers.enter(&first);
        assert!(!is_told(&first), "no thread slept");
        sleepers.enter(&second);
        sleepers.tell();
        assert!(is_told(&first) && is_told(&second));
        sleepers.leave(&first, false);
        // It sleeps again before the other one has run, and really sleeps.
        sleepers.enter(&first);
        assert!(!is_told(&first) && is_told(&second));
        sleepers.leave(&first, false);
        sleepers.leave(&second, false);
        assert!(!is_told(&second) && sleepers.0.is_empty());
    }

    #[test]
    fn a_thread_has_one_waker() {
        assert!(Waker::own().unwrap().is(&Waker::own().unwrap()));
    }

    /// That of a thread of another process, which a child made by fork inherits.
    fn inherited() -> Waker {
        let process = std::process::id().wrapping_add(1);
        Waker(Arc::new(Event { fd: ManuallyDrop::new(event_descriptor(0).unwrap()), process }))
    }

    #[test]
    fn those_of_another_process_are_left_alone() {
        let foreign = inherited();
        let fd = foreign.event().as_raw_fd();
        let mut sleepers = Sleepers::default();
        sleepers.enter(&foreign);
        sleepers.tell();
        assert!(!is_readable(fd), "its parent's thread would be woken");
        drop((sleepers, foreign));
        // SAFETY: no pointers.
        assert!(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0, "it may be something else by now");
        // SAFETY: not used any more.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }

    #[test]
    fn a_thread_that_something_else_woke_is_not_woken_for_ever() {
        let own = Waker::own().unwrap();
        let mut sleepers = Sleepers::default();
        sleepers.enter(&own);
        signal(own.event());
        sleepers.leave(&own, true);
        assert!(!is_readable(own.event().as_raw_fd()));
    }

    #[test]
    fn a_thread_without_a_waker_looks_now_and_then() {
        let own = Waker::own();
        assert_eq!(timeout(None, own.as_ref()), -1);
        assert_eq!(timeout(Some(Duration::from_micros(1500)), own.as_ref()), 2);
        assert_eq!([None, Some(Duration::from_secs(1))].map(|left| timeout(left, None)), [10, 10]);
        assert_eq!(timeout(Some(Duration::from_micros(1500)), None), 2);
    }
}
