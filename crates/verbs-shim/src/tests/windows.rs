//! Memory windows: what is bound becomes a WQE, what can never be bound is refused at once.

use rnic_abi::{verbs::WrOpcode, wqe::SendControl};
use verbs_abi::{
    IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1,
    IBV_MW_TYPE_2, IBV_SEND_SIGNALED, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
};

use super::{domains::parent_of, *};
use crate::mw::{alloc_mw, bind_mw, dealloc_mw};

fn bind_of(mr: *mut ibv_mr, memory: &[u8]) -> ibv_mw_bind {
    let bind_info = ibv_mw_bind_info {
        mr,
        addr: memory.as_ptr() as u64,
        length: memory.len() as u64,
        mw_access_flags: IBV_ACCESS_REMOTE_READ,
    };
    ibv_mw_bind { wr_id: 9, send_flags: IBV_SEND_SIGNALED, bind_info }
}

fn alloc(pd: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: a live domain.
    let mw = unsafe { alloc_mw(pd, kind) };
    assert!(!mw.is_null());
    mw
}

fn bind(world: &World, mw: *mut ibv_mw, mut bind: ibv_mw_bind) -> c_int {
    // SAFETY: live objects of one context.
    unsafe { bind_mw(world.qp, mw, &raw mut bind) }
}

fn rkey(mw: *mut ibv_mw) -> u32 {
    // SAFETY: a live window.
    unsafe { (*mw).rkey }
}

#[test]
fn binding_a_window_posts_a_request_with_its_next_key() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    let mw = alloc(world.pd, IBV_MW_TYPE_1);
    let before = rkey(mw);
    assert_eq!(bind(&world, mw, bind_of(mr, &memory)), 0);
    // The low byte is the consumer's, and wraps without a carry.
    assert_eq!((before & 0xff, rkey(mw)), (0xff, before & !0xff));
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = SendControl::decode(words[..8].try_into().unwrap(), words.len()).unwrap();
    assert_eq!((control.opcode, control.wr_id), (WrOpcode::BindMw, 9));
    // SAFETY: a live region.
    assert_eq!((control.rkey, control.qkey), (rkey(mw), unsafe { (*mr).lkey }));
    assert_eq!((control.remote_addr, control.compare_add), (memory.as_ptr() as u64, 64));
    assert_eq!(control.swap, IBV_ACCESS_REMOTE_READ.into());
    // Without region and memory the window is unbound.
    assert_eq!(bind(&world, mw, bind_of(ptr::null_mut(), &[])), libc::EINVAL);
    let mut nothing = bind_of(ptr::null_mut(), &[]);
    nothing.bind_info.addr = 0;
    assert_eq!(bind(&world, mw, nothing), 0);
    // SAFETY: used no more.
    assert_eq!(unsafe { dealloc_mw(mw) }, 0);
}

#[test]
fn a_bind_that_can_never_succeed_is_refused_and_changes_nothing() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    // SAFETY: a live context.
    let other_pd = unsafe { ibv_alloc_pd(world.context) };
    let [mine, foreign] = [world.pd, other_pd].map(|pd| alloc(pd, IBV_MW_TYPE_1));
    let second = alloc(world.pd, IBV_MW_TYPE_2);
    let good = bind_of(mr, &memory);
    let with_rights = |rights| {
        let mut bind = good;
        bind.bind_info.mw_access_flags |= rights;
        bind
    };
    // SAFETY: live memory and domain.
    let foreign_region = unsafe { ibv_reg_mr(other_pd, memory.as_mut_ptr().cast(), 64, 1) };
    let cases = [
        (second, good, libc::EINVAL),
        (mine, with_rights(IBV_ACCESS_ZERO_BASED), libc::EINVAL),
        (mine, with_rights(IBV_ACCESS_MW_BIND), libc::EINVAL),
        (mine, bind_of(ptr::null_mut(), &memory), libc::EINVAL),
        (mine, bind_of(foreign_region, &memory), libc::EPERM),
        (foreign, good, libc::EPERM),
        (foreign, bind_of(foreign_region, &memory), libc::EPERM),
    ];
    for (number, (mw, wrong, errno)) in cases.into_iter().enumerate() {
        let before = rkey(mw);
        assert_eq!((bind(&world, mw, wrong), rkey(mw)), (errno, before), "case {number}");
    }
    // SAFETY: a live queue pair, which has no domain for a moment, as XRC targets have none.
    unsafe {
        let own = std::mem::replace(&mut (*world.qp).pd, ptr::null_mut());
        assert_eq!(bind(&world, mine, good), libc::EPERM);
        (*world.qp).pd = own;
    }
    assert!(world.fake.state().fetch_send(world.qp_handle()).is_none());
    // A right that means nothing for a window is no reason to refuse it.
    assert_eq!(bind(&world, mine, with_rights(IBV_ACCESS_LOCAL_WRITE)), 0);
    // SAFETY: a live domain.
    assert!(unsafe { alloc_mw(world.pd, 3) }.is_null());
}

/// Also one that is gone since: only queues keep it.
#[test]
fn a_window_of_a_parent_domain_is_of_its_protection_domain() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let parent = parent_of(&world, world.pd, ptr::null_mut(), 0);
    let mw = alloc(parent, IBV_MW_TYPE_1);
    // SAFETY: live memory and domain.
    let mr = unsafe { ibv_reg_mr(parent, memory.as_mut_ptr().cast(), 64, 1) };
    assert_eq!(bind(&world, mw, bind_of(mr, &memory)), 0);
    // SAFETY: a live domain.
    assert_eq!(unsafe { ibv_dealloc_pd(parent) }, 0);
    assert_eq!(bind(&world, mw, bind_of(mr, &memory)), 0);
}
