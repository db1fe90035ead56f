//! Events: from the connection manager's notice to what a program gets.

use std::{ffi::c_int, net::SocketAddr, ptr};

use rnic_abi::control::{
    CmHappening, CmNotice, CmOffer, CmRequest, CmService, CmSource, MAX_CM_EVENT, decode,
};
use verbs_abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, RDMA_CM_EVENT_ADDR_ERROR,
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE, RDMA_UDP_QKEY, Zeroed, ibv_gid,
    ibv_qp_type, rdma_cm_event, rdma_cm_event_param, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_ud_param,
};

use crate::{
    address::{scope_of, set_scope},
    channel::{Channel, Waiting},
    error::{Errno, Result, code},
    id::{self, Id, OfId, Place, Terms},
    multicast, qp,
    session::{Device, MAX_DEPTH, Own, address_of},
};

/// An event; programs have a pointer to its first member.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    private: Vec<u8>,
    /// Until it is acknowledged.
    _of: OfId,
}

/// # Safety
/// `channel` is one, `result` writable.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    result: *mut *mut rdma_cm_event,
) -> c_int {
    code(next(channel.cast()).map(|event| {
        // SAFETY: by contract.
        unsafe { *result = event };
    }))
}

/// # Safety
/// `event` is null or came from [`rdma_get_cm_event`], and is not used any more.
pub(crate) unsafe extern "C-unwind" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: by contract; made by `next`.
    drop(unsafe { Box::from_raw(event.cast::<Event>()) });
    0
}

/// The next event of a channel: waits for it, unless its descriptor does not block.
pub(crate) fn next(channel: *mut Channel) -> Result<*mut rdma_cm_event> {
    // SAFETY: callers have a channel or null.
    let channel = unsafe { Waiting::on(channel) }?;
    loop {
        let mut buffer = [0_u8; MAX_CM_EVENT];
        let (device, len) = channel.receive(&mut buffer)?;
        let Ok(notice) = decode::<CmNotice>(&buffer[..len]) else {
            return Err(Errno(libc::EPROTO));
        };
        if let Some(event) = of_notice(&channel, device, notice) {
            return Ok(Box::into_raw(event).cast());
        }
    }
}

/// `None` for what is about an identifier that is gone or has another channel by now, or what no
/// program is told.
fn of_notice(channel: &Channel, device: &'static Device, notice: CmNotice) -> Option<Box<Event>> {
    let place = Place { device, handle: notice.id };
    let Some(of) = addressee(&place, &notice.what) else {
        to_the_unknown(&place, notice);
        return None;
    };
    let known = of.id();
    // SAFETY: it has this event, so that it is not destroyed.
    let current: *const Channel = unsafe { (*known).public.channel }.cast();
    if !ptr::eq(current, channel) {
        if is_new(&notice.what) {
            // SAFETY: a channel is not destroyed as long as it has an identifier.
            follow_listener(&place, unsafe { &*current }, notice);
            return None;
        }
        // It was on its way when its identifier got that one. What does not go there, e.g. since
        // that one is full, the program gets here: it would be lost otherwise.
        if place.done(|_| CmRequest::Post(notice.clone())).is_ok() {
            return None;
        }
    }
    let CmNotice { what, private, .. } = notice;
    let mut event = Box::new(Event { public: rdma_cm_event::zeroed(), private, _of: of });
    match what {
        CmHappening::Request { from, service, offer, starting_psn, psn, .. } => {
            let terms = Terms { psn, peer_psn: starting_psn, ..terms_of(&what, &offer) };
            let id = new_id((&place, known), &from, terms, qp_type_of(service))?;
            event.is(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            event.public.listen_id = known.cast();
            event.has_offer(&offer, (terms.initiator_depth, terms.responder_resources));
        }
        CmHappening::Lookup { from } => {
            let id = new_id((&place, known), &from, Terms::default(), IBV_QPT_UD)?;
            event.is(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            event.public.listen_id = known.cast();
            event.has_target((0, 0), None);
        }
        CmHappening::Posted(RDMA_CM_EVENT_MULTICAST_JOIN, _) => event.of_group(known)?,
        what => event.of_known(known, what),
    }
    Some(event)
}

fn is_new(what: &CmHappening) -> bool {
    matches!(what, CmHappening::Request { .. } | CmHappening::Lookup { .. })
}

/// The identifier that an event is told by: for what a peer asks for, the listener.
fn addressee(place: &Place, what: &CmHappening) -> Option<OfId> {
    match *what {
        CmHappening::Request { from, .. } | CmHappening::Lookup { from } => {
            OfId::find(&Place { handle: from.listener, ..*place })
        }
        _ => OfId::find(place),
    }
}

/// An event of which no identifier is known: its listener is gone, or it is itself.
fn to_the_unknown(place: &Place, notice: CmNotice) {
    if is_new(&notice.what) {
        release(place);
    } else if id::is_following(place) {
        // The request that makes it is not read yet: this has to come behind it. It is lost only
        // with the daemon.
        let _ = place.done(|_| CmRequest::Post(notice));
    }
}

/// Sends what a peer asks for to the channel that the listener has by now, as the kernel does. The
/// daemon has to know it there, too: what follows would come to the old one for ever.
fn follow_listener(place: &Place, channel: &Channel, notice: CmNotice) {
    id::follows(place);
    let moved = channel.placing().and_then(|placing| placing.handle_at(place.device));
    let moved = moved.and_then(|channel| place.done(|id| CmRequest::Move { id, channel }));
    if moved.and_then(|()| place.done(|_| CmRequest::Post(notice))).is_err() {
        // No program hears of it: its peer would wait for an answer.
        release(place);
    }
}

/// The own end of what a peer asks for.
fn qp_type_of(service: CmService) -> ibv_qp_type {
    match service {
        CmService::Reliable => IBV_QPT_RC,
        CmService::Unreliable => IBV_QPT_UC,
        CmService::Extended => IBV_QPT_XRC_RECV,
    }
}

/// Whether a listener's program can expect a queue pair of this type. The space for all kinds tells
/// them apart by nothing else.
fn takes(listener: ibv_qp_type, asked: ibv_qp_type) -> bool {
    let connected = [IBV_QPT_RC, IBV_QPT_UC];
    listener == asked || connected.contains(&listener) && connected.contains(&asked)
}

/// What a REQ says of the connection.
fn terms_of(what: &CmHappening, offer: &CmOffer) -> Terms {
    let CmHappening::Request { retry_count, mtu_code, ack_timeout, .. } = *what else {
        return Terms::default();
    };
    Terms {
        peer: *offer,
        mtu_code,
        ack_timeout,
        retry_count,
        rnr_retry_count: offer.rnr_retry_count,
        // What one end takes, the other one has outstanding.
        responder_resources: offer.initiator_depth.min(MAX_DEPTH),
        initiator_depth: offer.responder_resources.min(MAX_DEPTH),
        ..Terms::default()
    }
}

/// An identifier that a peer's request has made. One that cannot be told to the program is let go.
fn new_id(
    made_for: (&Place, *mut Id),
    from: &CmSource,
    terms: Terms,
    qp_type: ibv_qp_type,
) -> Option<*mut Id> {
    let made = make_id(made_for, from, terms, qp_type);
    if made.is_none() {
        release(made_for.0);
    }
    made
}

fn release(place: &Place) {
    id::follows_no_more(place);
    // Fails only where the daemon is gone.
    let _ = place.release();
}

fn make_id(
    (place, listener): (&Place, *mut Id),
    from: &CmSource,
    terms: Terms,
    qp_type: ibv_qp_type,
) -> Option<*mut Id> {
    // SAFETY: it has an event, so that it is not destroyed.
    let listener = unsafe { &*listener };
    let public = &listener.public;
    if !takes(public.qp_type, qp_type) {
        return None;
    }
    let new = Id::new(public.channel.cast(), public.context, public.ps);
    // SAFETY: just made.
    let id = unsafe { &mut *new };
    let scope = scope_of(listener.local());
    let address = |raw, port| {
        let mut address = SocketAddr::new(address_of(ibv_gid { raw }), port);
        set_scope(&mut address, scope);
        address
    };
    let local = address(from.local, from.local_port);
    id.set_addresses(local, Some(address(from.remote, from.remote_port)));
    let of_device = |all: Vec<Own>| all.into_iter().find(|own| own.ip == local.ip());
    let own = of_device(place.device.known_addresses());
    let own = own.or_else(|| of_device(place.device.addresses()));
    if own.is_none_or(|own| id.attach(&own).is_err()) {
        // SAFETY: just made, and no one else has it.
        drop(unsafe { Box::from_raw(new) });
        return None;
    }
    id.public.qp_type = qp_type;
    {
        let mut inner = id.inner();
        inner.places.push(*place);
        inner.options.tos = from.traffic_class;
        inner.flow_label = from.flow_label;
        inner.terms = terms;
    }
    id.set_path(terms.mtu_code);
    id::remember(place, new, id.public.channel.cast());
    Some(new)
}

impl Event {
    fn is(&mut self, id: *mut Id, event: rdma_cm_event_type, status: c_int) {
        self.public.id = id.cast();
        self.public.event = event;
        self.public.status = status;
    }

    fn private(&self) -> (*const std::ffi::c_void, u8) {
        let len = u8::try_from(self.private.len()).unwrap_or(0);
        let data = if len == 0 { ptr::null() } else { self.private.as_ptr() };
        (data.cast(), len)
    }

    fn has_offer(&mut self, offer: &CmOffer, (initiator, responder): (u8, u8)) {
        let (private_data, private_data_len) = self.private();
        let conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: responder,
            initiator_depth: initiator,
            flow_control: u8::from(offer.flow_control),
            retry_count: 0,
            rnr_retry_count: offer.rnr_retry_count,
            srq: u8::from(offer.srq),
            qp_num: offer.qpn,
        };
        self.public.param = rdma_cm_event_param { conn };
    }

    /// The identifier has joined a group, or could not. `None` when it has left it meanwhile.
    fn of_group(&mut self, known: *mut Id) -> Option<()> {
        // SAFETY: it has this event, so that it is not destroyed.
        let id = unsafe { &*known };
        let (membership, joined) = multicast::joined(id)?;
        match joined {
            Ok(()) => self.is(known, RDMA_CM_EVENT_MULTICAST_JOIN, 0),
            Err(Errno(errno)) => self.is(known, RDMA_CM_EVENT_MULTICAST_ERROR, -errno),
        }
        let ud = rdma_ud_param {
            private_data: ptr::without_provenance(membership.context),
            private_data_len: 0,
            ah_attr: multicast::address_vector(id, &membership),
            qp_num: multicast::GROUP_QPN,
            qkey: RDMA_UDP_QKEY,
        };
        self.public.param = rdma_cm_event_param { ud };
        Some(())
    }

    fn has_target(&mut self, (qp_num, qkey): (u32, u32), id: Option<&Id>) {
        let (private_data, private_data_len) = self.private();
        let ah_attr = id.map_or_else(Zeroed::zeroed, Id::address_vector);
        let ud = rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey };
        self.public.param = rdma_cm_event_param { ud };
    }

    /// About an identifier that the program has.
    fn of_known(&mut self, known: *mut Id, what: CmHappening) {
        // SAFETY: it has this event, so that it is not destroyed.
        let id = unsafe { &mut *known };
        match what {
            CmHappening::Posted(event, status) => self.is(known, event, status),
            CmHappening::Resolved(0) => self.is(known, RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            CmHappening::Resolved(errno) => self.is(known, RDMA_CM_EVENT_ADDR_ERROR, -errno),
            CmHappening::Response { offer, starting_psn } => {
                self.of_response(known, &offer, starting_psn);
            }
            CmHappening::Established => self.is(known, RDMA_CM_EVENT_ESTABLISHED, 0),
            CmHappening::Found { qpn, qkey } => {
                self.is(known, RDMA_CM_EVENT_ESTABLISHED, 0);
                self.has_target((qpn, qkey), Some(id));
            }
            CmHappening::Rejected(reason) => {
                qp::stop(id);
                self.is(known, RDMA_CM_EVENT_REJECTED, reason.into());
                if id.is_datagram() {
                    self.has_target((0, 0), None);
                } else {
                    self.has_offer(&CmOffer::default(), (0, 0));
                }
            }
            CmHappening::Unreachable => {
                qp::stop(id);
                self.is(known, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            }
            CmHappening::Disconnected => self.is(known, RDMA_CM_EVENT_DISCONNECTED, 0),
            CmHappening::TimewaitExit => self.is(known, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
            CmHappening::Request { .. } | CmHappening::Lookup { .. } => {}
        }
    }

    /// The peer accepts. A queue pair of the identifier is made ready here.
    fn of_response(&mut self, known: *mut Id, offer: &CmOffer, starting_psn: u32) {
        // SAFETY: it has this event, so that it is not destroyed.
        let id = unsafe { &mut *known };
        {
            let mut inner = id.inner();
            let terms = &mut inner.terms;
            terms.peer = *offer;
            terms.peer_psn = starting_psn;
            // How often the peer wants a receive that it does not have yet to be asked for again.
            terms.rnr_retry_count = offer.rnr_retry_count;
            terms.responder_resources = offer.initiator_depth.min(terms.responder_resources);
            terms.initiator_depth = offer.responder_resources.min(terms.initiator_depth);
        }
        let depths = {
            let terms = id.inner().terms;
            (terms.initiator_depth, terms.responder_resources)
        };
        if id.public.qp.is_null() {
            self.is(known, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        } else {
            match qp::start(id).and_then(|()| establish(id)) {
                Ok(()) => self.is(known, RDMA_CM_EVENT_ESTABLISHED, 0),
                Err(Errno(errno)) => {
                    if let Ok(place) = id.place() {
                        let _ = place.done(|id| CmRequest::Reject { id, private: Vec::new() });
                    }
                    self.is(known, RDMA_CM_EVENT_CONNECT_ERROR, -errno);
                }
            }
        }
        self.has_offer(offer, depths);
    }
}

/// The own queue pair is ready.
pub(crate) fn establish(id: &Id) -> Result<()> {
    id.place()?.done(|id| CmRequest::Establish { id })
}

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C-unwind" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| match id.public.qp.is_null() {
        true => establish(id),
        // It was established with the event.
        false => Err(Errno(libc::EINVAL)),
    }))
}

/// # Safety
/// `id` is one.
pub(crate) unsafe extern "C-unwind" fn rdma_notify(
    id: *mut rdma_cm_id,
    event: verbs_abi::ibv_event_type,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| match event {
        verbs_abi::IBV_EVENT_COMM_EST => establish(id),
        _ => Err(Errno(libc::EINVAL)),
    }))
}
