//! Addresses, routes and connections.

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use libc::sockaddr;
use rnic_abi::control::{CmOffer, CmRequest, CmTarget, Reply};
use verbs_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_UDP_QKEY, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param,
};

use crate::{
    channel::{Channel, complete},
    error::{Errno, Result, code},
    id::{self, Id, is_wildcard, raw, read_address, scope_of},
    qp,
    session::{Device, MAX_DEPTH},
};

/// Gives an identifier a port, at one address of the device or at all.
fn bind(id: &mut Id, device: &Device, local: SocketAddr) -> Result<()> {
    if id.inner().handle.is_some() {
        return Err(Errno(libc::EINVAL));
    }
    let local = on_device(device, local)?;
    if !is_wildcard(&local) {
        id.attach(device, local.ip())?;
    }
    // Like a TCP listener, one at `::` takes what is for IPv4 addresses unless its program objects.
    let takes_all = local.is_ipv6() && is_wildcard(&local) && !id.inner().options.one_family;
    let address = (!takes_all).then(|| local.ip());
    // SAFETY: every identifier has a channel.
    let channel = unsafe { (*id.public.channel.cast::<Channel>()).handle };
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
    id.inner().handle = Some(handle);
    id::remember(handle, id);
    Ok(())
}

/// # Safety
/// `id` is one, `address` a socket address.
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let address = read_address(address).ok_or(Errno(libc::EAFNOSUPPORT))?;
        bind(id, id::device()?, address)
    }))
}

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let device = id::device()?;
        if id.inner().handle.is_none() {
            bind(id, device, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let backlog = u32::try_from(backlog).ok().filter(|backlog| *backlog > 0);
        let backlog = backlog.unwrap_or(DEFAULT_BACKLOG);
        device.done(CmRequest::Listen { id: id.handle()?, backlog })
    }))
}

/// # Safety
/// `id` is one, both addresses socket addresses or null.
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let device = id::device()?;
        let remote = read_address(destination).ok_or(Errno(libc::EAFNOSUPPORT))?;
        let wanted = read_address(source).or_else(|| id.local());
        let (local, remote) = both_ends(device, wanted, remote)?;
        if id.inner().handle.is_none() {
            bind(id, device, local)?;
        }
        let mut local = local;
        local.set_port(id.local().map_or(0, |local| local.port()));
        id.attach(device, local.ip())?;
        id.set_addresses(local, Some(remote));
        id.inner().flow_label = flow_label(local.port(), remote.port());
        let (handle, attr) = (id.handle()?, id.address_vector());
        let look = move || {
            let (what, status) = match device.reach(&attr) {
                Ok(()) => (RDMA_CM_EVENT_ADDR_RESOLVED, 0),
                Err(Errno(errno)) => (RDMA_CM_EVENT_ADDR_ERROR, -errno),
            };
            device.done(CmRequest::Post { id: handle, what, status })
        };
        if id.inner().is_sync {
            look()?;
        } else {
            aside(look)?;
        }
        complete(id)
    }))
}

/// Does what may take seconds in a thread of its own, unless there are many already.
fn aside(look: impl Fn() -> Result<()> + Send + Clone + 'static) -> Result<()> {
    static BUSY: AtomicUsize = AtomicUsize::new(0);
    let started = match BUSY.fetch_add(1, Ordering::Relaxed) < MAX_ASIDE {
        true => {
            let look = look.clone();
            let work = move || {
                // Fails only when the identifier, or the daemon, is gone.
                let _ = look();
                BUSY.fetch_sub(1, Ordering::Relaxed);
            };
            thread::Builder::new().name("rdma_resolve".into()).spawn(work).is_ok()
        }
        false => false,
    };
    if started {
        return Ok(());
    }
    BUSY.fetch_sub(1, Ordering::Relaxed);
    look()
}

/// The event follows on the channel, as of a request that takes its time.
fn post(id: &Id, device: &Device, event: rdma_cm_event_type, status: c_int) -> Result<()> {
    device.done(CmRequest::Post { id: id.handle()?, what: event, status })
}

/// A loopback address that the device does not have stands for its first address: programs bind to
/// one to learn what device there is.
fn on_device(device: &Device, address: SocketAddr) -> Result<SocketAddr> {
    let own = || device.addresses().into_iter().map(|(_, address)| address);
    if !address.ip().is_loopback() || own().any(|ip| ip == address.ip()) {
        return Ok(address);
    }
    let first = own().find(|ip| ip.is_ipv4() == address.is_ipv4());
    Ok(SocketAddr::new(first.ok_or(Errno(libc::EADDRNOTAVAIL))?, address.port()))
}

/// Addresses of both ends.
fn both_ends(
    device: &Device,
    wanted: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<(SocketAddr, SocketAddr)> {
    let own: Vec<IpAddr> = device.addresses().into_iter().map(|(_, address)| address).collect();
    let remote = on_device(device, remote)?;
    let wanted = wanted.map(|wanted| on_device(device, wanted)).transpose()?;
    let port = wanted.map_or(0, |wanted| wanted.port());
    let local = match wanted.filter(|wanted| !is_wildcard(wanted)) {
        Some(wanted) => wanted.ip(),
        None if own.contains(&remote.ip()) => remote.ip(),
        None => source_for(remote)?,
    };
    let mut local = SocketAddr::new(local, port);
    id::set_scope(&mut local, scope_of(Some(remote)).max(scope_of(wanted)));
    Ok((local, remote))
}

/// The address that the kernel's routes lead there from.
fn source_for(remote: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0_u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Sends nothing.
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// As Linux makes it of both ports.
fn flow_label(local: u16, remote: u16) -> u32 {
    (u32::from(local) * 31 + u32::from(remote)) & 0xf_ffff
}

/// # Safety
/// `id` is one whose address is resolved.
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let device = id::device()?;
        id.remote().ok_or(Errno(libc::EINVAL))?;
        id.set_path(u8::try_from(device.port().active_mtu).unwrap_or(1));
        post(id, device, RDMA_CM_EVENT_ROUTE_RESOLVED, 0)?;
        complete(id)
    }))
}

/// # Safety
/// `id` is one, `param` null or parameters.
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let device = id::device()?;
        // SAFETY: by contract.
        let param = Param::of(unsafe { param.as_ref() });
        let to = target(id)?;
        let handle = id.handle()?;
        if id.is_datagram() {
            device.done(CmRequest::LookUp { id: handle, to, private: param.private })?;
            return complete(id);
        }
        let port = device.port();
        let mtu_code = u8::try_from(port.active_mtu).unwrap_or(1);
        let responder_resources = param.responder_resources(MAX_DEPTH)?;
        let initiator_depth = param.initiator_depth(MAX_DEPTH)?;
        let offer = param.offer(id, (responder_resources, initiator_depth))?;
        let unreliable = id.public.qp_type == verbs_abi::IBV_QPT_UC;
        let retry_count = param.retry_count & 7;
        {
            // The peer's answer may be read by another thread before this one has ours.
            let mut inner = id.inner();
            let ack_timeout = inner.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
            let psn = device.handle(CmRequest::Connect {
                id: handle,
                to,
                unreliable,
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
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        let device = id::device()?;
        // SAFETY: by contract.
        let param = Param::of(unsafe { param.as_ref() });
        let handle = id.handle()?;
        if id.is_datagram() {
            // SAFETY: a queue pair of the program, or null.
            let own = unsafe { id.public.qp.as_ref() }.map_or(param.qp_num, |qp| qp.qp_num);
            let private = param.private;
            let qkey = RDMA_UDP_QKEY;
            return device.done(CmRequest::Answer { id: handle, qpn: own, qkey, private });
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
        let accepted = device.done(CmRequest::Accept { id: handle, offer, private: param.private });
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
            private: unsafe { copy(param.private_data, param.private_data_len) },
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

/// # Safety
/// `data` has so many bytes, or is null.
unsafe fn copy(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// # Safety
/// `id` came with a CONNECT_REQUEST, `data` has so many bytes.
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        // SAFETY: by contract.
        let private = unsafe { copy(data, len) };
        id::device()?.done(CmRequest::Reject { id: id.handle()?, private })
    }))
}

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        qp::stop(id);
        id::device()?.done(CmRequest::Disconnect { id: id.handle()? })?;
        complete(id)
    }))
}

/// Threads that look for a peer.
const MAX_ASIDE: usize = 32;
/// Requests that may wait where a program leaves that open, as Linux has it.
const DEFAULT_BACKLOG: u32 = 1024;
/// Exponent: about half a second.
const ACK_TIMEOUT: u8 = 17;
