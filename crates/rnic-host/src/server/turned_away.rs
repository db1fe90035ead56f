//! Clients that get no session, until they know why.
//!
//! They take no thread: a connection stays here until its first request has come, so that the
//! answer reaches it, or for a second. Closed before the request is read, it would be reset, and
//! the answer lost.

use crate::refusal::Refused;
use rnic_abi::control::{Answer, MAX_MESSAGE, encode};
use rnic_abi::os::Connection;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Of a client that is served, or the connection of one that is not, and why.
pub type Admitted = Result<(), (Connection, Refused)>;

/// See the [module](self).
#[derive(Default)]
pub struct TurnedAway {
    /// The oldest first.
    leaving: VecDeque<Leaving>,
    buffer: Vec<u8>,
}

struct Leaving {
    connection: Connection,
    why: Refused,
    until: Instant,
}

impl TurnedAway {
    /// What to poll before [`answer`](Self::answer).
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let leaving = self.leaving.iter().map(|one| one.connection.as_fd());
        leaving.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// When to answer even if nothing is readable.
    pub fn deadline(&self) -> Option<Instant> {
        self.leaving.front().map(|one| one.until)
    }

    /// Keeps the client if it is not served.
    pub fn add(&mut self, admitted: Admitted, now: Instant) {
        let Err((connection, why)) = admitted else { return };
        tracing::debug!("a client is turned away: {why}");
        if self.leaving.len() == MAX_LEAVING {
            self.leaving.pop_front();
        }
        self.leaving.push_back(Leaving { connection, why, until: now + PATIENCE });
    }

    /// Answers those that sent something, and hangs up on those that send nothing.
    pub fn answer(&mut self, now: Instant) {
        self.buffer.resize(MAX_MESSAGE, 0);
        let buffer = &mut self.buffer;
        self.leaving.retain(|one| match one.connection.try_recv(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => now < one.until,
            Ok((1.., _)) => {
                let answer: Answer = Err(one.why.clone());
                if let Ok(bytes) = encode(&answer) {
                    let _ = one.connection.try_send(&bytes, &[]);
                }
                false
            }
            _ => false,
        });
    }

    /// Hangs up on all.
    pub(super) fn clear(&mut self) {
        self.leaving.clear();
    }
}

/// Most clients that are told why they are turned away; the oldest is told nothing then.
const MAX_LEAVING: usize = 64;
/// How long one that is turned away may take to say something.
const PATIENCE: Duration = Duration::from_secs(1);
