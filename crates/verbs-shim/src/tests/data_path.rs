//! Work requests to WQEs, CQEs to work completions.

use rnic_abi::{
    cpu_hints::{CpuHints, YieldOn},
    verbs::{SendFlags, WcStatus, WrOpcode},
    work_queue::WorkConsumer,
    wqe::{RecvControl, SendControl, Sge},
};
use verbs_abi::{
    IBV_ACCESS_ON_DEMAND, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPT_UD,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED, IBV_WC_RECV, IBV_WC_SEND, IBV_WC_WITH_IMM, IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_TSO,
};

use super::*;
use crate::mr::ibv_rereg_mr;

fn decode(words: &[u64]) -> SendControl {
    SendControl::decode(words[..8].try_into().unwrap(), words.len()).unwrap()
}

fn data_of(control: &SendControl, words: &[u64]) -> Vec<u8> {
    let bytes: Vec<u8> = words[control.data_at()..].iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes[..control.data_len.into()].to_vec()
}

fn sge_at(words: &[u64], n: usize) -> Sge {
    Sge::decode([words[8 + 2 * n], words[9 + 2 * n]])
}

#[test]
fn a_small_write_carries_its_data_and_keeps_its_sges() {
    let world = World::new();
    let mut memory: Vec<u8> = (0..=255).collect();
    let mr = world.register(&mut memory);
    let mut sges =
        [sge_of(&memory[3..8], mr), sge_of(&memory[0..0], mr), sge_of(&memory[100..117], mr)];
    let mut wr =
        request(IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, &mut sges);
    wr.imm_data = 0xabcd;
    wr.wr.rdma.remote_addr = 0xdead_0000_beef;
    wr.wr.rdma.rkey = 0x55;
    assert_eq!(world.send(&mut wr), 0);
    assert_eq!(world.fake.state().rung().len(), 1);
    let (index, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = decode(&words);
    assert_eq!((index, control.opcode), (0, WrOpcode::WriteImm));
    assert_eq!(control.flags, SendFlags::SIGNALED | SendFlags::SOLICITED);
    assert_eq!((control.imm_or_key, control.rkey), (0xabcd, 0x55));
    assert_eq!((control.remote_addr, control.wr_id), (0xdead_0000_beef, wr.wr_id));
    // The SGE without bytes is left out.
    assert_eq!(control.num_sge, 2);
    assert_eq!((sge_at(&words, 0).addr, sge_at(&words, 0).length), (sges[0].addr, 5));
    assert_eq!((sge_at(&words, 1).addr, sge_at(&words, 1).length), (sges[2].addr, 17));
    assert!(control.carried);
    assert_eq!(data_of(&control, &words), [&memory[3..8], &memory[100..117]].concat());
}

#[test]
fn data_is_not_copied_into_the_wqe_where_that_would_be_wrong() {
    let world = World::new();
    let mut memory = vec![1; 4096];
    let mr = world.register(&mut memory);
    let small = || [sge_of(&memory[..16], mr)];
    let mut foreign = small();
    foreign[0].lkey ^= 0xff00_0000;
    let mut outside = small();
    outside[0].addr = memory.as_ptr() as u64 + 4090;
    let cases = [
        (IBV_WR_SEND, IBV_SEND_FENCE, small()),
        (IBV_WR_SEND, 0, [sge_of(&memory[..300], mr)]),
        (IBV_WR_SEND, 0, foreign),
        (IBV_WR_SEND, 0, outside),
        (IBV_WR_RDMA_READ, 0, small()),
    ];
    for (opcode, flags, mut sges) in cases {
        assert_eq!(world.send(&mut request(opcode, flags, &mut sges)), 0);
        let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
        let control = decode(&words);
        assert!(!control.carried && control.data_len == 0 && control.num_sge == 1);
        let mut state = world.fake.state();
        let (_, queue) = state.qps.get_mut(&world.qp_handle()).unwrap().sq.as_mut().unwrap();
        queue.release(queue.next_index());
    }
    // A region that is gone is not read.
    let mut sges = small();
    // SAFETY: a live region, used no more.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut sges)), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    assert!(!decode(&words).carried);
}

#[test]
fn inline_data_is_packed_without_sges() {
    let world = World::new();
    let memory: Vec<u8> = (0..200).collect();
    let piece = |range: std::ops::Range<usize>| ibv_sge {
        addr: memory[range.clone()].as_ptr() as u64,
        length: u32::try_from(range.len()).unwrap(),
        lkey: 0,
    };
    let mut sges = [piece(1..4), piece(10..13), piece(50..63)];
    assert_eq!(world.send(&mut request(IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = decode(&words);
    assert_eq!((control.num_sge, control.carried), (0, false));
    assert!(control.flags.contains(SendFlags::INLINE));
    assert_eq!(
        data_of(&control, &words),
        [&memory[1..4], &memory[10..13], &memory[50..63]].concat()
    );
    // One byte more than the queue pair was made for.
    let mut sges = [piece(0..101)];
    assert_eq!(world.send(&mut request(IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)), libc::EINVAL);
    assert_eq!(
        world.send(&mut request(IBV_WR_RDMA_READ, IBV_SEND_INLINE, &mut sges[..0])),
        libc::EINVAL
    );
}

#[test]
fn impossible_requests_are_refused() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    let sge = sge_of(&memory[..8], mr);
    let mut four = [sge; 4];
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut four)), libc::EINVAL);
    assert_eq!(world.send(&mut request(IBV_WR_TSO, 0, &mut four[..1])), libc::EINVAL);
    assert_eq!(world.send(&mut request(999, 0, &mut four[..1])), libc::EINVAL);
    let mut negative = request(IBV_WR_SEND, 0, &mut []);
    negative.num_sge = -1;
    assert_eq!(world.send(&mut negative), libc::EINVAL);
    assert_eq!(world.receive(1, &mut [sge; 3]), libc::EINVAL);
}

/// Their completions tell.
#[test]
fn atomics_that_cannot_succeed_are_posted() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    for (remote_addr, length) in [(12, 8), (16, 4), (16, 16)] {
        let mut sink = [sge_of(&memory[..length], mr)];
        let mut atomic = request(IBV_WR_ATOMIC_CMP_AND_SWP, 0, &mut sink);
        atomic.wr.atomic.remote_addr = remote_addr;
        assert_eq!(world.send(&mut atomic), 0);
        let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
        assert_eq!(decode(&words).remote_addr, remote_addr);
        assert_eq!(sge_at(&words, 0).length as usize, length);
    }
}

#[test]
fn the_state_decides_which_posts_are_accepted() {
    let world = World::new();
    for (state, send, receive) in [
        (IBV_QPS_RESET, libc::EINVAL, libc::EINVAL),
        (IBV_QPS_INIT, libc::EINVAL, 0),
        (IBV_QPS_RTS, 0, 0),
        (IBV_QPS_ERR, 0, 0),
    ] {
        world.modify(state);
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), send, "{state}");
        assert_eq!(world.receive(1, &mut []), receive, "{state}");
    }
}

#[test]
fn a_list_is_posted_until_the_queue_is_full_with_one_doorbell() {
    let world = World::new();
    let mut list: Vec<_> = (0..6).map(|_| request(IBV_WR_SEND, 0, &mut [])).collect();
    for at in (0..5).rev() {
        list[at].next = &raw mut list[at + 1];
    }
    let mut bad = ptr::null_mut();
    // SAFETY: a valid list.
    assert_eq!(unsafe { post_send(world.qp, &raw mut list[0], &raw mut bad) }, libc::ENOMEM);
    assert_eq!(bad, &raw mut list[4]);
    assert_eq!(world.fake.state().rung().len(), 1);
    for _ in 0..4 {
        world.finish_send();
    }
    assert_eq!(world.poll().len(), 4);
    // Round and round.
    for n in 0..50 {
        assert_eq!(world.send(&mut list[5]), 0, "{n}");
        world.finish_send();
        let wc = world.poll();
        assert_eq!((wc.len(), wc[0].wr_id, wc[0].opcode), (1, list[5].wr_id, IBV_WC_SEND));
    }
}

#[test]
fn a_receive_slot_is_free_once_its_completion_is_polled() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    let mut sges = [sge_of(&memory[..8], mr), sge_of(&memory[32..64], mr)];
    for wr_id in 0..4 {
        assert_eq!(world.receive(wr_id, &mut sges), 0);
    }
    assert_eq!(world.receive(4, &mut sges), libc::ENOMEM);
    assert!(world.fake.state().rung().is_empty(), "receives need no attention");
    let (index, words) = world.fake.state().fetch_receive(world.qp_handle()).unwrap();
    let control = RecvControl::decode(&[words[0], words[1]], words.len()).unwrap();
    assert_eq!((index, control.num_sge, control.wr_id), (0, 2, 0));
    {
        let mut state = world.fake.state();
        let (_, queue) = state.qps.get_mut(&world.qp_handle()).unwrap().rq.as_mut().unwrap();
        queue.release(1);
    }
    // The data comes inside the completion.
    let mut cqe = world.receive_cqe(0, 0);
    let data: Vec<u8> = (1..=20).collect();
    cqe.byte_len = 20;
    cqe.imm_or_key = 0x0102;
    cqe.flags |= rnic_abi::cqe::CqeFlags::IMM;
    assert!(cqe.carry(&data));
    world.complete(&cqe);
    assert_eq!(world.receive(4, &mut sges), libc::ENOMEM, "not polled yet");
    let wc = world.poll();
    assert_eq!((wc[0].opcode, wc[0].byte_len, wc[0].imm_data), (IBV_WC_RECV, 20, 0x0102));
    assert_eq!(wc[0].wc_flags, IBV_WC_WITH_IMM);
    assert_eq!(memory[..8], data[..8]);
    assert_eq!(memory[32..44], data[8..]);
    assert_eq!(world.receive(4, &mut sges), 0);
}

#[test]
fn data_that_has_arrived_is_there_when_its_memory_is_registered_no_more() {
    type End = fn(*mut ibv_mr) -> c_int;
    // SAFETY: a region of the test's own.
    let dereg: End = |mr| unsafe { ibv_dereg_mr(mr) };
    let rereg: End = |mr| {
        let change = IBV_REREG_MR_CHANGE_ACCESS;
        let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND).cast_signed();
        // SAFETY: as above.
        unsafe { ibv_rereg_mr(mr, change, ptr::null_mut(), ptr::null_mut(), 0, rights) }
    };
    for end in [dereg, rereg] {
        let world = World::new();
        let mut memory = vec![0; 8];
        let mr = world.register(&mut memory);
        assert_eq!(world.receive(7, &mut [sge_of(&memory, mr)]), 0);
        in_receive_queue(&world, |queue| queue.release(1));
        let mut cqe = world.receive_cqe(0, 7);
        cqe.byte_len = 8;
        assert!(cqe.carry(&[5; 8]));
        world.complete(&cqe);
        assert_eq!(end(mr), 0);
        assert_eq!(memory, [5; 8]);
        // It is the program's again.
        memory.fill(6);
        let wc = world.poll();
        assert_eq!((wc.len(), wc[0].wr_id, wc[0].byte_len), (1, 7, 8));
        assert_eq!(memory, [6; 8], "it is not copied again");
    }
}

/// The engine's side of the world's receive queue.
fn in_receive_queue<T>(world: &World, act: impl FnOnce(&mut WorkConsumer) -> T) -> T {
    let mut state = world.fake.state();
    act(&mut state.qps.get_mut(&world.qp_handle()).unwrap().rq.as_mut().unwrap().1)
}

#[test]
fn a_receive_rings_an_engine_that_flushes_the_queue() {
    let world = World::new();
    assert_eq!(world.receive(1, &mut []), 0);
    assert!(world.fake.state().rung().is_empty());
    // The engine ended the queue pair, and the program has seen nothing of it yet.
    in_receive_queue(&world, WorkConsumer::mark_flushed);
    assert_eq!(world.receive(2, &mut []), 0);
    assert_eq!(world.fake.state().rung().len(), 1);
    // A query that was answered before changes nothing.
    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    // SAFETY: valid objects.
    assert_eq!(unsafe { ibv_query_qp(world.qp, &raw mut attr, 0, &raw mut init) }, 0);
    assert_eq!((attr.qp_state, world.receive(3, &mut [])), (IBV_QPS_RTS, 0));
    assert_eq!(world.fake.state().rung().len(), 1);
    in_receive_queue(&world, WorkConsumer::reset);
    world.modify(IBV_QPS_RESET);
    world.modify(IBV_QPS_INIT);
    assert_eq!(world.receive(4, &mut []), 0);
    assert!(world.fake.state().rung().is_empty(), "it starts over");
}

#[test]
fn completions_in_error_keep_their_fields() {
    let world = World::new();
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    let mut cqe = world.send_cqe(0, 9);
    cqe.status = WcStatus::RetryExcErr;
    cqe.vendor_err = 77;
    world.complete(&cqe);
    let wc = world.poll();
    assert_eq!((wc[0].status, wc[0].vendor_err, wc[0].qp_num), (12, 77, world.qpn()));
}

#[test]
fn a_datagram_needs_an_address_handle() {
    let world = World::with(IBV_QPT_UD, CAP);
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), libc::EINVAL);
    assert_eq!(world.send(&mut request(IBV_WR_RDMA_READ, 0, &mut [])), libc::EINVAL);
    let mut attr = verbs_abi::ibv_ah_attr::zeroed();
    // SAFETY: valid objects.
    let ah = unsafe { ibv_create_ah(world.pd, &raw mut attr) };
    let mut wr = request(IBV_WR_SEND, 0, &mut []);
    wr.wr.ud = verbs_abi::ibv_send_wr_ud { ah, remote_qpn: 5, remote_qkey: 6 };
    assert_eq!(world.send(&mut wr), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = decode(&words);
    // SAFETY: a live object.
    assert_eq!((control.ah, control.remote_qpn, control.qkey), (unsafe { (*ah).handle }, 5, 6));
}

#[test]
fn a_sleeping_engine_is_woken() {
    let world = World::new();
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    assert!(!world.fake.state().wake.as_ref().unwrap().drain().unwrap());
    world.fake.state().rung();
    assert!(world.fake.state().bells.as_ref().unwrap().prepare_sleep());
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    assert!(world.fake.state().wake.as_ref().unwrap().drain().unwrap());
}

#[test]
fn reset_forgets_completions_and_starts_the_queues_over() {
    let world = World::new();
    for _ in 0..3 {
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
        world.finish_send();
    }
    assert_eq!(world.receive(1, &mut []), 0);
    world.modify(IBV_QPS_RESET);
    assert!(world.poll().is_empty());
    world.modify(IBV_QPS_RTS);
    for _ in 0..4 {
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    }
    assert_eq!(world.fake.state().fetch_send(world.qp_handle()).unwrap().0, 0);
}

#[test]
fn a_destroyed_queue_pair_leaves_no_completions() {
    let world = World::new();
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    let mut other = world.send_cqe(0, 1);
    world.complete(&other);
    other.qpn += 1;
    world.complete(&other);
    // SAFETY: not used any more.
    assert_eq!(unsafe { ibv_destroy_qp(world.qp) }, 0);
    // Neither its own nor one of an unknown queue.
    assert!(world.poll().is_empty());
}

#[test]
fn a_dead_daemon_flushes_what_is_outstanding() {
    let world = World::new();
    let wr = |wr_id, flags| {
        let mut wr = request(IBV_WR_SEND, flags, &mut []);
        wr.wr_id = wr_id;
        wr
    };
    assert_eq!(world.send(&mut wr(1, IBV_SEND_SIGNALED)), 0);
    world.finish_send();
    // Released and unsignaled: it succeeded in silence.
    assert_eq!(world.send(&mut wr(2, 0)), 0);
    {
        let mut state = world.fake.state();
        state.fetch_send(world.qp_handle()).unwrap();
        let (_, queue) = state.qps.get_mut(&world.qp_handle()).unwrap().sq.as_mut().unwrap();
        queue.release(2);
    }
    assert_eq!(world.send(&mut wr(3, 0)), 0);
    assert_eq!(world.send(&mut wr(4, IBV_SEND_SIGNALED)), 0);
    assert_eq!(world.receive(5, &mut []), 0);
    world.fake.die();
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        seen.extend(world.poll().iter().map(|wc| (wc.wr_id, wc.status)));
    }
    let flush = IBV_WC_WR_FLUSH_ERR;
    assert_eq!(seen, [(1, 0), (3, flush), (4, flush), (5, flush)]);
    // Whatever is posted now is flushed too, and everything can be destroyed.
    assert_eq!(world.send(&mut wr(6, 0)), 0);
    assert_eq!(world.poll().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [6]);
    // SAFETY: used no more after each.
    unsafe {
        assert_eq!(ibv_destroy_qp(world.qp), 0);
        assert_eq!(ibv_destroy_cq(world.cq), 0);
        assert_eq!(ibv_destroy_comp_channel(world.channel), 0);
        assert_eq!(ibv_dealloc_pd(world.pd), 0);
        assert!(ibv_alloc_pd(world.context).is_null());
        assert_eq!(ibv_close_device(world.context), 0);
    }
}

#[test]
fn resizing_keeps_completions_and_arming() {
    let world = World::new();
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
    world.finish_send();
    // SAFETY: valid objects.
    unsafe {
        assert_eq!(ibv_resize_cq(world.cq, 100), 0);
        assert_eq!((*world.cq).cqe, 128);
        assert_eq!(ibv_resize_cq(world.cq, 0), libc::EINVAL);
    }
    assert_eq!(world.poll().len(), 1);
}

#[test]
fn a_program_publishes_its_cpu_only_when_asked() {
    let world = World::new();
    let reported = |hints| {
        world.fake.state().bells.as_ref().unwrap().ask(hints);
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
        assert!(world.poll().is_empty());
        world.fake.state().bells.as_ref().unwrap().client_cpu()
    };
    // There are CPUs enough, or more threads than CPUs on a machine with many.
    assert_eq!(reported(CpuHints::default()), None);
    assert_eq!(reported(CpuHints { yield_on: YieldOn::Everywhere, ..CpuHints::default() }), None);
    assert!(reported(CpuHints { report_cpu: true, ..CpuHints::default() }).is_some());
}
