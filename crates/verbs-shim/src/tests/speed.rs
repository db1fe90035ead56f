//! What posting and polling cost:
//! `cargo test --release -p verbs-shim speed -- --ignored --nocapture`

use std::{hint::black_box, time::Instant};

use verbs_abi::{IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE, IBV_WR_SEND};

use super::*;

const ROUNDS: u32 = 200_000;
const BATCH: u32 = 64;

fn per_operation(name: &str, mut batch: impl FnMut() -> std::time::Duration) {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let total: std::time::Duration = (0..ROUNDS / BATCH).map(|_| batch()).sum();
        best = best.min(total.as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name}: {best:.1} ns");
}

/// Gives all slots back without completions.
fn release(world: &World) {
    let mut state = world.fake.state();
    state.rung();
    while state.fetch_send(world.qp_handle()).is_some() {}
    let (_, queue) = state.qps.get_mut(&world.qp_handle()).unwrap().sq.as_mut().unwrap();
    queue.release(queue.next_index());
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let cap = ibv_qp_cap { max_send_wr: BATCH, max_recv_wr: BATCH, max_inline_data: 220, ..CAP };
    let mut world = World::with(IBV_QPT_RC, cap);
    // SAFETY: valid objects.
    assert_eq!(unsafe { ibv_resize_cq(world.cq, 128) }, 0);
    let mut memory = vec![0; 1 << 16];
    let mr = world.register(&mut memory);
    for (name, opcode, flags, size) in [
        ("post SEND 0 B", IBV_WR_SEND, 0, 0),
        ("post WRITE 8 B carried", IBV_WR_RDMA_WRITE, 0, 8),
        ("post WRITE 64 B carried", IBV_WR_RDMA_WRITE, 0, 64),
        ("post WRITE 64 B inline", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 64),
        ("post WRITE 64 KiB", IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1 << 16),
    ] {
        let mut sges = [sge_of(&memory[..size], mr)];
        per_operation(name, || {
            let mut wr = request(opcode, flags, &mut sges);
            let start = Instant::now();
            for _ in 0..BATCH {
                assert_eq!(world.send(black_box(&mut wr)), 0);
            }
            let spent = start.elapsed();
            release(&world);
            spent
        });
    }
    let cqe = world.send_cqe(0, 1);
    let mut wcs = [ibv_wc::zeroed(); 16];
    for (name, at_once) in [("poll one at a time", 1), ("poll sixteen at a time", 16)] {
        per_operation(name, || {
            (0..BATCH).for_each(|_| world.complete(&cqe));
            let mut count = 0;
            let start = Instant::now();
            while count < BATCH {
                // SAFETY: room for as many.
                let polled = unsafe { poll_cq(world.cq, at_once, wcs.as_mut_ptr()) };
                count += black_box(polled).cast_unsigned();
            }
            start.elapsed()
        });
    }
    per_operation("empty poll", || {
        let start = Instant::now();
        for _ in 0..BATCH {
            // SAFETY: room for as many.
            black_box(unsafe { poll_cq(world.cq, 16, wcs.as_mut_ptr()) });
        }
        start.elapsed()
    });
    let _ = &mut world;
}
