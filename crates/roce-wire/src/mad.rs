//! Management datagrams: the fixed 256-byte messages of QP1.

/// Bytes of every management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes after the header.
pub const MAD_BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The only base version there is.
pub const BASE_VERSION: u8 = 1;
/// Management class of connection management.
pub const CLASS_CM: u8 = 0x07;
/// Version of the connection management class.
pub const CLASS_VERSION_CM: u8 = 2;
/// Method of every connection management message, replies included.
pub const METHOD_SEND: u8 = 0x03;

/// The header all management classes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    pub base_version: u8,
    pub class: u8,
    pub class_version: u8,
    /// Response bit (bit 7) and method.
    pub method: u8,
    pub status: u16,
    pub class_specific: u16,
    pub transaction_id: u64,
    pub attribute_id: u16,
    pub reserved: u16,
    /// Non-zero in CM messages of peers that use vendor connection extensions; to be ignored.
    pub attribute_modifier: u32,
}

impl MadHeader {
    pub const LEN: usize = 24;

    /// Header of a connection management message.
    pub const fn cm(attribute_id: u16, transaction_id: u64) -> MadHeader {
        MadHeader {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION_CM,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id,
            reserved: 0,
            attribute_modifier: 0,
        }
    }

    pub fn from_bytes(b: &[u8; Self::LEN]) -> MadHeader {
        let be16 = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let be32 = |at: usize| u32::from(be16(at)) << 16 | u32::from(be16(at + 2));
        MadHeader {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: be16(4),
            class_specific: be16(6),
            transaction_id: u64::from(be32(8)) << 32 | u64::from(be32(12)),
            attribute_id: be16(16),
            reserved: be16(18),
            attribute_modifier: be32(20),
        }
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&[self.base_version, self.class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        b[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        b[18..20].copy_from_slice(&self.reserved.to_be_bytes());
        b[20..].copy_from_slice(&self.attribute_modifier.to_be_bytes());
        b
    }
}

/// Why bytes are not a management datagram of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum MadError {
    /// Not 256 bytes long.
    #[error("a management datagram has {MAD_LEN} bytes")]
    Length,
    #[error("management base version {0}")]
    BaseVersion(u8),
    /// Not connection management.
    #[error("management class {0:#04x} is not connection management")]
    Class(u8),
    #[error("connection management class version {0}")]
    ClassVersion(u8),
    #[error("connection management method {0:#04x}")]
    Method(u8),
    /// Not a connection management message.
    #[error("unknown connection management message {0:#06x}")]
    Attribute(u16),
}
