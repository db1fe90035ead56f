//! What replies say about devices, ports, addresses and memory.

use crate::doorbell::RecordIndex;
use crate::work_queue::QueueShape;
use serde::{Deserialize, Serialize};

/// Where a ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingPlace {
    /// Number of the arena in this session.
    pub arena: u32,
    /// Bytes of the whole arena.
    pub arena_len: u64,
    /// The arena is new: its memfd comes beside this reply.
    pub arena_is_new: bool,
    /// First word of the ring in the arena.
    pub start: u64,
    /// Words of the ring.
    pub words: u64,
}

/// A work queue as its application sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueuePlace {
    /// Memory.
    pub ring: RingPlace,
    /// Slots and stride.
    pub shape: QueueShape,
    /// Doorbell record.
    pub record: RecordIndex,
}

/// Device attributes that do not change: `ibv_device_attr`, what is not constant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// e.g. `rnic0`.
    pub name: String,
    /// Network interface, when the device sits on one.
    pub netdev: Option<String>,
    /// EUI-64, network order.
    pub node_guid: [u8; 8],
    /// Firmware version string: the daemon's version.
    pub fw_version: String,
    /// Limits.
    pub limits: DeviceLimits,
}

/// Limits of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// WQEs of one queue.
    pub max_qp_wr: u32,
    /// SGEs of one WQE.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// CQEs of one CQ.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Outstanding READs and atomics of one QP as responder.
    pub max_qp_rd_atom: u8,
    /// As requester.
    pub max_qp_init_rd_atom: u8,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups.
    pub max_groups: u32,
    /// Queue pairs attached to one group.
    pub max_members: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Bytes of device memory, whole pages.
    pub max_dm_size: u64,
    /// QP types that can be made: bit n for `ibv_qp_type` n.
    pub qp_types: u32,
    /// Work requests that can be executed: bit n for `ibv_wr_opcode` n.
    pub send_opcodes: u32,
    /// Atomics are supported.
    pub atomics: bool,
}

/// Port attributes that change: `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortInfo {
    /// ACTIVE, else DOWN.
    pub active: bool,
    /// Largest path MTU code of the port's hardware-independent maximum (5).
    pub max_mtu: u8,
    /// Path MTU code that the interface allows now.
    pub active_mtu: u8,
    /// Interface MTU, bytes.
    pub netdev_mtu: u32,
    /// Entries of the GID table, used or not.
    pub gid_table_len: u32,
    /// Link speed, Mb/s; 0 unknown.
    pub speed_mbps: u32,
}

impl PortInfo {
    /// The codes of link width and speed (`ibv_port_attr`) for about this speed, as Linux chooses
    /// them for Ethernet.
    #[must_use]
    pub fn width_and_speed(&self) -> (u8, u8) {
        const W1: u8 = 1;
        const W4: u8 = 2;
        match self.speed_mbps {
            0..=1_000 => (W1, 1),
            1_001..=10_000 => (W1, 8),
            10_001..=20_000 => (W4, 2),
            20_001..=25_000 => (W1, 32),
            25_001..=40_000 => (W4, 8),
            40_001..=50_000 => (W1, 64),
            50_001..=100_000 => (W4, 32),
            100_001..=200_000 => (W4, 64),
            _ => (W4, 128),
        }
    }
}

/// One used GID table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GidEntry {
    /// Index; it never changes its meaning while the address exists.
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// Interface index, 0 when unknown.
    pub ifindex: u32,
}
