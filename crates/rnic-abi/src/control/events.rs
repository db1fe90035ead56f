//! What the daemon sends unasked: datagrams on completion channels and on the async event socket.

use crate::verbs::AsyncEventType;

/// One datagram on a completion channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionEvent {
    /// Handle of the CQ.
    pub cq: u32,
}

impl CompletionEvent {
    /// Bytes on the socket.
    pub const LEN: usize = 8;

    /// Encodes.
    pub fn encode(self) -> [u8; Self::LEN] {
        u64::from(self.cq).to_le_bytes()
    }

    /// Decodes.
    pub fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, ..] = bytes;
        Self { cq: u32::from_le_bytes([a, b, c, d]) }
    }
}

/// One datagram on the async event socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub event: AsyncEventType,
    /// Handle of the QP, CQ or SRQ, or the port number.
    pub element: u32,
}

impl AsyncEvent {
    /// Bytes on the socket.
    pub const LEN: usize = 8;

    /// Encodes.
    pub fn encode(self) -> [u8; Self::LEN] {
        (u64::from(self.event.number()) << 32 | u64::from(self.element)).to_le_bytes()
    }

    /// Decodes; `None` for an unknown event.
    pub fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [a, b, c, d, event, ..] = bytes;
        Some(Self {
            event: AsyncEventType::from_number(event)?,
            element: u32::from_le_bytes([a, b, c, d]),
        })
    }
}
