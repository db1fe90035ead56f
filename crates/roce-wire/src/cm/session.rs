//! The short messages: RTU, MRA, REJ, DREQ, DREP and the datagram service resolution pair.

use super::fields::{Fields, FieldsMut};
use crate::types::{PKey, QKey, Qpn};

/// Bytes of additional reject or service information.
pub const ADDITIONAL_INFO_LEN: usize = 72;

/// Ready to use: the active side has seen the [`super::Rep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtu {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub private_data: [u8; Rtu::PRIVATE_DATA_LEN],
}

impl Rtu {
    pub const PRIVATE_DATA_LEN: usize = 224;

    pub(super) fn read(f: &Fields<'_>) -> Rtu {
        Rtu { local_comm_id: f.u32(0), remote_comm_id: f.u32(4), private_data: f.bytes(8) }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.bytes(8, &self.private_data);
    }
}

/// Which message a [`Mra`] or [`Rej`] is about (2 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum AboutMessage {
    Req = 0,
    Rep = 1,
    /// LAP in an MRA, any other message in a REJ.
    Other = 2,
    Reserved = 3,
}

impl AboutMessage {
    const fn from_bits(bits: u8) -> AboutMessage {
        match bits & 3 {
            0 => AboutMessage::Req,
            1 => AboutMessage::Rep,
            2 => AboutMessage::Other,
            _ => AboutMessage::Reserved,
        }
    }
}

/// Message receipt acknowledgement: "I need more time".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    pub local_comm_id: u32,
    /// 0 if not known yet.
    pub remote_comm_id: u32,
    pub about: AboutMessage,
    /// 5 bits: 4.096 us times two to this power.
    pub service_timeout: u8,
    pub private_data: [u8; Mra::PRIVATE_DATA_LEN],
}

impl Mra {
    pub const PRIVATE_DATA_LEN: usize = 222;

    pub(super) fn read(f: &Fields<'_>) -> Mra {
        Mra {
            local_comm_id: f.u32(0),
            remote_comm_id: f.u32(4),
            about: AboutMessage::from_bits(f.bits(8, 6, 2)),
            service_timeout: f.bits(9, 3, 5),
            private_data: f.bytes(10),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.bits(8, 6, 2, self.about as u8);
        f.bits(9, 3, 5, self.service_timeout);
        f.bytes(10, &self.private_data);
    }
}

/// Why a connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejectReason(pub u16);

impl RejectReason {
    pub const NO_QP: RejectReason = RejectReason(1);
    pub const NO_RESOURCES: RejectReason = RejectReason(3);
    pub const TIMEOUT: RejectReason = RejectReason(4);
    pub const UNSUPPORTED_REQUEST: RejectReason = RejectReason(5);
    pub const INVALID_COMM_ID: RejectReason = RejectReason(6);
    pub const INVALID_COMM_INSTANCE: RejectReason = RejectReason(7);
    /// No program listens.
    pub const INVALID_SERVICE_ID: RejectReason = RejectReason(8);
    pub const INVALID_TRANSPORT: RejectReason = RejectReason(9);
    pub const STALE_CONNECTION: RejectReason = RejectReason(10);
    pub const INVALID_GID: RejectReason = RejectReason(12);
    pub const INVALID_MTU: RejectReason = RejectReason(26);
    pub const INSUFFICIENT_RESPONDER_RESOURCES: RejectReason = RejectReason(27);
    /// The application said no.
    pub const CONSUMER_DEFINED: RejectReason = RejectReason(28);
    pub const DUPLICATE_COMM_ID: RejectReason = RejectReason(30);
    pub const VENDOR_OPTION: RejectReason = RejectReason(35);
}

/// Refusal of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej {
    /// 0 if the sender has none yet.
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub about: AboutMessage,
    /// Valid bytes of `info`, 7 bits (may exceed the array when the sender is broken).
    pub info_len: u8,
    pub reason: RejectReason,
    pub info: [u8; ADDITIONAL_INFO_LEN],
    pub private_data: [u8; Rej::PRIVATE_DATA_LEN],
}

impl Rej {
    pub const PRIVATE_DATA_LEN: usize = 148;

    pub(super) fn read(f: &Fields<'_>) -> Rej {
        Rej {
            local_comm_id: f.u32(0),
            remote_comm_id: f.u32(4),
            about: AboutMessage::from_bits(f.bits(8, 6, 2)),
            info_len: f.bits(9, 1, 7),
            reason: RejectReason(f.u16(10)),
            info: f.bytes(12),
            private_data: f.bytes(84),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.bits(8, 6, 2, self.about as u8);
        f.bits(9, 1, 7, self.info_len);
        f.u16(10, self.reason.0);
        f.bytes(12, &self.info);
        f.bytes(84, &self.private_data);
    }
}

/// Request to close a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    /// The receiver's queue pair, proof that the sender means this connection.
    pub remote_qpn: Qpn,
    pub private_data: [u8; Dreq::PRIVATE_DATA_LEN],
}

impl Dreq {
    pub const PRIVATE_DATA_LEN: usize = 220;

    pub(super) fn read(f: &Fields<'_>) -> Dreq {
        Dreq {
            local_comm_id: f.u32(0),
            remote_comm_id: f.u32(4),
            remote_qpn: Qpn::new(f.u24(8)),
            private_data: f.bytes(12),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.u24(8, self.remote_qpn.value());
        f.bytes(12, &self.private_data);
    }
}

/// Answer to a [`Dreq`], given even for connections that do not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drep {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub private_data: [u8; Drep::PRIVATE_DATA_LEN],
}

impl Drep {
    pub const PRIVATE_DATA_LEN: usize = 224;

    pub(super) fn read(f: &Fields<'_>) -> Drep {
        Drep { local_comm_id: f.u32(0), remote_comm_id: f.u32(4), private_data: f.bytes(8) }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.local_comm_id);
        f.u32(4, self.remote_comm_id);
        f.bytes(8, &self.private_data);
    }
}

/// Asks for the queue pair behind a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq {
    pub request_id: u32,
    pub pkey: PKey,
    pub service_id: u64,
    pub private_data: [u8; SidrReq::PRIVATE_DATA_LEN],
}

impl SidrReq {
    pub const PRIVATE_DATA_LEN: usize = 216;

    pub(super) fn read(f: &Fields<'_>) -> SidrReq {
        SidrReq {
            request_id: f.u32(0),
            pkey: PKey(f.u16(4)),
            service_id: f.u64(8),
            private_data: f.bytes(16),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.u32(0, self.request_id);
        f.u16(4, self.pkey.0);
        f.u64(8, self.service_id);
        f.bytes(16, &self.private_data);
    }
}

/// Outcome of a [`SidrReq`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    pub const VALID: SidrStatus = SidrStatus(0);
    pub const UNSUPPORTED_SERVICE: SidrStatus = SidrStatus(1);
    pub const REJECTED: SidrStatus = SidrStatus(2);
    pub const NO_QP: SidrStatus = SidrStatus(3);
    pub const REDIRECT: SidrStatus = SidrStatus(4);
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

/// Answer to a [`SidrReq`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep {
    pub request_id: u32,
    pub status: SidrStatus,
    /// Valid bytes of `info` (may exceed the array when the sender is broken).
    pub info_len: u8,
    /// 24 bits.
    pub vendor_id: u32,
    pub qpn: Qpn,
    pub service_id: u64,
    pub qkey: QKey,
    pub info: [u8; ADDITIONAL_INFO_LEN],
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

impl SidrRep {
    pub const PRIVATE_DATA_LEN: usize = 136;

    pub(super) fn read(f: &Fields<'_>) -> SidrRep {
        SidrRep {
            request_id: f.u32(0),
            status: SidrStatus(f.u8(4)),
            info_len: f.u8(5),
            vendor_id: u32::from(f.u16(6)) << 8 | u32::from(f.u8(11)),
            qpn: Qpn::new(f.u24(8)),
            service_id: f.u64(12),
            qkey: QKey(f.u32(20)),
            info: f.bytes(24),
            private_data: f.bytes(96),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        let [_, vendor @ .., vendor_low] = self.vendor_id.to_be_bytes();
        f.u32(0, self.request_id);
        f.u8(4, self.status.0);
        f.u8(5, self.info_len);
        f.bytes(6, &vendor);
        f.u24(8, self.qpn.value());
        f.u8(11, vendor_low);
        f.u64(12, self.service_id);
        f.u32(20, self.qkey.0);
        f.bytes(24, &self.info);
        f.bytes(96, &self.private_data);
    }
}
