//! How a program and the function in it agree on which thread turns the engine.
//!
//! A function's engine has a thread of its own. While a thread of the program polls again and
//! again, it **drives** the engine: each of its polls that finds nothing makes a turn, as do posts
//! where many come without such a poll, so that neither what it posts nor what arrives waits for a
//! change of threads. The engine's thread sleeps meanwhile and looks only now and then. A thread
//! that waits for completion events again and again does the same in its waits. docs/functions.md
//! tells it with a picture.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Finds the [`Driving`] of the function at a daemon's socket: path and its length. Null when this
/// process has none that can be driven.
pub type Find = unsafe extern "C" fn(*const u8, usize) -> *const Driving;
/// The symbol's name.
pub const FIND: &CStr = c"rnic_function_driving";

/// Does what [`Driving::state`] calls for, in a thread of the program. Returns [`Turned`].
pub type Turn = unsafe extern "C" fn(*const Driving) -> c_int;
/// The symbol's name.
pub const TURN: &CStr = c"rnic_function_turn";

/// Closes what the program has of the function's descriptors: it polls no more.
pub type Release = unsafe extern "C" fn(*const Driving);
/// The symbol's name.
pub const RELEASE: &CStr = c"rnic_function_release";

/// What comes before a thread of the program sleeps until a packet or a completion event comes: a
/// turn, and what to sleep on. Returns [`Turned`].
pub type Rest = unsafe extern "C" fn(*const Driving, *mut Resting) -> c_int;
/// The symbol's name.
pub const REST: &CStr = c"rnic_function_rest";

/// What a thread that [rests](Rest) and the library tell each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Resting {
    /// The inode of the program's end of the completion channel that it waits for; 0 in a poll.
    pub channel: u64,
    /// One of the descriptors has ended the sleep before.
    pub was_readable: bool,
    /// An event of that channel, with [`Turned::EVENT`].
    pub event: [u8; 8],
    /// What to sleep on, with [`Turned::SLEEP`].
    pub fds: [c_int; RESTS_ON],
    /// So many of them.
    pub count: u32,
    /// For how many nanoseconds to sleep at most; [`NO_LIMIT`] for as long as it takes.
    pub nanos: u64,
}

/// Most descriptors that a thread rests on.
pub const RESTS_ON: usize = 7;
/// See [`Resting::nanos`].
pub const NO_LIMIT: u64 = u64::MAX;

/// Which thread turns the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// The engine's own.
    Off = 0,
    /// The engine's own. Copies of its sockets are on their way to the program, whose next poll
    /// takes them.
    Offered = 1,
    /// One of the program, in polls that find nothing, in posts and in waits for completion events.
    Driven = 2,
    /// The engine's own, if the function has not ended. The program's copies of sockets are of no
    /// use any more, and its next call closes them.
    Stale = 3,
}

/// What a turn in a thread of the program came to, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turned(u32);

impl Turned {
    /// There may be completions now.
    pub const DELIVERED: Self = Self(1);
    /// The engine's thread is to be woken: it has something to do that only it can do.
    pub const WAKE: Self = Self(2);
    /// Another thread has the engine.
    pub const BUSY: Self = Self(4);
    /// There is an event of the channel that the thread [rests](Rest) for.
    pub const EVENT: Self = Self(8);
    /// It is to sleep now.
    pub const SLEEP: Self = Self(16);

    /// As it is returned over the boundary of the library.
    pub fn from_code(code: c_int) -> Self {
        Self(code.cast_unsigned())
    }

    /// As an integer, to return it over that boundary.
    pub fn code(self) -> c_int {
        self.0.cast_signed()
    }

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the bits of `other`, if so.
    #[must_use]
    pub fn with(self, other: Self, is_so: bool) -> Self {
        if is_so { Self(self.0 | other.0) } else { self }
    }
}

/// What comes with copies of sockets: a message has room for some of them only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// How often the function's sockets had changed before this offer.
    pub changes: u64,
    /// Messages with more of them that follow.
    pub left: u64,
}

impl Offer {
    /// Bytes of a message.
    pub const LEN: usize = 16;

    /// As it is sent.
    pub fn encode(self) -> [u8; Self::LEN] {
        (u128::from(self.changes) << 64 | u128::from(self.left)).to_ne_bytes()
    }

    /// As it is received.
    pub fn decode(bytes: [u8; Self::LEN]) -> Self {
        let both = u128::from_ne_bytes(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
        let (changes, left) = ((both >> 64) as u64, both as u64);
        Self { changes, left }
    }
}

/// See the [module](self). In memory that a forked child sees as zero, which is `Off` for ever: it
/// has no thread of the function.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Driving {
    /// The number of a thread of the program that polls again and again, or with [`RESTS`] of one
    /// that waits for completion events; 0 while there is none.
    wish: AtomicU32,
    state: AtomicU32,
    /// The program is about to wait otherwise than by polling.
    leave: AtomicU32,
    /// The thread of the program that may call the library. Others may be behind a filter of system
    /// calls, or without signals that this one gets.
    admitted: AtomicU32,
    /// Turns made by threads of the program.
    turns: AtomicU64,
    /// The library's side.
    driver: AtomicPtr<c_void>,
    /// No handler of the program can leave a turn in the middle.
    calm: AtomicU32,
    /// The admitted thread is in a turn.
    turning: AtomicU32,
    /// The number of a thread that gets the engine when it wishes to rest; 0 for none.
    ready: AtomicU32,
    /// Something else needs the CPU of the thread that drives.
    crowded: AtomicU32,
}

/// Numbers of threads are smaller.
const RESTS: u32 = 1 << 31;

impl Driving {
    /// Which thread turns the engine now.
    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Offered,
            2 => State::Driven,
            3 => State::Stale,
            _ => State::Off,
        }
    }

    /// Only with the engine's lock; or when the engine has ended.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// The work that a state asked for is done. If the state has changed meanwhile, the new one
    /// stays.
    pub fn leave(&self, state: State) {
        let (from, to) = (state as u32, State::Off as u32);
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a poll of this thread is to call the library; not where its number is not known (0),
    /// also while no thread is admitted.
    #[inline]
    pub fn calls(&self, thread: u32) -> bool {
        !self.is_off() && thread != 0 && self.admitted.load(Ordering::Relaxed) == thread
    }

    /// No poll calls the library.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.state.load(Ordering::Relaxed) == State::Off as u32
    }

    /// This thread of the program may call the library. Before a state that asks for it.
    pub fn admit(&self, thread: u32) {
        self.admitted.store(thread, Ordering::Relaxed);
    }

    /// This thread of the program polls again and again.
    pub fn wish(&self, thread: u32) {
        self.wish.store(thread, Ordering::Relaxed);
    }

    /// This thread of the program waits for completion events again and again.
    pub fn wish_to_rest(&self, thread: u32) {
        if thread != 0 {
            self.wish.store(thread | RESTS, Ordering::Relaxed);
        }
    }

    /// A thread is given the engine at its next wish to rest; 0 for none.
    pub fn set_ready(&self, thread: u32) {
        self.ready.store(thread, Ordering::Relaxed);
    }

    /// Whether this thread is.
    pub fn is_ready(&self, thread: u32) -> bool {
        thread != 0 && self.ready.load(Ordering::Relaxed) == thread
    }

    /// The same, and no thread is from now on.
    pub fn take_ready(&self, thread: u32) -> bool {
        thread != 0 && self.ready.swap(0, Ordering::Relaxed) == thread
    }

    /// None of them does any more.
    pub fn take_wish_back(&self) {
        self.wish.store(0, Ordering::Relaxed);
    }

    /// Takes the wish: the thread's number, and whether it wishes to rest.
    pub fn take_wish(&self) -> Option<(u32, bool)> {
        if self.wish.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.leave.store(0, Ordering::Relaxed);
        let wish = self.wish.swap(0, Ordering::Relaxed);
        (wish != 0).then_some((wish & !RESTS, wish & RESTS != 0))
    }

    /// The program is about to wait otherwise than by polling. True when the engine's thread must
    /// be woken for that.
    pub fn withdraw(&self) -> bool {
        self.take_wish_back();
        self.state() == State::Driven && self.leave.swap(1, Ordering::Relaxed) == 0
    }

    /// Whether the program has [withdrawn](Self::withdraw).
    pub fn is_withdrawn(&self) -> bool {
        self.leave.load(Ordering::Relaxed) != 0
    }

    /// Whether turns need not keep the program's signals away: it handled none when the engine's
    /// thread looked last.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed) != 0
    }

    /// See [`is_calm`](Self::is_calm).
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm.into(), Ordering::Relaxed);
    }

    /// Whether something else needs the CPU of the thread that drives: polls that find nothing had
    /// better sleep until something comes.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed) != 0
    }

    /// See [`is_crowded`](Self::is_crowded).
    pub fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded.into(), Ordering::Relaxed);
    }

    /// Whether the admitted thread is in a turn. It learns that in a handler that has interrupted
    /// the turn, and that may have left it for good.
    #[inline]
    pub fn is_turning(&self) -> bool {
        self.turning.load(Ordering::Relaxed) != 0
    }

    /// See [`is_turning`](Self::is_turning). Only by that thread.
    pub fn set_turning(&self, turning: bool) {
        self.turning.store(turning.into(), Ordering::Relaxed);
    }

    /// A thread of the program has made a turn. Only with the engine's lock.
    pub fn note_turn(&self) {
        self.turns.store(self.turns().wrapping_add(1), Ordering::Relaxed);
    }

    /// How many turns threads of the program have made.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// What the library has put here; null in a forked child.
    pub fn driver(&self) -> *mut c_void {
        self.driver.load(Ordering::Acquire)
    }

    /// Called once.
    pub fn set_driver(&self, driver: *mut c_void) {
        debug_assert_eq!(self.driver(), null_mut());
        self.driver.store(driver, Ordering::Release);
    }
}
