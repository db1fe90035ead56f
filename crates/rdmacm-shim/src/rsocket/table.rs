//! The rsockets of the process, by their numbers. A number is that of a descriptor which the
//! rsocket has open, so that no other descriptor has it.

use std::{
    cell::RefCell,
    ffi::c_int,
    sync::{
        Arc, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use super::{datagram::Datagram, stream::Stream};
use crate::error::{Errno, Result};

#[derive(Clone)]
pub(crate) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

impl Socket {
    /// It is that of the process that this one was forked from, which has no part in it: the rings
    /// of its queues are not mapped here, and what wakes its threads is theirs.
    pub(crate) fn is_inherited(&self) -> bool {
        let process = match self {
            Self::Stream(stream) => stream.process,
            Self::Datagram(datagram) => datagram.process,
        };
        process != PROCESS.load(Ordering::Relaxed)
    }
}

/// This process: asking the kernel in each call would cost too much.
static PROCESS: AtomicU32 = AtomicU32::new(0);

type Table = Vec<Option<Socket>>;

static TABLE: RwLock<Table> = RwLock::new(Vec::new());

thread_local! {
    /// Held while this thread forks: the child inherits no lock of a thread that it does not have.
    static FORKING: RefCell<Option<RwLockWriteGuard<'static, Table>>> = const { RefCell::new(None) };
}

fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn add(fd: c_int, socket: Socket) -> Result<()> {
    begin();
    let at = usize::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
    let mut table = write();
    if table.len() <= at {
        table.resize(at + 1, None);
    }
    let before = table[at].replace(socket);
    // Ending one takes other locks.
    drop(table);
    // The program may have closed the number of an inherited one itself.
    std::mem::forget(before.filter(Socket::is_inherited));
    Ok(())
}

/// Takes an rsocket out: calls that have begun go on.
pub(crate) fn remove(fd: c_int) -> Option<Socket> {
    let at = usize::try_from(fd).ok()?;
    write().get_mut(at)?.take()
}

/// Also one that is inherited.
pub(crate) fn find(fd: c_int) -> Option<Socket> {
    let at = usize::try_from(fd).ok()?;
    read().get(at)?.clone()
}

/// As a program names it.
pub(crate) fn of(fd: c_int) -> Result<Socket> {
    find(fd).filter(|socket| !socket.is_inherited()).ok_or(Errno(libc::EBADF))
}

/// Programs end without closing what they have sent through: it still has to arrive. They also
/// fork.
fn begin() {
    static ONCE: Once = Once::new();
    extern "C" fn prepare() {
        let _ = FORKING.try_with(|forking| forking.replace(Some(write())));
    }
    extern "C" fn in_parent() {
        let _ = FORKING.try_with(RefCell::take);
    }
    extern "C" fn in_child() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        in_parent();
    }
    extern "C" fn close_all() {
        let own = std::process::id();
        let sockets = std::mem::take(&mut *write());
        let mut streams = Vec::new();
        for socket in sockets.into_iter().flatten() {
            match socket {
                Socket::Stream(stream) if stream.process == own => streams.push(stream),
                // It is the parent's.
                other => std::mem::forget(other),
            }
        }
        // All at the same time.
        let until = Instant::now() + AT_EXIT;
        streams.iter().for_each(|stream| stream.begin_close(until));
        streams.iter().for_each(|stream| stream.finish_close(until));
    }
    ONCE.call_once(|| {
        in_child();
        // SAFETY: the library is never unloaded.
        unsafe {
            libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child));
            libc::atexit(close_all);
        }
    });
}

/// How long the end of the program may take.
const AT_EXIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, sync::mpsc, thread};

    use libc::{POLLIN, POLLNVAL, pollfd};

    use super::*;
    use crate::{
        forked::{status_of_child, without_others},
        rsocket::{calls, poll, udp},
    };

    #[test]
    fn a_child_has_rsockets_whatever_threads_of_its_parent_do() {
        begin();
        let (held, is_held) = mpsc::channel();
        let other = thread::spawn(move || {
            let table = write();
            held.send(()).unwrap();
            thread::sleep(Duration::from_millis(200));
            drop(table);
        });
        is_held.recv().unwrap();
        assert_eq!(status_of_child(|| find(1_000_000).is_none()), 0);
        other.join().unwrap();
        assert!(find(1_000_000).is_none(), "the parent has it back");
    }

    #[test]
    fn an_rsocket_of_the_parent_is_none_of_its_child() {
        // Their children would have the port.
        let _alone = without_others();
        let mut datagram = Datagram::around(udp::open(false).unwrap(), false);
        datagram.process = datagram.process.wrapping_add(1);
        let (fd, datagram) = (datagram.fd(), Arc::new(datagram));
        udp::bind(&datagram.udp, ([127, 0, 0, 1], 0).into(), false).unwrap();
        let bound = udp::local(&datagram.udp).unwrap();
        assert!(UdpSocket::bind(bound).is_err());
        add(fd, Socket::Datagram(datagram.clone())).unwrap();
        assert_eq!(of(fd).err(), Some(Errno(libc::EBADF)));
        assert_eq!(calls::rshutdown(fd, libc::SHUT_RDWR), -1);
        let mut polled = [pollfd { fd, events: POLLIN, revents: 0 }];
        assert_eq!(poll::poll(&mut polled, None), Ok(1));
        assert_eq!(polled[0].revents, POLLNVAL);
        assert_eq!(calls::rclose(fd), 0);
        assert!(find(fd).is_none());
        assert!(UdpSocket::bind(bound).is_ok(), "this process has it no more");
        assert_eq!(calls::rclose(fd), -1);
        assert_eq!(Arc::strong_count(&datagram), 2, "it is never dropped");
        std::mem::forget(datagram);
    }
}
