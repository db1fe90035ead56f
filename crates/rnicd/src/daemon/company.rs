//! When a daemon that is to end with its last client ends.
//!
//! A client is a process that has connected, until that process ends, and not only while it has a
//! session: `rnic run` connects and becomes a program that may open the device much later, and may
//! open it again. The daemon watches a pidfd of each client. A session that `rnic run` left open
//! instead would be a descriptor with a number that the program does not expect, which programs
//! that close all descriptors end, and which forked children keep.

use rnic_abi::os::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A process that has connected.
pub(super) struct Process {
    pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// The one at the other end; `None` when it is gone, or there is no descriptor for it.
    pub(super) fn of(connection: &Connection) -> Option<Self> {
        let pid = connection.peer_credentials().ok()?.pid;
        Some(Self { pid, pidfd: connection.peer_pidfd().ok()? })
    }
}

/// The clients of a daemon that ends with its last one.
#[derive(Default)]
pub(super) struct Company {
    processes: Vec<Process>,
    lonely_since: Option<Instant>,
}

impl Company {
    /// A process has become a client. One that connects often is watched once.
    pub(super) fn add(&mut self, process: Process) {
        let is_known = self.processes.iter().any(|known| known.pid == process.pid);
        if !is_known && self.processes.len() < most_watched() {
            self.processes.push(process);
        }
    }

    /// What becomes readable when a client ends.
    pub(super) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.processes.iter().map(|process| PollFd::new(&process.pidfd, PollFlags::IN))
    }

    /// When the daemon ends unless a client comes before; `None` while there is one. `sessions` are
    /// those that there are now, also of clients that are not watched; `opened` tells whether the
    /// device was ever opened.
    pub(super) fn lonely_until(
        &mut self,
        sessions: usize,
        opened: bool,
        now: Instant,
    ) -> Option<Instant> {
        self.forget_the_ended();
        if sessions > 0 || !self.processes.is_empty() {
            self.lonely_since = None;
            return None;
        }
        let patience = if opened { NEXT_CLIENT_PATIENCE } else { FIRST_CLIENT_PATIENCE };
        Some(*self.lonely_since.get_or_insert(now) + patience)
    }

    fn forget_the_ended(&mut self) {
        let mut fds: Vec<_> = self.fds().collect();
        // A failure leaves those that have ended until the next time.
        let _ = poll(&mut fds, Some(&Timespec::default()));
        let mut ended: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ended = ended.drain(..);
        self.processes.retain(|_| !ended.next().unwrap_or(false));
    }
}

/// Without a bound other users could take the descriptors that sessions need. A client beyond it
/// keeps the daemon only while it has a session.
fn most_watched() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 16).unwrap_or(MOST_WATCHED).min(MOST_WATCHED)
}

const MOST_WATCHED: usize = 256;
/// How long to wait for the first client that opens the device.
const FIRST_CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// And for the next one after the last has gone: another command of a script.
const NEXT_CLIENT_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Child, Command};

    /// Since an instant of the test's own.
    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn process(child: &Child) -> Process {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        Process { pid: child.id(), pidfd }
    }

    #[test]
    fn patience_begins_when_the_last_session_ends() {
        let (mut company, start) = (Company::default(), Instant::now());
        assert_eq!(company.lonely_until(0, false, start), Some(start + FIRST_CLIENT_PATIENCE));
        assert_eq!(company.lonely_until(1, true, after(start, 1)), None);
        // The daemon slept all that time.
        let end = after(start, 3600);
        let until = Some(end + NEXT_CLIENT_PATIENCE);
        assert_eq!(company.lonely_until(0, true, end), until);
        assert_eq!(company.lonely_until(0, true, after(end, 3)), until);
    }

    #[test]
    fn a_process_is_a_client_until_it_ends() {
        let (mut company, start) = (Company::default(), Instant::now());
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        company.add(process(&child));
        company.add(process(&child));
        assert_eq!(company.fds().count(), 1);
        let end = after(start, 3600);
        assert_eq!(company.lonely_until(0, true, end), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(company.lonely_until(0, true, end), Some(end + NEXT_CLIENT_PATIENCE));
        assert_eq!(company.fds().count(), 0);
    }

    #[test]
    fn so_many_processes_are_watched_and_no_more() {
        let mut company = Company::default();
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        for pid in 0..1000 {
            company.add(Process { pid, ..process(&child) });
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(company.fds().count(), most_watched());
    }
}
