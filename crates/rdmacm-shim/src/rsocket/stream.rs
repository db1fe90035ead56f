//! Stream rsockets: their phases, and how threads wait for them.

use std::{
    ffi::c_int,
    net::SocketAddr,
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use verbs_abi::{RDMA_PS_TCP, rdma_cm_id};

use super::{
    iomap::Mapped,
    link::Link,
    listen::Listener,
    settings::{Settings, Wishes},
    waiting::{self, Sleepers, Waits},
};
use crate::{
    channel::{
        self, Channel, rdma_create_event_channel, rdma_destroy_event_channel, rdma_destroy_id,
    },
    error::{Errno, Result},
    id::Id,
};

/// A stream rsocket. Its number is the descriptor of its event channel.
pub(crate) struct Stream {
    id: *mut Id,
    channel: *mut Channel,
    /// The process that made it: its children have no part in it.
    pub(crate) process: u32,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) descriptor_flags: AtomicI32,
    core: Mutex<Core>,
    /// Calls that send have their turns, and so have calls that receive.
    pub(crate) sending: Mutex<()>,
    pub(crate) receiving: Mutex<()>,
    pub(crate) listener: OnceLock<Listener>,
}

// SAFETY: identifier and channel are used under the core's lock only, but for the channel's
// descriptor, which does not change.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// What is behind the lock, which is held for short times.
pub(crate) struct Core {
    pub(crate) phase: Phase,
    pub(crate) link: Option<Link>,
    pub(crate) options: Options,
    pub(crate) mapped: Mapped,
    /// `SO_ERROR`.
    pub(crate) error: c_int,
    /// Where it shall connect to.
    pub(crate) target: Option<SocketAddr>,
    sleepers: Sleepers,
    /// When events of the connection manager were looked for.
    looked: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Fresh,
    Bound,
    Listening,
    ResolvingAddress,
    ResolvingRoute,
    Connecting,
    Accepting,
    /// Connected, once at least.
    Open,
    Failed,
}

impl Phase {
    pub(crate) fn is_opening(self) -> bool {
        use Phase::{Accepting, Connecting, ResolvingAddress, ResolvingRoute};
        [ResolvingAddress, ResolvingRoute, Connecting, Accepting].contains(&self)
    }
}

/// What programs have set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) wishes: Wishes,
    pub(crate) is_v6: bool,
    pub(crate) reuse: bool,
    pub(crate) out_of_band_inline: bool,
    pub(crate) no_delay: bool,
    pub(crate) one_family: bool,
    pub(crate) tos: c_int,
    /// Seconds that closing may take; `None` where the program leaves that open.
    pub(crate) linger: Option<u32>,
    pub(crate) keep_alive: bool,
    /// Seconds.
    pub(crate) keep_alive_after: u32,
}

impl Options {
    fn new(is_v6: bool) -> Self {
        Self {
            wishes: Settings::get().wishes,
            is_v6,
            reuse: false,
            out_of_band_inline: false,
            no_delay: false,
            one_family: false,
            tos: 0,
            linger: None,
            keep_alive: false,
            keep_alive_after: 7200,
        }
    }
}

pub(crate) type Locked<'a> = MutexGuard<'a, Core>;

impl Stream {
    pub(crate) fn new(is_v6: bool) -> Result<Self> {
        let channel = new_channel()?;
        let id = channel::create(channel, ptr::null_mut(), RDMA_PS_TCP).inspect_err(|_| {
            // SAFETY: just made.
            unsafe { rdma_destroy_event_channel(channel.cast()) };
        })?;
        Ok(Self::around(id, channel, Options::new(is_v6)))
    }

    /// Around an identifier that is on this channel; both are the stream's from now on.
    pub(crate) fn around(id: *mut Id, channel: *mut Channel, options: Options) -> Self {
        let core = Core {
            phase: Phase::Fresh,
            link: None,
            options,
            mapped: Mapped::default(),
            error: 0,
            target: None,
            sleepers: Sleepers::default(),
            looked: Instant::now(),
        };
        Self {
            id,
            channel,
            process: std::process::id(),
            nonblocking: AtomicBool::new(false),
            descriptor_flags: AtomicI32::new(0),
            core: Mutex::new(core),
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
            listener: OnceLock::new(),
        }
    }

    /// The number that programs know it by.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: alive as long as the stream, and the descriptor does not change.
        unsafe { (*self.channel).public.fd }
    }

    pub(crate) fn raw_channel(&self) -> *mut Channel {
        self.channel
    }

    pub(crate) fn raw_id(&self) -> *mut rdma_cm_id {
        self.id.cast()
    }

    /// The identifier, for the thread that holds the core's lock.
    pub(crate) fn id<'a>(&self, _locked: &'a mut Core) -> &'a mut Id {
        // SAFETY: alive as long as the stream, and used under the lock only.
        unsafe { &mut *self.id }
    }

    pub(crate) fn core(&self) -> Locked<'_> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.nonblocking.load(Ordering::Relaxed)
    }

    /// Waits until something is the case: looks for it for a while, then sleeps.
    pub(crate) fn wait<'a>(
        &'a self,
        core: Locked<'a>,
        patience: (bool, Option<Instant>),
        ready: impl Fn(&Core) -> bool,
    ) -> Result<Locked<'a>> {
        waiting::wait(self, core, patience, ready)
    }

    /// Wakes sleeping threads: there is something to look at.
    pub(crate) fn changed(core: &mut Core) {
        core.sleepers.tell();
    }
}

impl Waits for Stream {
    type Core = Core;

    fn lock(&self) -> Locked<'_> {
        self.core()
    }

    fn sleepers(core: &mut Core) -> &mut Sleepers {
        &mut core.sleepers
    }

    fn advance(&self, core: &mut Core) {
        if core.phase.is_opening() {
            self.handle_events(core);
            if !core.phase.is_opening() {
                // Threads that sleep until then poll the channel, whose event is taken here.
                core.sleepers.tell();
            }
        }
        if core.phase != Phase::Open {
            return;
        }
        let Some(link) = &mut core.link else { return };
        if link.progress() {
            core.sleepers.tell();
        } else if core.looked.elapsed() >= LOOKS {
            // Threads that never sleep hear of the end of a peer here only.
            core.looked = Instant::now();
            self.handle_events(core);
            if core.link.as_ref().is_none_or(|link| !link.flow.is_up()) {
                core.sleepers.tell();
            }
        }
    }

    fn arm(&self, core: &mut Core) -> bool {
        let is_open = core.phase == Phase::Open;
        let Some(link) = core.link.as_mut().filter(|_| is_open) else { return false };
        let newly = link.completions.arm();
        if newly {
            self.advance(core);
        }
        newly
    }

    /// Events of the connection manager, and completions.
    fn descriptors(&self, core: &Core) -> [c_int; 2] {
        if let Some(listener) = self.listener.get() {
            return [listener.fd(), listener.end_fd()];
        }
        let open = core.link.as_ref().filter(|_| core.phase == Phase::Open);
        [self.fd(), open.map_or(-1, |link| link.completions.fd())]
    }

    fn take(&self, core: &mut Core, [event, completion]: [bool; 2]) {
        if completion
            && let Some(link) = &mut core.link
            && let Err(Errno(errno)) = link.completions.take_event()
        {
            link.fail(errno);
        }
        if event && core.phase != Phase::Listening {
            self.handle_events(core);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Its thread uses the channel.
        drop(self.listener.take());
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        core.mapped = Mapped::default();
        core.link = None;
        // SAFETY: its own, and not used any more.
        unsafe {
            rdma_destroy_id(self.id.cast());
            rdma_destroy_event_channel(self.channel.cast());
        }
    }
}

/// How often a stream on which nothing happens looks for events: that is a system call.
const LOOKS: Duration = Duration::from_millis(1);

/// A channel whose descriptor does not block.
pub(crate) fn new_channel() -> Result<*mut Channel> {
    let channel = rdma_create_event_channel();
    // SAFETY: null or a channel.
    let Some(public) = (unsafe { channel.as_ref() }) else { return Err(Errno::last()) };
    super::unblock(public.fd);
    Ok(channel.cast())
}
