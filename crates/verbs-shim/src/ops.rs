//! The tables through which inline functions of verbs.h call the library.

use std::ptr;

use verbs_abi::verbs_context;

use crate::{
    advise::advise_mr,
    cq::req_notify_cq,
    cq_ex::create_cq_ex,
    device_memory::{alloc_dm, free_dm, reg_dm_mr},
    mr::{OWN, alloc_null_mr},
    mw::{alloc_mw, bind_mw, dealloc_mw},
    pd::{alloc_parent_domain, alloc_td, dealloc_td},
    poll::poll_cq,
    post::{post_recv, post_send, post_srq_recv},
    qp::{create_qp_ex, open_qp},
    qp_attr::modify_qp_rate_limit,
    query::{query_device_ex, query_port, query_rt_values},
    srq::{create_srq_ex, get_srq_num},
    xrc::{close_xrcd, open_xrcd},
};

/// Fills in the supported functions; the inline functions return EOPNOTSUPP for a null entry.
pub(crate) fn fill(context: &mut verbs_context) {
    let ops = &mut context.context.ops;
    ops.alloc_mw = Some(alloc_mw);
    ops.bind_mw = Some(bind_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    context.advise_mr = Some(advise_mr);
    context.alloc_dm = Some(alloc_dm);
    context.free_dm = Some(free_dm);
    context.reg_dm_mr = Some(reg_dm_mr);
    context.alloc_null_mr = Some(alloc_null_mr);
    context.query_port = Some(query_port);
    context.query_rt_values = Some(query_rt_values);
    context.create_cq_ex = Some(create_cq_ex);
    context.query_device_ex = Some(query_device_ex);
    context.open_qp = Some(open_qp);
    context.create_qp_ex = Some(create_qp_ex);
    context.get_srq_num = Some(get_srq_num);
    context.create_srq_ex = Some(create_srq_ex);
    context.modify_qp_rate_limit = Some(modify_qp_rate_limit);
    context.alloc_td = Some(alloc_td);
    context.dealloc_td = Some(dealloc_td);
    context.alloc_parent_domain = Some(alloc_parent_domain);
    context.open_xrcd = Some(open_xrcd);
    context.close_xrcd = Some(close_xrcd);
    context.priv_ = ptr::from_ref(&OWN).cast_mut().cast();
}
