//! Connection management messages, carried by management datagrams between the QP1s of two hosts.
//!
//! [`CmMad::parse`] and [`CmMad::emit`] work on whole 256-byte management datagrams. Bits the
//! layouts reserve are sent as zero and ignored on receipt; everything else round-trips.

mod connect;
mod fields;
mod service;
mod session;

pub use connect::{CmPath, Rep, Req, TransportType};
pub use service::{CmaHeader, PortSpace, service_id, service_id_parts};
pub use session::{
    ADDITIONAL_INFO_LEN, AboutMessage, Drep, Dreq, Mra, Rej, RejectReason, Rtu, SidrRep, SidrReq,
    SidrStatus,
};

use fields::{Fields, FieldsMut};

use crate::mad::{
    BASE_VERSION, CLASS_CM, CLASS_VERSION_CM, MAD_BODY_LEN, MAD_LEN, METHOD_SEND, MadError,
    MadHeader,
};

/// A connection management message with its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmMad {
    pub header: MadHeader,
    pub message: CmMessage,
}

/// The messages of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmMessage {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    /// Load alternate path, not used on RoCE.
    Lap(AlternatePath),
    /// Alternate path response, not used on RoCE.
    Apr(AlternatePath),
}

/// A message about alternate paths: recognised, so that it can be refused, and kept as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlternatePath {
    pub body: [u8; MAD_BODY_LEN],
}

impl AlternatePath {
    pub fn local_comm_id(&self) -> u32 {
        Fields(&self.body).u32(0)
    }

    pub fn remote_comm_id(&self) -> u32 {
        Fields(&self.body).u32(4)
    }

    /// The answer to a request for an alternate path where there are none, with the identifiers of
    /// its sender and its receiver.
    pub fn refusal((local, remote): (u32, u32)) -> AlternatePath {
        /// "Path rejected" of the status field.
        const REJECTED: u8 = 2;
        let mut body = [0; MAD_BODY_LEN];
        let mut f = FieldsMut(&mut body);
        f.u32(0, local);
        f.u32(4, remote);
        f.u8(9, REJECTED);
        AlternatePath { body }
    }
}

/// Attribute identifiers.
mod attribute {
    pub(super) const REQ: u16 = 0x0010;
    pub(super) const MRA: u16 = 0x0011;
    pub(super) const REJ: u16 = 0x0012;
    pub(super) const REP: u16 = 0x0013;
    pub(super) const RTU: u16 = 0x0014;
    pub(super) const DREQ: u16 = 0x0015;
    pub(super) const DREP: u16 = 0x0016;
    pub(super) const SIDR_REQ: u16 = 0x0017;
    pub(super) const SIDR_REP: u16 = 0x0018;
    pub(super) const LAP: u16 = 0x0019;
    pub(super) const APR: u16 = 0x001a;
}

impl CmMessage {
    /// The attribute identifier that names this message in the header.
    pub const fn attribute_id(&self) -> u16 {
        match self {
            CmMessage::Req(_) => attribute::REQ,
            CmMessage::Mra(_) => attribute::MRA,
            CmMessage::Rej(_) => attribute::REJ,
            CmMessage::Rep(_) => attribute::REP,
            CmMessage::Rtu(_) => attribute::RTU,
            CmMessage::Dreq(_) => attribute::DREQ,
            CmMessage::Drep(_) => attribute::DREP,
            CmMessage::SidrReq(_) => attribute::SIDR_REQ,
            CmMessage::SidrRep(_) => attribute::SIDR_REP,
            CmMessage::Lap(_) => attribute::LAP,
            CmMessage::Apr(_) => attribute::APR,
        }
    }

    pub const fn name(&self) -> &'static str {
        match self {
            CmMessage::Req(_) => "REQ",
            CmMessage::Mra(_) => "MRA",
            CmMessage::Rej(_) => "REJ",
            CmMessage::Rep(_) => "REP",
            CmMessage::Rtu(_) => "RTU",
            CmMessage::Dreq(_) => "DREQ",
            CmMessage::Drep(_) => "DREP",
            CmMessage::SidrReq(_) => "SIDR_REQ",
            CmMessage::SidrRep(_) => "SIDR_REP",
            CmMessage::Lap(_) => "LAP",
            CmMessage::Apr(_) => "APR",
        }
    }

    fn read(attribute_id: u16, body: &[u8; MAD_BODY_LEN]) -> Option<CmMessage> {
        let f = &Fields(body);
        Some(match attribute_id {
            attribute::REQ => CmMessage::Req(Req::read(f)),
            attribute::MRA => CmMessage::Mra(Mra::read(f)),
            attribute::REJ => CmMessage::Rej(Rej::read(f)),
            attribute::REP => CmMessage::Rep(Rep::read(f)),
            attribute::RTU => CmMessage::Rtu(Rtu::read(f)),
            attribute::DREQ => CmMessage::Dreq(Dreq::read(f)),
            attribute::DREP => CmMessage::Drep(Drep::read(f)),
            attribute::SIDR_REQ => CmMessage::SidrReq(SidrReq::read(f)),
            attribute::SIDR_REP => CmMessage::SidrRep(SidrRep::read(f)),
            attribute::LAP => CmMessage::Lap(AlternatePath { body: *body }),
            attribute::APR => CmMessage::Apr(AlternatePath { body: *body }),
            _ => return None,
        })
    }

    fn write(&self, f: &mut FieldsMut<'_>) {
        match self {
            CmMessage::Req(message) => message.write(f),
            CmMessage::Mra(message) => message.write(f),
            CmMessage::Rej(message) => message.write(f),
            CmMessage::Rep(message) => message.write(f),
            CmMessage::Rtu(message) => message.write(f),
            CmMessage::Dreq(message) => message.write(f),
            CmMessage::Drep(message) => message.write(f),
            CmMessage::SidrReq(message) => message.write(f),
            CmMessage::SidrRep(message) => message.write(f),
            CmMessage::Lap(message) | CmMessage::Apr(message) => f.bytes(0, &message.body),
        }
    }
}

impl CmMad {
    /// A message to send. Which transaction identifier it carries is the sender's business.
    pub const fn new(transaction_id: u64, message: CmMessage) -> CmMad {
        CmMad { header: MadHeader::cm(message.attribute_id(), transaction_id), message }
    }

    /// Reads a management datagram, which must be exactly 256 bytes of connection management.
    pub fn parse(bytes: &[u8]) -> Result<CmMad, MadError> {
        let (header, body) = bytes.split_first_chunk().ok_or(MadError::Length)?;
        let body: &[u8; MAD_BODY_LEN] = body.try_into().map_err(|_| MadError::Length)?;
        let header = MadHeader::from_bytes(header);
        if header.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(header.base_version));
        }
        if header.class != CLASS_CM {
            return Err(MadError::Class(header.class));
        }
        if header.class_version != CLASS_VERSION_CM {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(MadError::Method(header.method));
        }
        let message = CmMessage::read(header.attribute_id, body)
            .ok_or(MadError::Attribute(header.attribute_id))?;
        Ok(CmMad { header, message })
    }

    /// Writes the whole management datagram.
    pub fn emit(&self, buf: &mut [u8; MAD_LEN]) {
        let mut body = [0; MAD_BODY_LEN];
        self.message.write(&mut FieldsMut(&mut body));
        buf[..MadHeader::LEN].copy_from_slice(&self.header.to_bytes());
        buf[MadHeader::LEN..].copy_from_slice(&body);
    }

    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut buf = [0; MAD_LEN];
        self.emit(&mut buf);
        buf
    }
}

#[cfg(test)]
mod tests;
