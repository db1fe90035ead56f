//! The library against a daemon without a NIC: the WQEs that it writes, and what it makes of CQEs
//! and events.

mod data_path;
mod documented;
mod domains;
mod events;
mod extended;
mod fake;
mod imports;
mod kinds_of_memory;
mod life;
mod shared;
mod shared_receives;
mod speed;
mod table;
mod windows;

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use rnic_abi::{
    cqe::{Cqe, CqeFlags},
    verbs::WcOpcode,
};
use verbs_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_QP_STATE, IBV_QPS_RTS, IBV_QPT_RC, Zeroed, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::{
    api::*,
    device::device_at,
    poll::poll_cq,
    post::{post_recv, post_send},
};
use fake::Fake;

/// A connected queue pair with one CQ for both directions, as the library sees it.
struct World {
    fake: Fake,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

const CAP: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_send_sge: 3,
    max_recv_sge: 2,
    max_inline_data: 100,
};

impl World {
    fn new() -> Self {
        Self::with(IBV_QPT_RC, CAP)
    }

    fn with(qp_type: u32, cap: ibv_qp_cap) -> Self {
        let fake = Fake::start();
        // SAFETY: the interface is used as a program would.
        unsafe {
            let context = ibv_open_device(device_at(fake.path()));
            assert!(!context.is_null());
            let pd = ibv_alloc_pd(context);
            let channel = ibv_create_comp_channel(context);
            let cq = ibv_create_cq(context, 8, 0x77 as *mut c_void, channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            let mut attr = ibv_qp_init_attr::zeroed();
            (attr.send_cq, attr.recv_cq, attr.cap) = (cq, cq, cap);
            attr.qp_type = qp_type;
            let qp = ibv_create_qp(pd, &raw mut attr);
            assert!(!qp.is_null());
            let world = Self { fake, context, pd, channel, cq, qp };
            world.modify(IBV_QPS_RTS);
            world
        }
    }

    fn modify(&self, state: u32) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        // SAFETY: valid objects.
        assert_eq!(unsafe { ibv_modify_qp(self.qp, &raw mut attr, IBV_QP_STATE) }, 0);
        // SAFETY: a live object.
        assert_eq!(unsafe { (*self.qp).state }, state);
    }

    fn qp_handle(&self) -> u32 {
        // SAFETY: a live object.
        unsafe { (*self.qp).handle }
    }

    fn qpn(&self) -> u32 {
        // SAFETY: a live object.
        unsafe { (*self.qp).qp_num }
    }

    fn cq_handle(&self) -> u32 {
        // SAFETY: a live object.
        unsafe { (*self.cq).handle }
    }

    fn register(&self, memory: &mut [u8]) -> *mut ibv_mr {
        let access = c_int::try_from(IBV_ACCESS_LOCAL_WRITE).unwrap();
        // SAFETY: live memory.
        let mr = unsafe { ibv_reg_mr(self.pd, memory.as_mut_ptr().cast(), memory.len(), access) };
        assert!(!mr.is_null());
        mr
    }

    fn send(&self, wr: &mut ibv_send_wr) -> c_int {
        let mut bad = ptr::null_mut();
        // SAFETY: a valid list.
        let result = unsafe { post_send(self.qp, wr, &raw mut bad) };
        assert_eq!(result == 0, bad.is_null());
        result
    }

    fn receive(&self, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = c_int::try_from(sges.len()).unwrap();
        let mut bad = ptr::null_mut();
        // SAFETY: a valid list.
        unsafe { post_recv(self.qp, &raw mut wr, &raw mut bad) }
    }

    fn poll(&self) -> Vec<ibv_wc> {
        let mut wcs = [ibv_wc::zeroed(); 16];
        // SAFETY: room for as many.
        let count = unsafe { poll_cq(self.cq, 16, wcs.as_mut_ptr()) };
        wcs[..usize::try_from(count).unwrap()].to_vec()
    }

    /// The completion of a send WQE.
    fn send_cqe(&self, index: u32, wr_id: u64) -> Cqe {
        let mut cqe = Cqe::new(wr_id, self.qpn(), WcOpcode::Send);
        cqe.record = self.record(true);
        cqe.wqe_index = index;
        cqe
    }

    /// The completion of a receive WQE.
    fn receive_cqe(&self, index: u32, wr_id: u64) -> Cqe {
        let mut cqe = Cqe::new(wr_id, self.qpn(), WcOpcode::Recv);
        cqe.record = self.record(false);
        cqe.wqe_index = index;
        cqe.flags = CqeFlags::RECV;
        cqe
    }

    fn record(&self, send: bool) -> u32 {
        let state = self.fake.state();
        let qp = &state.qps[&self.qp_handle()];
        let queue = if send { &qp.sq } else { &qp.rq };
        queue.as_ref().unwrap().0.value()
    }

    fn complete(&self, cqe: &Cqe) {
        self.fake.state().complete(self.cq_handle(), cqe);
    }

    /// The engine fetches, releases and completes one send.
    fn finish_send(&self) {
        let (index, words) = self.fake.state().fetch_send(self.qp_handle()).unwrap();
        let mut state = self.fake.state();
        let (_, queue) = state.qps.get_mut(&self.qp_handle()).unwrap().sq.as_mut().unwrap();
        queue.release(index.wrapping_add(1));
        drop(state);
        self.complete(&self.send_cqe(index, words[1]));
    }
}

/// An SGE over a piece of registered memory.
fn sge_of(memory: &[u8], mr: *mut ibv_mr) -> ibv_sge {
    let length = u32::try_from(memory.len()).unwrap();
    // SAFETY: a live region.
    ibv_sge { addr: memory.as_ptr() as u64, length, lkey: unsafe { (*mr).lkey } }
}

/// A request over some SGEs.
fn request(opcode: u32, flags: u32, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = 0x1234_5678_9abc_def0;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = c_int::try_from(sges.len()).unwrap();
    wr
}
