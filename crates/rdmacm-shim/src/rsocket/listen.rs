//! Stream rsockets that listen. A thread takes what peers ask for, so that connections are made
//! also while the program does something else, as with TCP.

use std::{
    collections::VecDeque,
    ffi::c_int,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use rnic_abi::os::{blocking, signals};
use verbs_abi::{RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event};

use super::{
    connecting::{parameters, unspecified},
    link::Link,
    stream::{Options, Phase, Stream, new_channel},
    waiting::{drain, event_descriptor, is_readable, readable, signal},
};
use crate::{
    channel::{Channel, rdma_destroy_event_channel, rdma_destroy_id},
    connect::{private_data, rdma_accept, rdma_reject},
    error::{Errno, Result, done},
    events,
    id::Id,
    listen::rdma_listen,
    migrate::rdma_migrate_id,
};

pub(crate) struct Listener {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    accepted: Mutex<VecDeque<Arc<Stream>>>,
    /// Counts what is in the queue.
    ready: OwnedFd,
    stop: OwnedFd,
    channel: Events,
    most: usize,
    options: Mutex<Options>,
}

/// The event channel of a listening stream, which outlives its listener.
struct Events(*mut Channel);

// SAFETY: reading events is what threads may do at the same time.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Stream {
    pub(crate) fn listen(&self, backlog: c_int) -> Result<()> {
        let mut core = self.core();
        match core.phase {
            Phase::Listening => return Ok(()),
            Phase::Fresh => {
                let any = unspecified(core.options.is_v6);
                drop(core);
                self.bind(any)?;
                core = self.core();
            }
            Phase::Bound => {}
            _ => return Err(Errno(libc::EINVAL)),
        }
        let most = usize::try_from(backlog).unwrap_or(0).clamp(1, MOST_WAITING);
        let shared = Shared {
            accepted: Mutex::default(),
            ready: event_descriptor(libc::EFD_SEMAPHORE)?,
            stop: event_descriptor(0)?,
            channel: Events(self.raw_channel()),
            most,
            options: Mutex::new(core.options),
        };
        let listener = Listener::start(shared)?;
        // Last: an identifier that listens cannot be made to again, as a program may try where
        // there was no descriptor or thread left.
        // SAFETY: the identifier is the stream's.
        done(unsafe { rdma_listen(self.raw_id(), backlog.max(1)) })?;
        if self.listener.set(listener).is_err() {
            return Err(Errno(libc::EINVAL));
        }
        core.phase = Phase::Listening;
        Ok(())
    }

    /// The next connection.
    pub(crate) fn accept(&self) -> Result<Arc<Self>> {
        let listener = self.listener.get().ok_or(Errno(libc::EINVAL))?;
        loop {
            if let Some(stream) = listener.take() {
                return Ok(stream);
            }
            if self.is_nonblocking(0) {
                return Err(Errno(libc::EAGAIN));
            }
            let mut polled = [readable(listener.fd()), readable(listener.shared.stop.as_raw_fd())];
            if blocking::poll(&mut polled, -1) < 0 {
                let error = Errno::last();
                if error == Errno(libc::EINTR) && signals::restarts() {
                    continue;
                }
                return Err(error);
            }
            if polled[1].revents != 0 {
                return Err(Errno(libc::EINVAL));
            }
        }
    }
}

impl Listener {
    fn start(shared: Shared) -> Result<Self> {
        let shared = Arc::new(shared);
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("rsocket-listen".into());
        // A thread inherits the signals that are blocked. The program's handlers run in the
        // program's threads: signals may be waited for there, and handlers use what these have.
        let thread = signals::without(|| thread.spawn(move || of_thread.run()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Readable while a connection waits.
    pub(crate) fn fd(&self) -> c_int {
        self.shared.ready.as_raw_fd()
    }

    /// Readable once none are taken any more.
    pub(crate) fn end_fd(&self) -> c_int {
        self.shared.stop.as_raw_fd()
    }

    fn take(&self) -> Option<Arc<Stream>> {
        drain(&self.shared.ready).then(|| self.shared.queue().pop_front())?
    }

    /// None are taken any more.
    pub(crate) fn is_over(&self) -> bool {
        is_readable(self.end_fd())
    }

    /// What connections inherit.
    pub(crate) fn set_options(&self, options: Options) {
        *self.shared.options() = options;
    }

    /// No connection is taken any more.
    pub(crate) fn stop(&self) {
        signal(&self.shared.stop);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to do either.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Stream>>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn options(&self) -> std::sync::MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // SAFETY: the channel outlives the listener.
        let fd = unsafe { (*self.channel.0).public.fd };
        loop {
            let mut polled = [readable(fd), readable(self.stop.as_raw_fd())];
            let slept = blocking::poll(&mut polled, -1);
            if polled[1].revents != 0 || (slept < 0 && Errno::last() != Errno(libc::EINTR)) {
                return;
            }
            match events::next(self.channel.0) {
                // SAFETY: just made.
                Ok(event) => unsafe { self.handle(event) },
                Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
                // The daemon is gone: threads that wait for connections hear of it.
                Err(_) => return signal(&self.stop),
            }
        }
    }

    /// # Safety
    /// `event` is new.
    unsafe fn handle(&self, event: *mut rdma_cm_event) {
        // SAFETY: by contract; a request has the parameters of a connection, with as much private
        // data as it says.
        let (what, id, private) = unsafe {
            let conn = (*event).param.conn;
            let private = private_data(conn.private_data, conn.private_data_len);
            let seen = ((*event).event, (*event).id, private);
            events::rdma_ack_cm_event(event);
            seen
        };
        if what != RDMA_CM_EVENT_CONNECT_REQUEST {
            return;
        }
        let is_full = self.queue().len() >= self.most;
        // SAFETY: a request has made the identifier, and the program does not know of it.
        let taken = match is_full {
            true => Err(Errno(libc::EAGAIN)),
            // SAFETY: as above.
            false => unsafe { self.take_over(id.cast(), &private) },
        };
        match taken {
            Ok(stream) => {
                self.queue().push_back(Arc::new(stream));
                signal(&self.ready);
            }
            Err(Errno(errno)) => crate::stubs::debug(&format!("connection refused: errno {errno}")),
        }
        if is_full {
            // SAFETY: as above.
            unsafe { refuse(id.cast()) };
        }
    }

    /// Makes a stream of an identifier that a request has made. Where that fails, the peer is
    /// refused and the identifier gone.
    ///
    /// # Safety
    /// The identifier is not used elsewhere.
    unsafe fn take_over(&self, id: *mut Id, private: &[u8]) -> Result<Stream> {
        let channel = new_channel().inspect_err(|_| {
            // SAFETY: by contract.
            unsafe { refuse(id) };
        })?;
        // SAFETY: by contract, and the channel is new.
        let moved = done(unsafe { rdma_migrate_id(id.cast(), channel.cast()) });
        moved.inspect_err(|_| {
            // SAFETY: by contract, and the channel is not used any more.
            unsafe {
                refuse(id);
                rdma_destroy_event_channel(channel.cast());
            }
        })?;
        let stream = Stream::around(id, channel, *self.options());
        let made = accept(&stream, private);
        if made.is_err() {
            // SAFETY: the stream's identifier.
            unsafe { rdma_reject(stream.raw_id(), std::ptr::null(), 0) };
        }
        made.map(|()| stream)
    }
}

fn accept(stream: &Stream, private: &[u8]) -> Result<()> {
    let mut core = stream.core();
    let wishes = core.options.wishes;
    let mut link = Link::new(stream.id(&mut core), wishes.sizes(), wishes.inline)?;
    link.meet(private)?;
    let own = link.introduce();
    core.link = Some(link);
    core.phase = Phase::Accepting;
    let mut param = parameters(&own);
    // SAFETY: the identifier is the stream's, the parameters are local variables.
    done(unsafe { rdma_accept(stream.raw_id(), &raw mut param) })
}

/// # Safety
/// The identifier came with a request and is not used any more.
unsafe fn refuse(id: *mut Id) {
    // SAFETY: by contract.
    unsafe {
        rdma_reject(id.cast(), std::ptr::null(), 0);
        rdma_destroy_id(id.cast());
    }
}

/// Connections that may wait for the program, at most.
const MOST_WAITING: usize = 1024;
