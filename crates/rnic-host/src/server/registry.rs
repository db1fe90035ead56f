//! The sessions there are, and the numbers of clients and address spaces.

use super::xrc::Targets;
use crate::dma::{slot_of, space_id};
use crate::report;
use rnic_abi::os::{Credentials, EventFd, process};
use rnic_core::SpaceId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of sessions and clients of one process.
pub const NUMBERS: u32 = 1_000_000;

/// Sessions that are told at a time, with which a message is never too long.
pub const SESSIONS: usize = 256;

/// Sessions and the numbers they use.
pub struct Registry {
    inner: Mutex<Inner>,
    /// Written whenever a session ends.
    ended: EventFd,
    pub(super) targets: Targets,
}

#[derive(Default)]
struct Inner {
    clients: Numbers,
    spaces: Spaces,
    sessions: BTreeMap<u32, SessionInfo>,
    /// Where their numbers begin, and the last one that was given.
    first_session: u32,
    last_session: u32,
    opened_ever: u64,
}

/// A session, for display.
#[derive(Clone, Debug)]
pub(super) struct SessionInfo {
    /// Client process.
    pub peer: Credentials,
    /// Its context, when it opened the device.
    pub client: Option<u32>,
}

impl Inner {
    /// A number that no session has. They ascend, and begin again where the range of this process
    /// ends: what a process tells of others is not believed. Memory ends long before the numbers.
    fn free_session(&mut self) -> u32 {
        loop {
            let next = (self.last_session - self.first_session + 1) % NUMBERS;
            self.last_session = self.first_session + next;
            if !self.sessions.contains_key(&self.last_session) {
                return self.last_session;
            }
        }
    }
}

/// Small numbers that are used again.
#[derive(Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Numbers of address spaces, never used again.
#[derive(Default)]
struct Spaces {
    slots: Numbers,
    ever: u32,
}

impl Spaces {
    fn take(&mut self) -> SpaceId {
        self.ever = self.ever.wrapping_add(1);
        space_id(self.slots.take(), self.ever)
    }

    fn give(&mut self, space: SpaceId) {
        self.slots.free.push(slot_of(space));
    }
}

impl Registry {
    /// Without sessions. Numbers of sessions and clients begin at `first`, so that those of several
    /// processes differ.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn new(first: u32) -> std::io::Result<Self> {
        let clients = Numbers { free: Vec::new(), next: first };
        let inner =
            Inner { clients, first_session: first, last_session: first, ..Inner::default() };
        Ok(Self { inner: Mutex::new(inner), ended: EventFd::new()?, targets: Targets::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session of `peer` begins; its number.
    pub(super) fn enter(&self, peer: Credentials) -> u32 {
        let mut inner = self.lock();
        let session = inner.free_session();
        inner.sessions.insert(session, SessionInfo { peer, client: None });
        session
    }

    /// It is over.
    pub(super) fn leave(&self, session: u32) {
        self.lock().sessions.remove(&session);
        if let Err(error) = self.ended.wake() {
            tracing::error!("cannot tell that a session ended: {error}");
        }
    }

    /// Readable after a session ended.
    pub fn ended(&self) -> &EventFd {
        &self.ended
    }

    /// Sessions now, and contexts opened ever.
    pub fn counts(&self) -> (usize, u64) {
        let inner = self.lock();
        (inner.sessions.len(), inner.opened_ever)
    }

    /// Sessions that have opened the device.
    pub(super) fn contexts(&self) -> usize {
        self.lock().sessions.values().filter(|session| session.client.is_some()).count()
    }

    /// The clients of a user.
    pub fn clients_of(&self, uid: u32) -> BTreeSet<u32> {
        let inner = self.lock();
        let sessions = inner.sessions.values().filter(|session| session.peer.uid == uid);
        sessions.filter_map(|session| session.client).collect()
    }

    /// Numbers for a context of `session`: client and address space.
    pub fn open(&self, session: u32) -> (u32, SpaceId) {
        let mut inner = self.lock();
        let (client, space) = (inner.clients.take(), inner.spaces.take());
        inner.opened_ever += 1;
        if let Some(info) = inner.sessions.get_mut(&session) {
            info.client = Some(client);
        }
        (client, space)
    }

    /// The context is gone.
    pub fn close(&self, client: u32, space: SpaceId) {
        let mut inner = self.lock();
        inner.clients.free.push(client);
        inner.spaces.give(space);
    }

    /// A number for an address space that the daemon will map.
    pub fn take_space(&self) -> SpaceId {
        self.lock().spaces.take()
    }

    /// It is no longer used.
    pub fn give_space(&self, space: SpaceId) {
        self.lock().spaces.give(space);
    }

    /// For `rnic status`: those from a number on, in their order, [`SESSIONS`] at most.
    pub fn report(&self, from: u32) -> Vec<report::Session> {
        let sessions: Vec<_> = {
            let inner = self.lock();
            let sessions = inner.sessions.range(from..).take(SESSIONS);
            sessions.map(|(session, info)| (*session, info.clone())).collect()
        };
        // Without the lock: sessions begin and end meanwhile.
        let sessions = sessions.into_iter().map(|(session, info)| report::Session {
            session,
            pid: info.peer.pid,
            uid: info.peer.uid,
            client: info.client,
            command: command_of(info.peer.pid),
        });
        sessions.collect()
    }
}

fn command_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(process::folder(pid).ok()?.join("comm")).ok()?;
    // The line's end is the kernel's.
    Some(report::shown(name.strip_suffix('\n').unwrap_or(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_sessions_there_were_their_numbers_stay_in_the_range_of_the_process() {
        let registry = Registry::new(NUMBERS).unwrap();
        let peer = Credentials { pid: std::process::id(), uid: 0, gid: 0 };
        let (first, second) = (registry.enter(peer), registry.enter(peer));
        assert_eq!((first, second), (NUMBERS + 1, NUMBERS + 2));
        registry.lock().last_session = 2 * NUMBERS - 2;
        assert_eq!(registry.enter(peer), 2 * NUMBERS - 1);
        registry.leave(second);
        let next = [(); 3].map(|()| registry.enter(peer));
        assert_eq!(next, [NUMBERS, NUMBERS + 2, NUMBERS + 3], "those that are free again");
    }
}
