//! Clients that get no session, until they know why.
//!
//! They take no thread: a connection stays here until its first request has come, so that the
//! answer reaches it, or for a second. Closed before the request is read, it would be reset, and
//! the answer lost. And whatever they send does not keep this thread.

use crate::discard::Untrusted;
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
    connection: Untrusted,
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
        let connection = Untrusted::from(connection);
        self.leaving.push_back(Leaving { connection, why, until: now + PATIENCE });
    }

    /// Answers one whose request was read already.
    pub fn tell(connection: Connection, why: &Refused) {
        tracing::debug!("a client is turned away: {why}");
        tell(&Untrusted::from(connection), why);
    }

    /// Answers those that sent something, and hangs up on those that send nothing.
    pub fn answer(&mut self, now: Instant) {
        self.buffer.resize(MAX_MESSAGE, 0);
        let buffer = &mut self.buffer;
        self.leaving.retain(|one| match one.connection.try_recv_plain(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => now < one.until,
            Ok(1..) => {
                tell(&one.connection, &one.why);
                false
            }
            _ => false,
        });
    }

    /// Hangs up on all but clients of `owner`: those of others must not keep them from an answer.
    pub(super) fn clear(&mut self, owner: u32) {
        let is_owners =
            |one: &Leaving| one.connection.peer_credentials().is_ok_and(|peer| peer.uid == owner);
        self.leaving.retain(is_owners);
    }
}

fn tell(connection: &Untrusted, why: &Refused) {
    let answer: Answer = Err(why.clone());
    if let Ok(bytes) = encode(&answer) {
        let _ = connection.try_send(&bytes, &[]);
    }
}

/// Most clients that are told why they are turned away; the oldest is told nothing then.
const MAX_LEAVING: usize = 64;
/// How long one that is turned away may take to say something.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discard;
    use crate::refusal::refuse;
    use testbed::{lingering, silent_listener};

    fn turn_away(turned_away: &mut TurnedAway, now: Instant) -> Connection {
        let (ours, theirs) = Connection::pair().unwrap();
        turned_away.add(Err((ours, refuse(libc::EUSERS, "no room"))), now);
        theirs
    }

    #[test]
    fn without_room_other_users_are_hung_up_on_and_the_owner_gets_an_answer() {
        discard::start().unwrap();
        let now = Instant::now();
        let own = rustix::process::geteuid().as_raw();
        for (owner, stays) in [(own, 1), (own + 1, 0)] {
            let mut turned_away = TurnedAway::default();
            let client = turn_away(&mut turned_away, now);
            turned_away.clear(owner);
            assert_eq!(turned_away.leaving.len(), stays);
            let _ = client.send(b"let me in", &[]);
            turned_away.answer(now);
            let answer = client.recv_message::<Answer>();
            let is_answered = answer.is_ok_and(|answer| answer.is_some());
            assert_eq!(is_answered, stays == 1);
        }
    }

    #[test]
    fn who_is_turned_away_is_told_why_and_keeps_the_door_in_no_way() {
        discard::start().unwrap();
        let mut turned_away = TurnedAway::default();
        let now = Instant::now();
        let honest = turn_away(&mut turned_away, now);
        honest.send(b"let me in", &[]).unwrap();
        let (_listener, address) = silent_listener();
        let silent = turn_away(&mut turned_away, now);
        // In the first message, and behind it.
        let hostile = [true, false].map(|first| {
            let one = turn_away(&mut turned_away, now);
            if !first {
                one.send(b"let me in", &[]).unwrap();
            }
            one.send(b"keep this", &[lingering(address).as_fd()]).unwrap();
            one
        });
        turned_away.answer(now);
        assert!(now.elapsed() < Duration::from_secs(5), "it was kept: {:?}", now.elapsed());
        let answer = honest.recv_message::<Answer>().unwrap().unwrap().0;
        assert_eq!(answer.unwrap_err().errno, libc::EUSERS);
        assert_eq!(turned_away.leaving.len(), 1, "the silent one stays");
        turned_away.answer(now + PATIENCE);
        assert_eq!(silent.recv(&mut [0; 16]).unwrap().0, 0);
        drop(hostile);
    }
}
