//! Which multicast groups the device is a member of, and for which queue pairs.
//!
//! An interface is a member once, however many queue pairs are: the first one joins, the last one
//! leaves.

use crate::refusal::{Refused, refuse};
use crate::shard::{ShardHandle, ShardMessage};
use crate::wire::{Joiner, Membership};
use rnic_net::Incarnation;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What makes the device a member of groups, which may be another process.
pub trait Groups: Send + Sync {
    /// One more queue pair of this process is attached to a group.
    ///
    /// # Errors
    /// When there are too many open files, or memberships.
    fn join(&self, group: IpAddr) -> Result<(), Refused>;
    /// One of those that have joined is attached no more.
    fn leave(&self, group: IpAddr);
}

/// The device is a member while this exists.
pub(super) struct Joined {
    groups: Arc<dyn Groups>,
    group: IpAddr,
}

impl Joined {
    /// Joins.
    ///
    /// # Errors
    /// As [`Groups::join`].
    pub(super) fn new(groups: &Arc<dyn Groups>, group: IpAddr) -> Result<Self, Refused> {
        groups.join(group)?;
        Ok(Self { groups: Arc::clone(groups), group })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.groups.leave(self.group);
    }
}

/// The groups of a device, for the engine that has its wire.
pub struct WireGroups {
    shard: ShardHandle,
    joiner: Mutex<Joiner>,
    groups: Mutex<BTreeMap<IpAddr, Group>>,
}

/// One that the device is a member of.
struct Group {
    /// A copy: the engine has what keeps the membership.
    membership: Membership,
    users: Users,
}

/// How often a shard has joined.
type Users = BTreeMap<u8, u32>;

/// The shard that has the wire.
const OWN: u8 = 0;

impl WireGroups {
    /// Of the engine `shard`, whose wire joins like this.
    pub fn new(shard: ShardHandle, joiner: Joiner) -> Arc<Self> {
        Arc::new(Self { shard, joiner: joiner.into(), groups: Mutex::default() })
    }

    /// How groups are joined now.
    pub fn joiner(&self) -> Joiner {
        *self.joiner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's interface is this one now, which has to become a member of the groups if it was
    /// another one before. Engines with sockets of their own need new
    /// [memberships](Self::membership).
    pub fn move_to(&self, interface: Incarnation) {
        let mut groups = self.groups();
        let joiner = self.joiner().on(interface);
        if joiner == self.joiner() {
            return;
        }
        *self.joiner.lock().unwrap_or_else(PoisonError::into_inner) = joiner;
        for (address, group) in groups.iter_mut() {
            // It fails where the interface took the membership with it.
            let _ = group.membership.leave(*address);
            match self.join_in_engine(*address) {
                Ok(membership) => group.membership = membership,
                Err(error) => tracing::error!(
                    "cannot join the multicast group {address} on the interface that was made anew: \
                     {error}; restart rnicd if the group is needed"
                ),
            }
        }
    }

    /// Makes the device a member; a copy of the membership.
    fn join_in_engine(&self, group: IpAddr) -> xdp_io::Result<Membership> {
        let membership = self.joiner().join(group)?;
        let copy =
            membership.copy().map_err(|source| xdp_io::Error::Os { operation: "dup", source })?;
        self.shard.tell(ShardMessage::Join(group, membership));
        Ok(copy)
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A membership for an engine with sockets of its own.
    ///
    /// # Errors
    /// When there are too many open files, or memberships.
    pub fn membership(&self, group: IpAddr) -> Result<Membership, Refused> {
        self.joiner().join(group).map_err(|error| no_member(group, &error))
    }

    /// That engine is to receive nothing more, whatever it does with the copy that it has.
    pub fn end(&self, group: IpAddr, membership: &Membership) {
        self.joiner().end(group, membership);
    }

    /// A further shard, whose frames are handed over, has joined, or one of this process has.
    ///
    /// # Errors
    /// As [`membership`](Self::membership).
    pub fn join_for(&self, shard: u8, group: IpAddr) -> Result<(), Refused> {
        let mut groups = self.groups();
        let Group { users, .. } = match groups.entry(group) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let joined = self.join_in_engine(group);
                let membership = joined.map_err(|error| no_member(group, &error))?;
                new.insert(Group { membership, users: Users::new() })
            }
        };
        *users.entry(shard).or_default() += 1;
        self.tell_members(group, users);
        Ok(())
    }

    /// It has left.
    pub fn leave_for(&self, shard: u8, group: IpAddr) {
        let mut groups = self.groups();
        let Some(Group { users, .. }) = groups.get_mut(&group) else { return };
        if let Some(count) = users.get_mut(&shard) {
            *count -= 1;
        }
        users.retain(|_, count| *count > 0);
        self.tell_members(group, users);
        if users.is_empty() {
            groups.remove(&group);
            self.shard.tell(ShardMessage::Leave(group));
        }
    }

    fn tell_members(&self, group: IpAddr, users: &Users) {
        let further = users.keys().filter(|shard| **shard != OWN);
        let bits =
            further.fold(0, |bits, shard| bits | 1u128.checked_shl((*shard).into()).unwrap_or(0));
        self.shard.tell(ShardMessage::Members(group, bits));
    }
}

fn no_member(group: IpAddr, error: &xdp_io::Error) -> Refused {
    refuse(libc::ENOMEM, format!("cannot join the multicast group {group}: {error}"))
}

impl Groups for WireGroups {
    fn join(&self, group: IpAddr) -> Result<(), Refused> {
        self.join_for(OWN, group)
    }

    fn leave(&self, group: IpAddr) {
        self.leave_for(OWN, group);
    }
}
