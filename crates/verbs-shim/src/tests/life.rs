//! Opening, closing and threads.

use verbs_abi::IBV_WR_SEND;

use super::*;

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
fn a_forked_child_leaves_the_parents_objects_alone() {
    let world = World::new();
    // SAFETY: the child only calls the library and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child's own copies.
        let ended = unsafe {
            ibv_destroy_qp(world.qp) == 0
                && ibv_destroy_cq(world.cq) == 0
                && ibv_close_device(world.context) == 0
        };
        // SAFETY: leaves without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!ended)) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    world.finish_send();
    assert_eq!(world.poll().len(), 1);
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
