//! Servers that hand each connection to a child: `RDMAV_FORK_SAFE=1` at both ends.
//!
//! A connection over RDMA cannot be handed on. So a stream begins as TCP, and becomes an rsocket
//! when it is used for data first: the server, by then the child, listens at the same port, says
//! so in four zero bytes over TCP, and the client connects. This is what upstream's library does,
//! too. Here is when, and in [`again`](crate::again) how.

use std::{
    env,
    ffi::c_int,
    sync::{
        Condvar, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    again::{accept_again, connect_again, shut},
    real::{inside, is_apart, rclose, real, rfcntl},
    table::{self, Changing, MOST},
};

/// What a TCP socket of the program may become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing else.
    Plain = 0,
    New = 1,
    Listening = 2,
    Accepted = 3,
    Connected = 4,
    /// A thread makes an rsocket of it.
    Changing = 5,
}

/// Of each descriptor its stage, and above that a number which the descriptors of one socket have
/// in common.
static STAGES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
const STAGE: u32 = 7;
/// When one of them is [`Stage::Changing`] no more.
static CHANGED: Condvar = Condvar::new();

/// Whether the user wants it.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = env::var("RDMAV_FORK_SAFE").ok();
        value.and_then(|value| value.trim().parse::<i32>().ok()).is_some_and(|value| value != 0)
    })
}

/// As that of [`table`].
fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    STAGES.get(usize::try_from(fd).ok()?).filter(|_| !is_apart())
}

fn word(fd: c_int) -> u32 {
    entry(fd).map_or(0, |entry| entry.load(Ordering::Acquire))
}

pub(crate) fn is_at(fd: c_int, wanted: Stage) -> bool {
    word(fd) & STAGE == wanted as u32
}

/// A new socket.
pub(crate) fn begin(fd: c_int, at: Stage) {
    static SOCKETS: AtomicU32 = AtomicU32::new(0);
    table::begin();
    if let Some(entry) = entry(fd) {
        let number = SOCKETS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        entry.store(number << STAGE.count_ones() | at as u32, Ordering::Relaxed);
    }
}

/// The socket of a descriptor goes on: so do all descriptors of it.
pub(crate) fn go_on(fd: c_int, to: Stage) {
    let changing = table::changing();
    let before = word(fd);
    set(&of_socket(before, &changing), before & !STAGE | to as u32, &changing);
}

/// The descriptors of a socket at a stage.
fn of_socket(word: u32, _changing: &Changing) -> Vec<c_int> {
    let is_it = |entry: &AtomicU32| word != 0 && entry.load(Ordering::Relaxed) == word;
    let all = STAGES.iter().enumerate().filter(|(_, entry)| is_it(entry));
    all.filter_map(|(fd, _)| c_int::try_from(fd).ok()).collect()
}

fn set(fds: &[c_int], word: u32, _changing: &Changing) {
    fds.iter().filter_map(|fd| entry(*fd)).for_each(|entry| entry.store(word, Ordering::Release));
}

/// Another descriptor of the program is one of the same socket from now on, if of any.
pub(crate) fn also(new: c_int, fd: c_int) {
    if let Some(entry) = entry(new).filter(|_| table::is_owner()) {
        let _changing = table::changing();
        entry.store(word(fd), Ordering::Relaxed);
    }
}

/// The descriptor is closed.
pub(crate) fn forget(fd: c_int) {
    if let Some(entry) = entry(fd).filter(|_| word(fd) != 0 && table::is_owner()) {
        let _changing = table::changing();
        entry.store(0, Ordering::Relaxed);
        // A thread may wait for it.
        CHANGED.notify_all();
    }
}

/// What a thread of the parent makes of a connection is the parent's.
pub(crate) fn in_child() {
    let is_changing = |entry: &&AtomicU32| entry.load(Ordering::Relaxed) & STAGE == CHANGING;
    STAGES.iter().filter(is_changing).for_each(|entry| entry.store(0, Ordering::Relaxed));
}

const ACCEPTED: u32 = Stage::Accepted as u32;
const CONNECTED: u32 = Stage::Connected as u32;
const CHANGING: u32 = Stage::Changing as u32;

/// The rsocket that a descriptor stands for, which it may become by this: data is about to flow.
pub(crate) fn for_data(fd: c_int) -> Option<c_int> {
    if matches!(word(fd) & STAGE, ACCEPTED | CONNECTED | CHANGING) {
        change(fd, |accepts| {
            let socket = inside(|| if accepts { accept_again(fd) } else { connect_again(fd) })?;
            inside(|| copy_flags(fd, socket));
            Some(socket)
        });
    }
    table::find(fd)
}

/// Has a connection become the rsocket that `make` makes, which is told whether the connection was
/// accepted. One thread makes it, and others that use the connection wait for that.
fn change(fd: c_int, make: impl FnOnce(bool) -> Option<c_int>) {
    let mut changing = table::changing();
    let before = word(fd);
    let accepts = match before & STAGE {
        ACCEPTED => true,
        CONNECTED => false,
        CHANGING => {
            while word(fd) == before {
                changing = CHANGED.wait(changing).unwrap_or_else(PoisonError::into_inner);
            }
            return;
        }
        _ => return,
    };
    let during = before & !STAGE | CHANGING;
    set(&of_socket(before, &changing), during, &changing);
    drop(changing);
    let socket = make(accepts);
    let mut changing = table::changing();
    // Some may be new, and others closed.
    let descriptors = of_socket(during, &changing);
    let unused =
        socket.filter(|socket| !table::become_rsocket(&descriptors, *socket, &mut changing));
    if let Some(fd) = descriptors.first().filter(|_| unused.is_some()) {
        shut(*fd);
    }
    // Only now: without a stage a descriptor is what the table says.
    set(&descriptors, Stage::Plain as u32, &changing);
    CHANGED.notify_all();
    drop(changing);
    if let Some(unused) = unused {
        // SAFETY: no pointers.
        inside(|| unsafe { rclose(unused) });
    }
}

fn copy_flags(fd: c_int, socket: c_int) {
    // SAFETY: no pointers.
    unsafe {
        let flags = real!(fcntl: fn(c_int, c_int, libc::c_long) -> c_int)(fd, libc::F_GETFL, 0);
        rfcntl(socket, libc::F_SETFL, flags.into());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsRawFd, OwnedFd},
        sync::mpsc,
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn descriptors_of_one_socket_go_on_together() {
        let [first, second, other] = [60_001, 60_002, 60_003];
        begin(first, Stage::New);
        begin(other, Stage::New);
        also(second, first);
        go_on(second, Stage::Connected);
        assert!(is_at(first, Stage::Connected) && is_at(second, Stage::Connected));
        assert!(is_at(other, Stage::New));
        forget(first);
        go_on(second, Stage::Listening);
        assert!(is_at(first, Stage::Plain) && is_at(second, Stage::Listening));
        also(other, first);
        assert!(is_at(other, Stage::Plain));
        forget(second);
    }

    /// Descriptors that stand for nothing yet.
    fn connection() -> [OwnedFd; 2] {
        let file = std::fs::File::open("/dev/null").unwrap();
        [file.try_clone().unwrap().into(), file.into()]
    }

    #[test]
    fn one_thread_makes_the_rsocket_and_others_wait_for_it() {
        const SOCKET: c_int = 70_001;
        let both = connection();
        let [first, second] = both.each_ref().map(AsRawFd::as_raw_fd);
        begin(first, Stage::Accepted);
        also(second, first);
        let (begun, has_begun) = mpsc::channel();
        let maker = thread::spawn(move || {
            change(first, |accepts| {
                assert!(accepts);
                begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
                Some(SOCKET)
            });
        });
        has_begun.recv().unwrap();
        change(second, |_| panic!("the rsocket is made twice"));
        assert_eq!([first, second].map(table::find), [Some(SOCKET); 2]);
        maker.join().unwrap();
        assert!(is_at(first, Stage::Plain) && is_at(second, Stage::Plain));
        table::also(first, -1);
        table::also(second, -1);
    }

    #[test]
    fn a_child_has_its_connections_whatever_threads_of_its_parent_do() {
        let both = connection();
        let [first, second] = both.each_ref().map(AsRawFd::as_raw_fd);
        begin(first, Stage::Accepted);
        begin(second, Stage::Accepted);
        let (held, is_held) = mpsc::channel();
        let other = thread::spawn(move || {
            change(second, |_| {
                let lock = table::changing();
                held.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
                drop(lock);
                None
            });
        });
        is_held.recv().unwrap();
        // SAFETY: the child only calls the library and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is killed.
            unsafe { libc::alarm(30) };
            // What the parent's thread makes of the other one is the parent's.
            change(second, |_| panic!("it is no connection of the child"));
            let mut made = false;
            change(first, |_| {
                made = true;
                None
            });
            // SAFETY: leaves without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!made)) };
        }
        let mut status = -1;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        other.join().unwrap();
        [first, second].into_iter().for_each(forget);
    }
}
