//! Our handler of SIGSEGV and SIGBUS, and those of the program.
//!
//! A program may install a handler of its own at any time. So an engine asks every 100 us whether
//! its handler is still there, and installs it again in front of the new one. It also asks whether
//! the thread blocks the signals, with which the kernel copies. Each installation
//! has an entry of its own, with its own predecessor: the program's handler may itself call
//! the one that it found, which is an earlier entry of ours. Where all entries are used up there
//! are no plain copies.

use super::machine::way_out;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether a missing page ends no more than a copy from now on.
pub(in super::super) fn is_ready() -> bool {
    are_let_through() && SIGNALS.into_iter().enumerate().all(|(at, signal)| is_ours(at, signal))
}

/// The calling thread does not block them: the kernel would end the process at a missing page.
fn are_let_through() -> bool {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: it is written where the call succeeds, and only used then.
    unsafe {
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, null(), blocked.as_mut_ptr());
        let blocked = (failed == 0).then(|| blocked.assume_init());
        blocked.is_some_and(|set| {
            SIGNALS.iter().all(|one| libc::sigismember(&raw const set, *one) == 0)
        })
    }
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What each entry passes signals on to, by signal. Null before it is installed.
static NEXT: [[AtomicPtr<libc::sigaction>; ENTRIES.len()]; SIGNALS.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; ENTRIES.len()] }; SIGNALS.len()];

const ENTRIES: [Handler; 8] = [
    entry::<0>, entry::<1>, entry::<2>, entry::<3>, entry::<4>, entry::<5>, entry::<6>, entry::<7>,
];

/// The entries of a signal that were installed.
struct Installed {
    entries: [Option<Place>; ENTRIES.len()],
    latest: Option<usize>,
}

/// Where an entry was put.
#[derive(Clone, Copy)]
struct Place {
    /// In front of this handler.
    of: &'static libc::sigaction,
    /// What was there before that, as far as we know.
    behind: &'static libc::sigaction,
}

static INSTALLED: Mutex<[Installed; SIGNALS.len()]> =
    Mutex::new([const { Installed { entries: [None; ENTRIES.len()], latest: None } }; 2]);

fn is_ours(at: usize, signal: c_int) -> bool {
    action_of(signal).is_some_and(|now| is_entry(&now)) || install(at, signal)
}

fn is_entry(action: &libc::sigaction) -> bool {
    entry_of(action).is_some()
}

fn entry_of(action: &libc::sigaction) -> Option<usize> {
    ENTRIES.iter().position(|entry| action.sa_sigaction == *entry as usize)
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: it is written where the call succeeds, and only used then.
    unsafe {
        let failed = libc::sigaction(signal, null(), action.as_mut_ptr());
        (failed == 0).then(|| action.assume_init())
    }
}

/// Sets what the kernel does from now on; what it did until then.
fn exchange(signal: c_int, new: &libc::sigaction) -> Option<libc::sigaction> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the handler is the program's own, or does nothing but what handlers may. `before` is
    // written where the call succeeds, and only used then.
    unsafe {
        let failed = libc::sigaction(signal, new, before.as_mut_ptr());
        (failed == 0).then(|| before.assume_init())
    }
}

/// Puts an entry in front of what is there.
#[cold]
fn install(at: usize, signal: c_int) -> bool {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    // Another engine may just have done it.
    let Some(now) = action_of(signal) else { return false };
    is_entry(&now) || installed[at].put_in_front(at, signal, now)
}

/// What `put` has replaced stands again, or what the program has installed since.
fn put_back(signal: c_int, mut put: libc::sigaction, mut replaced: libc::sigaction) {
    while let Some(found) = exchange(signal, &replaced)
        && !is_same(&found, &put)
    {
        (put, replaced) = (replaced, found);
    }
}

impl Installed {
    /// Puts an entry in front of what stands there. A thread of the program may install a handler
    /// just before that, which would be lost: it gets an entry in its turn.
    fn put_in_front(&mut self, at: usize, signal: c_int, mut stands: libc::sigaction) -> bool {
        let mut behind = stands;
        loop {
            let Some(number) = self.place(&NEXT[at], behind) else {
                if !is_same(&stands, &behind) {
                    put_back(signal, stands, behind);
                }
                return false;
            };
            let ours = in_front_of(behind, number);
            let Some(found) = exchange(signal, &ours) else { return false };
            if is_same(&found, &stands) {
                return true;
            }
            let entry = entry_of(&found);
            if entry.is_some() {
                // The program has taken its handler away again.
                put_back(signal, ours, found);
                self.latest = entry;
                return true;
            }
            (stands, behind) = (ours, found);
        }
    }

    /// The entry for what is there now, which passes signals on to it: the one that has stood there
    /// before, or a new one.
    fn place(
        &mut self,
        next: &[AtomicPtr<libc::sigaction>; ENTRIES.len()],
        now: libc::sigaction,
    ) -> Option<usize> {
        // SAFETY: what was stored there is never freed.
        let next_of = |entry: usize| unsafe { next[entry].load(Ordering::Acquire).as_ref() };
        let leads_to_it = |entry: usize| next_of(entry).is_some_and(|next| is_same(next, &now));
        let standing = (0..ENTRIES.len()).find(|entry| leads_to_it(*entry));
        if standing.is_some() && !is_handler(&now) {
            return standing;
        }
        let is_for_it = |place: &Option<Place>| place.is_none_or(|place| is_same(place.of, &now));
        let number = (0..ENTRIES.len())
            .find(|entry| Some(*entry) != standing && is_for_it(&self.entries[*entry]))?;
        let of = match self.entries[number] {
            Some(place) => place.of,
            None => Box::leak(Box::new(now)),
        };
        let behind = match standing.and_then(|entry| self.entries[entry]) {
            // It was installed once more. What it found this time may be its own entry, and calls
            // of the two would have no end: without us it had found itself, which programs notice.
            Some(place) => place.behind,
            None => self.latest.and_then(next_of).unwrap_or_else(|| Box::leak(Box::new(default()))),
        };
        next[number].store(std::ptr::from_ref(of).cast_mut(), Ordering::Release);
        if let Some(entry) = standing {
            next[entry].store(std::ptr::from_ref(behind).cast_mut(), Ordering::Release);
        }
        self.entries[number] = Some(Place { of, behind });
        self.latest = Some(number);
        Some(number)
    }
}

/// The action of an entry.
fn in_front_of(before: libc::sigaction, number: usize) -> libc::sigaction {
    // On the stack that the program has chosen for its handler. Not SA_RESETHAND: it is the
    // program's handler that is called only once.
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    let sa_flags = before.sa_flags & kept | libc::SA_SIGINFO;
    libc::sigaction { sa_sigaction: ENTRIES[number] as usize, sa_flags, ..before }
}

fn is_same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    // The C library adds it to what the kernel is told.
    const SA_RESTORER: c_int = 0x0400_0000;
    let of = |action: &libc::sigaction| (action.sa_sigaction, action.sa_flags & !SA_RESTORER);
    of(one) == of(other)
}

fn is_handler(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

/// What the kernel does by itself.
fn default() -> libc::sigaction {
    // SAFETY: all-zero bytes are valid.
    let action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    libc::sigaction { sa_sigaction: libc::SIG_DFL, ..action }
}

extern "C" fn entry<const N: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO both. The thread goes on further behind in
    // the copy, at an instruction that takes the registers as they are.
    unsafe {
        let at = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = &mut at[libc::REG_RIP as usize];
        if is_fault((*info).si_code)
            && let Some(way) = way_out(*at)
        {
            *at = way;
            return;
        }
    }
    pass_on(N, signal, info, context);
}

/// The instruction at which the thread is has caused the signal. Other signals meet a thread where
/// it happens to be: those that were sent, and those that tell of broken memory that nothing has
/// read yet.
fn is_fault(code: c_int) -> bool {
    code > 0 && code != libc::BUS_MCEERR_AO
}

/// Does what would have happened without the entry.
fn pass_on(number: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = usize::from(signal == libc::SIGBUS);
    // SAFETY: it was set before the entry was installed, and is never freed.
    let next = unsafe { NEXT[at][number].load(Ordering::Acquire).as_ref() };
    let Some(next) = next else { return };
    match next.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the kernel gives it to a handler with SA_SIGINFO.
            let was_sent = !is_fault(unsafe { (*info).si_code });
            if was_sent && next.sa_sigaction == libc::SIG_IGN {
                return;
            }
            // SAFETY: the thread goes on where it was and meets the same fault, without us; what
            // another process has sent is sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            if next.sa_flags & libc::SA_RESETHAND != 0 && stands_first(number, signal) {
                // SAFETY: as the kernel would have done. An engine finds that with its next look.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            call(handler, next.sa_flags, (signal, info, context));
        }
    }
}

/// The kernel has called this entry, and not a handler of the program.
fn stands_first(number: usize, signal: c_int) -> bool {
    action_of(signal).is_some_and(|action| action.sa_sigaction == ENTRIES[number] as usize)
}

fn call(
    handler: usize,
    flags: c_int,
    (signal, info, context): (c_int, *mut libc::siginfo_t, *mut c_void),
) {
    // SAFETY: the program has installed it, as a handler of the kind that its flags say.
    unsafe {
        match flags & libc::SA_SIGINFO {
            0 => std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
            _ => std::mem::transmute::<usize, Handler>(handler)(signal, info, context),
        }
    }
}

#[cfg(test)]
mod tests;
