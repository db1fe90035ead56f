//! The multicast groups of an engine process.
//!
//! With sockets of its own it gets one for each group, and the kernel makes the copies; the daemon
//! keeps a copy of the socket to end its membership. Without, the daemon's engine hands copies
//! over. A process joins each group once, and no more than an engine may have.

use super::Users;
use super::engine::EngineProcess;
use rnic_abi::control::Refusal;
use rnic_host::refusal::{refuse, refused_by_kernel};
use rnic_host::satellite::protocol::ToEngine;
use rnic_host::wire::Membership;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// By group; with the daemon's copy of its socket, where it has one.
pub(super) type Memberships = BTreeMap<IpAddr, Membership>;

impl Users {
    /// A queue pair of the process is attached to a group.
    pub(super) fn join(&self, engine: &EngineProcess, group: IpAddr) -> Result<(), Refusal> {
        if !group.is_multicast() {
            return Err(refuse(libc::EINVAL, "this is no address of a multicast group"));
        }
        // Only the thread that attends to the process changes them.
        let (is_member, count) = {
            let known = &engine.state().groups;
            (known.contains_key(&group), known.len())
        };
        if is_member {
            return Ok(());
        }
        let limit = self.parts.device.limits.max_groups;
        if count >= limit as usize {
            let text = format!("a user may be a member of {limit} multicast groups");
            return Err(refuse(libc::ENOMEM, text));
        }
        let membership = match &self.parts.shared_port {
            Some(_) => self.give_group_socket(engine, group)?,
            None => {
                self.parts.wire_groups.join_for(engine.number(), group)?;
                Membership::default()
            }
        };
        engine.state().groups.insert(group, membership);
        Ok(())
    }

    /// The groups of an interface that was made anew.
    pub(super) fn join_anew(&self, engine: &EngineProcess, groups: &mut Memberships) {
        let interface = self.parts.wire_groups.joiner().interface();
        for (group, membership) in groups {
            if membership.fd().is_none() || membership.interface() == interface {
                continue;
            }
            // It fails where the interface took the membership with it, or on a second attempt.
            let _ = membership.leave(*group);
            match self.give_group_socket(engine, *group) {
                Ok(new) => *membership = new,
                Err(refusal) => {
                    tracing::warn!("{engine} is no member of the group {group}: {refusal}");
                }
            }
        }
    }

    fn give_group_socket(
        &self,
        engine: &EngineProcess,
        group: IpAddr,
    ) -> Result<Membership, Refusal> {
        let ours = self.parts.wire_groups.membership(group)?;
        let fds: Vec<_> = ours.fd().into_iter().map(AsFd::as_fd).collect();
        engine
            .send(&ToEngine::Group(group), &fds)
            .map_err(refused_by_kernel("the engine process takes no socket"))?;
        drop(fds);
        Ok(ours)
    }

    /// None is any more.
    pub(super) fn leave(&self, engine: &EngineProcess, group: IpAddr) {
        let Some(membership) = engine.state().groups.remove(&group) else { return };
        self.end_membership(engine, group, &membership);
    }

    /// The process is dead.
    pub(super) fn leave_all(&self, engine: &EngineProcess) {
        let all = std::mem::take(&mut engine.state().groups);
        for (group, membership) in &all {
            self.end_membership(engine, *group, membership);
        }
    }

    fn end_membership(&self, engine: &EngineProcess, group: IpAddr, membership: &Membership) {
        let groups = &self.parts.wire_groups;
        match &self.parts.shared_port {
            Some(_) => groups.end(group, membership),
            None => groups.leave_for(engine.number(), group),
        }
    }
}
