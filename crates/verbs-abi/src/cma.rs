//! The connection manager: identifiers, events, addresses.

use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    be16, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_type,
    ibv_sa_path_rec, ibv_srq,
};

c_enum! {
    /// Connection manager event.
    rdma_cm_event_type: u32;
    RDMA_CM_EVENT_ADDR_RESOLVED = 0,
    RDMA_CM_EVENT_ADDR_ERROR = 1,
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
    RDMA_CM_EVENT_ROUTE_ERROR = 3,
    RDMA_CM_EVENT_CONNECT_REQUEST = 4,
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
    RDMA_CM_EVENT_CONNECT_ERROR = 6,
    RDMA_CM_EVENT_UNREACHABLE = 7,
    RDMA_CM_EVENT_REJECTED = 8,
    RDMA_CM_EVENT_ESTABLISHED = 9,
    RDMA_CM_EVENT_DISCONNECTED = 10,
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    RDMA_CM_EVENT_MULTICAST_JOIN = 12,
    RDMA_CM_EVENT_MULTICAST_ERROR = 13,
    RDMA_CM_EVENT_ADDR_CHANGE = 14,
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
    RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
    RDMA_CM_EVENT_USER = 18,
    RDMA_CM_EVENT_INTERNAL = 19,
}

c_enum! {
    /// Port space of an identifier.
    rdma_port_space: u32;
    RDMA_PS_IPOIB = 0x0002,
    RDMA_PS_TCP = 0x0106,
    RDMA_PS_UDP = 0x0111,
    RDMA_PS_IB = 0x013f,
}

c_enum! {
    /// Service identifiers made of a port space and a port.
    rdma_service_id: u64;
    RDMA_IB_IP_PS_MASK = 0xffff_ffff_ffff_0000,
    RDMA_IB_IP_PORT_MASK = 0x0000_0000_0000_ffff,
    RDMA_IB_IP_PS_TCP = 0x0000_0000_0106_0000,
    RDMA_IB_IP_PS_UDP = 0x0000_0000_0111_0000,
    RDMA_IB_PS_IB = 0x0000_0000_013f_0000,
}

c_enum! {
    /// Queue key of datagram queue pairs that the connection manager sets up.
    rdma_qkey: u32;
    RDMA_UDP_QKEY = 0x0123_4567,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: be16,
}

/// Source and destination, as socket addresses and as GIDs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    /// `addr.ibaddr` in C.
    pub addr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

/// An event channel. `fd` is polled by applications, which may also set O_NONBLOCK on it.
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// A communication identifier. The inline functions of rdma_verbs.h use its objects directly.
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}

c_enum! {
    /// The largest possible `responder_resources` and `initiator_depth`.
    rdma_max_depth: u8;
    RDMA_MAX_RESP_RES = 0xff,
    RDMA_MAX_INIT_DEPTH = 0xff,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    /// Ignored when accepting.
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Ignored, like `qp_num`, when the identifier has a queue pair.
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// Parameters of an event; the port space says which member counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    /// Of `rdma_write_cm_event`, since v60.
    pub arg: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

c_enum! {
    /// Bits of `rdma_addrinfo.ai_flags`.
    rdma_addrinfo_flags: i32;
    RAI_PASSIVE = 0x01,
    RAI_NUMERICHOST = 0x02,
    RAI_NOROUTE = 0x04,
    RAI_FAMILY = 0x08,
    RAI_SA = 0x10,
    RAI_DNS = 0x20,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_addrinfo {
    pub ai_flags: rdma_addrinfo_flags,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}

c_enum! {
    /// Bits of `rdma_cm_join_mc_attr_ex.comp_mask`.
    rdma_cm_join_mc_attr_mask: u32;
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
}

c_enum! {
    /// How a multicast group is joined.
    rdma_cm_mc_join_flags: u32;
    RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: rdma_cm_join_mc_attr_mask,
    pub join_flags: rdma_cm_mc_join_flags,
    pub addr: *mut sockaddr,
}

c_enum! {
    /// Level of `rdma_set_option`.
    rdma_option_level: i32;
    RDMA_OPTION_ID = 0,
    RDMA_OPTION_IB = 1,
}

c_enum! {
    /// Options of an identifier.
    rdma_option_id: i32;
    RDMA_OPTION_ID_TOS = 0,
    RDMA_OPTION_ID_REUSEADDR = 1,
    RDMA_OPTION_ID_AFONLY = 2,
    RDMA_OPTION_ID_ACK_TIMEOUT = 3,
}

c_enum! {
    /// Options below an identifier.
    rdma_option_ib: i32;
    RDMA_OPTION_IB_PATH = 1,
}

c_enum! {
    /// Socket option level of the r* calls, and its options.
    rsocket_option: i32;
    SOL_RDMA = 0x10000,
    RDMA_SQSIZE = 0,
    RDMA_RQSIZE = 1,
    RDMA_INLINE = 2,
    RDMA_IOMAPSIZE = 3,
    RDMA_ROUTE = 4,
}
