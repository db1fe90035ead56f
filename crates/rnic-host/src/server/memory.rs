//! Registration of memory, and windows.

use super::accounts::{Account, Charge};
use super::device_memory::{DeviceMemories, DmPart};
use super::link::EngineLink;
use super::maps;
use super::reply::{Attached, unexpected_outcome};
use super::service::Service;
use crate::dma::{Mapping, Space};
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::shard::ShardMessage;
use rnic_abi::control::Reply;
use rnic_abi::os::Credentials;
use rnic_abi::verbs::AccessFlags;
use rnic_core::command::{MrPlace, WindowType};
use rnic_core::mr::WHOLE_SPACE;
use rnic_core::{ClientCommand, Outcome, SpaceId};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The memory regions of a client.
pub(super) struct Regions {
    service: Arc<Service>,
    link: EngineLink,
    account: Account,
    peer: Credentials,
    /// The memory of its process.
    space: SpaceId,
    regions: HashMap<u32, Region>,
    device_memory: DeviceMemories,
    windows: HashMap<u32, Charge>,
}

/// Memory that a client wants to register.
#[derive(Clone, Copy)]
pub(super) struct Registration {
    pub(super) pd: u32,
    /// Where it is in the client, when it is not a file's.
    pub(super) addr: u64,
    pub(super) length: u64,
    /// What WQEs and peers call its first byte.
    pub(super) iova: u64,
    pub(super) access: AccessFlags,
}

struct Region {
    /// What is registered.
    is: Registration,
    kind: Kind,
    charges: [Charge; 2],
}

/// How the daemon reaches a region.
enum Kind {
    /// Through the client's process.
    Ordinary,
    /// As memory of its own, for this region alone.
    Mapped(Mapped),
    /// As a part of device memory, with a space of its own: payload that was passed by reference
    /// and has not arrived when the region ends, ends with it.
    Device(u32, SpaceId),
    /// It is no memory.
    Null(SpaceId),
}

/// Memory of a client that the daemon maps.
struct Mapped {
    space: SpaceId,
    _charges: [Charge; 2],
}

impl Regions {
    /// Of the client at the other end of `link`, whose process is `peer`.
    pub(super) fn new(
        service: Arc<Service>,
        link: EngineLink,
        account: Account,
        peer: Credentials,
        space: SpaceId,
    ) -> Self {
        let device_memory = DeviceMemories::new(Arc::clone(&service), account.clone());
        let (regions, windows) = (HashMap::new(), HashMap::new());
        Self { service, link, account, peer, space, regions, device_memory, windows }
    }

    /// Gives the address spaces back, once the client is gone.
    pub(super) fn release_spaces(&mut self) {
        for (_, region) in std::mem::take(&mut self.regions) {
            self.release(region.kind);
        }
    }

    /// Frees the device memory that is left, which the client could keep for itself else. No region
    /// uses it any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.device_memory.discard()
    }

    /// Unmaps what was mapped of a client, here and not in the engine, and gives it back.
    fn release(&mut self, kind: Kind) {
        match kind {
            Kind::Ordinary => {}
            Kind::Mapped(mapped) => release_space(&self.service, mapped.space),
            Kind::Device(dm, space) => {
                release_space(&self.service, space);
                self.device_memory.leave(dm);
            }
            Kind::Null(space) => release_space(&self.service, space),
        }
    }

    /// Registers memory of the client, or a part of a shared file from an offset on.
    pub(super) fn register(
        &mut self,
        wanted: &Registration,
        file: Option<(OwnedFd, u64)>,
    ) -> Result<Reply, Refused> {
        let Registration { addr, length, access, .. } = *wanted;
        let charges = self.charge(length)?;
        match file.filter(|_| length > 0) {
            Some((file, offset)) => {
                let mapped = self.map(&file, offset, length, access)?;
                self.keep((mapped.space, 0), *wanted, Kind::Mapped(mapped), charges)
            }
            None => {
                self.check_reachable(addr, length, access)?;
                self.keep((self.space, addr), *wanted, Kind::Ordinary, charges)
            }
        }
    }

    /// For a region of so many bytes.
    fn charge(&self, length: u64) -> Result<[Charge; 2], Refused> {
        let bytes = self.bytes_of(length);
        self.account.take_all([(Resource::Mrs, 1), (Resource::RegisteredBytes, bytes)])
    }

    fn bytes_of(&self, length: u64) -> u64 {
        if length == WHOLE_SPACE { maps::size(self.peer.pid) } else { length }
    }

    /// Registers every address, of no memory.
    pub(super) fn register_null(&mut self, pd: u32) -> Result<Reply, Refused> {
        let charges = self.charge(0)?;
        let space = self.service.registry.take_space();
        self.link.shard.tell(ShardMessage::AddSpace(space, Space::Null));
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
        let is = Registration { pd, addr: 0, length: WHOLE_SPACE, iova: 0, access };
        self.keep((space, 0), is, Kind::Null(space), charges)
    }

    /// Has the engine make a region of what is at an address in a space.
    fn keep(
        &mut self,
        (space, addr): (SpaceId, u64),
        is: Registration,
        kind: Kind,
        charges: [Charge; 2],
    ) -> Result<Reply, Refused> {
        let Registration { pd, length, iova, access, .. } = is;
        let command = ClientCommand::RegMr { pd, space, addr, length, iova, access };
        match self.link.execute(command) {
            Ok(Outcome::Mr { mr, lkey, rkey }) => {
                self.regions.insert(mr, Region { is, kind, charges });
                Ok(Reply::Mr { mr, lkey, rkey })
            }
            other => {
                self.release(kind);
                other.and_then(|_| Err(unexpected_outcome()))
            }
        }
    }

    /// Changes a registration, or leaves it as it is and says why. It becomes an ordinary one: with
    /// a space of its own, what is on its way by reference goes, too.
    pub(super) fn reregister(
        &mut self,
        mr: u32,
        pd: Option<u32>,
        range: Option<(u64, u64, u64)>,
        access: Option<AccessFlags>,
    ) -> Result<Reply, Refused> {
        let Some(Region { is: before, kind, .. }) = self.regions.get(&mr) else {
            return Err(refuse(libc::ENOENT, "no such memory region"));
        };
        if matches!(kind, Kind::Device(..) | Kind::Null(_)) {
            let text = "only a registration of the program's own memory can be changed";
            return Err(refuse(libc::EINVAL, text));
        }
        let moves = range.is_some() || matches!(kind, Kind::Mapped(_));
        let (addr, length, iova) = range.unwrap_or((before.addr, before.length, before.iova));
        let write = AccessFlags::LOCAL_WRITE;
        let writes = access.is_some_and(|access| access.contains(write));
        let pd_after = pd.unwrap_or(before.pd);
        let access_after = access.unwrap_or(before.access);
        let is = Registration { pd: pd_after, addr, length, iova, access: access_after };
        // On-demand memory need not have been there.
        let on_demand = before.access.contains(AccessFlags::ON_DEMAND);
        if moves || on_demand || (writes && !before.access.contains(write)) {
            self.check_reachable(addr, length, access_after)?;
        }
        let charge = match range {
            Some(_) => Some(self.account.take(Resource::RegisteredBytes, self.bytes_of(length))?),
            None => None,
        };
        let place = moves.then_some(MrPlace { space: self.space, addr, length, iova });
        let command = ClientCommand::ReregMr { mr, pd, place, access };
        let Outcome::Mr { lkey, rkey, .. } = self.link.execute(command)? else {
            return Err(unexpected_outcome());
        };
        if let Some(region) = self.regions.get_mut(&mr) {
            region.is = is;
            if let Some(charge) = charge {
                region.charges[1] = charge;
            }
            let before = std::mem::replace(&mut region.kind, Kind::Ordinary);
            self.release(before);
        }
        Ok(Reply::Mr { mr, lkey, rkey })
    }

    /// Makes device memory. Descriptor: its file.
    pub(super) fn allocate_dm(&mut self, length: u64) -> Result<(Reply, Attached), Refused> {
        let (dm, file) = self.device_memory.allocate(length)?;
        Ok((Reply::Handle(dm), vec![file]))
    }

    pub(super) fn free_dm(&mut self, dm: u32) -> Result<Reply, Refused> {
        self.device_memory.free(dm)?;
        Ok(Reply::Done)
    }

    /// Registers a part of device memory.
    pub(super) fn register_dm(&mut self, pd: u32, part: &DmPart) -> Result<Reply, Refused> {
        let mapping = self.device_memory.locate(part)?;
        let DmPart { dm, offset, length, access } = *part;
        let charges = self.charge(length)?;
        let is = Registration { pd, addr: offset, length, iova: 0, access };
        let space = self.service.registry.take_space();
        self.link.shard.tell(ShardMessage::AddSpace(space, Space::Mapped(mapping)));
        self.device_memory.enter(dm);
        self.keep((space, offset), is, Kind::Device(dm, space), charges)
    }

    pub(super) fn deregister(&mut self, mr: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::DeregMr { mr })?;
        if let Some(region) = self.regions.remove(&mr) {
            self.release(region.kind);
        }
        Ok(Reply::Done)
    }

    /// Makes a window of type 1 or 2. It is charged as a region.
    pub(super) fn alloc_window(&mut self, pd: u32, kind: u8) -> Result<Reply, Refused> {
        let kind = match kind {
            1 => WindowType::One,
            2 => WindowType::Two,
            _ => return Err(refuse(libc::EINVAL, "there is no such type of memory windows")),
        };
        let charge = self.account.take(Resource::Mrs, 1)?;
        match self.link.execute(ClientCommand::AllocMw { pd, kind })? {
            Outcome::Mw { mw, rkey } => {
                self.windows.insert(mw, charge);
                Ok(Reply::Mw { mw, rkey })
            }
            _ => Err(unexpected_outcome()),
        }
    }

    pub(super) fn dealloc_window(&mut self, mw: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::DeallocMw { mw })?;
        self.windows.remove(&mw);
        Ok(Reply::Done)
    }

    fn map(
        &self,
        file: &OwnedFd,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Mapped, Refused> {
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        // First: what is mapped is allocated, too, in whole pages.
        let page = rustix::param::page_size() as u64;
        let bytes = length.saturating_add(offset % page).div_ceil(page).saturating_mul(page);
        let wanted = [(Resource::SharedBytes, bytes), (Resource::Mappings, 1)];
        let charges = self.account.take_all(wanted)?;
        let mapping = Mapping::new(file, offset, length, writable)
            .map_err(refused_by_kernel("the memory file cannot be used"))?;
        let space = self.service.registry.take_space();
        self.link.shard.tell(ShardMessage::AddSpace(space, Space::Mapped(Arc::new(mapping))));
        Ok(Mapped { space, _charges: charges })
    }

    /// Whether the engine will be able to reach the memory: better now than at the first packet.
    fn check_reachable(&self, addr: u64, length: u64, access: AccessFlags) -> Result<(), Refused> {
        // No byte of an empty region is ever reached.
        let Some(length) = length.checked_sub(1) else { return Ok(()) };
        let Some(last) = addr.checked_add(length) else {
            return Err(refuse(libc::EINVAL, "the region wraps around"));
        };
        for at in [addr, last] {
            let Err(error) = self.service.memory.probe(self.peer.pid, at) else { continue };
            match error.raw_os_error() {
                Some(libc::EPERM) => return Err(self.may_not_reach()),
                // On-demand memory may appear later.
                Some(libc::EFAULT) if access.contains(AccessFlags::ON_DEMAND) => {}
                // The main thread has ended; the engine looks for another one.
                Some(libc::ESRCH) => {}
                _ => {
                    let text = format!("there is no readable memory at {at:#x}: {error}");
                    return Err(refuse(libc::EFAULT, text));
                }
            }
        }
        if access.contains(AccessFlags::ON_DEMAND) {
            return Ok(());
        }
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        match maps::hole(self.peer.pid, addr, last, writable) {
            Some(at) => {
                let kind = if writable { "writable" } else { "readable" };
                Err(refuse(libc::EFAULT, format!("there is no {kind} memory at {at:#x}")))
            }
            None => Ok(()),
        }
    }

    fn may_not_reach(&self) -> Refused {
        let own = rustix::process::geteuid().as_raw();
        let hint = if own != 0 && own != self.peer.uid {
            format!(
                "the daemon runs as user {own} and the program as user {}: run both as one user, \
                 or the daemon as root",
                self.peer.uid
            )
        } else {
            "the kernel's ptrace rules forbid it: the program must be dumpable, in the daemon's \
             user namespace or one below it, and /proc/sys/kernel/yama/ptrace_scope at most 1"
                .to_owned()
        };
        let pid = self.peer.pid;
        refuse(libc::EPERM, format!("the daemon may not reach the memory of process {pid}: {hint}"))
    }
}

/// Unmaps memory that the engine had for a client, and gives its number back.
pub(super) fn release_space(service: &Service, space: SpaceId) {
    drop(service.engine.ask(|answer| ShardMessage::RemoveSpace(space, answer)));
    service.registry.give_space(space);
}
