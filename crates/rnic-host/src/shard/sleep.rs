//! How the engine's thread sleeps: without the lock of the shard.

#![allow(unsafe_code, reason = "descriptors are waited for without a borrow of what has them")]

use super::driving::Watch;
use super::monotonic;
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// What to wait for.
pub(super) struct Sleep {
    /// Those of the wire, or the alarm of a program that drives. The former are in no epoll set:
    /// there, every packet would make the kernel walk the wait queue, and over a virtual link the
    /// sender would pay for that.
    fds: Vec<RawFd>,
    /// Messages, event sockets that have room again, and clients that ring and know of the sleep.
    epoll: Arc<OwnedFd>,
    /// How long at most; `None` is for ever.
    timeout: Option<Timespec>,
    /// Sleeps on while the program turns the engine.
    watch: Option<Watch>,
}

impl Sleep {
    /// Until one of the wire's descriptors or the epoll set is readable. Those of the wire stay
    /// open until the sleep is over: only the thread that sleeps opens and closes any.
    pub(super) fn new(
        wire: &[BorrowedFd<'_>],
        epoll: &Arc<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Self {
        let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
        let fds = wire.iter().map(AsRawFd::as_raw_fd).collect();
        Self { fds, epoll: Arc::clone(epoll), timeout, watch: None }
    }

    /// Until the program does not turn the engine any more.
    pub(super) fn watching(self, watch: Watch) -> Self {
        let mut fds = self.fds;
        fds.extend(watch.alarm());
        let timeout = Timespec::try_from(watch.patience(monotonic())).ok();
        Self { fds, timeout, watch: Some(watch), ..self }
    }

    /// True when the epoll set is readable.
    pub(super) fn wait(&mut self) -> rustix::io::Result<bool> {
        loop {
            let is_ready = self.wait_once()?;
            let Some(watch) = self.watch.as_mut().filter(|_| !is_ready) else {
                return Ok(is_ready);
            };
            let now = monotonic();
            if !watch.goes_on(now) {
                return Ok(false);
            }
            self.timeout = Timespec::try_from(watch.patience(now)).ok();
        }
    }

    /// What was watched.
    pub(super) fn into_watch(self) -> Option<Watch> {
        self.watch
    }

    fn wait_once(&self) -> rustix::io::Result<bool> {
        // SAFETY: they are open, see `new`; were they not, the wait would end at once.
        let fds = self.fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
        let all = fds.chain([self.epoll.as_fd()]);
        let mut all: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match event::poll(&mut all, self.timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(false),
            result => result?,
        };
        Ok(all.last().is_some_and(|epoll| !epoll.revents().is_empty()))
    }
}
