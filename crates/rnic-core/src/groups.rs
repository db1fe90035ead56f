//! Multicast groups: which queue pairs get a copy of what is sent to an address of many.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Groups that queue pairs of one engine may be attached to.
pub(crate) const MAX_GROUPS: usize = 256;
/// Queue pairs that may be attached to one group: each costs a copy of every datagram.
pub(crate) const MAX_MEMBERS: usize = 64;

/// The groups of one engine, by address, with the slots of their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<IpAddr, Vec<u32>>,
}

/// There is no room for another group, or for another member of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Groups {
    /// Attaches a queue pair. False when it is a member already.
    pub(crate) fn attach(&mut self, group: IpAddr, slot: u32) -> Result<bool, Full> {
        let members = self.members.get(&group);
        // Rule: AttachedOnce
        if members.is_some_and(|members| members.contains(&slot)) {
            return Ok(false);
        }
        // Rule: GroupsBounded
        let is_full = match members {
            Some(members) => members.len() >= MAX_MEMBERS,
            None => self.members.len() >= MAX_GROUPS,
        };
        if is_full {
            return Err(Full);
        }
        self.members.entry(group).or_default().push(slot);
        Ok(true)
    }

    /// Takes a queue pair out of a group. False when it was no member.
    pub(crate) fn detach(&mut self, group: IpAddr, slot: u32) -> bool {
        let Some(members) = self.members.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|member| *member != slot);
        let was_member = members.len() < before;
        if members.is_empty() {
            self.members.remove(&group);
        }
        was_member
    }

    /// Takes a queue pair that goes away out of all groups.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.members.retain(|_, members| {
            members.retain(|member| *member != slot);
            !members.is_empty()
        });
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: IpAddr) -> &[u32] {
        // Rule: MembersOfThisGroup
        self.members.get(&group).map(Vec::as_slice).unwrap_or_default()
    }
}
