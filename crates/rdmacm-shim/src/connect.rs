//! Addresses, routes and connections.

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, SocketAddr},
};

use libc::sockaddr;
use rnic_abi::control::{CmHappening, CmNotice, CmOffer, CmRequest, CmService, CmTarget, Reply};
use verbs_abi::{
    IBV_QPT_UC, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_UDP_QKEY, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param,
};

use crate::{
    address::{scope_of, set_scope},
    channel::{Channel, complete},
    error::{Errno, Result, code},
    id::{self, Id, Place, is_wildcard, raw, read_address},
    qp,
    rsocket::udp,
    session::{self, Device, MAX_DEPTH, Own},
};

/// Gives an identifier a port, at one address of a device or at all addresses of all devices.
pub(crate) fn bind(id: &mut Id, own: Option<&Own>, local: SocketAddr) -> Result<()> {
    if !id.places().is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    if let Some(own) = own {
        id.attach(own)?;
        return bind_at(id, own.device, local);
    }
    let mut bound = Err(Errno(libc::EADDRINUSE));
    for _ in 0..if local.port() == 0 { PORTS } else { 1 } {
        bound = bind_everywhere(id, local);
        if bound != Err(Errno(libc::EADDRINUSE)) {
            break;
        }
    }
    bound
}

/// At the same port of all devices whose daemons let it, or of none where another one has the port.
fn bind_everywhere(id: &mut Id, mut local: SocketAddr) -> Result<()> {
    let before = id.public.route.addr;
    let mut refused = Errno(libc::EIO);
    for device in session::devices()? {
        match bind_at(id, device, local) {
            Ok(()) => local.set_port(id.local().map_or(0, |local| local.port())),
            Err(error @ Errno(libc::EADDRINUSE)) => {
                keep_places(id, |_| false);
                id.public.route.addr = before;
                return Err(error);
            }
            Err(Errno(libc::EIO)) => {}
            Err(error) => refused = error,
        }
    }
    if id.places().is_empty() { Err(refused) } else { Ok(()) }
}

/// Lets go of the other places.
fn keep_places(id: &mut Id, keeps: impl Fn(&Place) -> bool) {
    let (kept, gone) = id.places().into_iter().partition(keeps);
    id.inner().places = kept;
    let gone: Vec<Place> = gone;
    id::unlink(&gone);
    for place in gone {
        // Fails only where the daemon is gone.
        let _ = place.release();
        // SAFETY: every identifier has a channel.
        unsafe { (*id.public.channel.cast::<Channel>()).leave(place.device) };
    }
}

/// The device that has an address.
pub(crate) fn owner(own: &[Own], local: IpAddr) -> Result<Own> {
    own.iter().copied().find(|own| own.ip == local).ok_or(Errno(libc::EADDRNOTAVAIL))
}

fn bind_at(id: &mut Id, device: &'static Device, local: SocketAddr) -> Result<()> {
    // Like a TCP listener, one at `::` takes what is for IPv4 addresses unless its program objects.
    let takes_all = local.is_ipv6() && is_wildcard(&local) && !id.inner().options.one_family;
    let address = (!takes_all).then(|| local.ip());
    // SAFETY: every identifier has a channel.
    let channel = unsafe { &*id.public.channel.cast::<Channel>() };
    let placing = channel.placing()?;
    let channel = placing.handle_at(device)?;
    let request = CmRequest::Bind {
        channel,
        space: u16::try_from(id.public.ps).map_err(|_| Errno(libc::EPROTONOSUPPORT))?,
        address: address.map(raw),
        port: local.port(),
        shared: id.inner().options.reuse,
    };
    let Reply::Bound { id: handle, port } = device.call(request)?.0 else {
        return Err(Errno(libc::EPROTO));
    };
    let mut local = local;
    local.set_port(port);
    id.set_addresses(local, None);
    let place = Place { device, handle };
    id.inner().places.push(place);
    id::remember(&place, id, id.public.channel.cast());
    Ok(())
}

/// # Safety
/// `id` is one, `address` a socket address.
pub(crate) unsafe extern "C-unwind" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let address = read_address(address).ok_or(Errno(libc::EAFNOSUPPORT))?;
        let (own, local) = session::with_addresses(|own| {
            let local = on_device(own, address)?;
            let is_one = !is_wildcard(&local);
            Ok((is_one.then(|| owner(own, local.ip())).transpose()?, local))
        })?;
        bind(id, own.as_ref(), local)
    }))
}

/// # Safety
/// `id` is one, both addresses socket addresses or null.
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout: c_int,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let remote = read_address(destination).ok_or(Errno(libc::EAFNOSUPPORT))?;
        let wanted = read_address(source).or_else(|| id.local());
        let (at, local, remote) = session::with_addresses(|own| {
            let (local, remote) = both_ends(own, wanted, remote)?;
            Ok((owner(own, local.ip())?, local, remote))
        })?;
        let places = id.places();
        if places.is_empty() {
            bind(id, Some(&at), local)?;
        } else if !places.iter().any(|place| std::ptr::eq(place.device, at.device)) {
            return Err(Errno(libc::EINVAL));
        }
        let mut local = local;
        local.set_port(id.local().map_or(0, |local| local.port()));
        id.attach(&at)?;
        keep_places(id, |place| std::ptr::eq(place.device, at.device));
        id.set_addresses(local, Some(remote));
        id.inner().flow_label = flow_label(local.port(), remote.port());
        let limit_ms = u32::try_from(timeout).unwrap_or(0);
        let to = target(id)?;
        id.place()?.done(|id| CmRequest::Resolve { id, to, limit_ms })?;
        complete(id)
    }))
}

/// Path MTU code of the link.
fn mtu_of(id: &Id) -> Result<u8> {
    id.place()?.device.mtu()
}

/// The event follows on the channel, as of a request that takes its time.
pub(crate) fn post(id: &Id, what: rdma_cm_event_type, status: c_int) -> Result<()> {
    let what = CmHappening::Posted(what, status);
    let private = Vec::new();
    id.place()?.done(|id| CmRequest::Post(CmNotice { id, what, private }))
}

/// A loopback address that no device has stands for the first address of the first device: programs
/// bind to one to learn what device there is.
fn on_device(own: &[Own], address: SocketAddr) -> Result<SocketAddr> {
    let own = || own.iter().map(|own| own.ip);
    if !address.ip().is_loopback() || own().any(|ip| ip == address.ip()) {
        return Ok(address);
    }
    let first = own().find(|ip| ip.is_ipv4() == address.is_ipv4());
    Ok(SocketAddr::new(first.ok_or(Errno(libc::EADDRNOTAVAIL))?, address.port()))
}

/// Addresses of both ends.
pub(crate) fn both_ends(
    own: &[Own],
    wanted: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<(SocketAddr, SocketAddr)> {
    let remote = on_device(own, remote)?;
    let wanted = wanted.map(|wanted| on_device(own, wanted)).transpose()?;
    let port = wanted.map_or(0, |wanted| wanted.port());
    let local = match wanted.filter(|wanted| !is_wildcard(wanted)) {
        Some(wanted) => wanted.ip(),
        None if own.iter().any(|own| own.ip == remote.ip()) => remote.ip(),
        None => udp::source_for(remote)?,
    };
    let mut local = SocketAddr::new(local, port);
    set_scope(&mut local, scope_of(Some(remote)).max(scope_of(wanted)));
    Ok((local, remote))
}

/// As Linux makes it of both ports.
fn flow_label(local: u16, remote: u16) -> u32 {
    (u32::from(local) * 31 + u32::from(remote)) & 0xf_ffff
}

/// # Safety
/// `id` is one whose address is resolved.
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout: c_int,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        id.remote().ok_or(Errno(libc::EINVAL))?;
        id.set_path(mtu_of(id)?);
        post(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0)?;
        complete(id)
    }))
}

/// # Safety
/// `id` is one, `param` null or parameters.
pub(crate) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let param = Param::of(unsafe { param.as_ref() });
        let to = target(id)?;
        let place = id.place()?;
        if id.is_datagram() {
            place.done(|id| CmRequest::LookUp { id, to, private: param.private })?;
            return complete(id);
        }
        let mtu_code = match id.inner().path.mtu {
            0 => mtu_of(id)?,
            resolved => resolved,
        };
        let responder_resources = param.responder_resources(MAX_DEPTH)?;
        let initiator_depth = param.initiator_depth(MAX_DEPTH)?;
        let offer = param.offer(id, (responder_resources, initiator_depth))?;
        let service = match id.public.qp_type {
            IBV_QPT_UC => CmService::Unreliable,
            IBV_QPT_XRC_SEND => CmService::Extended,
            // A target waits for its initiator.
            IBV_QPT_XRC_RECV => return Err(Errno(libc::EINVAL)),
            _ => CmService::Reliable,
        };
        let retry_count = param.retry_count & 7;
        {
            // The peer's answer may be read by another thread before this one has ours.
            let mut inner = id.inner();
            let ack_timeout = inner.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
            let psn = place.device.handle(CmRequest::Connect {
                id: place.handle,
                to,
                service,
                offer,
                retry_count,
                mtu_code,
                ack_timeout,
                private: param.private,
            })?;
            let terms = &mut inner.terms;
            terms.psn = psn;
            terms.mtu_code = mtu_code;
            terms.ack_timeout = ack_timeout;
            terms.retry_count = retry_count;
            terms.rnr_retry_count = offer.rnr_retry_count;
            terms.responder_resources = responder_resources;
            terms.initiator_depth = initiator_depth;
        }
        complete(id)
    }))
}

fn target(id: &Id) -> Result<CmTarget> {
    let (local, remote) = (id.local(), id.remote());
    let (local, remote) = local.zip(remote).ok_or(Errno(libc::EINVAL))?;
    let inner = id.inner();
    Ok(CmTarget {
        local: raw(local.ip()),
        remote: raw(remote.ip()),
        port: remote.port(),
        traffic_class: inner.options.tos,
        flow_label: inner.flow_label,
    })
}

/// # Safety
/// `id` came with a CONNECT_REQUEST, `param` is null or parameters.
pub(crate) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let param = Param::of(unsafe { param.as_ref() });
        let place = id.place()?;
        if id.is_datagram() {
            // SAFETY: a queue pair of the program, or null.
            let own = unsafe { id.public.qp.as_ref() }.map_or(param.qp_num, |qp| qp.qp_num);
            let private = param.private;
            let qkey = RDMA_UDP_QKEY;
            return place.done(|id| CmRequest::Answer { id, qpn: own, qkey, private });
        }
        let terms = id.inner().terms;
        let depths = (
            param.responder_resources(terms.responder_resources)?,
            param.initiator_depth(terms.initiator_depth)?,
        );
        let offer = param.offer(id, depths)?;
        {
            let mut inner = id.inner();
            (inner.terms.responder_resources, inner.terms.initiator_depth) = depths;
        }
        if !id.public.qp.is_null() {
            qp::start(id)?;
        }
        let accepted = place.done(|id| CmRequest::Accept { id, offer, private: param.private });
        accepted.inspect_err(|_| qp::stop(id))?;
        complete(id)
    }))
}

/// What a program says of a connection.
struct Param {
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
    private: Vec<u8>,
}

impl Param {
    fn of(param: Option<&rdma_conn_param>) -> Self {
        let Some(param) = param else {
            return Self {
                responder_resources: RDMA_MAX_RESP_RES,
                initiator_depth: RDMA_MAX_INIT_DEPTH,
                flow_control: true,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: false,
                qp_num: 0,
                private: Vec::new(),
            };
        };
        Self {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: param.qp_num,
            // SAFETY: the program's, of that length.
            private: unsafe { private_data(param.private_data, param.private_data_len) },
        }
    }

    /// As many as the program says, or as `most` where it leaves that open.
    fn responder_resources(&self, most: u8) -> Result<u8> {
        match self.responder_resources {
            RDMA_MAX_RESP_RES => Ok(most),
            wanted if wanted <= MAX_DEPTH => Ok(wanted),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn initiator_depth(&self, most: u8) -> Result<u8> {
        match self.initiator_depth {
            RDMA_MAX_INIT_DEPTH => Ok(most),
            wanted if wanted <= MAX_DEPTH => Ok(wanted),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn offer(&self, id: &Id, (responder, initiator): (u8, u8)) -> Result<CmOffer> {
        // SAFETY: a queue pair of the program, or null.
        let own = unsafe { id.public.qp.as_ref() };
        Ok(CmOffer {
            qpn: own.map_or(self.qp_num, |qp| qp.qp_num),
            srq: own.map_or(self.srq, |qp| !qp.srq.is_null()),
            responder_resources: responder,
            initiator_depth: initiator,
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count & 7,
        })
    }
}

/// A copy of private data.
///
/// # Safety
/// `data` has so many bytes, or is null.
pub(crate) unsafe fn private_data(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// # Safety
/// `id` came with a CONNECT_REQUEST, `data` has so many bytes.
pub(crate) unsafe extern "C-unwind" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let private = unsafe { private_data(data, len) };
        id.place()?.done(|id| CmRequest::Reject { id, private })
    }))
}

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let place = id.place()?;
        place.device.check_process()?;
        qp::stop(id);
        place.done(|id| CmRequest::Disconnect { id })?;
        complete(id)
    }))
}

/// Ports that are tried where devices have to have the same one.
const PORTS: u32 = 16;
/// Exponent: about half a second.
const ACK_TIMEOUT: u8 = 17;
