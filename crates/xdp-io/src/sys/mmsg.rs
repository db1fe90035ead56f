//! Batches of datagrams with `recvmmsg` and `sendmmsg`, single ones with `recvmsg` and `sendmsg`:
//! message headers that point into one arena, built once and only touched up per call.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::address::{SOCKADDR_MAX, SockAddr};
use crate::control::{Control, ControlMessages};
use crate::umem::MappedMemory;
use crate::{TxRefusal, TxSlot};

/// Most messages of one system call.
const BATCH: usize = 64;

/// One message's vector entry, address and control buffer. Kept in `Vec`s that are never resized,
/// so that the pointers in the headers stay valid.
struct Vectors {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
}

// SAFETY: the raw pointers lead into the value's own vectors and into the arena it is stored with;
// nothing is bound to a thread.
unsafe impl Send for Vectors {}

impl Vectors {
    fn new(count: usize) -> Vectors {
        // SAFETY: mmsghdr consists of integers and pointers, for which zero is valid.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut vectors = Vectors {
            headers: vec![header; count],
            iovecs: vec![iovec; count],
            names: vec![SockAddr::EMPTY; count],
            controls: vec![Control::EMPTY; count],
        };
        let (iovecs, names) = (vectors.iovecs.as_mut_ptr(), vectors.names.as_mut_ptr());
        let controls = vectors.controls.as_mut_ptr();
        for (index, entry) in vectors.headers.iter_mut().enumerate() {
            let header = &mut entry.msg_hdr;
            // SAFETY: `index` is below the length of all four vectors.
            unsafe {
                header.msg_iov = iovecs.add(index);
                header.msg_name = names.add(index).cast();
                header.msg_control = controls.add(index).cast();
            }
            header.msg_iovlen = 1;
        }
        vectors
    }
}

/// A received message.
pub(crate) struct Message<'a> {
    /// Bytes received.
    pub(crate) len: usize,
    /// MSG_TRUNC and the like.
    pub(crate) flags: i32,
    /// The sender, encoded.
    pub(crate) name: &'a [u8],
    /// Control messages.
    pub(crate) control: ControlMessages<'a>,
}

/// Predicts how many messages to ask a socket for. Each attempt to receive one more message than
/// there is costs a quarter of a microsecond. So a port whose messages arrive one at a time asks
/// for one; after a burst it asks for a whole batch again.
#[derive(Debug, Default)]
pub(crate) struct BatchHint {
    /// Messages since the socket was empty.
    burst: usize,
    /// Consecutive bursts of a single message.
    singles: u32,
}

impl BatchHint {
    fn messages(&self) -> usize {
        if self.burst == 0 && self.singles >= MANY_SINGLES { 1 } else { BATCH }
    }

    /// That many came, of those asked for.
    pub(crate) fn learn(&mut self, received: usize) {
        self.burst = self.burst.saturating_add(received);
        if received == 0 && self.burst > 0 {
            self.singles = if self.burst == 1 { self.singles.saturating_add(1) } else { 0 };
            self.burst = 0;
        }
    }
}

/// Bursts of a single message before a port asks for one message at a time.
const MANY_SINGLES: u32 = 8;

/// Fixed slots of a receive arena, used from the lowest up so that few of them stay in the cache.
pub(crate) struct RxBatch {
    vectors: Vectors,
    arena: MappedMemory,
    slot_bytes: usize,
    used: usize,
}

impl RxBatch {
    /// `slots` slots of `slot_bytes`; a message is written from `skip` bytes into its slot.
    pub(crate) fn new(slots: usize, slot_bytes: usize, skip: usize) -> io::Result<RxBatch> {
        let arena = MappedMemory::anonymous(slots * slot_bytes)?;
        let mut vectors = Vectors::new(slots);
        for (index, iovec) in vectors.iovecs.iter_mut().enumerate() {
            // SAFETY: inside the arena, which has `slots * slot_bytes` bytes.
            iovec.iov_base = unsafe { arena.start().add(index * slot_bytes + skip) }.cast();
            iovec.iov_len = slot_bytes - skip;
        }
        let mut batch = RxBatch { vectors, arena, slot_bytes, used: slots };
        batch.release();
        Ok(batch)
    }

    /// Receives up to `max` messages into free slots and returns the slots' indices. `hint` is
    /// that for messages of `fd`.
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        max: usize,
        hint: &mut BatchHint,
    ) -> io::Result<Range<usize>> {
        let start = self.used;
        let free = &mut self.vectors.headers[start..];
        let count = free.len().min(max).min(hint.messages());
        if count == 0 {
            return Ok(start..start);
        }
        // SAFETY: every header points to its own vector entry, address and control buffer, which
        // live in `self.vectors`, and the entry to its slot of `self.arena`; `&mut self` excludes
        // other users.
        let received = unsafe { receive_into(fd, &mut free[..count]) };
        hint.learn(usize::try_from(received).unwrap_or(0));
        let received = super::check(received)? as usize;
        self.used += received.min(count);
        Ok(start..self.used)
    }

    /// The message in a slot that [`RxBatch::receive`] returned.
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        let entry = &self.vectors.headers[index];
        let header = &entry.msg_hdr;
        let name_len = (header.msg_namelen as usize).min(SOCKADDR_MAX);
        Message {
            len: (entry.msg_len as usize).min(self.vectors.iovecs[index].iov_len),
            flags: header.msg_flags,
            name: self.vectors.names[index].received(name_len),
            control: self.vectors.controls[index].received(header.msg_controllen),
        }
    }

    /// Arena offset of a slot.
    pub(crate) fn offset(&self, index: usize) -> usize {
        index * self.slot_bytes
    }

    /// The bytes of a slot.
    pub(crate) fn slot_mut(&mut self, index: usize) -> &mut [u8] {
        let start = self.offset(index);
        self.arena.bytes_mut(start..start + self.slot_bytes)
    }

    /// The whole arena.
    pub(crate) fn arena(&self) -> &[u8] {
        self.arena.bytes(0..self.arena.len())
    }

    /// Makes all slots free again.
    pub(crate) fn release(&mut self) {
        for entry in &mut self.vectors.headers[..self.used] {
            let header = &mut entry.msg_hdr;
            header.msg_namelen = SOCKADDR_MAX as u32;
            header.msg_controllen = Control::capacity();
            header.msg_flags = 0;
        }
        self.used = 0;
    }
}

/// What became of one attempt to send.
pub(crate) enum SendOutcome {
    /// This many messages went out.
    Sent(usize),
    /// The kernel has no room now: keep everything and try again later.
    Full,
    /// The first message cannot be sent, by this error number.
    Failed(i32),
}

/// A queue of messages in a transmit arena. The kernel copies them as it sends, so the arena
/// is filled from the start again as soon as the queue is empty.
pub(crate) struct TxBatch {
    vectors: Vectors,
    arena: MappedMemory,
    /// For each entry: which socket of the port sends it.
    sockets: Vec<u32>,
    /// Bytes the kernel reads before an entry's arena offset (a vnet header).
    prefix: usize,
    /// Queued entries are `head..tail`; an entry of length 0 was cancelled.
    head: usize,
    tail: usize,
    /// First free byte of the arena.
    free_from: usize,
}

/// Entries start at multiples of a cache line.
const TX_ALIGN: usize = 64;

impl TxBatch {
    /// Room for `messages` messages and `arena_bytes` bytes; `prefix` bytes (at most one cache
    /// line) belong to the kernel in front of each message.
    pub(crate) fn new(messages: usize, arena_bytes: usize, prefix: usize) -> io::Result<TxBatch> {
        assert!(prefix <= TX_ALIGN);
        let arena = MappedMemory::anonymous(arena_bytes)?;
        let vectors = Vectors::new(messages);
        let sockets = vec![0; messages];
        Ok(TxBatch { vectors, arena, sockets, prefix, head: 0, tail: 0, free_from: 0 })
    }

    /// Takes the next entry and `len` bytes of the arena.
    pub(crate) fn reserve(&mut self, len: usize, socket: u32) -> Result<TxSlot, TxRefusal> {
        let offset = self.free_from + self.prefix.next_multiple_of(TX_ALIGN);
        let end = offset.checked_add(len).ok_or(TxRefusal::Length)?;
        if self.tail == self.vectors.headers.len() || end > self.arena.len() {
            return Err(TxRefusal::Full);
        }
        let index = self.tail;
        // SAFETY: `offset - prefix` is inside the arena because `end` is.
        let base = unsafe { self.arena.start().add(offset - self.prefix) };
        self.vectors.iovecs[index] =
            libc::iovec { iov_base: base.cast(), iov_len: self.prefix + len };
        self.vectors.headers[index].msg_hdr.msg_namelen = 0;
        self.vectors.headers[index].msg_hdr.msg_controllen = 0;
        self.sockets[index] = socket;
        self.tail += 1;
        self.free_from = end.next_multiple_of(TX_ALIGN);
        Ok(TxSlot { offset, len, index: index as u32 })
    }

    /// Sets destination and control messages of an entry.
    pub(crate) fn address(&mut self, slot: &TxSlot, name: SockAddr, control: Control) {
        let index = slot.index as usize;
        let header = &mut self.vectors.headers[index].msg_hdr;
        header.msg_namelen = name.as_bytes().len() as u32;
        header.msg_controllen = control.len();
        self.vectors.names[index] = name;
        self.vectors.controls[index] = control;
    }

    /// Shortens an entry; 0 cancels it. Ignored for a slot that was already submitted.
    pub(crate) fn truncate(&mut self, slot: &TxSlot, len: usize) {
        let index = slot.index as usize;
        if !(self.head..self.tail).contains(&index) || len > slot.len {
            return;
        }
        let bytes = if len == 0 { 0 } else { self.prefix + len };
        self.vectors.iovecs[index].iov_len = bytes;
        if index + 1 == self.tail {
            self.free_from = (slot.offset + len).next_multiple_of(TX_ALIGN);
        }
    }

    /// Entries not sent yet.
    pub(crate) fn queued(&self) -> Range<usize> {
        self.head..self.tail
    }

    /// The socket of an entry.
    pub(crate) fn socket(&self, index: usize) -> u32 {
        self.sockets[index]
    }

    /// Changes the socket of an entry.
    pub(crate) fn set_socket(&mut self, index: usize, socket: u32) {
        self.sockets[index] = socket;
    }

    /// Cancels an entry.
    pub(crate) fn cancel(&mut self, index: usize) {
        self.vectors.iovecs[index].iov_len = 0;
    }

    /// Moves the queued entries of one socket to another.
    pub(crate) fn retag(&mut self, from: u32, to: u32) {
        for socket in &mut self.sockets[self.head..self.tail] {
            if *socket == from {
                *socket = to;
            }
        }
    }

    /// The bytes of an entry, prefix included; empty for a cancelled one.
    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut [u8] {
        let iovec = self.vectors.iovecs[index];
        let start = iovec.iov_base as usize - self.arena.start() as usize;
        self.arena.bytes_mut(start..start + iovec.iov_len)
    }

    /// The whole arena.
    pub(crate) fn arena_mut(&mut self) -> &mut [u8] {
        let len = self.arena.len();
        self.arena.bytes_mut(0..len)
    }

    /// The first entry to send: skips cancelled ones, and starts from scratch when none is left.
    pub(crate) fn first(&mut self) -> Option<usize> {
        while self.head < self.tail && self.vectors.iovecs[self.head].iov_len == 0 {
            self.head += 1;
        }
        if self.head == self.tail {
            (self.head, self.tail, self.free_from) = (0, 0, 0);
            return None;
        }
        Some(self.head)
    }

    /// Removes the first entry without sending it.
    pub(crate) fn drop_first(&mut self) {
        self.cancel(self.head);
    }

    /// Sends the first entries, as many as belong to the same socket, over `fd`.
    pub(crate) fn send_run(&mut self, fd: BorrowedFd<'_>) -> SendOutcome {
        let first = self.head;
        let socket = self.sockets[first];
        let end = self.tail.min(first + BATCH);
        let run = (first..end)
            .take_while(|i| self.sockets[*i] == socket && self.vectors.iovecs[*i].iov_len > 0)
            .count();
        let headers = &mut self.vectors.headers[first..first + run];
        // SAFETY: every header points to its own vector entry, address and control buffer in
        // `self.vectors` and the entry into `self.arena`; the kernel reads them during the call.
        let sent = unsafe { send_from(fd, headers) };
        if sent > 0 {
            self.head += (sent as usize).min(run);
            return SendOutcome::Sent(sent as usize);
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENOMEM => SendOutcome::Full,
            errno => SendOutcome::Failed(errno),
        }
    }
}

/// Receives into these headers: how many messages, or -1. A single one takes the kernel's call for
/// one, which costs 60 ns less.
///
/// Not by the functions of the C library, at which a thread may be cancelled: to watch for that
/// costs two atomic operations.
///
/// # Safety
/// What the headers point to is valid, and used by nothing else.
unsafe fn receive_into(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> libc::c_int {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: by contract; so many headers exist.
    let result = unsafe {
        if let [header] = headers {
            let one = &raw mut header.msg_hdr;
            let received = libc::syscall(libc::SYS_recvmsg, fd, one, flags);
            header.msg_len = received.try_into().unwrap_or(0);
            if received < 0 { received } else { 1 }
        } else {
            let (first, count) = (headers.as_mut_ptr(), headers.len());
            let forever = ptr::null_mut::<libc::timespec>();
            libc::syscall(libc::SYS_recvmmsg, fd, first, count, flags, forever)
        }
    };
    result as libc::c_int
}

/// Sends the messages of these headers, as [`receive_into`] receives.
///
/// # Safety
/// What the headers point to is valid.
unsafe fn send_from(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> libc::c_int {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: by contract; so many headers exist.
    let result = unsafe {
        if let [header] = headers {
            let sent = libc::syscall(libc::SYS_sendmsg, fd, &raw const header.msg_hdr, flags);
            if sent < 0 { sent } else { 1 }
        } else {
            let (first, count) = (headers.as_mut_ptr(), headers.len());
            libc::syscall(libc::SYS_sendmmsg, fd, first, count, flags)
        }
    };
    result as libc::c_int
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn a_single_message_may_be_empty_or_too_long() {
        let [ours, peer] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        peer.connect(ours.local_addr().unwrap()).unwrap();
        let mut batch = RxBatch::new(4, 64, 0).unwrap();
        let mut hint = BatchHint { burst: 0, singles: MANY_SINGLES };
        for (sent, len, is_truncated) in [(10, 10, false), (0, 0, false), (100, 64, true)] {
            peer.send(&vec![7; sent]).unwrap();
            let slots = batch.receive(ours.as_fd(), 4, &mut hint).unwrap();
            assert_eq!(slots.len(), 1);
            let message = batch.message(slots.start);
            let truncated = message.flags & libc::MSG_TRUNC != 0;
            assert_eq!((message.len, truncated), (len, is_truncated));
            let after = batch.receive(ours.as_fd(), 4, &mut hint).unwrap_err();
            assert_eq!(after.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(hint.messages(), 1, "the next one may come alone, too");
            batch.release();
        }
    }

    #[test]
    fn messages_that_come_one_by_one_are_asked_for_one_by_one() {
        let mut hint = BatchHint::default();
        for _ in 0..MANY_SINGLES {
            assert_eq!(hint.messages(), BATCH);
            hint.learn(1);
            hint.learn(0);
        }
        assert_eq!(hint.messages(), 1);
        hint.learn(1);
        assert_eq!(hint.messages(), BATCH, "more may wait behind it");
    }

    #[test]
    fn a_burst_restores_whole_batches() {
        let mut hint = BatchHint { burst: 0, singles: MANY_SINGLES };
        for received in [1, 1, 0] {
            hint.learn(received);
        }
        assert_eq!(hint.messages(), BATCH);
    }
}
