//! Parent domains and thread domains, and what else the library answers by itself.

use verbs_abi::{
    IBV_CQ_INIT_ATTR_MASK_PD, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_QPS_RESET,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, ibv_cq_init_attr_ex, ibv_ece,
    ibv_parent_domain_init_attr, ibv_qp_rate_limit_attr, ibv_td, ibv_td_init_attr,
};

use super::*;
use crate::{
    cq_ex::create_cq_ex,
    pd::{alloc_parent_domain, alloc_td, dealloc_td},
    qp_attr::modify_qp_rate_limit,
};

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub(super) fn parent_of(
    world: &World,
    pd: *mut ibv_pd,
    td: *mut ibv_td,
    comp_mask: u32,
) -> *mut ibv_pd {
    let mut attr = ibv_parent_domain_init_attr::zeroed();
    (attr.pd, attr.td, attr.comp_mask) = (pd, td, comp_mask);
    // SAFETY: live objects.
    unsafe { alloc_parent_domain(world.context, &raw mut attr) }
}

fn dealloc(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a live domain; gone when this succeeds.
    unsafe { ibv_dealloc_pd(pd) }
}

fn extended_cq(world: &World, pd: *mut ibv_pd) -> *mut ibv_cq {
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    (attr.cqe, attr.parent_domain, attr.comp_mask) = (4, pd, IBV_CQ_INIT_ATTR_MASK_PD);
    // SAFETY: live objects.
    unsafe { create_cq_ex(world.context, &raw mut attr) }.cast()
}

#[test]
fn a_parent_domain_stands_for_its_protection_domain() {
    let world = World::new();
    let mut thread = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: live objects.
    let td = unsafe { alloc_td(world.context, &raw mut thread) };
    let parent = parent_of(&world, world.pd, td, 0);
    assert!(!td.is_null() && !parent.is_null());
    // SAFETY: live objects.
    unsafe { assert_eq!((*parent).handle, (*world.pd).handle) };
    // SAFETY: a live domain.
    assert_eq!((dealloc(world.pd), unsafe { dealloc_td(td) }), (libc::EBUSY, libc::EBUSY));
    let mut memory = [0; 64];
    // SAFETY: live memory and domain.
    let mr = unsafe { ibv_reg_mr(parent, memory.as_mut_ptr().cast(), 64, 1) };
    // SAFETY: a live region.
    unsafe { assert_eq!(((*mr).pd, ibv_dereg_mr(mr)), (parent, 0)) };
    // SAFETY: a live domain.
    assert_eq!((dealloc(parent), unsafe { dealloc_td(td) }), (0, 0));
}

#[test]
fn queues_keep_the_parent_domain_that_they_were_made_with() {
    let world = World::new();
    let parent = parent_of(&world, world.pd, ptr::null_mut(), 0);
    let mut attr = ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.cap) = (world.cq, world.cq, CAP);
    attr.qp_type = IBV_QPT_RC;
    // SAFETY: live objects.
    let qp = unsafe { ibv_create_qp(parent, &raw mut attr) };
    // SAFETY: a live object.
    assert_eq!((unsafe { (*qp).pd }, dealloc(parent)), (parent, libc::EBUSY));
    // SAFETY: used no more.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    let cq = extended_cq(&world, parent);
    assert!(!cq.is_null());
    assert_eq!(dealloc(parent), libc::EBUSY);
    // SAFETY: used no more.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
    assert_eq!(dealloc(parent), 0);
}

#[test]
fn what_makes_no_parent_domain_is_refused() {
    let world = World::new();
    let parent = parent_of(&world, world.pd, ptr::null_mut(), 0);
    let half = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    for (pd, mask) in [(ptr::null_mut(), 0), (parent, 0), (world.pd, half), (world.pd, 1 << 20)] {
        assert!(parent_of(&world, pd, ptr::null_mut(), mask).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    for pd in [ptr::null_mut(), world.pd] {
        assert!(extended_cq(&world, pd).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    let mut thread = ibv_td_init_attr { comp_mask: 1 };
    // SAFETY: live objects.
    assert!(unsafe { alloc_td(world.context, &raw mut thread) }.is_null());
    assert_eq!((errno(), dealloc(parent)), (libc::EINVAL, 0));
}

#[test]
fn a_peer_has_no_options() {
    let world = World::new();
    let mut ece = ibv_ece { vendor_id: 7, options: 7, comp_mask: 7 };
    // SAFETY: live objects.
    let set = |ece: &mut ibv_ece| unsafe { ibv_set_ece(world.qp, ece) };
    assert_eq!(set(&mut ece), libc::EINVAL);
    ece.comp_mask = 0;
    assert_eq!(set(&mut ece), libc::EOPNOTSUPP);
    // SAFETY: live objects.
    assert_eq!(unsafe { ibv_query_ece(world.qp, &raw mut ece) }, 0);
    assert_eq!((ece.vendor_id, ece.options, ece.comp_mask), (0, 0, 0));
    assert_eq!(set(&mut ece), 0);
}

#[test]
fn a_limit_of_the_rate_is_kept() {
    let world = World::new();
    let limit = |rate_limit, comp_mask| {
        let (max_burst_sz, typical_pkt_sz) = (0, 0);
        let mut attr =
            ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
        // SAFETY: live objects.
        unsafe { modify_qp_rate_limit(world.qp, &raw mut attr) }
    };
    assert_eq!((limit(1, 1), limit(1_000_000, 0)), (libc::EINVAL, 0));
    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    // SAFETY: live objects.
    assert_eq!(unsafe { ibv_query_qp(world.qp, &raw mut attr, 0, &raw mut init) }, 0);
    assert_eq!(attr.rate_limit, 1_000_000);
    world.modify(IBV_QPS_RESET);
    assert_eq!(limit(1, 0), libc::EINVAL);
}

#[test]
fn completions_tell_the_time_of_the_wall() {
    let mut world = World::new();
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = 4;
    attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    // SAFETY: live objects.
    let cq = unsafe { create_cq_ex(world.context, &raw mut attr) };
    world.cq = cq.cast();
    let mut cqe = world.receive_cqe(0, 0);
    let now = |clock| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a live timespec.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
    };
    let minute = 60_000_000_000;
    cqe.timestamp = now(libc::CLOCK_MONOTONIC) - minute;
    world.complete(&cqe);
    // SAFETY: a live extended queue whose functions are all set.
    let told = unsafe {
        assert_eq!((*cq).start_poll.unwrap()(cq, ptr::null_mut()), 0);
        let told = (*cq).read_completion_wallclock_ns.unwrap()(cq);
        (*cq).end_poll.unwrap()(cq);
        told
    };
    let expected = now(libc::CLOCK_REALTIME) - minute;
    assert!(told <= expected && expected - told < minute / 2, "{told} is not {expected}");
}
