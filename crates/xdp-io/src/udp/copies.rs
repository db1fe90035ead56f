//! Sockets for threads that have another table of descriptors.
//!
//! A thread may have a table of descriptors of its own (`CLONE_FILES`, `unshare`). Other threads of
//! the process that use the same port then need copies with numbers of their own. Their table may
//! belong to code that knows nothing of this: it may close a copy, and its next file gets the
//! number. So copies are compared with the files that they were.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::UdpPort;
use super::socket::Socket;
use crate::sys::{self, FileId};

/// A copy of a socket in the table of the thread that made this. It does not close it.
#[derive(Clone, Copy, Debug)]
pub struct SocketCopy {
    number: RawFd,
    file: FileId,
}

impl SocketCopy {
    /// Of a descriptor that is open.
    ///
    /// # Errors
    /// When it is not.
    pub fn of(copy: BorrowedFd<'_>) -> io::Result<SocketCopy> {
        let number = copy.as_raw_fd();
        Ok(SocketCopy { number, file: sys::file_id(number)? })
    }

    fn is_open(self) -> bool {
        sys::file_id(self.number).is_ok_and(|now| now == self.file)
    }
}

/// Whether the calling thread is one that the copies are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Use {
    /// It has the sockets themselves.
    #[default]
    No,
    /// It is, and each copy is compared before its first use.
    Compared,
    /// It is, and the copies have been compared a moment ago.
    Believed,
}

/// Those of one socket.
#[derive(Debug, Default)]
pub(super) struct Copies {
    receiver: Option<One>,
    sender: Option<One>,
    how: Use,
}

#[derive(Debug)]
struct One {
    copy: SocketCopy,
    is_checked: bool,
}

impl Copies {
    pub(super) fn new(receiver_and_sender: Option<(SocketCopy, SocketCopy)>) -> Copies {
        let one = |copy| One { copy, is_checked: false };
        let (receiver, sender) = receiver_and_sender.unzip();
        Copies { receiver: receiver.map(one), sender: sender.map(one), how: Use::No }
    }

    pub(super) fn are_there(&self) -> bool {
        self.receiver.is_some() && self.sender.is_some()
    }

    /// Which descriptors to use from now on.
    #[inline]
    pub(super) fn use_them(&mut self, how: Use) {
        self.how = how;
        if how == Use::Compared {
            for one in self.receiver.iter_mut().chain(&mut self.sender) {
                one.is_checked = false;
            }
        }
    }

    /// Forgets those that are not open any more.
    pub(super) fn compare(&mut self) {
        for one in [&mut self.receiver, &mut self.sender] {
            one.iter_mut().for_each(|one| one.is_checked = false);
            check(one);
        }
    }

    #[inline]
    pub(super) fn in_use(&self) -> bool {
        self.how != Use::No
    }

    pub(super) fn receiver(&mut self) -> Option<BorrowedFd<'_>> {
        check(&mut self.receiver)
    }

    pub(super) fn sender(&mut self) -> Option<BorrowedFd<'_>> {
        check(&mut self.sender)
    }

    /// The number of the one that receives.
    fn receiver_number(&self) -> Option<RawFd> {
        self.receiver.as_ref().map(|one| one.copy.number)
    }
}

/// The copy, which is forgotten where it is not open any more.
#[inline]
fn check(one: &mut Option<One>) -> Option<BorrowedFd<'_>> {
    one.take_if(|one| !one.is_checked && !one.copy.is_open());
    let one = one.as_mut()?;
    one.is_checked = true;
    Some(sys::borrow(one.copy.number))
}

impl UdpPort {
    /// All descriptors, and how often there were others: what [`take_copies`](Self::take_copies)
    /// asks for.
    pub fn sockets(&self) -> (Vec<BorrowedFd<'_>>, u64) {
        (self.sockets.iter().flatten().flat_map(Socket::all).collect(), self.changes)
    }

    /// Takes copies of all [`sockets`](Self::sockets) as they were at this number of changes, in
    /// that order. False when the sockets are others now.
    pub fn take_copies(&mut self, changes: u64, copies: &[SocketCopy]) -> bool {
        if changes != self.changes || copies.len() != self.sockets().0.len() {
            return false;
        }
        let mut copies = copies.iter().copied();
        self.sockets.iter_mut().flatten().for_each(|socket| socket.take_copies(&mut copies));
        self.copied_at = Some(changes);
        true
    }

    /// Those that were taken are closed.
    pub fn forget_copies(&mut self) {
        self.copied_at = None;
        let sockets = self.sockets.iter_mut().flatten();
        sockets.for_each(|socket| *socket.copies() = Copies::default());
    }

    /// The number of changes when copies were taken, if any were.
    pub fn copied_at(&self) -> Option<u64> {
        self.copied_at
    }

    /// There are copies of exactly the sockets of now, and each was open when it was used last.
    pub fn has_copies(&mut self) -> bool {
        self.copied_at == Some(self.changes)
            && self.sockets.iter_mut().flatten().all(|socket| socket.copies().are_there())
    }

    /// The numbers of the copies of which at least one is readable while something waits, as
    /// [`fds`](Self::fds) for a thread that uses copies.
    pub fn copied_fds(&mut self) -> impl Iterator<Item = RawFd> {
        self.sockets.iter_mut().flatten().filter_map(|socket| socket.copies().receiver_number())
    }

    /// Compares all copies now: they may be [believed](Use::Believed) for a moment.
    pub fn compare_copies(&mut self) {
        self.sockets.iter_mut().flatten().for_each(|socket| socket.copies().compare());
    }

    /// Says whether the thread that calls from now on uses the copies. Where there are none, it
    /// receives and sends nothing.
    pub fn use_copies(&mut self, how: Use) {
        self.sockets.iter_mut().flatten().for_each(|socket| socket.copies().use_them(how));
    }
}
