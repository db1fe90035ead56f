//! REQ and REP, the two long messages that carry everything a connection needs.

use super::fields::{Fields, FieldsMut};
use crate::types::{Gid, PKey, PathMtu, Psn, QKey, Qpn};

/// Transport service a REQ asks for (2 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TransportType {
    Rc = 0,
    Uc = 1,
    Rd = 2,
    /// See [`Req::extended_transport`]; 1 there means XRC.
    Extended = 3,
}

impl TransportType {
    const fn from_bits(bits: u8) -> TransportType {
        match bits & 3 {
            0 => TransportType::Rc,
            1 => TransportType::Uc,
            2 => TransportType::Rd,
            _ => TransportType::Extended,
        }
    }
}

/// A path as a REQ describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmPath {
    /// 0xFFFF on RoCE.
    pub local_lid: u16,
    pub remote_lid: u16,
    pub local_gid: Gid,
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// 6 bits.
    pub packet_rate: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    pub subnet_local: bool,
    /// 5 bits: 4.096 us times two to this power.
    pub local_ack_timeout: u8,
}

impl CmPath {
    fn read(f: &Fields<'_>, at: usize) -> CmPath {
        let label_and_rate = f.u32(at + 36);
        CmPath {
            local_lid: f.u16(at),
            remote_lid: f.u16(at + 2),
            local_gid: f.gid(at + 4),
            remote_gid: f.gid(at + 20),
            flow_label: label_and_rate >> 12,
            packet_rate: (label_and_rate & 0x3f) as u8,
            traffic_class: f.u8(at + 40),
            hop_limit: f.u8(at + 41),
            sl: f.bits(at + 42, 4, 4),
            subnet_local: f.bit(at + 42, 3),
            local_ack_timeout: f.bits(at + 43, 3, 5),
        }
    }

    fn write(&self, f: &mut FieldsMut<'_>, at: usize) {
        f.u16(at, self.local_lid);
        f.u16(at + 2, self.remote_lid);
        f.gid(at + 4, self.local_gid);
        f.gid(at + 20, self.remote_gid);
        f.u32(at + 36, self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        f.u8(at + 40, self.traffic_class);
        f.u8(at + 41, self.hop_limit);
        f.bits(at + 42, 4, 4, self.sl);
        f.bit(at + 42, 3, self.subnet_local);
        f.bits(at + 43, 3, 5, self.local_ack_timeout);
    }
}

/// Request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req {
    pub local_comm_id: u32,
    /// 24 bits; non-zero when the sender uses vendor connection extensions.
    pub vendor_id: u32,
    pub service_id: u64,
    pub local_ca_guid: u64,
    pub local_qkey: QKey,
    pub local_qpn: Qpn,
    /// READs and atomics the sender accepts at a time.
    pub responder_resources: u8,
    /// 24 bits.
    pub local_eecn: u32,
    /// READs and atomics the sender will have outstanding.
    pub initiator_depth: u8,
    /// 24 bits.
    pub remote_eecn: u32,
    /// 5 bits: 4.096 us times two to this power.
    pub remote_cm_response_timeout: u8,
    pub transport: TransportType,
    pub flow_control: bool,
    /// PSN at which the receiver of this message starts to send.
    pub starting_psn: Psn,
    /// 5 bits.
    pub local_cm_response_timeout: u8,
    /// 3 bits.
    pub retry_count: u8,
    pub pkey: PKey,
    /// 4 bits: a [`PathMtu`] code, unless the sender is broken.
    pub path_mtu_code: u8,
    pub rdc_exists: bool,
    /// 3 bits; 7 is infinite.
    pub rnr_retry_count: u8,
    /// 4 bits.
    pub max_cm_retries: u8,
    pub srq: bool,
    /// 3 bits, with [`TransportType::Extended`].
    pub extended_transport: u8,
    pub primary: CmPath,
    /// Zero on RoCE.
    pub alternate: CmPath,
    pub private_data: [u8; Req::PRIVATE_DATA_LEN],
}

impl Req {
    pub const PRIVATE_DATA_LEN: usize = 92;

    pub const fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.path_mtu_code)
    }

    pub(super) fn read(f: &Fields<'_>) -> Req {
        Req {
            local_comm_id: f.u32(0),
            vendor_id: f.u24(5),
            service_id: f.u64(8),
            local_ca_guid: f.u64(16),
            local_qkey: QKey(f.u32(28)),
            local_qpn: Qpn::new(f.u24(32)),
            responder_resources: f.u8(35),
            local_eecn: f.u24(36),
            initiator_depth: f.u8(39),
            remote_eecn: f.u24(40),
            remote_cm_response_timeout: f.bits(43, 3, 5),
            transport: TransportType::from_bits(f.bits(43, 1, 2)),
            flow_control: f.bit(43, 0),
            starting_psn: Psn::new(f.u24(44)),
            local_cm_response_timeout: f.bits(47, 3, 5),
            retry_count: f.bits(47, 0, 3),
            pkey: PKey(f.u16(48)),
            path_mtu_code: f.bits(50, 4, 4),
            rdc_exists: f.bit(50, 3),
            rnr_retry_count: f.bits(50, 0, 3),
            max_cm_retries: f.bits(51, 4, 4),
            srq: f.bit(51, 3),
            extended_transport: f.bits(51, 0, 3),
            primary: CmPath::read(f, 52),
            alternate: CmPath::read(f, 96),
            private_data: f.bytes(140),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u24(5, self.vendor_id);
        f.u64(8, self.service_id);
        f.u64(16, self.local_ca_guid);
        f.u32(28, self.local_qkey.0);
        f.u24(32, self.local_qpn.value());
        f.u8(35, self.responder_resources);
        f.u24(36, self.local_eecn);
        f.u8(39, self.initiator_depth);
        f.u24(40, self.remote_eecn);
        f.bits(43, 3, 5, self.remote_cm_response_timeout);
        f.bits(43, 1, 2, self.transport as u8);
        f.bit(43, 0, self.flow_control);
        f.u24(44, self.starting_psn.value());
        f.bits(47, 3, 5, self.local_cm_response_timeout);
        f.bits(47, 0, 3, self.retry_count);
        f.u16(48, self.pkey.0);
        f.bits(50, 4, 4, self.path_mtu_code);
        f.bit(50, 3, self.rdc_exists);
        f.bits(50, 0, 3, self.rnr_retry_count);
        f.bits(51, 4, 4, self.max_cm_retries);
        f.bit(51, 3, self.srq);
        f.bits(51, 0, 3, self.extended_transport);
        self.primary.write(f, 52);
        self.alternate.write(f, 96);
        f.bytes(140, &self.private_data);
    }
}

/// Reply to a [`Req`]: the connection is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub local_qkey: QKey,
    pub local_qpn: Qpn,
    /// 24 bits, scattered over the message.
    pub vendor_id: u32,
    /// 24 bits.
    pub local_eecn: u32,
    /// PSN at which the receiver of this message starts to send.
    pub starting_psn: Psn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// 5 bits: 4.096 us times two to this power.
    pub target_ack_delay: u8,
    /// 2 bits.
    pub failover_accepted: u8,
    pub flow_control: bool,
    /// 3 bits; 7 is infinite.
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub local_ca_guid: u64,
    pub private_data: [u8; Rep::PRIVATE_DATA_LEN],
}

impl Rep {
    pub const PRIVATE_DATA_LEN: usize = 196;

    pub(super) fn read(f: &Fields<'_>) -> Rep {
        Rep {
            local_comm_id: f.u32(0),
            remote_comm_id: f.u32(4),
            local_qkey: QKey(f.u32(8)),
            local_qpn: Qpn::new(f.u24(12)),
            vendor_id: u32::from_be_bytes([0, f.u8(15), f.u8(19), f.u8(23)]),
            local_eecn: f.u24(16),
            starting_psn: Psn::new(f.u24(20)),
            responder_resources: f.u8(24),
            initiator_depth: f.u8(25),
            target_ack_delay: f.bits(26, 3, 5),
            failover_accepted: f.bits(26, 1, 2),
            flow_control: f.bit(26, 0),
            rnr_retry_count: f.bits(27, 5, 3),
            srq: f.bit(27, 4),
            local_ca_guid: f.u64(28),
            private_data: f.bytes(36),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        let [_, vendor_high, vendor_mid, vendor_low] = self.vendor_id.to_be_bytes();
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.u32(8, self.local_qkey.0);
        f.u24(12, self.local_qpn.value());
        f.u8(15, vendor_high);
        f.u24(16, self.local_eecn);
        f.u8(19, vendor_mid);
        f.u24(20, self.starting_psn.value());
        f.u8(23, vendor_low);
        f.u8(24, self.responder_resources);
        f.u8(25, self.initiator_depth);
        f.bits(26, 3, 5, self.target_ack_delay);
        f.bits(26, 1, 2, self.failover_accepted);
        f.bit(26, 0, self.flow_control);
        f.bits(27, 5, 3, self.rnr_retry_count);
        f.bit(27, 4, self.srq);
        f.u64(28, self.local_ca_guid);
        f.bytes(36, &self.private_data);
    }
}
