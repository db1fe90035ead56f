//! Shared receive queues, whose receives complete in any order.

use rnic_abi::doorbell::RecordIndex;
use verbs_abi::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use super::*;
use crate::post::post_srq_recv;

/// A queue with room for four receives, and buffers of eight bytes for them.
struct Shared {
    world: World,
    srq: *mut ibv_srq,
    memory: Box<[[u8; 8]]>,
    mr: *mut ibv_mr,
}

impl Shared {
    fn new() -> Self {
        let world = World::new();
        let mut attr = ibv_srq_init_attr::zeroed();
        attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        // SAFETY: valid objects.
        let srq = unsafe { ibv_create_srq(world.pd, &raw mut attr) };
        assert!(!srq.is_null());
        let mut memory = vec![[0; 8]; 16].into_boxed_slice();
        let mr = world.register(memory.as_flattened_mut());
        Self { world, srq, memory, mr }
    }

    /// Posts a buffer.
    fn post(&self, buffer: usize) -> c_int {
        let mut sge = sge_of(&self.memory[buffer], self.mr);
        let mut wr = ibv_recv_wr::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (buffer as u64, &raw mut sge, 1);
        let mut bad = ptr::null_mut();
        // SAFETY: a valid list.
        unsafe { post_srq_recv(self.srq, &raw mut wr, &raw mut bad) }
    }

    /// The engine takes the next one.
    fn take(&self) -> (RecordIndex, u32) {
        let (record, index, _) = self.world.fake.state().take_shared().unwrap();
        (record, index)
    }

    /// A message has arrived for one that was taken.
    fn complete(&self, (record, index): (RecordIndex, u32), buffer: u64, data: [u8; 8]) {
        let mut cqe = Cqe::new(buffer, self.world.qpn(), WcOpcode::Recv);
        (cqe.record, cqe.wqe_index, cqe.flags) = (record.value(), index, CqeFlags::RECV);
        cqe.byte_len = 8;
        assert!(cqe.carry(&data));
        self.world.fake.state().complete(self.world.cq_handle(), &cqe);
        let polled: Vec<_> = self.world.poll().iter().map(|completion| completion.wr_id).collect();
        assert_eq!(polled, [buffer]);
    }
}

#[test]
fn a_receive_that_lasts_keeps_no_other_from_being_posted() {
    let shared = Shared::new();
    for buffer in 0..4 {
        assert_eq!(shared.post(buffer), 0);
    }
    assert_eq!(shared.post(4), libc::ENOMEM);
    // The peer of the first sends no more than the first packet of its message.
    let oldest = shared.take();
    let mut taken: Vec<_> = (1..4).map(|buffer| (shared.take(), buffer)).collect();
    for buffer in 4..12 {
        let (at, done) = taken.remove(0);
        shared.complete(at, done, [done as u8; 8]);
        assert_eq!(shared.memory[done as usize], [done as u8; 8]);
        assert_eq!(shared.post(buffer), 0, "{buffer}");
        // As many are outstanding as there may be.
        assert_eq!(shared.post(15), libc::ENOMEM);
        taken.push((shared.take(), buffer as u64));
    }
    // Its slot was used twice meanwhile; its data goes where it belongs.
    shared.complete(oldest, 0, [0xaa; 8]);
    assert_eq!(shared.memory[0], [0xaa; 8]);
    assert!(shared.memory[12..].iter().all(|buffer| *buffer == [0; 8]));
    assert_eq!(shared.post(12), 0);
}
