//! Identifiers, as programs and this library see them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ptr,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rnic_abi::{
    control::{CmOffer, CmRequest},
    os::OfProcess,
};
use verbs_abi::{
    RDMA_PS_IPOIB, RDMA_PS_UDP, Zeroed, ibv_ah_attr, ibv_gid, ibv_sa_path_rec, rdma_cm_id,
    rdma_port_space,
};

use crate::{
    address::set_scope,
    channel::Channel,
    endpoint::Model,
    error::{Errno, Result},
    multicast::Membership,
    session::{Device, Opened, Own, gid_of},
};

/// An identifier; programs have a pointer to its first member.
#[repr(C)]
pub(crate) struct Id {
    pub(crate) public: rdma_cm_id,
    pub(crate) inner: Mutex<Inner>,
}

/// What programs do not see.
pub(crate) struct Inner {
    /// Where it is known, once it has a port: one place, or before it has an address one of each
    /// device.
    pub(crate) places: Vec<Place>,
    /// At all of them whose daemons live.
    pub(crate) is_listening: bool,
    /// Its event channel is its own: calls wait for their event.
    pub(crate) is_sync: bool,
    /// Path of the connection.
    pub(crate) path: ibv_sa_path_rec,
    pub(crate) sgid_index: u8,
    pub(crate) flow_label: u32,
    pub(crate) options: Options,
    pub(crate) terms: Terms,
    pub(crate) groups: Vec<Membership>,
    /// Of a listening endpoint.
    pub(crate) model: Option<Model>,
}

/// `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) reuse: bool,
    /// At `::`, what is for IPv4 addresses is not for it.
    pub(crate) one_family: bool,
    pub(crate) ack_timeout: Option<u8>,
}

/// What a connection needs of both ends.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// What the own queue pair has to expect first, and the peer's.
    pub(crate) psn: u32,
    pub(crate) peer_psn: u32,
    pub(crate) peer: CmOffer,
    pub(crate) mtu_code: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// READs and atomics that the own queue pair takes and has outstanding.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Id {
    /// A new one, without port.
    pub(crate) fn new(
        channel: *mut Channel,
        context: *mut std::ffi::c_void,
        ps: rdma_port_space,
    ) -> *mut Self {
        let mut public = rdma_cm_id::zeroed();
        public.channel = channel.cast();
        public.context = context;
        public.ps = ps;
        public.qp_type = match ps {
            RDMA_PS_UDP | RDMA_PS_IPOIB => verbs_abi::IBV_QPT_UD,
            _ => verbs_abi::IBV_QPT_RC,
        };
        let inner = Inner {
            places: Vec::new(),
            is_listening: false,
            is_sync: false,
            path: ibv_sa_path_rec::zeroed(),
            sgid_index: 0,
            flow_label: 0,
            options: Options::default(),
            terms: Terms::default(),
            groups: Vec::new(),
            model: None,
        };
        Box::into_raw(Box::new(Self { public, inner: Mutex::new(inner) }))
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.inner().places.clone()
    }

    /// The connection manager that has its connection.
    pub(crate) fn place(&self) -> Result<Place> {
        self.inner().places.first().copied().ok_or(Errno(libc::EINVAL))
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.public.qp_type == verbs_abi::IBV_QPT_UD
    }

    /// Notes both addresses, where they are known.
    pub(crate) fn set_addresses(&mut self, local: SocketAddr, remote: Option<SocketAddr>) {
        let address = &mut self.public.route.addr;
        write_address(&mut address.src_storage, local);
        address.addr.sgid = gid_of(local.ip());
        address.addr.pkey = 0xffff;
        if let Some(remote) = remote {
            write_address(&mut address.dst_storage, remote);
            address.addr.dgid = gid_of(remote.ip());
        }
    }

    /// It is on the device that has this address.
    pub(crate) fn attach(&mut self, own: &Own) -> Result<()> {
        let Opened { context, pd } = own.device.opened()?;
        self.inner().sgid_index = own.index;
        self.public.verbs = context;
        self.public.port_num = 1;
        self.public.pd = pd;
        Ok(())
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        read_address((&raw const self.public.route.addr.src_storage).cast())
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        read_address((&raw const self.public.route.addr.dst_storage).cast())
    }

    /// Fills in the path, once both addresses are known.
    pub(crate) fn set_path(&mut self, mtu_code: u8) {
        let addr = self.public.route.addr.addr;
        let path = {
            let mut inner = self.inner();
            let traffic_class = inner.options.tos;
            inner.path = ibv_sa_path_rec {
                sgid: addr.sgid,
                dgid: addr.dgid,
                flow_label: inner.flow_label.to_be(),
                hop_limit: HOP_LIMIT,
                traffic_class,
                reversible: 1,
                numb_path: 1,
                pkey: 0xffff,
                mtu_selector: EXACTLY,
                mtu: mtu_code,
                rate_selector: EXACTLY,
                packet_life_time_selector: EXACTLY,
                packet_life_time: LIFETIME,
                ..ibv_sa_path_rec::zeroed()
            };
            &raw mut inner.path
        };
        self.public.route.path_rec = path;
        self.public.route.num_paths = 1;
    }

    /// The address vector of the way to the peer.
    pub(crate) fn address_vector(&self) -> ibv_ah_attr {
        let inner = self.inner();
        let mut attr = ibv_ah_attr::zeroed();
        attr.grh.dgid = self.public.route.addr.addr.dgid;
        attr.grh.flow_label = inner.flow_label;
        attr.grh.sgid_index = inner.sgid_index;
        attr.grh.hop_limit = HOP_LIMIT;
        attr.grh.traffic_class = inner.options.tos;
        attr.is_global = 1;
        attr.port_num = 1;
        attr
    }
}

/// Where an identifier is known: the connection manager of a device, and the handle there.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) device: &'static Device,
    pub(crate) handle: u32,
}

impl Place {
    /// A request about it that is answered by [`Reply::Done`](rnic_abi::control::Reply::Done).
    pub(crate) fn done(&self, request: impl FnOnce(u32) -> CmRequest) -> Result<()> {
        self.device.done(request(self.handle))
    }

    pub(crate) fn release(&self) -> Result<()> {
        self.done(|id| CmRequest::Release { id })
    }

    fn key(&self) -> Key {
        (ptr::from_ref(self.device).addr(), self.handle)
    }
}

/// A device's address, and a handle there.
type Key = (usize, u32);

/// What events need to know of identifiers.
#[derive(Default)]
struct Ids {
    known: BTreeMap<Key, Known>,
    /// Events that programs have of each, and have not acknowledged.
    told: BTreeMap<usize, u32>,
    /// What peers ask for, on its way to the channel that a listener has got.
    following: BTreeSet<Key>,
}

/// Addresses of an identifier and its channel.
struct Known {
    id: usize,
    channel: usize,
}

static IDS: OfProcess<Ids> = OfProcess::new();
/// When all events of some identifier are acknowledged.
static SETTLED: Condvar = Condvar::new();

fn ids() -> MutexGuard<'static, Ids> {
    IDS.lock()
}

/// What the device says of this handle is for this identifier.
pub(crate) fn remember(place: &Place, id: *mut Id, channel: *const Channel) {
    let mut ids = ids();
    ids.following.remove(&place.key());
    ids.known.insert(place.key(), Known { id: id as usize, channel: channel as usize });
}

/// What a peer asks for goes to another channel before it becomes an identifier.
pub(crate) fn follows(place: &Place) {
    ids().following.insert(place.key());
}

/// It becomes no identifier.
pub(crate) fn follows_no_more(place: &Place) {
    ids().following.remove(&place.key());
}

/// Whether it is on its way: it is to become an identifier yet.
pub(crate) fn is_following(place: &Place) -> bool {
    ids().following.contains(&place.key())
}

/// What the device says of these places is on another channel.
pub(crate) fn set_channel(places: &[Place], channel: *const Channel) {
    let mut ids = ids();
    for place in places {
        if let Some(known) = ids.known.get_mut(&place.key()) {
            known.channel = channel as usize;
        }
    }
}

/// Whether there is an identifier for what the device says of this handle.
pub(crate) fn is_known(place: &Place) -> bool {
    ids().known.contains_key(&place.key())
}

/// Whether identifiers of a channel are at a device.
pub(crate) fn are_at(device: &'static Device, channel: *const Channel) -> bool {
    ids().at(device).any(|known| known.channel == channel as usize)
}

/// Whether an identifier of a channel is at this device and at none of the others.
pub(crate) fn end_at(
    device: &'static Device,
    channel: *const Channel,
    others: &[&'static Device],
) -> bool {
    let ids = ids();
    let elsewhere = others.iter().flat_map(|other| ids.at(other)).map(|known| known.id);
    let elsewhere: HashSet<usize> = elsewhere.collect();
    let here = ids.at(device).filter(|known| known.channel == channel as usize);
    here.map(|known| known.id).any(|id| !elsewhere.contains(&id))
}

impl Ids {
    fn at(&self, device: &'static Device) -> impl Iterator<Item = &Known> {
        let device = ptr::from_ref(device).addr();
        self.known.range((device, 0)..=(device, u32::MAX)).map(|(_, known)| known)
    }
}

/// An event of an identifier, which is not destroyed while there is one.
#[derive(Debug)]
pub(crate) struct OfId(*mut Id);

impl OfId {
    /// Of the identifier that is at this place.
    pub(crate) fn find(place: &Place) -> Option<Self> {
        let mut ids = ids();
        let id = ids.known.get(&place.key())?.id;
        *ids.told.entry(id).or_default() += 1;
        Some(Self(id as *mut Id))
    }

    pub(crate) fn id(&self) -> *mut Id {
        self.0
    }
}

impl Drop for OfId {
    fn drop(&mut self) {
        let mut ids = ids();
        let id = self.0 as usize;
        if let Some(left) = ids.told.get_mut(&id) {
            *left -= 1;
            if *left == 0 {
                ids.told.remove(&id);
                SETTLED.notify_all();
            }
        }
    }
}

/// What devices say of these places is for no identifier any more.
pub(crate) fn unlink(places: &[Place]) {
    let mut ids = ids();
    for place in places {
        ids.known.remove(&place.key());
    }
}

/// The identifier is about to be destroyed: no event finds it any more. Waits until those that the
/// program has are acknowledged, as rdma-core does.
pub(crate) fn forget(id: *mut Id, places: &[Place]) {
    unlink(places);
    let mut ids = ids();
    while ids.told.contains_key(&(id as usize)) {
        ids = SETTLED.wait(ids).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The identifier that a program names.
///
/// # Safety
/// `id` is null or one that `rdma_create_id` or an event gave, and not destroyed; no other thread
/// uses what a program sees of it.
pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a mut Id> {
    // SAFETY: by contract, and it is the first member.
    unsafe { id.cast::<Id>().as_mut() }.ok_or(Errno(libc::EINVAL))
}

/// A socket address; `None` when it is of another family.
pub(crate) fn read_address(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: a socket address begins with its family, which says how long it is; it need not be
    // aligned.
    unsafe {
        match i32::from(address.cast::<u16>().read_unaligned()) {
            AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
            }
            AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical();
                let mut address = SocketAddr::new(ip, u16::from_be(v6.sin6_port));
                set_scope(&mut address, v6.sin6_scope_id);
                Some(address)
            }
            _ => None,
        }
    }
}

/// Of no family yet.
pub(crate) fn no_address() -> sockaddr_storage {
    // SAFETY: numbers only.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn write_address(storage: &mut sockaddr_storage, address: SocketAddr) {
    let storage: *mut sockaddr_storage = storage;
    // SAFETY: it has room and alignment for both, and all of both may be zero.
    unsafe {
        ptr::write_bytes(storage, 0, 1);
        match address {
            SocketAddr::V4(v4) => {
                let to = storage.cast::<sockaddr_in>();
                (*to).sin_family = AF_INET as u16;
                (*to).sin_port = v4.port().to_be();
                (*to).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                let to = storage.cast::<sockaddr_in6>();
                (*to).sin6_family = AF_INET6 as u16;
                (*to).sin6_port = v6.port().to_be();
                (*to).sin6_addr.s6_addr = v6.ip().octets();
                (*to).sin6_scope_id = v6.scope_id();
            }
        }
    }
}

/// No address of its own: all there are.
pub(crate) fn is_wildcard(address: &SocketAddr) -> bool {
    address.ip().is_unspecified()
}

/// A GID in a message.
pub(crate) fn raw(address: IpAddr) -> [u8; 16] {
    let ibv_gid { raw } = gid_of(address);
    raw
}

const HOP_LIMIT: u8 = 64;
/// Of the selectors of a path: exactly this.
const EXACTLY: u8 = 2;
/// Exponent of how long a packet may be on the way, as Linux says for Ethernet.
const LIFETIME: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{forked::status_of_child, session::tests::device};
    use std::time::Duration;

    /// As if another thread were about to look for an identifier.
    #[test]
    fn a_child_knows_none_of_its_parents_identifiers() {
        let place = Place { device: device(), handle: 7 };
        remember(&place, ptr::null_mut(), ptr::null());
        let known = ids();
        let status = status_of_child(|| OfId::find(&place).is_none());
        drop(known);
        assert_eq!(status, 0);
        ids().known.remove(&place.key());
    }

    #[test]
    fn devices_may_have_the_same_handles() {
        let places = [device(), device()].map(|device| Place { device, handle: 7 });
        let ids = [(); 2].map(|()| Id::new(ptr::null_mut(), ptr::null_mut(), RDMA_PS_UDP));
        for (place, id) in places.iter().zip(ids) {
            remember(place, id, ptr::null());
        }
        assert_eq!(places.each_ref().map(|place| OfId::find(place).unwrap().id()), ids);
        for (place, id) in places.iter().zip(ids) {
            forget(id, &[*place]);
            assert!(OfId::find(place).is_none());
            // SAFETY: made above, and no event has it.
            drop(unsafe { Box::from_raw(id) });
        }
    }

    #[test]
    fn an_identifier_waits_for_its_events_before_it_is_destroyed() {
        let place = Place { device: device(), handle: 7 };
        let id = Id::new(ptr::null_mut(), ptr::null_mut(), RDMA_PS_UDP);
        remember(&place, id, ptr::null());
        let events = [(); 2].map(|()| OfId::find(&place).unwrap());
        assert_eq!(events[0].id(), id);
        let address = id as usize;
        let destroyer = std::thread::spawn(move || forget(address as *mut Id, &[place]));
        for event in events {
            std::thread::sleep(Duration::from_millis(50));
            assert!(!destroyer.is_finished(), "an event is still used");
            drop(event);
        }
        destroyer.join().unwrap();
        assert!(OfId::find(&place).is_none());
        // Without events it waits for nothing.
        forget(id, &[place]);
        // SAFETY: made above, and no event has it.
        drop(unsafe { Box::from_raw(id) });
    }
}
