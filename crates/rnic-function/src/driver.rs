//! The program's side of an engine that it turns itself, see [`rnic_abi::os::driving`].
//!
//! Threads of the program call this. Their table of descriptors is not the function's, so they have
//! copies of its sockets, which the function offers them. Only they can close these.

use crate::stack::Stack;
use rnic_abi::os::driving::{Driving, Offer, Resting, State, Turned};
use rnic_abi::os::{Connection, Descriptor, Descriptors, signals};
use rnic_host::shard::ProgramsEngine;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Never freed: threads of the program may be about to call it.
pub(crate) struct Driver {
    driving: &'static Driving,
    /// None once the function has ended and its descriptors are closed.
    side: Mutex<Option<Side>>,
    /// Copies of sockets. Not in `side`, which a thread has in each turn: a fork may come in one.
    copies: Mutex<Vec<Descriptor<OwnedFd>>>,
    /// Copies of sockets come from there. None once the function has ended.
    offers: Mutex<Option<Descriptor<Connection>>>,
    /// The one that was made before.
    next: AtomicPtr<Self>,
}

struct Side {
    engine: ProgramsEngine,
    stack: Stack,
    /// Copies of an offer that is not complete.
    offered: Vec<OwnedFd>,
}

/// All of this process, the newest first.
static ALL: AtomicPtr<Driver> = AtomicPtr::new(null_mut());

impl Driver {
    /// For a function that has started.
    ///
    /// # Errors
    /// When there is no memory, or on a processor that this is not written for.
    pub(crate) fn start(
        driving: &'static Driving,
        engine: ProgramsEngine,
        offers: Connection,
    ) -> io::Result<()> {
        let (stack, offers) = (Stack::new()?, Descriptor::new(offers)?);
        let side = Mutex::new(Some(Side { engine, stack, offered: Vec::new() }));
        let (copies, offers) = (Mutex::default(), Mutex::new(Some(offers)));
        let next = AtomicPtr::new(null_mut());
        let driver = Box::new(Self { driving, side, copies, offers, next });
        let driver: *mut Self = Box::into_raw(driver);
        let mut newest = ALL.load(Ordering::Acquire);
        loop {
            // SAFETY: made above, and never freed.
            unsafe { (*driver).next.store(newest, Ordering::Relaxed) };
            match ALL.compare_exchange(newest, driver, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(newer) => newest = newer,
            }
        }
        driving.set_driver(driver.cast());
        Ok(())
    }

    /// That of a function; `None` in a forked child.
    pub(crate) fn of(driving: &Driving) -> Option<&'static Self> {
        // SAFETY: null, or what `start` has leaked.
        unsafe { driving.driver().cast::<Self>().cast_const().as_ref() }
    }

    /// Does what the state calls for.
    pub(crate) fn turn(&self) -> Turned {
        self.turn_by(ProgramsEngine::turn)
    }

    /// The same for a thread that is to sleep where there is nothing to do.
    pub(crate) fn rest(&self, resting: &mut Resting) -> Turned {
        self.turn_by(|engine| engine.rest(resting))
    }

    fn turn_by(&self, work: impl FnOnce(&ProgramsEngine) -> Turned) -> Turned {
        let is_calm = self.driving.state() == State::Driven && self.driving.is_calm();
        undisturbed(is_calm, || {
            let mut side = match self.side.try_lock() {
                Ok(side) => side,
                Err(TryLockError::Poisoned(_)) => return Turned::default(),
                Err(TryLockError::WouldBlock) => {
                    return Turned::default().with(Turned::BUSY, true);
                }
            };
            match (side.as_mut(), self.driving.state()) {
                (None, _) | (_, State::Off) => Turned::default(),
                (Some(side), State::Driven) => {
                    // For handlers in this very thread.
                    self.driving.set_turning(true);
                    compiler_fence(Ordering::SeqCst);
                    let turned = side.stack.run(|| work(&side.engine));
                    compiler_fence(Ordering::SeqCst);
                    self.driving.set_turning(false);
                    // The engine's thread then ends the function.
                    turned.unwrap_or_else(|_| Turned::default().with(Turned::WAKE, true))
                }
                // The engine's thread has just made the offer, and is about to sleep.
                (Some(side), State::Offered) if !side.engine.is_free() => {
                    Turned::default().with(Turned::BUSY, true)
                }
                (Some(side), State::Offered) => {
                    self.take_offers(side);
                    self.driving.leave(State::Offered);
                    // It waits for this.
                    Turned::default().with(Turned::WAKE, true)
                }
                (Some(_), State::Stale) => {
                    self.copies().clear();
                    self.forget_ended(&mut side);
                    self.driving.leave(State::Stale);
                    Turned::default()
                }
            }
        })
    }

    /// Closes the copies, also those that it was offered: the program needs them no more for now.
    /// Where another thread has the engine all the time they stay, for its turns.
    pub(crate) fn release(&self) {
        undisturbed(false, || {
            for attempt in 0..RELEASE_TRIES {
                if self.try_release() {
                    return;
                }
                // The engine's thread may wait for this CPU, or for another one.
                match attempt < RELEASE_TRIES / 2 {
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(RELEASE_PAUSE),
                }
            }
        });
    }

    /// False while another thread has the engine.
    fn try_release(&self) -> bool {
        let Ok(mut side) = self.side.try_lock() else { return false };
        // Or the engine's thread might make an offer when no thread polls any more.
        self.driving.take_wish_back();
        if side.as_ref().is_some_and(|side| !side.engine.forget_copies()) {
            return false;
        }
        self.copies().clear();
        while self.next_part().is_some() {}
        side.iter_mut().for_each(|side| side.offered.clear());
        self.forget_ended(&mut side);
        true
    }

    /// Where the function has ended, nothing of it is needed any more.
    fn forget_ended(&self, side: &mut Option<Side>) {
        if side.as_ref().is_some_and(|side| side.engine.has_ended()) {
            *side = None;
            *self.offers() = None;
        }
    }

    fn take_offers(&self, side: &mut Side) {
        while let Some((offer, copies)) = self.next_part() {
            side.offered.extend(copies.map(above_standard));
            let Some(Offer { changes, left: 0 }) = offer else { continue };
            let offered = std::mem::take(&mut side.offered);
            if side.engine.take_copies(changes, &offered) {
                let copies = offered.into_iter().map(Descriptor::new);
                *self.copies() = copies.filter_map(Result::ok).collect();
            }
        }
    }

    /// A part of an offer, if there is one: none comes any more when the function has hung up.
    fn next_part(&self) -> Option<(Option<Offer>, Descriptors)> {
        let mut offer = [0; Offer::LEN];
        let offers = self.offers();
        match offers.as_ref()?.get()?.try_recv(&mut offer) {
            Ok((0, _)) => None,
            Ok((len, copies)) => Some(((len == offer.len()).then(|| Offer::decode(offer)), copies)),
            // The program may have no more open files.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Some((None, Descriptors::default()))
            }
            Err(_) => None,
        }
    }

    fn offers(&self) -> MutexGuard<'_, Option<Descriptor<Connection>>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copies(&self) -> MutexGuard<'_, Vec<Descriptor<OwnedFd>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often to try for an engine that other threads have.
const RELEASE_TRIES: u32 = 200;
/// The later tries are so far apart.
const RELEASE_PAUSE: Duration = Duration::from_micros(200);

/// A thread that left `work` in the middle, because it is cancelled or because a handler of a
/// signal ends the program or jumps away, would never give the engine back. `is_calm`: there are no
/// such handlers.
fn undisturbed<T>(is_calm: bool, work: impl FnOnce() -> T) -> T {
    // Inside: a signal that was kept away may have a handler that jumps off as soon as it comes.
    let work = || not_cancelled(work);
    if is_calm { work() } else { signals::without(work) }
}

fn not_cancelled<T>(work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: changes the calling thread only, and writes a local variable.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// `pthread.h`.
const PTHREAD_CANCEL_DISABLE: i32 = 1;

/// Closes what is left of functions that have ended.
pub(crate) fn tidy() {
    for_each(|driver| {
        if driver.driving.state() == State::Stale {
            driver.turn();
        }
    });
}

/// A forked child closes its copies of the sockets, also those on their way: they would keep the
/// port from another daemon.
pub(crate) fn close_in_child() {
    for_each(|driver| {
        // Another thread of the parent may have had a lock, for the moment in which it took some.
        if let Ok(mut copies) = driver.copies.try_lock() {
            copies.clear();
        }
        if let Ok(mut offers) = driver.offers.try_lock() {
            *offers = None;
        }
    });
}

/// Not with a number of standard input, output or error, where the program has closed those: its
/// next file is to get it.
fn above_standard(copy: OwnedFd) -> OwnedFd {
    match copy.as_raw_fd() {
        0..=2 => rustix::io::fcntl_dupfd_cloexec(&copy, 3).unwrap_or(copy),
        _ => copy,
    }
}

fn for_each(work: impl Fn(&Driver)) {
    let mut next = ALL.load(Ordering::Acquire);
    // SAFETY: null, or what `start` has leaked.
    while let Some(driver) = unsafe { next.as_ref() } {
        work(driver);
        next = driver.next.load(Ordering::Relaxed);
    }
}

/// What functions and programs agree on, for some functions.
///
/// In memory that is zero in a forked child, however it is made: none of its threads must believe
/// that it drives an engine.
#[derive(Debug, Default)]
pub(crate) struct Agreements {
    /// Not used yet.
    free: &'static [Driving],
}

impl Agreements {
    /// One more, which is never used again.
    pub(crate) fn next(&mut self) -> io::Result<&'static Driving> {
        if self.free.is_empty() {
            self.free = pages()?;
        }
        let (first, rest) = self.free.split_first().ok_or(io::ErrorKind::OutOfMemory)?;
        self.free = rest;
        Ok(first)
    }
}

fn pages() -> io::Result<&'static [Driving]> {
    let len = PAGES * rustix::param::page_size();
    // SAFETY: new memory, which nothing else knows and which stays. All-zero bytes are a valid
    // value, and a page is aligned enough.
    unsafe {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(null_mut(), len, rights, MapFlags::PRIVATE)?;
        madvise(page, len, Advice::LinuxWipeOnFork)?;
        Ok(std::slice::from_raw_parts(page.cast(), len / size_of::<Driving>()))
    }
}

/// For as many functions as a program ever has, so that it loses no further memory to this.
const PAGES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_does_not_drive() {
        let mut agreements = Agreements::default();
        let driving = agreements.next().unwrap();
        driving.set_state(State::Driven);
        // SAFETY: the child only reads and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_off = driving.is_off() && Driver::of(driving).is_none();
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_off { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!std::ptr::eq(driving, agreements.next().unwrap()));
    }
}
