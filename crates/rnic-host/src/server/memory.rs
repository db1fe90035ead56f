//! Registration of memory.

use super::accounts::{Account, Charge};
use super::device_memory::{DeviceMemories, DmPart};
use super::link::EngineLink;
use super::maps;
use super::reply::{Attached, unexpected_outcome};
use super::service::Service;
use crate::dma::{Mapping, Space, probe};
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::shard::ShardMessage;
use rnic_abi::control::Reply;
use rnic_abi::os::Credentials;
use rnic_abi::verbs::AccessFlags;
use rnic_core::mr::WHOLE_SPACE;
use rnic_core::{ClientCommand, Outcome, SpaceId};
use std::collections::HashMap;
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
}

/// Memory that a client wants to register.
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
    mapped: Option<Mapped>,
    /// The device memory that it is a part of.
    dm: Option<u32>,
    _charges: [Charge; 2],
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
        Self { service, link, account, peer, space, regions: HashMap::new(), device_memory }
    }

    /// Gives the address spaces back, once the client is gone.
    pub(super) fn release_spaces(&mut self) {
        for (_, region) in std::mem::take(&mut self.regions) {
            self.release(region.mapped);
        }
        self.device_memory.release();
    }

    /// Unmaps what was mapped of a client, here and not in the engine, and gives it back.
    fn release(&self, mapped: Option<Mapped>) {
        if let Some(mapped) = mapped {
            release_space(&self.service, mapped.space);
        }
    }

    /// Registers memory of the client, or a part of a shared file from an offset on.
    pub(super) fn register(
        &mut self,
        wanted: &Registration,
        file: Option<(OwnedFd, u64)>,
    ) -> Result<Reply, Refused> {
        let Registration { pd, addr, length, iova, access } = *wanted;
        let bytes = match length {
            WHOLE_SPACE => maps::size(self.peer.pid),
            length => length,
        };
        let wanted = [(Resource::Mrs, 1), (Resource::RegisteredBytes, bytes)];
        let charges = self.account.take_all(wanted)?;
        let (space, addr, mapped) = match file.filter(|_| length > 0) {
            Some((file, offset)) => {
                let mapped = self.map(&file, offset, length, access)?;
                (mapped.space, 0, Some(mapped))
            }
            None => {
                self.check_reachable(addr, length, access)?;
                (self.space, addr, None)
            }
        };
        let command = ClientCommand::RegMr { pd, space, addr, length, iova, access };
        match self.link.execute(command) {
            Ok(Outcome::Mr { mr, lkey, rkey }) => {
                self.regions.insert(mr, Region { mapped, dm: None, _charges: charges });
                Ok(Reply::Mr { mr, lkey, rkey })
            }
            other => {
                self.release(mapped);
                other.and_then(|_| Err(unexpected_outcome()))
            }
        }
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
        let space = self.device_memory.locate(part)?;
        let DmPart { dm, offset, length, access } = *part;
        let wanted = [(Resource::Mrs, 1), (Resource::RegisteredBytes, length)];
        let charges = self.account.take_all(wanted)?;
        let command = ClientCommand::RegMr { pd, space, addr: offset, length, iova: 0, access };
        let Outcome::Mr { mr, lkey, rkey } = self.link.execute(command)? else {
            return Err(unexpected_outcome());
        };
        self.device_memory.enter(dm);
        self.regions.insert(mr, Region { mapped: None, dm: Some(dm), _charges: charges });
        Ok(Reply::Mr { mr, lkey, rkey })
    }

    pub(super) fn deregister(&mut self, mr: u32) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::DeregMr { mr })?;
        if let Some(region) = self.regions.remove(&mr) {
            self.release(region.mapped);
            if let Some(dm) = region.dm {
                self.device_memory.leave(dm);
            }
        }
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
        // First: what is mapped is allocated, too.
        let wanted = [(Resource::SharedBytes, length), (Resource::Mappings, 1)];
        let charges = self.account.take_all(wanted)?;
        let mapping = Mapping::new(file, offset, length, writable)
            .map_err(refused_by_kernel("the memory file cannot be used"))?;
        let space = self.service.registry.take_space();
        self.link.shard.tell(ShardMessage::AddSpace(space, Space::Mapped(mapping)));
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
            let Err(error) = probe(self.peer.pid, at) else { continue };
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
