//! Which descriptors of the program stand for rsockets.

use std::{
    cell::RefCell,
    ffi::c_int,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use crate::{
    fork,
    real::{inside, rclose, real},
};

/// Descriptors beyond these are always the kernel's.
pub(crate) const MOST: usize = 65_536;
const NONE: i32 = -1;

static TABLE: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// Held while entries change, here or in [`fork`], and never for long.
static CHANGING: Mutex<()> = Mutex::new(());

/// Of the lock under which entries change.
pub(crate) type Changing = MutexGuard<'static, ()>;

thread_local! {
    /// Held while this thread forks: the child inherits no lock of a thread that it does not have.
    static FORKING: RefCell<Option<Changing>> = const { RefCell::new(None) };
}

/// The process that has the rsockets.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The process that has the rsockets is this one. A child made by fork has no part in its parent's
/// connections, but may have its own.
pub(crate) fn begin() {
    static BEGIN: Once = Once::new();
    extern "C" fn prepare() {
        let _ = FORKING.try_with(|forking| forking.replace(Some(changing())));
    }
    extern "C" fn in_parent() {
        let _ = FORKING.try_with(RefCell::take);
    }
    extern "C" fn in_child() {
        for entry in &TABLE {
            entry.store(NONE, Ordering::Relaxed);
        }
        fork::in_child();
        // SAFETY: no pointers.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        in_parent();
    }
    BEGIN.call_once(|| {
        // SAFETY: the library is never unloaded.
        unsafe {
            OWNER.store(libc::getpid(), Ordering::Relaxed);
            libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child));
        }
    });
}

/// False in a child made by vfork, which shares its parent's memory: what it does to descriptors
/// is its own affair.
pub(crate) fn is_owner() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: no pointers.
    owner == 0 || owner == unsafe { libc::getpid() }
}

fn entry(fd: c_int) -> Option<&'static AtomicI32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

pub(crate) fn changing() -> Changing {
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rsocket that a descriptor of the program stands for.
pub(crate) fn find(fd: c_int) -> Option<c_int> {
    let found = entry(fd)?.load(Ordering::Acquire);
    (found != NONE).then_some(found)
}

/// A descriptor that stands for an rsocket; `None` when there is no more.
pub(crate) fn stand_for(socket: c_int, close_on_exec: bool) -> Option<c_int> {
    begin();
    let flags = libc::O_RDWR | if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), flags) };
    let known = entry(fd);
    match known {
        Some(entry) => {
            entry.store(socket, Ordering::Release);
            Some(fd)
        }
        None if fd >= 0 => {
            // SAFETY: just opened.
            unsafe { real!(close: fn(c_int) -> c_int)(fd) };
            None
        }
        None => None,
    }
}

/// Descriptors of the program that were a socket of the kernel stand for an rsocket now. False when
/// there are none, or no more can be opened.
pub(crate) fn become_rsocket(fds: &[c_int], socket: c_int, _changing: &Changing) -> bool {
    // SAFETY: a C string.
    let new = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    for (fd, entry) in fds.iter().filter(|_| new >= 0).filter_map(|fd| Some((*fd, entry(*fd)?))) {
        turn_into(fd, new);
        entry.store(socket, Ordering::Release);
    }
    if new >= 0 {
        // SAFETY: no pointers; just opened.
        unsafe { real!(close: fn(c_int) -> c_int)(new) };
    }
    new >= 0 && !fds.is_empty()
}

/// Makes a descriptor another one of `other`, but for its own flags.
fn turn_into(fd: c_int, other: c_int) {
    // SAFETY: no pointers; both are open.
    unsafe {
        let flags = libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD, 0);
        real!(dup2: fn(c_int, c_int) -> c_int)(other, fd);
        libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, flags);
    }
}

/// Another descriptor of the program stands for the same rsocket.
pub(crate) fn also(fd: c_int, socket: c_int) {
    if !is_owner() {
        return;
    }
    let _changing = changing();
    if let Some(entry) = entry(fd) {
        entry.store(socket, Ordering::Release);
    }
}

/// A descriptor does not stand for an rsocket any more. The last one closes it.
pub(crate) fn forget(fd: c_int) {
    if !is_owner() {
        return;
    }
    let gone = {
        let _changing = changing();
        let socket = entry(fd).map_or(NONE, |entry| entry.swap(NONE, Ordering::AcqRel));
        let others = TABLE.iter().any(|entry| entry.load(Ordering::Relaxed) == socket);
        (socket != NONE && !others).then_some(socket)
    };
    if let Some(socket) = gone {
        // SAFETY: no pointers.
        inside(|| unsafe { rclose(socket) });
    }
}

/// All descriptors of an rsocket are another socket of the kernel now, and the rsocket is gone.
pub(crate) fn replace(socket: c_int, by: c_int) {
    let changing = changing();
    for (fd, entry) in TABLE.iter().enumerate() {
        if entry.load(Ordering::Relaxed) == socket {
            turn_into(c_int::try_from(fd).unwrap_or(NONE), by);
            entry.store(NONE, Ordering::Release);
        }
    }
    // What follows may take long.
    drop(changing);
    // SAFETY: no pointers.
    unsafe {
        real!(close: fn(c_int) -> c_int)(by);
        inside(|| rclose(socket));
    }
}
