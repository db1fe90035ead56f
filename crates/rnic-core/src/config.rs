//! What an engine is made with.

use crate::command::PortState;
use crate::groups::{MAX_GROUPS, MAX_MEMBERS};
use crate::profile::Profile;
use crate::qpn::MAX_QPS;
use crate::secret::Secret;
use crate::transport;
use rnic_abi::control::DeviceLimits;
use rnic_abi::verbs::WrOpcode;
use rnic_abi::wqe::{MAX_INLINE, MAX_SGE};

/// Parameters of an engine; [`EngineConfig::new`] gives sensible ones.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Makes QPNs and memory keys unpredictable. Each shard has one of its own, and so has the one
    /// that takes its place.
    pub secret: Secret,
    /// Number of this shard, below [`MAX_SHARDS`](crate::qpn::MAX_SHARDS).
    pub shard: u8,
    /// Limits of the device.
    pub limits: DeviceLimits,
    /// State of the port at the start.
    pub port: PortState,
    /// Entries of the GID table.
    pub gid_table_len: u32,
    /// Vendor behaviour where implementations differ.
    pub profile: Profile,
    /// Put received SENDs of up to 64 bytes into the CQE instead of writing them to memory, where
    /// no peer can reach the receive buffers' memory region.
    pub carry_small_receives: bool,
    /// Most request bytes of one QP that may be unacknowledged, at least two packets.
    pub window_bytes: u32,
    /// Bytes one QP may send before the next QP has its turn. A loopback QP may use the whole
    /// turn while at most one other QP is active.
    pub visit_bytes: u32,
    /// Bytes sent in one turn.
    pub turn_bytes: u32,
    /// Nanoseconds of inactivity after which a client's doorbells are no longer polled; the client
    /// then wakes the engine (see [`Engine::client_rang`](crate::Engine::client_rang)).
    pub park_after_nanos: u64,
}

impl EngineConfig {
    /// Shard 0 of a device with default limits and an active port with path MTU 4096. `random` is
    /// not to be guessed.
    pub fn new(random: [u64; 2]) -> Self {
        Self {
            secret: Secret::new(random),
            shard: 0,
            limits: default_limits(),
            port: PortState { active: true, active_mtu: 5, gids_changed: false },
            gid_table_len: 256,
            profile: Profile::Spec,
            carry_small_receives: true,
            window_bytes: 512 * 1024,
            visit_bytes: 64 * 1024,
            turn_bytes: 256 * 1024,
            park_after_nanos: 20_000_000,
        }
    }
}

/// Limits of a device whose owner does not set others.
pub fn default_limits() -> DeviceLimits {
    #[expect(clippy::cast_possible_truncation, reason = "small constants")]
    DeviceLimits {
        max_qp: MAX_QPS as u32,
        max_qp_wr: 32_768,
        max_sge: MAX_SGE as u32,
        max_cq: 65_536,
        max_cqe: 1 << 22,
        max_mr: 1 << 20,
        max_mr_size: crate::mr::MAX_MR_LENGTH,
        max_pd: 65_536,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        max_mw: 1 << 20,
        max_ah: 1 << 18,
        max_groups: MAX_GROUPS as u32,
        max_members: MAX_MEMBERS as u32,
        max_srq: 65_536,
        max_inline: MAX_INLINE as u32,
        max_dm_size: 64 << 20,
        qp_types: transport::TYPES.iter().fold(0, |bits, qp_type| bits | 1 << qp_type.number()),
        send_opcodes: SEND_OPCODES.iter().fold(0, |bits, opcode| bits | 1 << opcode.number()),
        atomics: true,
    }
}

/// What send queues execute.
const SEND_OPCODES: [WrOpcode; 12] = [
    WrOpcode::Send,
    WrOpcode::SendImm,
    WrOpcode::Write,
    WrOpcode::WriteImm,
    WrOpcode::Read,
    WrOpcode::CmpSwap,
    WrOpcode::FetchAdd,
    WrOpcode::SendInv,
    WrOpcode::LocalInv,
    WrOpcode::BindMw,
    WrOpcode::Flush,
    WrOpcode::AtomicWrite,
];
