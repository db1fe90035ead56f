//! Which descriptors of the program stand for rsockets.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::c_int,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use crate::{
    fork,
    real::{inside, is_apart, rclose, real},
};

/// Descriptors beyond these are always the kernel's.
pub(crate) const MOST: usize = 65_536;
const NONE: i32 = -1;

static TABLE: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// Held while entries change, here or in [`fork`], and never for long.
static CHANGING: Mutex<Rsockets> = Mutex::new(BTreeMap::new());

/// Of the lock under which entries change.
pub(crate) type Changing = MutexGuard<'static, Rsockets>;

/// The table the other way round, with what is known of each rsocket: a program closes many more
/// descriptors than there is time to look through the table.
pub(crate) type Rsockets = BTreeMap<c_int, Rsocket>;

#[derive(Default)]
pub(crate) struct Rsocket {
    /// The descriptors that stand for it.
    fds: Vec<c_int>,
    given: Given,
}

/// What a program has made of a socket, for another socket that takes its place.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    /// The address that it is bound to, as the program gave it.
    pub(crate) address: Option<Vec<u8>>,
    /// Level, name and value of its options.
    pub(crate) options: Vec<(c_int, c_int, Vec<u8>)>,
}

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
        let _ = FORKING.try_with(|forking| {
            if let Some(rsockets) = forking.borrow_mut().as_mut() {
                let all = std::mem::take(&mut **rsockets).into_values();
                let fds = all.flat_map(|rsocket| rsocket.fds);
                fds.filter_map(entry).for_each(|entry| entry.store(NONE, Ordering::Relaxed));
            }
        });
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

/// None in a thread whose numbers of descriptors are not the program's.
fn entry(fd: c_int) -> Option<&'static AtomicI32> {
    TABLE.get(usize::try_from(fd).ok()?).filter(|_| !is_apart())
}

pub(crate) fn changing() -> Changing {
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rsocket that a descriptor of the program stands for.
pub(crate) fn find(fd: c_int) -> Option<c_int> {
    let found = entry(fd)?.load(Ordering::Acquire);
    (found != NONE).then_some(found)
}

/// A descriptor stands for this rsocket from now on, or for none: whether that was the last one of
/// the rsocket that it stood for, which is gone then.
fn set(rsockets: &mut Rsockets, fd: c_int, socket: c_int) -> Option<c_int> {
    let before = entry(fd)?.swap(socket, Ordering::AcqRel);
    if let Some(old) = rsockets.get_mut(&before) {
        old.fds.retain(|other| *other != fd);
    }
    if socket != NONE {
        rsockets.entry(socket).or_default().fds.push(fd);
    }
    let is_last = rsockets.get(&before).is_some_and(|old| old.fds.is_empty());
    is_last.then(|| {
        rsockets.remove(&before);
        before
    })
}

/// Notes what a program has made of an rsocket.
pub(crate) fn note(socket: c_int, change: impl FnOnce(&mut Given)) {
    if is_owner()
        && let Some(rsocket) = changing().get_mut(&socket)
    {
        change(&mut rsocket.given);
    }
}

pub(crate) fn given(socket: c_int) -> Given {
    changing().get(&socket).map(|rsocket| rsocket.given.clone()).unwrap_or_default()
}

/// A descriptor that stands for an rsocket; `None` when there is no more.
pub(crate) fn stand_for(socket: c_int, close_on_exec: bool) -> Option<c_int> {
    begin();
    let flags = libc::O_RDWR | if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), flags) };
    if entry(fd).is_some() {
        set(&mut changing(), fd, socket);
        return Some(fd);
    }
    if fd >= 0 {
        // SAFETY: just opened.
        unsafe { real!(close: fn(c_int) -> c_int)(fd) };
    }
    None
}

/// Descriptors of the program that were a socket of the kernel stand for an rsocket now. False when
/// there are none, or no more can be opened.
pub(crate) fn become_rsocket(fds: &[c_int], socket: c_int, changing: &mut Changing) -> bool {
    // SAFETY: a C string.
    let new = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    for fd in fds.iter().copied().filter(|fd| new >= 0 && entry(*fd).is_some()) {
        turn_into(fd, new);
        set(changing, fd, socket);
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
    set(&mut changing(), fd, socket);
}

/// A descriptor does not stand for an rsocket any more. The last one closes it.
pub(crate) fn forget(fd: c_int) {
    if !is_owner() {
        return;
    }
    let gone = set(&mut changing(), fd, NONE);
    if let Some(socket) = gone {
        // SAFETY: no pointers.
        inside(|| unsafe { rclose(socket) });
    }
}

/// All descriptors of an rsocket are another socket of the kernel now, and the rsocket is gone.
pub(crate) fn replace(socket: c_int, by: c_int) {
    let mut changing = changing();
    let fds = changing.get(&socket).map(|rsocket| rsocket.fds.clone()).unwrap_or_default();
    for fd in fds {
        turn_into(fd, by);
        set(&mut changing, fd, NONE);
    }
    // What follows may take long.
    drop(changing);
    // SAFETY: no pointers.
    unsafe {
        real!(close: fn(c_int) -> c_int)(by);
        inside(|| rclose(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rsocket_is_gone_with_its_last_descriptor() {
        let [first, second, other] = [60_011, 60_012, 60_013];
        let (one, two) = (70_011, 70_012);
        also(first, one);
        also(second, one);
        also(other, two);
        note(one, |given| given.address = Some(vec![1]));
        let mut rsockets = changing();
        assert_eq!(set(&mut rsockets, first, NONE), None, "another one is left");
        assert_eq!(set(&mut rsockets, second, two), Some(one), "it stands for the other one");
        assert_eq!(set(&mut rsockets, second, NONE), None);
        assert_eq!(set(&mut rsockets, second, NONE), None, "it stands for none");
        assert_eq!(set(&mut rsockets, other, NONE), Some(two));
        drop(rsockets);
        also(first, one);
        assert_eq!(given(one), Given::default(), "the number is of a new one");
        also(first, NONE);
    }
}
