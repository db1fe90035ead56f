//! Opening and closing a device.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    io,
    mem::offset_of,
    os::fd::OwnedFd,
    sync::{
        Once, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use rnic_abi::{
    control::{DeviceInfo, Reply, Request},
    doorbell::{AREA_WORDS, Bell},
    os::{
        Descriptor, EventFd,
        function::{Driver, Engine},
        has_hung_up, memory,
    },
    verbs::AccessFlags,
};
use verbs_abi::{
    VERBS_ABI_IS_EXTENDED, Zeroed, ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context,
};

use crate::{
    cpu_sharing::YieldPredictor,
    cq::Cq,
    device::Device,
    driving::Drives,
    error::{Errno, Result, code, pointer},
    import,
    lkey_table::LkeyTable,
    objects::Objects,
    ops,
    qp::Qp,
    records::RecordTable,
    report,
    session::Session,
    srq::Srq,
};

/// An open device. Programs hold the address of the `ibv_context` inside.
#[repr(C)]
pub(crate) struct Context {
    /// Read by programs.
    verbs: UnsafeCell<verbs_context>,
    device: *mut Device,
    pub(crate) session: Session,
    /// That of a forked child, which may not use its parent's.
    of_child: OnceLock<Session>,
    pub(crate) info: DeviceInfo,
    pub(crate) bell: Bell,
    wake: Descriptor<EventFd>,
    pub(crate) async_socket: Descriptor<OwnedFd>,
    pub(crate) records: RecordTable,
    pub(crate) mrs: LkeyTable,
    /// Regions of on-demand memory: pages may be missing, so that the library must not touch them.
    pub(crate) on_demand: LkeyTable,
    pub(crate) objects: Objects,
    pub(crate) shared: import::Shared,
    pub(crate) predictor: YieldPredictor,
    /// Where the engine is in this program.
    pub(crate) drives: Option<Drives>,
    /// `IBV_EVENT_DEVICE_FATAL` was delivered.
    pub(crate) fatal_delivered: AtomicBool,
}

/// How often to try for queues that other threads poll.
const SETTLE_TRIES: u32 = 1000;

impl Context {
    /// The context that contains an `ibv_context`.
    ///
    /// # Safety
    /// `context` is an open context of this library.
    #[inline]
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        const INSIDE: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
        // SAFETY: every `ibv_context` of this library lies at this offset of a `Context`.
        unsafe { &*context.byte_sub(INSIDE).cast::<Self>() }
    }

    /// The public structure, whose address programs hold.
    pub(crate) fn as_ibv(&self) -> *mut ibv_context {
        // SAFETY: in bounds of a live object.
        unsafe { &raw mut (*self.verbs.get()).context }
    }

    /// The session of this process: a forked child gets one of its own, where no object of the
    /// parent exists.
    pub(crate) fn session_here(&self) -> Result<&Session> {
        if !self.session.is_forked_child() {
            return Ok(&self.session);
        }
        if let Some(session) = self.of_child.get() {
            return Ok(session);
        }
        // SAFETY: an open context keeps its device.
        let (path, name) = unsafe { ((*self.device).socket_path(), (*self.device).daemon_name()) };
        let session = Session::connect(path)?;
        session.call(&Request::OpenDevice { name: name.to_owned() }, |_, _| Some(()))?;
        Ok(self.of_child.get_or_init(|| session))
    }

    /// Where a region with these rights is entered.
    pub(crate) fn table_for(&self, access: AccessFlags) -> &LkeyTable {
        if access.contains(AccessFlags::ON_DEMAND) { &self.on_demand } else { &self.mrs }
    }

    /// Where the region with this key is.
    pub(crate) fn table_of(&self, lkey: u32) -> &LkeyTable {
        if self.on_demand.find_settled(lkey).is_some() { &self.on_demand } else { &self.mrs }
    }

    /// Some memory is about to be registered no more, or otherwise. Short messages for it that have
    /// arrived are in completions until these are polled: copies them, as the program may look for
    /// them there, and its next poll does not know the memory. Not those of a queue that another
    /// thread keeps for longer, as between `ibv_start_poll` and `ibv_end_poll`.
    pub(crate) fn settle_completions(&self) {
        for _ in 0..SETTLE_TRIES {
            let objects = self.objects.lock();
            // SAFETY: what is in the table is alive while it is locked.
            let busy = objects.cqs.values().filter(|cq| unsafe { !(***cq).settle() }).count();
            drop(objects);
            if busy == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn num_comp_vectors(&self) -> u32 {
        // SAFETY: set when the device was opened.
        unsafe { (*self.verbs.get()).context.num_comp_vectors.cast_unsigned() }
    }

    /// Wakes a sleeping engine; a doorbell says when that is needed.
    #[cold]
    pub(crate) fn wake_engine(&self) {
        match self.wake.get() {
            // It fails only when the daemon is gone, which polling detects.
            Some(wake) => drop(wake.wake()),
            None => self.session.set_gone(),
        }
    }

    /// Checks that the daemon is alive and that this process still has its sockets open: a daemon
    /// that sees them closed treats the client as dead. Two system calls.
    #[cold]
    pub(crate) fn check_daemon(&self) -> bool {
        if self.async_socket.get().is_none_or(has_hung_up) {
            self.session.set_gone();
        }
        !self.session.daemon_is_gone()
    }

    fn open(device: *mut Device) -> Result<Box<Self>> {
        // SAFETY: the caller holds a device of a list.
        let (path, name) = unsafe { ((*device).socket_path(), (*device).daemon_name()) };
        let session = Session::connect_to_engine(path).inspect_err(explain)?;
        let (info, num_comp_vectors, [area, wake, async_socket]) =
            session.call(&Request::OpenDevice { name: name.to_owned() }, |reply, arrived| {
                match reply {
                    Reply::Opened { device, num_comp_vectors } => {
                        Some((device, num_comp_vectors, arrived.descriptors::<3>()?))
                    }
                    _ => None,
                }
            })?;
        let wake = Descriptor::new(EventFd::from(wake))?;
        let async_socket = Descriptor::new(async_socket)?;
        let area = memory::map(&area, AREA_WORDS).inspect_err(|error| report::debug(error))?;
        let bell = Bell::new(area).ok_or(Errno(libc::EPROTO))?;
        // An engine in this program needs no other process to reach its memory.
        if !session.is_in_program() {
            allow_memory_access(session.daemon_pid());
        }
        let drives = session.is_in_program().then(|| Driver::of(path)).flatten().map(Drives::new);
        let mut verbs = verbs_context::zeroed();
        ops::fill(&mut verbs);
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device.cast();
        verbs.context.cmd_fd = session.socket().0;
        verbs.context.async_fd = async_socket.number();
        verbs.context.num_comp_vectors = c_int::try_from(num_comp_vectors.max(1)).unwrap_or(1);
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        Ok(Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            device,
            session,
            info,
            bell,
            wake,
            async_socket,
            records: RecordTable::new(),
            mrs: LkeyTable::new(),
            on_demand: LkeyTable::new(),
            of_child: OnceLock::new(),
            objects: Objects::default(),
            shared: import::Shared::new(),
            predictor: YieldPredictor::new(),
            drives,
            fatal_delivered: AtomicBool::new(false),
        }))
    }
}

/// Reports what keeps a program from its device. Without an engine in the program it is what its
/// user asked for that is not possible.
fn explain(error: &io::Error) {
    static ONCE: Once = Once::new();
    match Engine::wanted() {
        Ok(Engine::Daemon | Engine::Either) => report::debug(error),
        Ok(Engine::Program) => {
            report::say_once(&ONCE, format_args!("this program has no engine of its own: {error}"));
        }
        Err(_) => report::say_once(&ONCE, error),
    }
}

/// Lets the daemon, a process of the same user, read and write registered memory where Yama would
/// forbid it.
fn allow_memory_access(daemon: Option<u32>) {
    static ALLOWED: AtomicI32 = AtomicI32::new(0);
    let daemon = daemon.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1);
    let earlier = ALLOWED.swap(daemon, Ordering::Relaxed);
    // Yama remembers one tracer. With several daemons, or with a daemon in another pid namespace,
    // allow every process.
    let tracer = match daemon {
        pid if pid > 0 && (earlier == 0 || earlier == pid) => u64::from(pid.unsigned_abs()),
        _ => libc::c_ulong::MAX,
    };
    if tracer == libc::c_ulong::MAX {
        ALLOWED.store(-1, Ordering::Relaxed);
    }
    // SAFETY: only changes which process may trace this one. Fails without Yama, where it is not
    // needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, tracer, 0, 0, 0) };
}

/// Opens a device. NULL and errno on failure.
///
/// # Safety
/// `device` is null or from a device list that was not freed yet.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if device.is_null() {
        return pointer(Err(Errno(libc::EINVAL)));
    }
    let device = device.cast::<Device>();
    pointer(Context::open(device).map(|context| {
        // SAFETY: the list that the caller holds keeps the device alive until here.
        unsafe { Device::retain(device) };
        let context = Box::leak(context);
        import::note_opened(context);
        context.as_ibv()
    }))
}

/// Closes a device. Once it was closed as often as it was opened and imported, the daemon destroys
/// every object of the context that is left.
///
/// # Safety
/// `context` is from `ibv_open_device` or `ibv_import_device`, and nothing made of it is used any
/// more when it is closed for the last time.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: by contract.
    let context = unsafe { Context::of(context) };
    if !import::note_closed(context) {
        return 0;
    }
    context.release();
    let (device, forked) = (context.device, context.session.is_forked_child());
    // SAFETY: made by `Box::leak` in `ibv_open_device`, and the caller gives up all use.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(context).cast_mut()) });
    if !forked {
        // SAFETY: the context had its own reference.
        unsafe { Device::release(device) };
    }
    0
}

/// Implements access from a public structure to the library's object that it is the first member
/// of.
macro_rules! object_of {
    ($object:ident, $public:ident) => {
        impl $object {
            /// The object that contains a public structure.
            ///
            /// # Safety
            /// `object` was made by this library and is alive.
            #[inline]
            pub(crate) unsafe fn of<'a>(object: *mut $public) -> &'a Self {
                // SAFETY: the public structure is the first member of a repr(C) structure.
                unsafe { &*object.cast::<Self>() }
            }

            /// The public structure, whose address programs hold.
            #[inline]
            pub(crate) fn as_ibv(&self) -> *mut $public {
                std::ptr::from_ref(self).cast_mut().cast()
            }

            /// The handle that requests to the daemon contain.
            ///
            /// # Errors
            /// ENOENT when the program has overwritten the public handle, as from the kernel: the
            /// handle must not select another object of this library.
            pub(crate) fn handle(&self) -> Result<u32> {
                // SAFETY: a live object.
                let named = unsafe { (*self.as_ibv()).handle };
                if named == self.handle { Ok(named) } else { Err(Errno(libc::ENOENT)) }
            }

            #[inline]
            pub(crate) fn context(&self) -> &Context {
                // SAFETY: a context outlives what is made of it.
                unsafe { &*self.context }
            }
        }
    };
}

object_of!(Qp, ibv_qp);
object_of!(Cq, ibv_cq);
object_of!(Srq, ibv_srq);
