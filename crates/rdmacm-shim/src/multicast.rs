//! Multicast groups of datagram identifiers.
//!
//! RoCE has no manager of groups: to join one is to attach the queue pair, for which the daemon has
//! the kernel join.

use std::{
    ffi::{c_int, c_void},
    net::IpAddr,
};

use libc::sockaddr;
use verbs_abi::{
    RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, ibv_ah_attr, rdma_cm_id,
    rdma_cm_join_mc_attr_ex,
};

use crate::{
    channel::complete,
    connect::post,
    error::{Errno, Result, code},
    id::{self, Id, read_address},
    session::gid_of,
    verbs,
};

/// A group that a program has joined.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    group: IpAddr,
    /// The program's word for it, an address that only the program uses.
    pub(crate) context: usize,
    sends_only: bool,
    /// Its event has come.
    told: bool,
    attached: bool,
}

/// # Safety
/// `id` is one, `address` a socket address.
pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| join(id, address, context, false)))
}

/// # Safety
/// `id` is one, `attr` null or attributes with a socket address.
pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let all = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let attr = unsafe { attr.as_ref() }.filter(|attr| attr.comp_mask == all);
        let attr = attr.ok_or(Errno(libc::EINVAL))?;
        let sends_only = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return Err(Errno(libc::EINVAL)),
        };
        join(id, attr.addr, context, sends_only)
    }))
}

fn join(id: &mut Id, address: *mut sockaddr, context: *mut c_void, sends_only: bool) -> Result<()> {
    let group = group_at(address)?;
    if !id.is_datagram() || id.public.verbs.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    id.place()?;
    let new =
        Membership { group, context: context.addr(), sends_only, told: false, attached: false };
    id.inner().groups.push(new);
    let posted = post(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
    if posted.is_err() {
        id.inner().groups.pop();
    }
    posted?;
    complete(id)
}

fn group_at(address: *const sockaddr) -> Result<IpAddr> {
    let group = read_address(address).map(|address| address.ip());
    group.filter(IpAddr::is_multicast).ok_or(Errno(libc::EINVAL))
}

/// The event of the first group that has had none. Here the queue pair is attached, if there is
/// one. `None` when the program has left the group meanwhile.
pub(crate) fn joined(id: &Id) -> Option<(Membership, Result<()>)> {
    let mut inner = id.inner();
    let membership = inner.groups.iter_mut().find(|one| !one.told)?;
    membership.told = true;
    let mut result = Ok(());
    if !membership.sends_only && !id.public.qp.is_null() {
        let gid = gid_of(membership.group);
        // SAFETY: the identifier's queue pair, and a local variable.
        let failed = unsafe { verbs::ibv_attach_mcast(id.public.qp, &raw const gid, 0) };
        membership.attached = failed == 0;
        if failed != 0 {
            result = Err(Errno(failed));
        }
    }
    let found = *membership;
    if result.is_err() {
        inner.groups.retain(|one| one.group != found.group || !one.told || one.attached);
    }
    Some((found, result))
}

/// The address vector of datagrams to a group.
pub(crate) fn address_vector(id: &Id, membership: &Membership) -> ibv_ah_attr {
    let mut attr = id.address_vector();
    attr.grh.dgid = gid_of(membership.group);
    attr
}

/// # Safety
/// `id` is one, `address` a socket address.
pub(crate) unsafe extern "C-unwind" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let group = group_at(address)?;
        let mut inner = id.inner();
        let at = inner.groups.iter().position(|one| one.group == group);
        let membership = inner.groups.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(inner);
        if !membership.attached || id.public.qp.is_null() {
            return Ok(());
        }
        let gid = gid_of(group);
        // SAFETY: the identifier's queue pair, and a local variable.
        match unsafe { verbs::ibv_detach_mcast(id.public.qp, &raw const gid, 0) } {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }))
}

/// What datagrams to a group are sent to.
pub(crate) const GROUP_QPN: u32 = 0x00ff_ffff;
