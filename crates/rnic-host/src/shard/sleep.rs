//! How the engine's thread sleeps: without the lock of the shard.

#![allow(unsafe_code, reason = "descriptors are waited for without a borrow of what has them")]

use super::driving::Watch;
use super::monotonic;
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Met {
    /// The epoll set is readable.
    pub(super) epoll: bool,
    /// Something may wait at the wire that was not looked for.
    pub(super) wire: bool,
}

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

    /// Waits, and says what ended it.
    pub(super) fn wait(&mut self) -> rustix::io::Result<Met> {
        loop {
            let met = self.wait_once()?;
            let Some(watch) = self.watch.as_mut() else { return Ok(met) };
            // The wire was not among what was waited for.
            let met = Met { wire: true, ..met };
            let now = monotonic();
            if met.epoll || !watch.goes_on(now) {
                return Ok(met);
            }
            self.timeout = Timespec::try_from(watch.patience(now)).ok();
        }
    }

    /// What was watched.
    pub(super) fn into_watch(self) -> Option<Watch> {
        self.watch
    }

    fn wait_once(&self) -> rustix::io::Result<Met> {
        // SAFETY: they are open, see `new`; were they not, the wait would end at once.
        let fds = self.fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
        let all = fds.chain([self.epoll.as_fd()]);
        let mut all: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match event::poll(&mut all, self.timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(Met { epoll: false, wire: false }),
            result => result?,
        };
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (epoll, wire) =
            all.split_last().map_or((false, &[][..]), |(epoll, wire)| (is_ready(epoll), wire));
        Ok(Met { epoll, wire: wire.iter().any(is_ready) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::os::EventFd;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

    #[test]
    fn a_sleep_says_whether_the_wire_ended_it() {
        let (wire, message) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let set = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
        epoll::add(&*set, message.as_fd(), EventData::new_u64(0), EventFlags::IN).unwrap();
        let sleep = || Sleep::new(&[wire.as_fd()], &set, Some(Duration::ZERO)).wait().unwrap();
        assert_eq!(sleep(), Met { epoll: false, wire: false });
        message.wake().unwrap();
        assert_eq!(sleep(), Met { epoll: true, wire: false });
        wire.wake().unwrap();
        assert_eq!(sleep(), Met { epoll: true, wire: true });
        message.drain().unwrap();
        assert_eq!(sleep(), Met { epoll: false, wire: true });
    }
}
