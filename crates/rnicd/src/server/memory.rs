//! Registration of memory.

use super::context::{Context, over_quota, surprised};
use super::maps;
use super::registry::Registry;
use crate::dma::{Mapping, Space, probe};
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::shard::{Message, ShardHandle};
use rnic_abi::control::Reply;
use rnic_abi::verbs::AccessFlags;
use rnic_core::{ClientCommand, Outcome, SpaceId};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// The memory regions of a client.
#[derive(Default)]
pub(super) struct Regions {
    regions: HashMap<u32, Region>,
    bytes: u64,
}

struct Region {
    length: u64,
    /// Of memory that the daemon mapped.
    space: Option<SpaceId>,
}

impl Regions {
    /// Gives the address spaces back, once the client is gone.
    pub(super) fn release_spaces(&mut self, shard: &ShardHandle, registry: &Registry) {
        for (_, region) in self.regions.drain() {
            release(region, shard, registry);
        }
    }
}

/// Unmaps a region's memory, if it was mapped, here and not in the engine.
fn release(region: Region, shard: &ShardHandle, registry: &Registry) {
    if let Some(space) = region.space {
        drop(shard.ask(|answer| Message::RemoveSpace(space, answer)));
        registry.give_space(space, region.length);
    }
}

impl Context {
    /// Registers memory of the client, or a part of a shared file with its offset.
    pub(super) fn register(
        &mut self,
        pd: u32,
        addr: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
        file: Option<(OwnedFd, u64)>,
    ) -> Result<Reply, Refused> {
        let quota = &self.service.quota;
        if self.regions.regions.len() >= quota.mrs as usize {
            return Err(over_quota("memory regions", "mrs"));
        }
        if self.regions.bytes.checked_add(length).is_none_or(|all| all > quota.registered_bytes) {
            return Err(over_quota("bytes registered", "registered-bytes"));
        }
        let (space, addr, mapped) = match file.filter(|_| length > 0) {
            Some((file, offset)) => {
                let space = self.map(&file, offset, length, access)?;
                (space, 0, Some(space))
            }
            None => {
                self.check_reachable(addr, length, access)?;
                (self.space, addr, None)
            }
        };
        let command = ClientCommand::RegMr { pd, space, addr, length, iova, access };
        match self.engine(command) {
            Ok(Outcome::Mr { mr, lkey, rkey }) => {
                self.regions.regions.insert(mr, Region { length, space: mapped });
                self.regions.bytes += length;
                Ok(Reply::Mr { mr, lkey, rkey })
            }
            other => {
                release(Region { length, space: mapped }, &self.shard, &self.service.registry);
                other.and_then(|_| Err(surprised()))
            }
        }
    }

    pub(super) fn deregister(&mut self, mr: u32) -> Result<Reply, Refused> {
        self.engine(ClientCommand::DeregMr { mr })?;
        if let Some(region) = self.regions.regions.remove(&mr) {
            self.regions.bytes -= region.length;
            release(region, &self.shard, &self.service.registry);
        }
        Ok(Reply::Done)
    }

    fn map(
        &self,
        file: &OwnedFd,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<SpaceId, Refused> {
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        let registry = &self.service.registry;
        // First: what is mapped is allocated, too.
        let space = registry.take_space(length, &self.service.quota)?;
        let mapping = Mapping::new(file, offset, length, writable).map_err(|error| {
            registry.give_space(space, length);
            refused_by_kernel("the memory file cannot be used")(error)
        })?;
        self.shard.tell(Message::AddSpace(space, Space::Mapped(mapping)));
        Ok(space)
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
