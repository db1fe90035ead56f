//! Ports and interfaces of addresses.

use std::{mem, net::SocketAddr};

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6, sockaddr_storage};
use verbs_abi::{be16, rdma_cm_id};

/// Port of the local address in network byte order, 0 when there is none.
///
/// # Safety
/// `id` is an identifier.
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> be16 {
    // SAFETY: by contract.
    port(unsafe { &(*id).route.addr.src_storage })
}

/// Port of the remote address in network byte order, 0 when there is none.
///
/// # Safety
/// `id` is an identifier.
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> be16 {
    // SAFETY: by contract.
    port(unsafe { &(*id).route.addr.dst_storage })
}

fn port(address: &sockaddr_storage) -> be16 {
    const _: () = {
        assert!(mem::size_of::<sockaddr_in6>() <= mem::size_of::<sockaddr_storage>());
        assert!(mem::align_of::<sockaddr_in6>() <= mem::align_of::<sockaddr_storage>());
    };
    let address: *const sockaddr_storage = address;
    // SAFETY: a sockaddr_storage has room and alignment for both, and the family says which it is.
    unsafe {
        match i32::from((*address).ss_family) {
            AF_INET => (*address.cast::<sockaddr_in>()).sin_port,
            AF_INET6 => (*address.cast::<sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

/// The interface of a link-local address.
pub(crate) fn scope_of(address: Option<SocketAddr>) -> u32 {
    match address {
        Some(SocketAddr::V6(v6)) => v6.scope_id(),
        _ => 0,
    }
}

/// Says which interface the address is of, if it is one that has to say so.
pub(crate) fn set_scope(address: &mut SocketAddr, scope: u32) {
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(scope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_abi::Zeroed;

    #[test]
    fn ports_come_from_either_family_and_stay_in_network_order() {
        let mut id = rdma_cm_id::zeroed();
        // SAFETY: the identifier is a local variable.
        let ports = |id: &mut rdma_cm_id| unsafe { (rdma_get_src_port(id), rdma_get_dst_port(id)) };
        assert_eq!(ports(&mut id), (0, 0));
        id.route.addr.src_storage.ss_family = AF_INET as u16;
        id.route.addr.dst_storage.ss_family = AF_INET6 as u16;
        let source = (&raw mut id.route.addr.src_storage).cast::<sockaddr_in>();
        let destination = (&raw mut id.route.addr.dst_storage).cast::<sockaddr_in6>();
        // SAFETY: both point into the identifier's storage.
        unsafe {
            (*source).sin_port = 7471_u16.to_be();
            (*destination).sin6_port = 4791_u16.to_be();
        }
        assert_eq!(ports(&mut id), (7471_u16.to_be(), 4791_u16.to_be()));
    }
}
