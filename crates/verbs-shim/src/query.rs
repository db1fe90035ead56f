//! Attributes of device and port.

use std::ffi::c_int;

use rnic_abi::{
    control::{DeviceLimits, PortInfo, Reply, Request},
    verbs::{QpType, WrOpcode},
};
use verbs_abi::{
    IB_UVERBS_DEVICE_ATOMIC_WRITE, IB_UVERBS_DEVICE_FLUSH_GLOBAL, IBV_ATOMIC_HCA, IBV_ATOMIC_NONE,
    IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_DEVICE_XRC, IBV_LINK_LAYER_ETHERNET, IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC,
    IBV_ODP_SUPPORT_ATOMIC_WRITE, IBV_ODP_SUPPORT_FLUSH, IBV_ODP_SUPPORT_IMPLICIT,
    IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV,
    IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE, IBV_PORT_ATTR_COMPAT_SIZE, IBV_PORT_CM_SUP,
    IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, IBV_VALUES_MASK_RAW_CLOCK, Zeroed, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, ibv_qp, ibv_query_device_ex_input,
    ibv_values_ex, ibv_wr_opcode,
};

use crate::{
    context::Context,
    device::set_text,
    error::{Errno, Result, code},
};

/// An identifier of no vendor: programs take zero for a broken device.
const VENDOR_ID: u32 = 0x00ff_ffff;
const PAGE_SIZE_CAP: u64 = 0xffff_f000;
/// Largest message, IBTA 9.7.1: 2^31 bytes.
const MAX_MESSAGE: u32 = 1 << 31;
const PHYS_STATE_LINK_UP: u8 = 5;
const PHYS_STATE_DISABLED: u8 = 3;
/// Timestamps of completions count nanoseconds: this is their clock in kHz.
const CLOCK_KHZ: u64 = 1_000_000;

/// The current port attributes.
pub(crate) fn port_info(context: &Context) -> Result<PortInfo> {
    context.session.call(&Request::QueryPort, |reply, _| match reply {
        Reply::Port(info) => Some(info),
        _ => None,
    })
}

fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let limits = &context.info.limits;
    let guid = u64::from_ne_bytes(context.info.node_guid);
    let mut attr = ibv_device_attr::zeroed();
    set_text(&mut attr.fw_ver, &context.info.fw_version);
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = limits.max_mr_size;
    attr.page_size_cap = PAGE_SIZE_CAP;
    attr.vendor_id = VENDOR_ID;
    attr.vendor_part_id = 1;
    attr.hw_ver = 1;
    attr.max_qp = signed(limits.max_qp);
    attr.max_qp_wr = signed(limits.max_qp_wr);
    attr.device_cap_flags = capabilities(limits);
    attr.max_sge = signed(limits.max_sge);
    attr.max_sge_rd = signed(limits.max_sge);
    attr.max_cq = signed(limits.max_cq);
    attr.max_cqe = signed(limits.max_cqe);
    attr.max_mr = signed(limits.max_mr);
    attr.max_pd = signed(limits.max_pd);
    attr.max_qp_rd_atom = limits.max_qp_rd_atom.into();
    attr.max_qp_init_rd_atom = limits.max_qp_init_rd_atom.into();
    attr.max_res_rd_atom = signed(limits.max_qp.saturating_mul(limits.max_qp_rd_atom.into()));
    attr.atomic_cap = if limits.atomics { IBV_ATOMIC_HCA } else { IBV_ATOMIC_NONE };
    attr.max_mw = signed(limits.max_mw);
    attr.max_ah = signed(limits.max_ah);
    attr.max_mcast_grp = signed(limits.max_groups);
    attr.max_mcast_qp_attach = signed(limits.max_members);
    attr.max_total_mcast_qp_attach = signed(limits.max_groups.saturating_mul(limits.max_members));
    attr.max_srq = signed(limits.max_srq);
    if limits.max_srq > 0 {
        attr.max_srq_wr = signed(limits.max_qp_wr);
        attr.max_srq_sge = signed(limits.max_sge);
    }
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

fn capabilities(limits: &DeviceLimits) -> u32 {
    let always = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN;
    let windows = match limits.max_mw {
        0 => 0,
        _ => IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    };
    let xrc = match limits.qp_types & 1 << QpType::XrcSend.number() {
        0 => 0,
        _ => IBV_DEVICE_XRC,
    };
    always | windows | xrc
}

/// Reads the device's limits.
///
/// # Safety
/// `context` is open and `attr` is writable.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: by contract.
    unsafe { attr.write(device_attr(Context::of(context))) };
    0
}

/// Reads the device's limits and extended capabilities.
///
/// # Safety
/// `context` is open; `input` is null or valid; `attr` has `attr_size` writable bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: by contract.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
        || attr_size < size_of::<ibv_device_attr>()
    {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: by contract.
    let context = unsafe { Context::of(context) };
    let mut full = ibv_device_attr_ex::zeroed();
    full.orig_attr = device_attr(context);
    full.completion_timestamp_mask = u64::MAX;
    full.hca_core_clock = CLOCK_KHZ;
    let executes = |opcode: WrOpcode, caps| {
        if context.info.limits.send_opcodes & 1 << opcode.number() != 0 { caps } else { 0 }
    };
    full.device_cap_flags_ex = u64::from(full.orig_attr.device_cap_flags)
        | executes(WrOpcode::Flush, IB_UVERBS_DEVICE_FLUSH_GLOBAL)
        | executes(WrOpcode::AtomicWrite, IB_UVERBS_DEVICE_ATOMIC_WRITE);
    full.phys_port_cnt_ex = 1;
    // Memory is accessed through the program's own page tables, so all of it is on-demand paged.
    let datagram = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
    let writes = datagram | IBV_ODP_SUPPORT_WRITE;
    let placement = executes(WrOpcode::Flush, IBV_ODP_SUPPORT_FLUSH.into())
        | executes(WrOpcode::AtomicWrite, IBV_ODP_SUPPORT_ATOMIC_WRITE.into());
    let reliable = writes | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | placement as u32;
    let DeviceLimits { qp_types, max_srq, max_dm_size, .. } = context.info.limits;
    let shared = if max_srq > 0 { IBV_ODP_SUPPORT_SRQ_RECV } else { 0 };
    let of = |qp_type: QpType, caps| match qp_types & 1 << qp_type.number() {
        0 => 0,
        _ => caps | shared,
    };
    full.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    full.odp_caps.per_transport_caps.ud_odp_caps = of(QpType::Ud, datagram);
    full.odp_caps.per_transport_caps.uc_odp_caps = of(QpType::Uc, writes);
    full.odp_caps.per_transport_caps.rc_odp_caps = of(QpType::Rc, reliable);
    full.xrc_odp_caps = of(QpType::XrcSend, reliable);
    full.max_dm_size = max_dm_size;
    // SAFETY: by contract.
    unsafe { write_prefix(attr.cast(), attr_size, &full) };
    0
}

/// Writes as many bytes of a structure as the caller's has, and zeroes the part that we do not
/// know.
///
/// # Safety
/// `to` has `size` writable bytes.
unsafe fn write_prefix<T>(to: *mut u8, size: usize, value: &T) {
    // SAFETY: by contract.
    unsafe {
        to.write_bytes(0, size);
        to.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), size.min(size_of::<T>()));
    }
}

fn port_attr(info: &PortInfo) -> ibv_port_attr {
    let (active_width, active_speed) = info.width_and_speed();
    let mut attr = ibv_port_attr::zeroed();
    attr.state = if info.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    attr.max_mtu = info.max_mtu.into();
    attr.active_mtu = info.active_mtu.into();
    attr.gid_tbl_len = signed(info.gid_table_len);
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = active_width;
    attr.active_speed = active_speed;
    attr.active_speed_ex = active_speed.into();
    attr.phys_state = if info.active { PHYS_STATE_LINK_UP } else { PHYS_STATE_DISABLED };
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr
}

/// Reads the port's attributes, as many bytes as the caller knows of.
///
/// # Safety
/// `context` is open and `attr` has `length` writable bytes.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    if port_num != 1 {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: by contract.
    let info = port_info(unsafe { Context::of(context) });
    // SAFETY: by contract.
    code(info.map(|info| unsafe { write_prefix(attr.cast(), length, &port_attr(&info)) }))
}

/// Reads the port's attributes, for programs built before the call had a length.
///
/// # Safety
/// `context` is open and `attr` has the 48 writable bytes of the old structure.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: by contract.
    unsafe { query_port(context, port_num, attr, IBV_PORT_ATTR_COMPAT_SIZE) }
}

/// Reads the clock of completion timestamps.
///
/// # Safety
/// `values` is writable.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: by contract.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return code(Err(Errno(libc::EOPNOTSUPP)));
    }
    // SAFETY: writes a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut values.raw_clock) };
    0
}

/// Says that nothing is promised about the order in which the bytes of a message appear.
///
/// # Safety
/// `qp` is a queue pair of this library.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// Reads the speed of the port, in units of 100 Mbit/s.
///
/// # Safety
/// `context` is open and `port_speed` is writable.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    if port_num != 1 {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: by contract.
    let info = port_info(unsafe { Context::of(context) });
    // SAFETY: by contract.
    code(info.map(|info| unsafe { port_speed.write(u64::from(info.speed_mbps / 100)) }))
}
