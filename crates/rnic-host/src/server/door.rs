//! Where clients come in: each gets a session, or is told why not.
//!
//! A client that is turned away takes no thread: its connection stays here until its first request
//! has come, so that the answer reaches it, or for a second.

use crate::refusal::Refused;
use rnic_abi::control::{Answer, MAX_MESSAGE};
use rnic_abi::os::{Connection, Listener};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Door {
    listener: Listener,
    /// Those turned away, the oldest first.
    leaving: VecDeque<Leaving>,
    buffer: Vec<u8>,
    /// No connection is taken before: there was no descriptor for one.
    pause: Option<Instant>,
}

/// Of a client that is served, or the connection of one that is not, and why.
pub type Admitted = Result<(), (Connection, Refused)>;

struct Leaving {
    connection: Connection,
    why: Refused,
    until: Instant,
}

impl Door {
    /// Accepts at `listener`, on the calling thread, whose priority becomes lower, and with it that
    /// of the sessions that it starts: clients that connect and ask without end must not take the
    /// CPU from those that transfer data.
    ///
    /// # Errors
    /// None in practice.
    pub fn new(listener: Listener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        rustix::process::nice(NICENESS)?;
        Ok(Self { listener, leaving: VecDeque::new(), buffer: vec![0; MAX_MESSAGE], pause: None })
    }

    /// What to poll before [`attend`](Self::attend).
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let door = if self.pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let leaving = self.leaving.iter().map(|one| one.connection.as_fd());
        std::iter::once(PollFd::from_borrowed_fd(self.listener.as_fd(), door))
            .chain(leaving.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)))
    }

    /// When to attend even if nothing is readable.
    pub fn deadline(&self) -> Option<Instant> {
        let leaving = self.leaving.front().map(|one| one.until);
        self.pause.into_iter().chain(leaving).min()
    }

    /// Lets `admit` take a bounded number of clients, and answers those that it turns away.
    pub fn attend(&mut self, now: Instant, admit: impl Fn(Connection) -> Admitted) {
        self.see_off(now);
        if self.pause.is_some_and(|until| now < until) {
            return;
        }
        self.pause = None;
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok(connection) => self.admit(admit(connection), now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::error!("cannot accept a client: {error}");
                    // Out of descriptors: a client that leaves makes room.
                    self.leaving.clear();
                    self.pause = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, admitted: Admitted, now: Instant) {
        let Err((connection, why)) = admitted else { return };
        tracing::debug!("a client is turned away: {why}");
        if self.leaving.len() == MAX_LEAVING {
            self.leaving.pop_front();
        }
        self.leaving.push_back(Leaving { connection, why, until: now + PATIENCE });
    }

    /// Answers those that sent something, and hangs up on those that send nothing.
    fn see_off(&mut self, now: Instant) {
        let buffer = &mut self.buffer;
        self.leaving.retain(|one| match one.connection.try_recv(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => now < one.until,
            Ok((1.., _)) => {
                let answer: Answer = Err(one.why.clone());
                if let Ok(bytes) = rnic_abi::control::encode(&answer) {
                    let _ = one.connection.try_send(&bytes, &[]);
                }
                false
            }
            _ => false,
        });
    }
}

/// By how much the priority of this thread and of sessions is lower than that of engines and
/// programs, in steps of `nice`.
const NICENESS: i32 = 10;
/// Clients let in before the daemon looks at something else.
const AT_ONCE: usize = 32;
/// Most clients that are told why they are turned away; the oldest is told nothing then.
const MAX_LEAVING: usize = 64;
/// How long one that is turned away may take to say something.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long no client is let in when there is no descriptor left.
const PAUSE: Duration = Duration::from_millis(50);
