//! Names that the engine and those around it use for the same things.

/// A device context: one session of the daemon.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ClientId(pub u32);

/// A completion channel of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChannelId(pub u32);

/// How to reach a peer: the wire's own handle for next hop MAC, VLAN and local interface.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
pub struct HopId(pub u32);

impl HopId {
    /// The destination is an address of this host: nothing leaves it.
    pub const LOCAL: Self = Self(0);
}

/// An address space that memory regions live in: one per client process, and one for each region
/// that is shared memory. No other space ever has the same number: a payload passed by reference
/// names its space by it, and may arrive when the space is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpaceId(pub u64);
