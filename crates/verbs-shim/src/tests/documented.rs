//! The tables of `docs/verbs.md` say what the library does: no verb and no flag is left out.

use std::collections::BTreeMap;

use verbs_abi::{IBV_CQ_INIT_ATTR_MASK_FLAGS, ibv_cq_init_attr_ex, ibv_qp_init_attr_ex};

use super::*;
use crate::{cq_ex::create_cq_ex, qp::create_qp_ex};

const DOCUMENT: &str = include_str!("../../../../docs/verbs.md");
const EXPORTS: &str = include_str!("../../exports.txt");

/// What the tables say, by name: the second column.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let section = DOCUMENT.split("\n## Every verb\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut all = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        for name in cells[1].split(", ") {
            assert!(all.insert(name.trim_matches('`'), cells[2]).is_none(), "{name} is told twice");
        }
    }
    all
}

const REFUSED: &str = "EOPNOTSUPP";
const NOTHING: &str = "nothing to do";

/// Names that programs link, of today's interface, and what stands behind each.
fn exports() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = EXPORTS.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let words: Vec<_> = row.split_whitespace().collect();
        let &[name, node, kind] = &words[..] else { return None };
        if name == "node" {
            return None;
        }
        let is_public = node.starts_with("IBVERBS_1") && !node.ends_with('@');
        (is_public || name == "ibv_query_gid_type" || name == "ibv_wr_opcode_str")
            .then_some((name, kind))
    })
}

/// What inline functions of `verbs.h` call, and whether there is something to call.
fn operations(world: &World) -> Vec<(&'static str, bool)> {
    // SAFETY: the context of a world lies in a `verbs_context` of this library.
    let context = unsafe {
        let inside = std::mem::offset_of!(verbs_abi::verbs_context, context);
        &*world.context.byte_sub(inside).cast::<verbs_abi::verbs_context>()
    };
    let ops = &context.context.ops;
    macro_rules! list {
        ($table:ident: $($name:literal $field:ident,)*) => {
            [$(($name, $table.$field.is_some())),*]
        };
    }
    let old = list!(ops:
        "ibv_alloc_mw" alloc_mw, "ibv_bind_mw" bind_mw, "ibv_dealloc_mw" dealloc_mw,
        "ibv_poll_cq" poll_cq, "ibv_req_notify_cq" req_notify_cq, "ibv_post_send" post_send,
        "ibv_post_recv" post_recv, "ibv_post_srq_recv" post_srq_recv,
    );
    let new = list!(context:
        "ibv_query_port" query_port, "ibv_advise_mr" advise_mr, "ibv_alloc_null_mr" alloc_null_mr,
        "ibv_read_counters" read_counters,
        "ibv_attach_counters_point_flow" attach_counters_point_flow,
        "ibv_create_counters" create_counters, "ibv_destroy_counters" destroy_counters,
        "ibv_reg_dm_mr" reg_dm_mr, "ibv_alloc_dm" alloc_dm, "ibv_free_dm" free_dm,
        "ibv_modify_flow_action_esp" modify_flow_action_esp,
        "ibv_destroy_flow_action" destroy_flow_action,
        "ibv_create_flow_action_esp" create_flow_action_esp,
        "ibv_modify_qp_rate_limit" modify_qp_rate_limit,
        "ibv_alloc_parent_domain" alloc_parent_domain, "ibv_dealloc_td" dealloc_td,
        "ibv_alloc_td" alloc_td, "ibv_modify_cq" modify_cq, "ibv_post_srq_ops" post_srq_ops,
        "ibv_destroy_rwq_ind_table" destroy_rwq_ind_table,
        "ibv_create_rwq_ind_table" create_rwq_ind_table, "ibv_destroy_wq" destroy_wq,
        "ibv_modify_wq" modify_wq, "ibv_create_wq" create_wq,
        "ibv_query_rt_values_ex" query_rt_values, "ibv_create_cq_ex" create_cq_ex,
        "ibv_query_device_ex" query_device_ex, "ibv_destroy_flow" ibv_destroy_flow,
        "ibv_create_flow" ibv_create_flow, "ibv_open_qp" open_qp, "ibv_create_qp_ex" create_qp_ex,
        "ibv_get_srq_num" get_srq_num, "ibv_create_srq_ex" create_srq_ex,
        "ibv_open_xrcd" open_xrcd, "ibv_close_xrcd" close_xrcd,
    );
    old.into_iter().chain(new).collect()
}

#[test]
fn every_verb_is_documented_as_it_is() {
    let told = documented();
    let world = World::new();
    let mut known: Vec<&str> = Vec::new();
    for (name, kind) in exports() {
        let told = told.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
        match kind {
            "impl" => assert_ne!(*told, NOTHING, "{name}"),
            "nop" => assert_eq!(*told, NOTHING, "{name}"),
            _ => assert_eq!(*told, REFUSED, "{name}"),
        }
        known.push(name);
    }
    for (name, exists) in operations(&world) {
        let told = told.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
        assert!(exists || *told == REFUSED, "{name} does not exist");
        known.push(name);
    }
    let flags = |name: &str| name.starts_with("IBV_");
    let unknown = told.keys().copied().filter(|name| !known.contains(name) && !flags(name));
    assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "documented, and not there");
}

/// Compares what is told of flags with whether an object can be made with each.
fn compare_flags(flags: &[(&str, u64)], accepts: impl Fn(u64) -> bool) {
    let told = documented();
    for (name, flag) in flags {
        assert_eq!(accepts(*flag), told[name] == "works", "{name}");
    }
}

macro_rules! named {
    ($($flag:ident)*) => { [$((stringify!($flag), u64::from(verbs_abi::$flag))),*] };
}

#[test]
fn every_flag_is_documented_as_it_is() {
    let world = World::new();
    let makes_cq = |wc_flags, flags| {
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        (attr.cqe, attr.wc_flags, attr.flags) = (4, wc_flags, flags);
        attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
        // SAFETY: live objects.
        !unsafe { create_cq_ex(world.context, &raw mut attr) }.is_null()
    };
    let fields = named!(
        IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_QP_NUM IBV_WC_EX_WITH_SRC_QP
        IBV_WC_EX_WITH_SLID IBV_WC_EX_WITH_SL IBV_WC_EX_WITH_DLID_PATH_BITS
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
        IBV_WC_EX_WITH_CVLAN IBV_WC_EX_WITH_FLOW_TAG IBV_WC_EX_WITH_TM_INFO
    );
    compare_flags(&fields, |flag| makes_cq(flag, 0));
    let ways = named!(IBV_CREATE_CQ_ATTR_SINGLE_THREADED IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    compare_flags(&ways, |flag| makes_cq(0, u32::try_from(flag).unwrap()));
    let kinds = named!(
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB IBV_QP_CREATE_SCATTER_FCS IBV_QP_CREATE_CVLAN_STRIPPING
        IBV_QP_CREATE_SOURCE_QPN IBV_QP_CREATE_PCI_WRITE_END_PADDING
    );
    compare_flags(&kinds, |flag| {
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        (attr.send_cq, attr.recv_cq, attr.cap) = (world.cq, world.cq, CAP);
        (attr.qp_type, attr.pd) = (IBV_QPT_RC, world.pd);
        attr.comp_mask = verbs_abi::IBV_QP_INIT_ATTR_PD | verbs_abi::IBV_QP_INIT_ATTR_CREATE_FLAGS;
        attr.create_flags = u32::try_from(flag).unwrap();
        // SAFETY: live objects.
        !unsafe { create_qp_ex(world.context, &raw mut attr) }.is_null()
    });
}
