//! Event channels, and the identifiers that have one of their own.

use std::{
    ffi::{c_int, c_void},
    ops::Deref,
    os::fd::{IntoRawFd, RawFd},
    process, ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use rnic_abi::{
    control::CmRequest,
    os::{blocking, signals},
};
use verbs_abi::{
    RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel,
    rdma_port_space,
};

use crate::{
    error::{Errno, Result, code, pointer},
    events,
    id::{self, Id},
    listen,
    session::{self, Device},
};

/// An event channel; programs have a pointer to its first member.
///
/// Each daemon writes its events to a socket. Where there is one device, the descriptor that
/// programs have is this socket; else it is an epoll descriptor, which is readable while any of the
/// sockets is.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) public: rdma_event_channel,
    /// The one that made it. In its children only the descriptors are left.
    process: u32,
    parts: Mutex<Vec<Part>>,
    /// Held while a part is used for a new place: none of those goes meanwhile, nor comes twice.
    placing: Mutex<()>,
    /// Threads that wait for an event, and [`DESTROYED`]. The last one that needs it frees it.
    users: AtomicU32,
}

/// A thread that waits for an event of a channel, which is not freed meanwhile.
pub(crate) struct Waiting(*mut Channel);

/// The channel of one daemon.
#[derive(Clone, Copy)]
struct Part {
    device: &'static Device,
    handle: u32,
    socket: RawFd,
}

impl Channel {
    pub(crate) fn open() -> Result<*mut Self> {
        let mut parts = Vec::new();
        let fd = match session::devices()? {
            [device] => {
                parts.push(Part::open(device)?);
                parts[0].socket
            }
            // Parts follow when they are needed.
            // SAFETY: no pointers.
            _ => match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
                fd if fd < 0 => return Err(Errno::last()),
                fd => fd,
            },
        };
        let (public, parts) = (rdma_event_channel { fd }, Mutex::new(parts));
        Ok(Box::into_raw(Box::new(Self::of(public, parts))))
    }

    fn of(public: rdma_event_channel, parts: Mutex<Vec<Part>>) -> Self {
        let (placing, users) = (Mutex::default(), AtomicU32::new(0));
        Self { public, process: process::id(), parts, placing, users }
    }

    /// # Errors
    /// EIO in a child of the process that made it: a lock may have been held at the fork, and what
    /// comes is for the parent.
    fn check_process(&self) -> Result<()> {
        if self.process == process::id() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until identifiers of the channel have their new places.
    ///
    /// # Errors
    /// As of `check_process`.
    pub(crate) fn placing(&self) -> Result<Placing<'_>> {
        self.check_process()?;
        let lock = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Placing { channel: self, _lock: lock })
    }

    /// What the device's daemon knows the channel by, if it does.
    pub(crate) fn known_at(&self, device: &'static Device) -> Option<u32> {
        let is_it = |part: &&Part| ptr::eq(part.device, device);
        self.parts().iter().find(is_it).map(|part| part.handle)
    }

    /// Lets go of the device's part, if no identifier of the channel is there any more.
    pub(crate) fn leave(&self, device: &'static Device) {
        let Ok(_placing) = self.placing() else { return };
        let mut parts = self.parts();
        let is_it = |part: &Part| part.socket != self.public.fd && ptr::eq(part.device, device);
        let found = parts.iter().position(is_it);
        if let Some(at) = found.filter(|_| !id::are_at(device, ptr::from_ref(self))) {
            let part = parts.swap_remove(at);
            self.stop_waiting_for(&part);
            drop(parts);
            part.close();
        }
    }

    fn wait_for(&self, part: &Part) -> Result<()> {
        let mut event = libc::epoll_event { events: EPOLLIN, u64: part.socket as u64 };
        // SAFETY: a local variable.
        let added = unsafe {
            libc::epoll_ctl(self.public.fd, libc::EPOLL_CTL_ADD, part.socket, &raw mut event)
        };
        if added == 0 { Ok(()) } else { Err(Errno::last()) }
    }

    /// A child may have the socket, too: closing it is not enough.
    fn stop_waiting_for(&self, part: &Part) {
        let (fd, delete) = (self.public.fd, libc::EPOLL_CTL_DEL);
        // SAFETY: no pointers.
        unsafe { libc::epoll_ctl(fd, delete, part.socket, ptr::null_mut()) };
    }

    /// Waits for a message, unless the descriptor does not block: from which daemon, and how long.
    ///
    /// # Errors
    /// EBADF for a channel that is destroyed: a thread goes on to wait in it, but for one message.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<(&'static Device, usize)> {
        self.check_process()?;
        if self.is_destroyed() {
            return Err(Errno(libc::EBADF));
        }
        let fd = self.public.fd;
        let alone = self.parts().iter().find(|part| part.socket == fd).map(|part| part.device);
        if let Some(device) = alone {
            return Ok((device, receive(fd, buffer, 0)?));
        }
        loop {
            let socket = self.readable()?;
            if self.is_destroyed() {
                return Err(Errno(libc::EBADF));
            }
            if let Some(taken) = self.take(socket, buffer) {
                return taken;
            }
        }
    }

    /// Waits until there is a message, unless the descriptor does not block: where it is.
    fn readable(&self) -> Result<RawFd> {
        let (fd, mut event) = (self.public.fd, libc::epoll_event { events: 0, u64: 0 });
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let timeout = if flags & libc::O_NONBLOCK != 0 { 0 } else { -1 };
        loop {
            match blocking::epoll_wait(fd, &mut event, timeout) {
                1 => return Ok(event.u64 as RawFd),
                0 => return Err(Errno(libc::EAGAIN)),
                // With one device the kernel itself lets the call go on.
                _ if Errno::last() == Errno(libc::EINTR) && signals::restarts() => {}
                _ => return Err(Errno::last()),
            }
        }
    }

    /// The message of a daemon. `None` where another thread has it, and at the end of a daemon if
    /// all identifiers go on with others.
    fn take(&self, socket: RawFd, buffer: &mut [u8]) -> Option<Result<(&'static Device, usize)>> {
        // As long as it is held the descriptor is the part's.
        let mut parts = self.parts();
        let at = parts.iter().position(|part| part.socket == socket)?;
        let device = parts[at].device;
        match receive(socket, buffer, libc::MSG_DONTWAIT) {
            Ok(len) => Some(Ok((device, len))),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => None,
            Err(Errno(libc::EIO | libc::ECONNRESET)) => {
                let part = parts.swap_remove(at);
                self.stop_waiting_for(&part);
                // SAFETY: its own.
                unsafe { libc::close(part.socket) };
                let left: Vec<_> = parts.iter().map(|part| part.device).collect();
                let is_told = left.is_empty() || id::end_at(device, ptr::from_ref(self), &left);
                is_told.then_some(Err(Errno(libc::EIO)))
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn is_destroyed(&self) -> bool {
        self.users.load(Ordering::Acquire) & DESTROYED != 0
    }

    /// Threads that wait for an event wait on, as with rdma-core: programs end with such a thread,
    /// and take an error of its call for a failure. Its descriptor stays open for them: a file that
    /// got the same number would be read in its place.
    ///
    /// # Safety
    /// It is not used any more, but for such threads.
    pub(crate) unsafe fn close(channel: *mut Self) {
        // SAFETY: by contract.
        let (users, is_parents) = unsafe {
            let this = &*channel;
            (this.users.fetch_or(DESTROYED, Ordering::AcqRel), this.check_process().is_err())
        };
        // In a child the threads that waited are not there.
        if users == 0 || is_parents {
            // SAFETY: by contract.
            unsafe { Self::free(channel) };
        }
    }

    /// # Safety
    /// No thread uses it any more.
    unsafe fn free(channel: *mut Self) {
        // SAFETY: by contract; made by `open`.
        let mut channel = unsafe { Box::from_raw(channel) };
        let fd = channel.public.fd;
        // Without the lock, which a thread of the parent may have held at a fork.
        let parts = channel.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        if parts.iter().all(|part| part.socket != fd) {
            // SAFETY: the channel's own descriptor.
            unsafe { libc::close(fd) };
        }
        // In a child only the descriptors are closed.
        parts.drain(..).for_each(Part::close);
    }
}

impl Waiting {
    /// This thread is about to wait for an event of a channel.
    ///
    /// # Safety
    /// `channel` is null or a channel that is not destroyed yet.
    pub(crate) unsafe fn on(channel: *mut Channel) -> Result<Self> {
        // SAFETY: by contract.
        let users = unsafe { channel.as_ref() }.map(|channel| &channel.users);
        users.ok_or(Errno(libc::EINVAL))?.fetch_add(1, Ordering::AcqRel);
        Ok(Self(channel))
    }
}

impl Deref for Waiting {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        // SAFETY: not freed before the last of these is dropped.
        unsafe { &*self.0 }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == DESTROYED | 1 {
            // SAFETY: the program has destroyed it, and this was the last thread that waited.
            unsafe { Channel::free(self.0) };
        }
    }
}

/// Of the users of a channel: its program has destroyed it.
const DESTROYED: u32 = 1 << 31;

/// A channel whose parts stay.
pub(crate) struct Placing<'a> {
    channel: &'a Channel,
    _lock: MutexGuard<'a, ()>,
}

impl Placing<'_> {
    /// What the device's daemon knows the channel by.
    pub(crate) fn handle_at(&self, device: &'static Device) -> Result<u32> {
        if let Some(handle) = self.channel.known_at(device) {
            return Ok(handle);
        }
        // Others receive meanwhile, however long the daemon takes.
        self.add(Part::open(device)?)
    }

    fn add(&self, part: Part) -> Result<u32> {
        let mut parts = self.channel.parts();
        if let Err(error) = self.channel.wait_for(&part) {
            part.close();
            return Err(error);
        }
        let handle = part.handle;
        parts.push(part);
        Ok(handle)
    }
}

impl Part {
    fn open(device: &'static Device) -> Result<Self> {
        let (handle, socket) = device.open_channel()?;
        Ok(Self { device, handle, socket: socket.into_raw_fd() })
    }

    fn close(self) {
        // SAFETY: its own.
        unsafe { libc::close(self.socket) };
        let _ = self.device.done(CmRequest::CloseChannel { channel: self.handle });
    }
}

fn receive(socket: RawFd, buffer: &mut [u8], flags: c_int) -> Result<usize> {
    match usize::try_from(blocking::recv(socket, buffer, flags)) {
        Err(_) => Err(Errno::last()),
        // The daemon is gone.
        Ok(0) => Err(Errno(libc::EIO)),
        Ok(len) => Ok(len),
    }
}

const EPOLLIN: u32 = libc::EPOLLIN as u32;

/// A channel for events of identifiers.
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Channel::open().map(<*mut Channel>::cast))
}

/// # Safety
/// `channel` has no identifiers any more.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: by contract.
        unsafe { Channel::close(channel.cast()) };
    }
}

/// # Safety
/// `channel` is null or a channel, `result` writable.
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    result: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    code(create(channel.cast(), context, ps).map(|id| {
        // SAFETY: by contract.
        unsafe { *result = id.cast() };
    }))
}

/// A new identifier, with a channel of its own where none is given.
pub(crate) fn create(
    channel: *mut Channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result<*mut Id> {
    if ![RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB].contains(&ps) {
        return Err(Errno(libc::EINVAL));
    }
    let is_sync = channel.is_null();
    let channel = if is_sync { Channel::open()? } else { channel };
    let id = Id::new(channel, context, ps);
    // SAFETY: just made.
    unsafe { (*id).inner().is_sync = is_sync };
    Ok(id)
}

/// # Safety
/// `id` has no queue pair, and is not used any more.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|_| {
        // SAFETY: by contract; it was made by `Id::new`.
        let mut id = unsafe { Box::from_raw(id.cast::<Id>()) };
        acknowledge_own(&mut id);
        let places = std::mem::take(&mut id.inner().places);
        id::forget(&raw mut *id, &places);
        if id.inner().is_listening {
            places.iter().for_each(listen::refuse_unread);
        }
        // All of them, whatever becomes of the first. Of several daemons some may be gone.
        let is_fine = |result: &Result<()>| places.len() < 2 || *result != Err(Errno(libc::EIO));
        let released = places.iter().map(id::Place::release).filter(is_fine);
        let released: Vec<Result<()>> = released.collect();
        if id.inner().is_sync {
            // SAFETY: no other identifier has it.
            unsafe { Channel::close(id.public.channel.cast()) };
        }
        released.into_iter().collect()
    }))
}

/// Lets go of the event that an identifier with a channel of its own keeps. Without such a channel
/// no call would, and neither it nor the listener of its request could be destroyed.
pub(crate) fn acknowledge_own(id: &mut Id) {
    let event = std::mem::replace(&mut id.public.event, ptr::null_mut());
    if !event.is_null() {
        // SAFETY: it is the identifier's own.
        unsafe { events::rdma_ack_cm_event(event) };
    }
}

/// Waits for the next event of an identifier that has a channel of its own, which keeps it.
pub(crate) fn complete(id: &mut Id) -> Result<()> {
    if !id.inner().is_sync {
        return Ok(());
    }
    acknowledge_own(id);
    let event = events::next(id.public.channel.cast())?;
    id.public.event = event;
    // SAFETY: just made.
    match unsafe { (*event).status } {
        0 => Ok(()),
        status if status < 0 => Err(Errno(-status)),
        _ => Err(Errno(libc::ECONNREFUSED)),
    }
}

#[cfg(test)]
mod tests;
