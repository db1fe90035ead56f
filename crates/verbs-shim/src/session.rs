//! The control connection of one device context, and the memory that came over it.

use std::{
    collections::HashMap,
    io,
    os::fd::{BorrowedFd, RawFd},
    path::Path,
    process,
    sync::atomic::{AtomicBool, Ordering},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rnic_abi::{
    control::{Reply, Request, RingPlace},
    os::{
        Connection, Descriptor, Descriptors, Inode,
        function::{self, Connected},
        memory,
    },
    words::{WORD, Words},
};

use crate::{
    driving,
    error::{Errno, Result},
    report,
};

/// A session with a daemon.
pub(crate) struct Session {
    link: Mutex<Link>,
    gone: AtomicBool,
    /// The engine is in this program.
    in_program: bool,
    /// The process that connected: a child made by fork has the socket but is not the daemon's
    /// client.
    pid: u32,
}

struct Link {
    connection: Descriptor<Connection>,
    arenas: HashMap<u32, Words>,
}

/// Descriptors that came with a reply, and the memory that they bring.
pub(crate) struct Arrived<'a> {
    fds: Descriptors,
    arenas: &'a mut HashMap<u32, Words>,
}

impl Arrived<'_> {
    /// Takes all descriptors; `None` when there are not exactly `N`.
    pub(crate) fn descriptors<const N: usize>(self) -> Option<[std::os::fd::OwnedFd; N]> {
        self.fds.exactly().ok()
    }

    /// The memory of a ring, mapping its arena when it is new.
    pub(crate) fn ring(&mut self, place: &RingPlace) -> Option<Words> {
        if place.arena_is_new {
            let words = usize::try_from(place.arena_len).ok()? / WORD;
            let arena = memory::map(self.fds.next()?, words).map_err(report::debug).ok()?;
            self.arenas.insert(place.arena, arena);
        }
        let (start, words) = (place.start.try_into().ok()?, place.words.try_into().ok()?);
        self.arenas.get(&place.arena)?.slice(start, words)
    }
}

impl Session {
    /// Connects and agrees on the version.
    ///
    /// # Errors
    /// The reason as a text for the user.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        Self::over(Connection::connect(path)?, false)
    }

    /// Connects to the daemon, which may take so long for each answer, and agrees on the version.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `WouldBlock` when the daemon does not answer.
    pub(crate) fn connect_within(path: &Path, limit: Duration) -> io::Result<Self> {
        Self::over(Connection::connect_within(path, limit)?, false)
    }

    /// Connects to where the engine of this program is to be: in the daemon, or in this process.
    ///
    /// # Errors
    /// The reason as a text for the user.
    pub(crate) fn connect_to_engine(path: &Path) -> io::Result<Self> {
        let Connected { connection, in_program, why_not } = function::connect(path)?;
        if let Some(why) = why_not {
            report::debug(format_args!("the engine is the daemon's: {why}"));
        }
        Self::over(connection, in_program)
    }

    fn over(connection: Connection, in_program: bool) -> io::Result<Self> {
        connection.greet()?;
        Ok(Self {
            link: Mutex::new(Link {
                connection: Descriptor::new(connection)?,
                arenas: HashMap::new(),
            }),
            gone: AtomicBool::new(false),
            in_program,
            pid: process::id(),
        })
    }

    /// True when the daemon died, or when this process is a forked child of the one that connected.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.is_forked_child()
    }

    /// A child does not have the rings, whose memory is not inherited. Another thread of the parent
    /// may have held any lock during the fork, so destroying an object in a child takes no lock and
    /// frees only the child's copy.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.pid != process::id()
    }

    /// True only when the daemon died: cheap enough for the data path.
    #[inline]
    pub(crate) fn daemon_is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// The engine is in this program, and not the daemon's.
    pub(crate) fn is_in_program(&self) -> bool {
        self.in_program
    }

    /// The daemon's process id, where it is visible.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.link().connection.get()?.peer_credentials().ok().map(|peer| peer.pid)
    }

    /// The connection's descriptor number, for `ibv_context.cmd_fd`, and the socket itself, of
    /// which the program may have duplicates. Waits for a call that another thread makes.
    pub(crate) fn socket(&self) -> (RawFd, Inode) {
        let link = self.link();
        (link.connection.number(), link.connection.inode())
    }

    /// Sends a request and waits for its reply. `take` interprets the reply and returns `None` for
    /// one that does not fit the request.
    ///
    /// # Errors
    /// The daemon's refusal; EIO when it is gone.
    pub(crate) fn call<T>(
        &self,
        request: &Request,
        take: impl FnOnce(Reply, Arrived<'_>) -> Option<T>,
    ) -> Result<T> {
        self.call_with(request, &[], take)
    }

    /// As [`call`](Self::call), with descriptors beside the request.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn call_with<T>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        take: impl FnOnce(Reply, Arrived<'_>) -> Option<T>,
    ) -> Result<T> {
        if self.is_gone() {
            return Err(Errno(libc::EIO));
        }
        driving::note_request()?;
        let mut link = self.link();
        let Link { connection, arenas } = &mut *link;
        let Some(connection) = connection.get() else {
            report::debug("the program has closed the connection to the daemon");
            self.set_gone();
            return Err(Errno(libc::EIO));
        };
        match connection.call(request, fds) {
            Ok((Ok(reply), fds)) => take(reply, Arrived { fds, arenas }).ok_or(Errno(libc::EPROTO)),
            Ok((Err(refusal), _)) => {
                report::debug(&refusal);
                if refusal.errno == libc::EPERM && matches!(request, Request::RegMr { .. }) {
                    hint_about_memory_rights(&refusal.message);
                }
                Err(Errno(if refusal.errno > 0 { refusal.errno } else { libc::EIO }))
            }
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(Errno(libc::EMFILE)),
            Err(error) => {
                report::debug(format_args!("the connection to the daemon is lost: {error}"));
                self.set_gone();
                Err(Errno(libc::EIO))
            }
        }
    }

    /// Sends a request that destroys an object: `None` when the daemon is gone, and the object with
    /// it.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub(crate) fn destroy<T>(
        &self,
        request: &Request,
        take: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.call(request, |reply, _| take(reply)) {
            Err(_) if self.is_gone() => Ok(None),
            result => result.map(Some),
        }
    }

    /// As [`destroy`](Self::destroy) for a request that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// The daemon's refusal.
    pub(crate) fn dispose(&self, request: &Request) -> Result<()> {
        self.destroy(request, done).map(drop)
    }

    /// A request that is answered by [`Reply::Handle`].
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn handle(&self, request: &Request) -> Result<u32> {
        self.handle_with(request, &[])
    }

    /// As [`handle`](Self::handle), with descriptors beside the request.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn handle_with(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<u32> {
        self.call_with(request, fds, |reply, _| match reply {
            Reply::Handle(handle) => Some(handle),
            _ => None,
        })
    }

    /// A request that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn done(&self, request: &Request) -> Result<()> {
        self.call(request, |reply, _| done(reply))
    }

    fn link(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

fn hint_about_memory_rights(message: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    report::say_once(
        &ONCE,
        format_args!(
            "the daemon may not reach this program's memory: {message}. Run rnicd as root or as \
             the same user, outside any user namespace that the program is not in, and do not \
             make the program non-dumpable"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::ABI_VERSION;
    use rnic_abi::control::Answer;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn a_daemon_that_lives_hears_that_its_session_is_given_up() {
        let (connection, daemon) = Connection::pair().unwrap();
        let hello: Answer = Ok(Reply::Hello { abi: ABI_VERSION, server: String::new() });
        daemon.send_message(&hello, &[]).unwrap();
        let session = Session::over(connection, false).unwrap();
        // No answer.
        daemon.send(&[0xff], &[]).unwrap();
        assert_eq!(session.done(&Request::QueryPort), Err(Errno(libc::EIO)));
        assert!(session.is_gone());
        let mut polled = libc::pollfd { fd: daemon.as_fd().as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: a local variable.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 10_000) }, 1, "it would keep all");
        assert!(polled.revents & libc::POLLHUP != 0);
    }
}
