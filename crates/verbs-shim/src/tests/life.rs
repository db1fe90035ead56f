//! Opening, closing and threads.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use verbs_abi::{
    IBV_QPS_RESET, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_XRC, IBV_WR_SEND, IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    ibv_xrcd_init_attr,
};

use super::*;
use crate::{cq::Cq, srq::create_srq_ex, xrc::open_xrcd};

#[test]
fn everything_can_be_destroyed() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    // SAFETY: each is used no more after its end.
    unsafe {
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_destroy_qp(world.qp), 0);
        assert_eq!(ibv_destroy_cq(world.cq), 0);
        assert_eq!(ibv_destroy_comp_channel(world.channel), 0);
        assert_eq!(ibv_dealloc_pd(world.pd), 0);
        assert_eq!(ibv_close_device(world.context), 0);
    }
}

#[test]
fn a_query_beside_a_reset_lets_no_posts_in() {
    let world = World::new();
    // SAFETY: alive as long as the world.
    let qp = unsafe { crate::qp::Qp::of(world.qp) };
    // As if a thread were posting: the reset waits for it.
    let posting = qp.sq.as_ref().unwrap().producer.lock();
    let address = world.qp as usize;
    let resets = std::thread::spawn(move || {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::zeroed() };
        // SAFETY: alive as long as the world.
        unsafe { ibv_modify_qp(address as *mut ibv_qp, &raw mut attr, IBV_QP_STATE as c_int) }
    });
    while qp.state().load(Ordering::Acquire) != IBV_QPS_RESET {
        std::thread::yield_now();
    }
    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    // SAFETY: local variables.
    let queried = unsafe { ibv_query_qp(world.qp, &raw mut attr, 0, &raw mut init) };
    assert_eq!((queried, qp.accepts_sends()), (0, false));
    drop(posting);
    assert_eq!(resets.join().unwrap(), 0);
    assert_eq!(qp.state().load(Ordering::Acquire), IBV_QPS_RESET);
}

#[test]
fn a_forked_child_leaves_the_parents_objects_alone() {
    let world = World::new();
    let status = status_of_child(|| {
        // SAFETY: the child's own copies.
        unsafe {
            ibv_destroy_qp(world.qp) == 0
                && ibv_destroy_cq(world.cq) == 0
                && ibv_destroy_comp_channel(world.channel) == 0
                && ibv_close_device(world.context) == 0
        }
    });
    assert_eq!(status, 0);
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    world.finish_send();
    assert_eq!(world.poll().len(), 1);
}

/// The status with which a forked child ends: whether what it did was right. A child that hangs is
/// killed.
fn status_of_child(run: impl FnOnce() -> bool) -> c_int {
    // SAFETY: the child only calls the library and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a plain system call.
        unsafe { libc::alarm(30) };
        let ended = run();
        // SAFETY: leaves without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!ended)) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// As if other threads were in the middle of every other call.
#[test]
fn a_forked_child_frees_domains_and_imports_nothing_whatever_threads_of_the_parent_do() {
    let world = World::new();
    let parent = super::domains::parent_of(&world, world.pd, ptr::null_mut(), 0);
    // SAFETY: open as long as the world.
    let context = unsafe { crate::context::Context::of(world.context) };
    let (objects, known) = (context.objects.lock(), context.shared.known());
    let status = status_of_child(|| {
        // SAFETY: the interface is used as a program would.
        unsafe {
            let handle = (*world.pd).handle;
            let is_nothing = ibv_import_pd(world.context, handle).is_null()
                && ibv_import_mr(world.pd, 1).is_null()
                && ibv_import_dm(world.context, 1).is_null();
            is_nothing
                && ibv_dealloc_pd(parent) == 0
                && ibv_dealloc_pd(world.pd) == 0
                && ibv_close_device(world.context) == 0
        }
    });
    drop((objects, known));
    assert_eq!(status, 0);
    // SAFETY: the parent's own.
    assert_eq!(unsafe { ibv_dealloc_pd(parent) }, 0);
}

/// As if other threads were in the middle of opening devices.
#[test]
fn a_forked_child_opens_devices_whatever_threads_of_the_parent_do() {
    let world = World::new();
    // SAFETY: an open context.
    let device = unsafe { (*world.context).device };
    let (open, known) = (crate::import::OPEN.lock(), crate::device::KNOWN.lock());
    let status = status_of_child(|| {
        // SAFETY: the interface is used as a program would.
        unsafe {
            let context = ibv_open_device(device);
            let again = ibv_import_device(libc::dup((*context).cmd_fd));
            let is_same = !again.is_null() && again == context;
            let of_parent = libc::dup((*world.context).cmd_fd);
            let is_own = ibv_import_device(of_parent).is_null();
            let closed = ibv_close_device(context) == 0 && ibv_close_device(again) == 0;
            is_same && is_own && closed && ibv_close_device(world.context) == 0
        }
    });
    drop((open, known));
    assert_eq!(status, 0);
    // SAFETY: what the parent opened is still open.
    unsafe {
        let again = ibv_import_device(libc::dup((*world.context).cmd_fd));
        assert_eq!(again, world.context);
        assert_eq!(ibv_close_device(again), 0);
    }
}

#[test]
fn threads_may_post_and_poll_at_once() {
    const EACH: u32 = 2_000;
    let world = World::with(IBV_QPT_RC, ibv_qp_cap { max_send_wr: 8, ..CAP });
    let polled = std::sync::atomic::AtomicU32::new(0);
    let done = || polled.load(std::sync::atomic::Ordering::Relaxed) == 3 * EACH;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut left = EACH;
                while left > 0 {
                    match world.send(&mut request(IBV_WR_SEND, 0, &mut [])) {
                        0 => left -= 1,
                        error => {
                            assert_eq!(error, libc::ENOMEM);
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !done() {
                    let count = u32::try_from(world.poll().len()).unwrap();
                    polled.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        while !done() {
            let mut state = world.fake.state();
            let unpolled = state.cqs[&world.cq_handle()].ring.written()
                - u64::from(polled.load(std::sync::atomic::Ordering::Relaxed));
            let fetched = if unpolled < 8 { state.fetch_send(world.qp_handle()) } else { None };
            if let Some((index, words)) = fetched {
                let qp = state.qps.get_mut(&world.qp_handle()).unwrap();
                let (record, queue) = qp.sq.as_mut().unwrap();
                queue.release(index.wrapping_add(1));
                let mut cqe = Cqe::new(words[1], qp.qpn, WcOpcode::Send);
                (cqe.record, cqe.wqe_index) = (record.value(), index);
                state.complete(world.cq_handle(), &cqe);
            }
            drop(state);
            std::thread::yield_now();
        }
    });
}

/// A shared receive queue of an XRC domain, whose receives complete at the world's queue.
fn xrc_srq(world: &World) -> *mut ibv_srq {
    let mut domain = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    let mut attr = ibv_srq_init_attr_ex::zeroed();
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    (attr.srq_type, attr.pd, attr.cq) = (IBV_SRQT_XRC, world.pd, world.cq);
    attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    // SAFETY: an open context and its objects.
    let srq = unsafe {
        attr.xrcd = open_xrcd(world.context, &raw mut domain);
        assert!(!attr.xrcd.is_null());
        create_srq_ex(world.context, &raw mut attr)
    };
    assert!(!srq.is_null());
    srq
}

fn xrc_srq_ends_beside_a_new_queue_pair(world: &World) -> Ends {
    let srq = xrc_srq(world) as usize;
    let (pd, cq) = (world.pd as usize, world.cq as usize);
    Ends {
        // SAFETY: used no more.
        end: Box::new(move || assert_eq!(unsafe { ibv_destroy_srq(srq as *mut ibv_srq) }, 0)),
        is_gone: |daemon| daemon.srqs == 0,
        make: Box::new(move || {
            let mut attr = ibv_qp_init_attr::zeroed();
            let cq = cq as *mut _;
            (attr.send_cq, attr.recv_cq, attr.cap, attr.qp_type) = (cq, cq, CAP, IBV_QPT_RC);
            // SAFETY: live objects.
            assert!(!unsafe { ibv_create_qp(pd as *mut _, &raw mut attr) }.is_null());
        }),
        made: |daemon| daemon.qps.len(),
    }
}

fn queue_pair_ends_beside_a_new_srq(world: &World) -> Ends {
    let (qp, pd) = (world.qp as usize, world.pd as usize);
    Ends {
        // SAFETY: used no more.
        end: Box::new(move || assert_eq!(unsafe { ibv_destroy_qp(qp as *mut ibv_qp) }, 0)),
        is_gone: |daemon| daemon.qps.is_empty(),
        make: Box::new(move || {
            let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
            let mut attr = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
            // SAFETY: a live object.
            assert!(!unsafe { ibv_create_srq(pd as *mut _, &raw mut attr) }.is_null());
        }),
        made: |daemon| daemon.srqs as usize,
    }
}

/// A queue that ends while another is made.
struct Ends {
    end: Box<dyn FnOnce() + Send>,
    is_gone: fn(&fake::State) -> bool,
    make: Box<dyn FnOnce() + Send>,
    /// How many there are of what is made.
    made: fn(&fake::State) -> usize,
}

/// Until then a new queue could get its doorbell record, and its first completions be taken for
/// the old ones.
#[test]
fn no_queue_is_made_before_the_completions_of_one_that_ends_are_gone() {
    for ends in [xrc_srq_ends_beside_a_new_queue_pair, queue_pair_ends_beside_a_new_srq] {
        let world = World::new();
        let Ends { end, is_gone, make, made } = ends(&world);
        let before = made(&world.fake.state());
        // SAFETY: a live object. A thread that polls keeps its completions.
        let polling = unsafe { Cq::of(world.cq) }.state.lock();
        std::thread::scope(|scope| {
            scope.spawn(end);
            let deadline = Instant::now() + Duration::from_secs(10);
            while !is_gone(&world.fake.state()) {
                assert!(Instant::now() < deadline, "the daemon heard nothing");
                std::thread::yield_now();
            }
            scope.spawn(make);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(made(&world.fake.state()), before, "a queue was made");
            drop(polling);
        });
        assert_eq!(made(&world.fake.state()), before + 1);
    }
}
