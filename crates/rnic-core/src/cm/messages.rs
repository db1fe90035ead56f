//! Messages, with the values that Linux writes into each field.

use super::id::{Link, Port};
use super::types::{Connect, Offer, PrivateData, Route};
use super::{MAX_RETRIES, MRA_TIMEOUT, RESPONSE_TIMEOUT};
use roce_wire::cm::{
    AboutMessage, CmMessage, CmPath, CmaHeader, Dreq, Mra, Rej, RejectReason, Rep, Req, Rtu,
    SidrRep, SidrReq, SidrStatus, TransportType, service_id,
};
use roce_wire::{Flow, Gid, PKey, Psn, QKey, Qpn};

/// RoCE has no LIDs.
const NO_LID: u16 = 0xffff;
/// Exponent of how long the own queue pair may take to acknowledge: what rxe says.
const ACK_DELAY: u8 = 15;

/// `None` when the private data is too long.
pub(super) fn req(guid: u64, port: Port, connect: &Connect, comm: u32, psn: Psn) -> Option<Req> {
    let Connect { route, offer, .. } = connect;
    let mut private_data = connect.private.area(CmaHeader::LEN)?;
    put_header(&mut private_data, port, route);
    let is_xrc = connect.transport == TransportType::Extended;
    // An XRC initiator answers nothing, so that what is said of answers says nothing.
    // Rule: XrcReq
    let offer = if is_xrc { initiator(offer) } else { *offer };
    Some(Req {
        local_comm_id: comm,
        vendor_id: 0,
        service_id: service_id(port.space, connect.port),
        local_ca_guid: guid,
        local_qkey: QKey(0),
        local_qpn: offer.qpn,
        responder_resources: offer.responder_resources,
        local_eecn: 0,
        initiator_depth: offer.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        transport: connect.transport,
        flow_control: offer.flow_control,
        starting_psn: psn,
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        retry_count: if is_xrc { 0 } else { connect.retry_count },
        pkey: PKey::DEFAULT,
        path_mtu_code: connect.mtu_code,
        rdc_exists: false,
        rnr_retry_count: offer.rnr_retry_count,
        max_cm_retries: MAX_RETRIES,
        srq: offer.srq,
        extended_transport: if is_xrc { XRC } else { 0 },
        primary: CmPath {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: Gid::from_ip(route.local),
            remote_gid: Gid::from_ip(route.remote),
            flow_label: route.flow_label,
            packet_rate: 0,
            traffic_class: route.traffic_class,
            hop_limit: Flow::DEFAULT_HOP_LIMIT,
            sl: 0,
            subnet_local: false,
            local_ack_timeout: connect.ack_timeout,
        },
        alternate: CmPath::default(),
        private_data,
    })
}

/// What an XRC initiator says of itself.
fn initiator(offer: &Offer) -> Offer {
    Offer { responder_resources: 0, rnr_retry_count: 0, srq: false, ..*offer }
}

/// The header in front of private data.
fn put_header(private: &mut [u8], port: Port, route: &Route) {
    let header = CmaHeader { src_port: port.number, src: route.local, dst: route.remote };
    if let Some(front) = private.first_chunk_mut() {
        *front = header.to_bytes();
    }
}

pub(super) fn rep(guid: u64, link: &Link, offer: &Offer, private: &PrivateData) -> Option<Rep> {
    // The number of an XRC target is in another field, and it has nothing outstanding.
    // Rule: XrcRep
    let (local_qpn, local_eecn) = match link.is_xrc {
        true => (Qpn::SMI, offer.qpn.value()),
        false => (offer.qpn, 0),
    };
    Some(Rep {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        local_qkey: QKey(0),
        local_qpn,
        vendor_id: 0,
        local_eecn,
        starting_psn: link.psn,
        responder_resources: offer.responder_resources,
        initiator_depth: if link.is_xrc { 0 } else { offer.initiator_depth },
        target_ack_delay: ACK_DELAY,
        failover_accepted: 0,
        flow_control: !link.is_xrc && offer.flow_control,
        rnr_retry_count: offer.rnr_retry_count,
        srq: link.is_xrc || offer.srq,
        local_ca_guid: guid,
        private_data: private.area(0)?,
    })
}

pub(super) fn rtu(link: &Link) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        private_data: [0; Rtu::PRIVATE_DATA_LEN],
    })
}

pub(super) fn mra(link: &Link, about: AboutMessage) -> CmMessage {
    CmMessage::Mra(Mra {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        about,
        service_timeout: MRA_TIMEOUT,
        private_data: [0; Mra::PRIVATE_DATA_LEN],
    })
}

pub(super) fn dreq(link: &Link) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        remote_qpn: link.remote_qpn,
        private_data: [0; Dreq::PRIVATE_DATA_LEN],
    })
}

pub(super) fn rej(
    (local, remote): (u32, u32),
    about: AboutMessage,
    reason: RejectReason,
    private: &PrivateData,
) -> Option<Rej> {
    Some(Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        about,
        info_len: 0,
        reason,
        info: [0; roce_wire::cm::ADDITIONAL_INFO_LEN],
        private_data: private.area(0)?,
    })
}

pub(super) fn sidr_req(
    port: Port,
    route: &Route,
    remote_port: u16,
    request: u32,
    private: &PrivateData,
) -> Option<SidrReq> {
    let mut private_data = private.area(CmaHeader::LEN)?;
    put_header(&mut private_data, port, route);
    let service_id = service_id(port.space, remote_port);
    Some(SidrReq { request_id: request, pkey: PKey::DEFAULT, service_id, private_data })
}

pub(super) fn sidr_rep(
    request: u32,
    status: SidrStatus,
    (qpn, qkey): (Qpn, QKey),
    private: &PrivateData,
) -> Option<SidrRep> {
    Some(SidrRep {
        request_id: request,
        status,
        info_len: 0,
        vendor_id: 0,
        qpn,
        service_id: 0,
        qkey,
        info: [0; roce_wire::cm::ADDITIONAL_INFO_LEN],
        private_data: private.area(0)?,
    })
}

/// What a REQ says of its sender's queue pair.
pub(super) fn offer_of_req(req: &Req) -> Offer {
    Offer {
        qpn: req.local_qpn,
        srq: req.srq,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        rnr_retry_count: req.rnr_retry_count,
    }
}

/// The queue pair of a REP's sender.
pub(super) fn qpn_of_rep(link: &Link, rep: &Rep) -> Qpn {
    if link.is_xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn }
}

/// What a REP says of its sender's queue pair.
pub(super) fn offer_of_rep(rep: &Rep, qpn: Qpn) -> Offer {
    Offer {
        qpn,
        srq: rep.srq,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
    }
}

/// Whether the transport of a REQ is understood.
pub(super) fn is_known(req: &Req) -> bool {
    match req.transport {
        TransportType::Rc | TransportType::Uc => true,
        TransportType::Extended => req.extended_transport == XRC,
        TransportType::Rd => false,
    }
}

/// Of the extended transports.
const XRC: u8 = 1;
