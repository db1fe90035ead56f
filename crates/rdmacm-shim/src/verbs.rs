//! The functions of libibverbs that the connection manager calls. The library needs ours.

use std::ffi::{c_char, c_int, c_uint, c_void};

use verbs_abi::{
    be64, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr,
    ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_srq,
    ibv_srq_init_attr,
};

#[rustfmt::skip]
unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_get_device_guid(device: *mut ibv_device) -> be64;
    pub(crate) fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, of: *mut c_void,
        channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, number: c_uint);
    pub(crate) fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> c_int;
}

unsafe extern "C-unwind" {
    /// A thread may be cancelled there.
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        of: *mut *mut c_void,
    ) -> c_int;
}
