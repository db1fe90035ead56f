//! Commands: the only way that the control plane changes the engine.
//!
//! Every object belongs to the client (device context) that made it; handles are checked for
//! ownership on every use. Errors carry the errno that the verb returns.

pub use crate::ids::{ChannelId, ClientId};
use crate::ids::{HopId, SpaceId};
use rnic_abi::cq::CqProducer;
use rnic_abi::doorbell::{Doorbells, RecordIndex};
use rnic_abi::verbs::{AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpType};
use rnic_abi::work_queue::WorkConsumer;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Gid, Qpn};

/// Work queue handed to the engine: ring and doorbell record.
#[derive(Debug)]
pub struct EngineQueue {
    /// Ring.
    pub ring: WorkConsumer,
    /// Record.
    pub record: RecordIndex,
}

/// A resolved address vector: what the control plane made of an [`AhAttr`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// As the application gave it.
    pub attr: AhAttr,
    /// Source and destination addresses, TOS, hop limit, flow label. `sport` 0: derive from QPNs.
    pub flow: Flow,
    /// Next hop.
    pub hop: HopId,
}

/// A management datagram to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingMad {
    /// The way.
    pub path: Path,
    /// The queue pair of the receiver, mostly its QP1.
    pub dest: Qpn,
    /// What.
    pub mad: [u8; MAD_LEN],
}

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// A new context: address space and doorbell area. Outcome: [`Outcome::Done`].
    AddClient {
        /// Chosen by the caller.
        client: ClientId,
        /// Its memory.
        space: SpaceId,
        /// Its doorbells.
        doorbells: Doorbells,
    },
    /// Removes a context and everything it made: keys first, then QPs, then the rest.
    RemoveClient {
        /// The client's number.
        client: ClientId,
    },
    /// Something on behalf of a client.
    Client(ClientId, ClientCommand),
    /// Sends a management datagram from QP1. Outcome: [`Outcome::Done`]; ENOMEM while many wait.
    SendMad(Box<OutgoingMad>),
    /// The port changed: [`Outcome::Done`]; affected clients get async events.
    SetPort(PortState),
}

/// The state of the one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortState {
    /// Link up and address present.
    pub active: bool,
    /// Largest path MTU code that the link allows.
    pub active_mtu: u8,
    /// Also announce that the GID table changed.
    pub gids_changed: bool,
}

/// What a client may ask.
#[derive(Debug)]
pub enum ClientCommand {
    /// Outcome: [`Outcome::Handle`].
    AllocPd,
    /// Outcome: [`Outcome::Done`]; EBUSY while in use.
    DeallocPd {
        /// Handle.
        pd: u32,
    },
    /// Outcome: [`Outcome::Mr`].
    RegMr {
        /// Handle.
        pd: u32,
        /// Where the memory is: the client's own space, or a shared one the daemon mapped.
        space: SpaceId,
        /// Address of the first byte in that space.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Address that WQEs and peers use for the first byte.
        iova: u64,
        /// Rights.
        access: AccessFlags,
    },
    /// Asks whether the keys allow an access. Outcome: [`Outcome::Done`]; EFAULT when they do not.
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
    /// Outcome: [`Outcome::Done`]; no DMA touches the memory afterwards. EBUSY while windows are
    /// bound to it.
    DeregMr {
        /// Handle.
        mr: u32,
    },
    /// Changes a registration; its keys stay. Outcome: [`Outcome::Mr`]; EBUSY while windows are
    /// bound to it.
    ReregMr {
        /// Handle.
        mr: u32,
        /// New protection domain.
        pd: Option<u32>,
        /// Where the memory is now.
        place: Option<MrPlace>,
        /// New rights.
        access: Option<AccessFlags>,
    },
    /// Outcome: [`Outcome::Mw`].
    AllocMw {
        /// Protection domain.
        pd: u32,
        /// Which.
        kind: WindowType,
    },
    /// Outcome: [`Outcome::Done`]; its key is dead.
    DeallocMw {
        /// Handle.
        mw: u32,
    },
    /// Outcome: [`Outcome::Handle`].
    CreateCq {
        /// Ring.
        ring: CqProducer,
        /// CQEs, a power of two.
        capacity: u32,
        /// Where completion events go.
        channel: Option<ChannelId>,
    },
    /// Moves completions that were not polled, and an arming, to another ring. The application
    /// uses neither ring meanwhile. Outcome: [`Outcome::Done`]; EINVAL when they do not fit.
    ResizeCq {
        /// Handle.
        cq: u32,
        /// The engine's side of the new ring, which is empty.
        ring: CqProducer,
        /// CQEs, a power of two.
        capacity: u32,
    },
    /// Outcome: [`Outcome::CqGone`]; EBUSY while QPs use it.
    DestroyCq {
        /// Handle.
        cq: u32,
    },
    /// Outcome: [`Outcome::NewSrq`].
    CreateSrq(NewSrq),
    /// Arms the limit event, or, with 0, disarms it. Outcome: [`Outcome::Done`].
    SetSrqLimit {
        /// Handle.
        srq: u32,
        /// The event is due once fewer WQEs are left.
        limit: u32,
    },
    /// Outcome: [`Outcome::Srq`].
    QuerySrq {
        /// Handle.
        srq: u32,
    },
    /// Outcome: [`Outcome::Done`]; EBUSY while QPs use it. One of an XRC domain always goes.
    DestroySrq {
        /// Handle.
        srq: u32,
    },
    /// Makes or joins an XRC domain. Outcome: [`Outcome::Handle`].
    OpenXrcd(XrcOpen),
    /// Leaves an XRC domain. Outcome: [`Outcome::Done`]; EBUSY while the client has objects there.
    CloseXrcd {
        /// Handle.
        xrcd: u32,
    },
    /// Outcome: [`Outcome::Handle`].
    CreateAh {
        /// Protection domain.
        pd: u32,
        /// The way to its destination.
        path: Path,
    },
    /// Outcome: [`Outcome::Done`]; sends that name it and have not left fail.
    DestroyAh {
        /// Handle.
        ah: u32,
    },
    /// Outcome: [`Outcome::Qp`].
    CreateQp(Box<NewQp>),
    /// Makes an XRC target, which belongs to its domain. Outcome: [`Outcome::Qp`], whose handle is
    /// the first reference to it.
    CreateTarget {
        /// Domain.
        xrcd: u32,
    },
    /// A further reference to an XRC target. Outcome: [`Outcome::Qp`].
    OpenQp {
        /// Its domain.
        xrcd: u32,
        /// Its number.
        qpn: u32,
    },
    /// Outcome: [`Outcome::QpState`].
    ModifyQp {
        /// Handle.
        qp: u32,
        /// Which attributes count.
        mask: AttrMask,
        /// Attributes.
        attr: QpAttr,
        /// `attr.ah` resolved, when `mask` has `AV`.
        path: Option<Path>,
    },
    /// Outcome: [`Outcome::QpState`].
    QueryQp {
        /// Handle.
        qp: u32,
    },
    /// Outcome: [`Outcome::QpGone`]; EBUSY while it is attached to a group. An XRC target goes with
    /// the last reference to it.
    DestroyQp {
        /// Handle.
        qp: u32,
    },
    /// Attaches a datagram QP to a group, of which it gets a copy of each datagram from now on.
    /// Outcome: [`Outcome::Done`], also when it is attached already.
    Attach {
        /// Handle.
        qp: u32,
        /// Its address as a GID.
        group: Gid,
    },
    /// Outcome: [`Outcome::Done`]; EINVAL when it is not attached.
    Detach {
        /// Handle.
        qp: u32,
        /// The group.
        group: Gid,
    },
}

/// The types of memory windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Of a protection domain.
    One,
    /// Of a queue pair.
    Two,
}

/// Where the memory of a region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrPlace {
    /// As of [`ClientCommand::RegMr`].
    pub space: SpaceId,
    /// Address of the first byte there.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address that WQEs and peers use for the first byte.
    pub iova: u64,
}

/// A queue pair to make.
#[derive(Debug)]
pub struct NewQp {
    /// Protection domain.
    pub pd: u32,
    /// Transport.
    pub qp_type: QpType,
    /// Completion queue of the send queue.
    pub send_cq: u32,
    /// Completion queue of the receive queue.
    pub recv_cq: u32,
    /// Granted capabilities (the rings were made for them).
    pub caps: QpCaps,
    /// Every send WQE is signaled.
    pub sq_sig_all: bool,
    /// Send queue.
    pub sq: EngineQueue,
    /// Where its receives come from.
    pub rq: NewReceives,
}

/// Where the receives of a new queue pair come from.
#[derive(Debug)]
pub enum NewReceives {
    /// A receive queue of its own.
    Own(EngineQueue),
    /// The shared receive queue with this handle.
    Shared(u32),
    /// It has none: an XRC initiator.
    None,
}

/// A shared receive queue to make.
#[derive(Debug)]
pub struct NewSrq {
    /// Protection domain of its receives.
    pub pd: u32,
    /// Ring and record.
    pub queue: EngineQueue,
    /// WQEs granted.
    pub max_wr: u32,
    /// SGEs granted.
    pub max_sge: u32,
    /// What one of an XRC domain has besides.
    pub xrc: Option<NewXrcSrq>,
}

/// What a shared receive queue of an XRC domain has besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewXrcSrq {
    /// Domain.
    pub xrcd: u32,
    /// Where its receives complete.
    pub cq: u32,
}

/// A file that stands for an XRC domain: whichever clients of a user can open it share the domain.
/// The control plane learns it from a descriptor, and keeps that open as long as the domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct XrcFile {
    /// User of the client.
    pub user: u32,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
}

/// How to open an XRC domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcOpen {
    /// The file that stands for it; none: a new domain that only this client has.
    pub file: Option<XrcFile>,
    /// Make it when there is none. Otherwise EAGAIN.
    pub create: bool,
    /// It must be new. Otherwise EINVAL.
    pub exclusive: bool,
}

/// What came of a command.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// New object.
    Handle(u32),
    /// New shared receive queue.
    NewSrq {
        /// Handle.
        srq: u32,
        /// Number in packets of XRC; 0 when it is not of an XRC domain.
        srqn: u32,
    },
    /// New memory region.
    Mr {
        /// Handle.
        mr: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// New memory window.
    Mw {
        /// Handle.
        mw: u32,
        /// Its key, which nothing is bound to yet.
        rkey: u32,
    },
    /// New queue pair.
    Qp {
        /// Handle.
        qp: u32,
        /// Number.
        qpn: u32,
    },
    /// Attributes.
    QpState {
        /// Attributes.
        attr: QpAttr,
        /// Capabilities.
        caps: QpCaps,
        /// Every send WQE is signaled.
        sq_sig_all: bool,
    },
    /// A shared receive queue.
    Srq {
        /// WQEs.
        max_wr: u32,
        /// SGEs.
        max_sge: u32,
        /// Armed limit; 0 when not armed.
        limit: u32,
    },
    /// Destroyed.
    CqGone {
        /// Completion events sent.
        completion_events: u64,
        /// Async events sent.
        async_events: u64,
    },
    /// Destroyed.
    QpGone {
        /// Async events sent.
        async_events: u64,
    },
}

/// A refusal: the verb's errno and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandError {
    /// Which.
    pub errno: Errno,
    /// Why, for people.
    pub reason: &'static str,
}

/// A handle names nothing that the client has.
pub(crate) const fn no_such(reason: &'static str) -> CommandError {
    CommandError { errno: Errno::NoEntry, reason }
}

/// A command is refused.
pub(crate) const fn refuse(errno: Errno, reason: &'static str) -> CommandError {
    CommandError { errno, reason }
}

/// Something that a command says is wrong.
pub(crate) const fn invalid(reason: &'static str) -> CommandError {
    refuse(Errno::Invalid, reason)
}

/// The errnos that verbs return, without an operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// EPERM 1.
    Perm,
    /// ENOENT 2.
    NoEntry,
    /// EAGAIN 11.
    Again,
    /// ENOMEM 12.
    NoMem,
    /// EFAULT 14.
    Fault,
    /// EBUSY 16.
    Busy,
    /// EINVAL 22.
    Invalid,
    /// EOPNOTSUPP 95.
    NotSupported,
    /// EHOSTUNREACH 113.
    HostUnreachable,
}

impl Errno {
    /// The Linux number.
    pub fn number(self) -> i32 {
        match self {
            Self::Perm => 1,
            Self::NoEntry => 2,
            Self::Again => 11,
            Self::NoMem => 12,
            Self::Fault => 14,
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::NotSupported => 95,
            Self::HostUnreachable => 113,
        }
    }
}
