//! Extended queue pairs and completion queues.

use rnic_abi::{
    verbs::{SendFlags, WrOpcode},
    wqe::SendControl,
};
use verbs_abi::{
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_TSO, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_SEND_SIGNALED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_CVLAN, IBV_WR_SEND, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_qp_ex,
    ibv_qp_init_attr_ex,
};

use super::*;
use crate::{cq::req_notify_cq, cq_ex::create_cq_ex, qp::create_qp_ex};

/// Calls a function of an extended object.
macro_rules! call {
    ($object:expr, $name:ident $(, $argument:expr)*) => {
        // SAFETY: a live extended object whose functions are all set.
        unsafe { (*$object).$name.unwrap()($object $(, $argument)*) }
    };
}

fn extended_qp(world: &World, ops: u64) -> *mut ibv_qp {
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.send_cq, attr.recv_cq, attr.cap) = (world.cq, world.cq, CAP);
    attr.qp_type = IBV_QPT_RC;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = world.pd;
    attr.send_ops_flags = ops;
    // SAFETY: valid objects.
    unsafe { create_qp_ex(world.context, &raw mut attr) }
}

fn fetch(world: &World) -> Option<(SendControl, Vec<u64>)> {
    let (_, words) = world.fake.state().fetch_send(world.qp_handle())?;
    let control = SendControl::decode(words[..8].try_into().unwrap(), words.len()).unwrap();
    Some((control, words))
}

/// A world whose queue pair is extended.
fn extended_world() -> (World, *mut ibv_qp_ex) {
    let mut world = World::new();
    let ops = IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_ATOMIC_WRITE
        | IBV_QP_EX_WITH_FLUSH;
    world.qp = extended_qp(&world, ops);
    assert!(!world.qp.is_null());
    world.modify(IBV_QPS_RTS);
    // SAFETY: a live object.
    let qp = unsafe { ibv_qp_to_qp_ex(world.qp) };
    assert!(!qp.is_null());
    (world, qp)
}

fn set(qp: *mut ibv_qp_ex, wr_id: u64, flags: u32) {
    // SAFETY: a live object.
    unsafe { ((*qp).wr_id, (*qp).wr_flags) = (wr_id, flags) };
}

#[test]
fn only_objects_made_extended_have_an_extended_form() {
    let world = World::new();
    // SAFETY: a live object.
    assert!(unsafe { ibv_qp_to_qp_ex(world.qp) }.is_null());
    assert!(extended_qp(&world, IBV_QP_EX_WITH_TSO).is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
}

#[test]
fn a_batch_is_published_as_a_whole() {
    let (world, qp) = extended_world();
    let mut memory: Vec<u8> = (0..64).collect();
    let mr = world.register(&mut memory);
    let sge = sge_of(&memory[..16], mr);
    call!(qp, wr_start);
    set(qp, 1, IBV_SEND_SIGNALED);
    call!(qp, wr_rdma_write, 0x55, 0x1000);
    call!(qp, wr_set_sge, sge.lkey, sge.addr, sge.length);
    set(qp, 2, 0);
    call!(qp, wr_send_imm, 7);
    let pieces = [
        ibv_data_buf { addr: memory.as_mut_ptr().cast(), length: 3 },
        ibv_data_buf { addr: memory[20..].as_mut_ptr().cast(), length: 9 },
    ];
    call!(qp, wr_set_inline_data_list, 2, pieces.as_ptr());
    set(qp, 3, 0);
    call!(qp, wr_atomic_write, 0x66, 0x2000, memory.as_ptr().cast());
    set(qp, 4, 0);
    call!(qp, wr_flush, 0x77, 0x3000, 512, 1, 1);
    assert!(fetch(&world).is_none(), "nothing before the batch is complete");
    assert_eq!(call!(qp, wr_complete), 0);
    assert_eq!(world.fake.state().rung().len(), 1);

    let (write, words) = fetch(&world).unwrap();
    assert_eq!((write.opcode, write.wr_id, write.rkey), (WrOpcode::Write, 1, 0x55));
    assert_eq!((write.flags, write.carried, write.num_sge), (SendFlags::SIGNALED, true, 1));
    assert_eq!(words[10].to_le_bytes(), memory[..8]);
    let (send, words) = fetch(&world).unwrap();
    assert_eq!((send.opcode, send.wr_id, send.imm_or_key), (WrOpcode::SendImm, 2, 7));
    assert_eq!((send.flags, send.data_len), (SendFlags::INLINE, 12));
    assert_eq!(words[8].to_le_bytes()[..4], [0, 1, 2, 20]);
    let (atomic, _) = fetch(&world).unwrap();
    assert_eq!((atomic.opcode, atomic.data_len), (WrOpcode::AtomicWrite, 8));
    let (flush, _) = fetch(&world).unwrap();
    assert_eq!((flush.opcode, flush.rkey, flush.remote_addr), (WrOpcode::Flush, 0x77, 0x3000));
    assert_eq!((flush.compare_add, flush.swap, flush.num_sge), (512, 0x101, 0));
    assert!(fetch(&world).is_none());
}

#[test]
fn an_abort_or_an_error_discards_the_batch() {
    let (world, qp) = extended_world();
    call!(qp, wr_start);
    call!(qp, wr_send);
    call!(qp, wr_send);
    call!(qp, wr_abort);
    call!(qp, wr_start);
    call!(qp, wr_send);
    call!(qp, wr_set_inline_data, ptr::NonNull::<u8>::dangling().as_ptr().cast(), 101);
    call!(qp, wr_send);
    assert_eq!(call!(qp, wr_complete), libc::EINVAL);
    call!(qp, wr_start);
    for _ in 0..5 {
        call!(qp, wr_send);
    }
    assert_eq!(call!(qp, wr_complete), libc::ENOMEM);
    assert!(world.fake.state().rung().is_empty() && fetch(&world).is_none());
    // The queue is as free as before, and the lock is.
    for _ in 0..4 {
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    }
}

/// A world whose CQ is extended, and its QP too.
fn walking_world() -> (World, *mut ibv_cq_ex) {
    let mut world = World::new();
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = 8;
    attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_CVLAN;
    // SAFETY: valid objects.
    unsafe {
        assert!(create_cq_ex(world.context, &raw mut attr).is_null());
        attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    }
    // SAFETY: valid objects.
    let cq: *mut ibv_cq_ex = unsafe { create_cq_ex(world.context, &raw mut attr) };
    world.cq = cq.cast();
    world.qp = extended_qp(&world, IBV_QP_EX_WITH_SEND);
    world.modify(IBV_QPS_RTS);
    (world, cq)
}

#[test]
fn an_extended_cq_is_walked() {
    let (world, cq) = walking_world();
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), libc::ENOENT);
    for n in 0..3 {
        let mut cqe = world.receive_cqe(n, u64::from(n) + 10);
        cqe.byte_len = n * 100;
        cqe.timestamp = 42;
        world.complete(&cqe);
    }
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), 0);
    for n in 0..3 {
        // SAFETY: a live object.
        assert_eq!(unsafe { ((*cq).wr_id, (*cq).status) }, (u64::from(n) + 10, 0));
        assert_eq!((call!(cq, read_byte_len), call!(cq, read_opcode)), (n * 100, 128));
        assert_eq!((call!(cq, read_qp_num), call!(cq, read_completion_ts)), (world.qpn(), 42));
        assert_eq!(call!(cq, next_poll), if n < 2 { 0 } else { libc::ENOENT });
    }
    call!(cq, end_poll);
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), libc::ENOENT);
}

#[test]
fn a_program_may_walk_and_post_without_an_end() {
    let (world, cq) = walking_world();
    // As many as fit.
    for n in 0..8 {
        world.complete(&world.receive_cqe(n, 0));
    }
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), 0);
    for n in 8..100 {
        // What the program posted instead of the completion that it is looking at completes at
        // once.
        world.complete(&world.receive_cqe(n, 0));
        assert_eq!(call!(cq, next_poll), 0);
    }
    call!(cq, end_poll);
}

#[test]
fn control_calls_are_possible_while_completions_are_walked() {
    let (world, cq) = walking_world();
    let posted = [0, 1, 2].map(|n| world.receive_cqe(n, n.into()));
    posted.iter().for_each(|cqe| world.complete(cqe));
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), 0);
    // SAFETY: a live object.
    assert_eq!(unsafe { req_notify_cq(world.cq, 0) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_resize_cq(world.cq, 64) }, 0);
    assert_eq!(call!(cq, next_poll), 0);
    world.modify(IBV_QPS_RESET);
    assert_eq!(call!(cq, next_poll), libc::ENOENT, "RESET forgets completions");
    // SAFETY: used no more.
    assert_eq!(unsafe { ibv_destroy_qp(world.qp) }, 0);
    call!(cq, end_poll);
}

#[test]
fn another_thread_may_arm_while_completions_are_walked() {
    let (world, cq) = walking_world();
    world.complete(&world.receive_cqe(0, 0));
    assert_eq!(call!(cq, start_poll, ptr::null_mut()), 0);
    std::thread::scope(|scope| {
        let world = &world;
        // SAFETY: a live object.
        scope.spawn(move || assert_eq!(unsafe { req_notify_cq(world.cq, 0) }, 0)).join().unwrap();
    });
    call!(cq, end_poll);
}

#[test]
fn a_dead_daemon_flushes_while_a_batch_is_being_built() {
    let (world, qp) = extended_world();
    assert_eq!(world.send(&mut request(IBV_WR_SEND, IBV_SEND_SIGNALED, &mut [])), 0);
    world.fake.die();
    call!(qp, wr_start);
    let flushed = (0..10_000).map(|_| world.poll().len()).find(|count| *count > 0);
    assert_eq!(flushed, Some(1));
    call!(qp, wr_abort);
}

#[test]
fn reset_ends_a_batch_that_is_being_built() {
    let (world, qp) = extended_world();
    call!(qp, wr_start);
    call!(qp, wr_send);
    world.modify(IBV_QPS_RESET);
    assert_eq!(call!(qp, wr_complete), libc::EINVAL);
    world.modify(IBV_QPS_RTS);
    call!(qp, wr_start);
    call!(qp, wr_send);
    assert_eq!(call!(qp, wr_complete), 0);
    assert!(fetch(&world).is_some());
}
