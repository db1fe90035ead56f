//! What an epoll event of a shard is about.

use rnic_core::command::{ChannelId, ClientId};

/// A source of events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Token {
    /// A message was sent.
    Messages,
    /// A client rang while the engine slept.
    Client(ClientId),
    /// A client's async event socket has room again.
    Events(ClientId),
    /// A completion channel has room again.
    Channel(ClientId, ChannelId),
}

const KIND_SHIFT: u32 = 60;
const CLIENT_SHIFT: u32 = 32;
const CLIENT_MASK: u64 = (1 << 28) - 1;

impl Token {
    /// As epoll keeps it. Client numbers are below 2^28: they are reused.
    pub(super) fn encode(self) -> u64 {
        let of = |kind: u64, client: ClientId, channel: u32| {
            let client = u64::from(client.0) & CLIENT_MASK;
            kind << KIND_SHIFT | client << CLIENT_SHIFT | u64::from(channel)
        };
        match self {
            Self::Messages => of(0, ClientId(0), 0),
            Self::Client(client) => of(1, client, 0),
            Self::Events(client) => of(2, client, 0),
            Self::Channel(client, channel) => of(3, client, channel.0),
        }
    }

    /// Whose socket this is about.
    pub(super) fn client(self) -> Option<ClientId> {
        match self {
            Self::Messages => None,
            Self::Client(client) | Self::Events(client) | Self::Channel(client, _) => Some(client),
        }
    }

    /// The reverse; `None` for a number that no token has.
    pub(super) fn decode(value: u64) -> Option<Self> {
        let client = ClientId((value >> CLIENT_SHIFT & CLIENT_MASK) as u32);
        Some(match value >> KIND_SHIFT {
            0 => Self::Messages,
            1 => Self::Client(client),
            2 => Self::Events(client),
            3 => Self::Channel(client, ChannelId(value as u32)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_epoll() {
        let client = ClientId(0x0abc_def0);
        for token in [
            Token::Messages,
            Token::Client(client),
            Token::Events(client),
            Token::Channel(client, ChannelId(u32::MAX)),
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(u64::MAX), None);
    }
}
