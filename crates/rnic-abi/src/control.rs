//! Control messages: one request, one reply, on a SEQPACKET socket.
//!
//! One connection is one session. Opening a device turns the session into that device's context,
//! and everything that the context made is destroyed when the connection ends. Descriptors travel
//! with the reply, in the order that the reply's documentation gives.
//!
//! Handles (`pd`, `mr`, `cq`, ...) are chosen by the daemon and mean nothing in another session.

mod connect;
mod events;
mod inspect;
mod objects;

pub use connect::{
    CmHappening, CmNotice, CmOffer, CmRequest, CmService, CmSource, CmTarget, MAX_CM_EVENT,
};
pub use events::{AsyncEvent, CompletionEvent};
pub use inspect::{FaultChange, Inspect};
pub use objects::{DeviceInfo, DeviceLimits, GidEntry, PortInfo, QueuePlace, RingPlace};

use crate::verbs::{AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpType};
use serde::{Deserialize, Serialize};

/// Longest encoded message, bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors that one message carries.
pub const MAX_DESCRIPTORS: usize = 4;

/// From the library or the `rnic` command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// First message. Answer: [`Reply::Hello`].
    Hello {
        /// [`crate::ABI_VERSION`] of the sender.
        abi: u32,
    },
    /// The devices of this daemon. Answer: [`Reply::Devices`].
    ListDevices,
    /// Turns this session into a context of the device. Answer: [`Reply::Opened`].
    OpenDevice {
        /// Device name, e.g. `rnic0`.
        name: String,
    },
    /// Answer: [`Reply::Port`].
    QueryPort,
    /// GID table entries from `start` on. Answer: [`Reply::Gids`].
    QueryGids {
        /// First index wanted.
        start: u32,
    },
    /// Answer: [`Reply::Handle`].
    AllocPd,
    /// Answer: [`Reply::Done`].
    DeallocPd {
        /// Handle.
        pd: u32,
    },
    /// Registers memory of the calling process. Answer: [`Reply::Mr`].
    ///
    /// With one descriptor: the memory is a memfd sealed against shrinking, mapped by the client at
    /// `addr` from `fd_offset` on, which the daemon may map too.
    RegMr {
        /// Protection domain.
        pd: u32,
        /// Virtual address in the client.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Address that WQEs and peers use for the first byte.
        iova: u64,
        /// Rights.
        access: AccessFlags,
        /// Offset in the descriptor, when one is sent.
        fd_offset: u64,
    },
    /// Asks whether a key allows an access (`ibv_advise_mr`). Answer: [`Reply::Done`].
    CheckAccess {
        /// Protection domain.
        pd: u32,
        /// Local key.
        lkey: u32,
        /// First byte, as WQEs name it.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Rights that the region must have.
        access: AccessFlags,
    },
    /// Makes device memory. Answer: [`Reply::Handle`] with one descriptor: a memory file of so many
    /// bytes, rounded up to whole pages, which the client may map.
    AllocDm {
        /// Bytes.
        length: u64,
    },
    /// Answer: [`Reply::Done`].
    FreeDm {
        /// Handle.
        dm: u32,
    },
    /// Registers a part of device memory, whose first byte WQEs and peers call 0. Answer:
    /// [`Reply::Mr`].
    RegDmMr {
        /// Protection domain.
        pd: u32,
        /// Device memory.
        dm: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Rights.
        access: AccessFlags,
    },
    /// Answer: [`Reply::Done`], once no DMA can touch the memory any more.
    DeregMr {
        /// Handle.
        mr: u32,
    },
    /// Changes a registration in place (`ibv_rereg_mr`). Answer: [`Reply::Mr`].
    ReregMr {
        /// Handle.
        mr: u32,
        /// New protection domain.
        pd: Option<u32>,
        /// New range: address, bytes, iova.
        range: Option<(u64, u64, u64)>,
        /// New rights.
        access: Option<AccessFlags>,
    },
    /// Registers every address for local use: reads give zeros, and what is written vanishes.
    /// Answer: [`Reply::Mr`].
    RegNullMr {
        /// Protection domain.
        pd: u32,
    },
    /// Type 1 or 2 memory window. Answer: [`Reply::Mw`].
    AllocMw {
        /// Protection domain.
        pd: u32,
        /// 1 or 2.
        kind: u8,
    },
    /// Answer: [`Reply::Done`].
    DeallocMw {
        /// Handle.
        mw: u32,
    },
    /// Answer: [`Reply::Handle`] with one descriptor, the readable end of the channel.
    CreateChannel,
    /// Answer: [`Reply::Done`].
    DestroyChannel {
        /// Handle.
        channel: u32,
    },
    /// Answer: [`Reply::Cq`].
    CreateCq {
        /// CQEs wanted, at least 1.
        cqe: u32,
        /// Completion channel.
        channel: Option<u32>,
        /// Below the context's `num_comp_vectors`.
        comp_vector: u32,
    },
    /// Moves to a ring of another size. Unpolled CQEs move along. Answer: [`Reply::Cq`].
    ResizeCq {
        /// Handle.
        cq: u32,
        /// CQEs wanted.
        cqe: u32,
    },
    /// Answer: [`Reply::CqGone`].
    DestroyCq {
        /// Handle.
        cq: u32,
    },
    /// Answer: [`Reply::Srq`].
    CreateSrq {
        /// Protection domain.
        pd: u32,
        /// WQEs wanted.
        max_wr: u32,
        /// SGEs wanted.
        max_sge: u32,
        /// Initial limit, 0 for none.
        limit: u32,
        /// XRC: domain and completion queue.
        xrc: Option<(u32, u32)>,
    },
    /// Arms the limit event. Answer: [`Reply::Done`].
    SetSrqLimit {
        /// Handle.
        srq: u32,
        /// WQEs; the event fires when fewer are left.
        limit: u32,
    },
    /// Answer: [`Reply::SrqState`].
    QuerySrq {
        /// Handle.
        srq: u32,
    },
    /// Answer: [`Reply::Done`].
    DestroySrq {
        /// Handle.
        srq: u32,
    },
    /// Answer: [`Reply::Handle`]. With one descriptor: the file that stands for the domain, which
    /// all clients of a user that send this file share. Without: a domain of this client alone.
    OpenXrcd {
        /// Make it when no domain has the file.
        create: bool,
        /// It must be new.
        exclusive: bool,
    },
    /// Answer: [`Reply::Done`].
    CloseXrcd {
        /// Handle.
        xrcd: u32,
    },
    /// Answer: [`Reply::Qp`].
    CreateQp(CreateQp),
    /// A further reference to an XRC target. Answer: [`Reply::Qp`].
    OpenQp {
        /// Its XRC domain.
        xrcd: u32,
        /// Its number.
        qpn: u32,
    },
    /// Answer: [`Reply::QpState`].
    ModifyQp {
        /// Handle.
        qp: u32,
        /// Which attributes count.
        mask: AttrMask,
        /// The attributes.
        attr: QpAttr,
    },
    /// Answer: [`Reply::QpState`].
    QueryQp {
        /// Handle.
        qp: u32,
    },
    /// Answer: [`Reply::QpGone`].
    DestroyQp {
        /// Handle.
        qp: u32,
    },
    /// Answer: [`Reply::Handle`].
    CreateAh {
        /// Protection domain.
        pd: u32,
        /// Address.
        attr: AhAttr,
    },
    /// Answer: [`Reply::Done`].
    DestroyAh {
        /// Handle.
        ah: u32,
    },
    /// Joins or leaves a multicast group. Answer: [`Reply::Done`].
    Multicast {
        /// Handle.
        qp: u32,
        /// Multicast GID.
        gid: [u8; 16],
        /// Attach or detach.
        attach: bool,
    },
    /// Makes a satellite of this program: its engine is to be in the program itself. Answer:
    /// [`Reply::Done`] with one descriptor, the socket over which daemon and satellite talk.
    StartFunction,
    /// For the connection manager, in a session of its own. Answers are those of the request.
    Connections(CmRequest),
    /// For the `rnic` command: what exists. Answer: [`Reply::Inspected`].
    Inspect {
        /// Kind of object.
        what: Inspect,
        /// Where to continue: 0 at first, then what the last reply says.
        from: u32,
    },
    /// For the `rnic` command: faults that disturb packets. Only for root and the daemon's own
    /// user. Answer: [`Reply::Inspected`], an array of those in force afterwards.
    Faults(FaultChange),
    /// For the `rnic` command, with one descriptor beside it: writes to it what happens, until the
    /// session ends. Only for root and the daemon's own user. Answer: [`Reply::Done`].
    Observe {
        /// What the device sends and receives.
        frames: bool,
        /// What its engines do.
        events: bool,
    },
}

/// Arguments of [`Request::CreateQp`].
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CreateQp {
    /// Protection domain (of no account for XRC targets).
    pub pd: u32,
    /// Transport.
    pub qp_type: QpType,
    /// Completion queue of the send queue (absent for XRC targets).
    pub send_cq: Option<u32>,
    /// Completion queue of the receive queue (absent for XRC).
    pub recv_cq: Option<u32>,
    /// Shared receive queue.
    pub srq: Option<u32>,
    /// Domain of an XRC target.
    pub xrcd: Option<u32>,
    /// What is wanted.
    pub caps: QpCaps,
    /// Every send WQE is signaled.
    pub sq_sig_all: bool,
}

/// From the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Versions agree.
    Hello {
        /// [`crate::ABI_VERSION`] of the daemon.
        abi: u32,
        /// e.g. `rnicd 0.1.0`.
        server: String,
    },
    /// The daemon's devices.
    Devices(Vec<DeviceInfo>),
    /// Descriptors: doorbell area memfd, wake-up eventfd, async event socket.
    Opened {
        /// The device.
        device: DeviceInfo,
        /// Completion vectors.
        num_comp_vectors: u32,
    },
    /// Port attributes.
    Port(PortInfo),
    /// Used entries from the requested index on; ask again from behind the last one.
    Gids(Vec<GidEntry>),
    /// Done.
    Done,
    /// A new object.
    Handle(u32),
    /// Objects.
    Handles(Vec<u32>),
    /// A memory region.
    Mr {
        /// Handle.
        mr: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// A memory window.
    Mw {
        /// Handle.
        mw: u32,
        /// Remote key.
        rkey: u32,
    },
    /// A completion queue. Descriptor: the arena, when it is new.
    Cq {
        /// Handle.
        cq: u32,
        /// Memory.
        ring: RingPlace,
        /// CQEs, a power of two.
        cqe: u32,
    },
    /// Destroyed.
    CqGone {
        /// Completion events sent.
        completion_events: u64,
        /// Async events sent.
        async_events: u64,
    },
    /// A shared receive queue. Descriptor: the arena, when it is new.
    Srq {
        /// Handle.
        srq: u32,
        /// Memory and record.
        queue: QueuePlace,
        /// WQEs granted.
        max_wr: u32,
        /// SGEs granted.
        max_sge: u32,
        /// XRC SRQ number.
        srqn: u32,
    },
    /// `ibv_query_srq`.
    SrqState {
        /// WQEs.
        max_wr: u32,
        /// SGEs.
        max_sge: u32,
        /// Armed limit; 0 when not armed.
        limit: u32,
    },
    /// A queue pair. Descriptors: its arenas that are new, send queue's first.
    Qp {
        /// Handle.
        qp: u32,
        /// QP number.
        qpn: u32,
        /// Granted, at least what was wanted.
        caps: QpCaps,
        /// Send queue.
        sq: Option<QueuePlace>,
        /// Receive queue.
        rq: Option<QueuePlace>,
    },
    /// An identifier of the connection manager.
    Bound {
        /// Handle.
        id: u32,
        /// Its port.
        port: u16,
    },
    /// Attributes of a QP after the request.
    QpState {
        /// Attributes.
        attr: QpAttr,
        /// Capabilities.
        caps: QpCaps,
        /// Every send WQE is signaled.
        sq_sig_all: bool,
    },
    /// Destroyed; its CQEs may still be in the CQs and should be skipped.
    QpGone {
        /// Async events sent about it.
        async_events: u64,
    },
    /// JSON text of one page.
    Inspected {
        /// An array, or an object for `Status` and `Counters`.
        json: String,
        /// Long lists come in pages, which may be empty: where the next page begins.
        next: Option<u32>,
    },
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// What the verb returns.
    pub errno: i32,
    /// What is wrong and what the user can do.
    pub message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// What the daemon sends back.
pub type Answer = Result<Reply, Refusal>;

/// The bytes are not a message of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Encodes a message.
///
/// # Errors
/// [`Malformed`] when it would be longer than [`MAX_MESSAGE`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Malformed> {
    let bytes = postcard::to_stdvec(message).map_err(|_| Malformed)?;
    if bytes.len() > MAX_MESSAGE { Err(Malformed) } else { Ok(bytes) }
}

/// Decodes a message that must fill `bytes` exactly.
///
/// # Errors
/// [`Malformed`] for anything else.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed),
    }
}
