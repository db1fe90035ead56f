//! The queue pair of a datagram rsocket, with its memory.

use std::net::IpAddr;

use verbs_abi::{
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QPS_INIT,
    IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD, IBV_WC_SUCCESS, IBV_WR_SEND, RDMA_UDP_QKEY, Zeroed,
    ibv_ah, ibv_ah_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_send_wr_remote, ibv_send_wr_ud, ibv_sge, ibv_wc,
};

use super::{
    queues::{self, Completions, RECEIVE, post_receive, post_send},
    region::Region,
    settings::Wishes,
};
use crate::{
    error::{Errno, Result},
    session::{self, Device, Opened},
    verbs,
};

pub(crate) struct Nic {
    pub(crate) device: &'static Device,
    qp: *mut ibv_qp,
    pub(crate) completions: Completions,
    sending: Region,
    receiving: Region,
    /// Places of `sending` that are free.
    free: Vec<u32>,
    /// Most bytes of a datagram, its header included.
    pub(crate) most: usize,
}

// SAFETY: it is behind its socket's lock, and objects of libibverbs may be used by any thread.
unsafe impl Send for Nic {}

/// The way to another datagram rsocket.
pub(crate) struct Way(*mut ibv_ah);

// SAFETY: as above.
unsafe impl Send for Way {}

impl Way {
    /// May take seconds, where the neighbour is not known.
    pub(crate) fn new(device: &Device, mut attr: ibv_ah_attr) -> Result<Self> {
        // SAFETY: the domain is the device's, the attributes are a local variable.
        let ah = unsafe { verbs::ibv_create_ah(device.opened()?.pd, &raw mut attr) };
        if ah.is_null() { Err(Errno::last()) } else { Ok(Self(ah)) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // SAFETY: its own.
        unsafe { verbs::ibv_destroy_ah(self.0) };
    }
}

impl Nic {
    pub(crate) fn new(device: &'static Device, wishes: &Wishes) -> Result<Self> {
        let Opened { context, pd } = device.opened()?;
        let sizes = wishes.sizes();
        let receives = u32::from(sizes.receives).min(sizes.receive_bytes / LARGEST).max(1);
        let sends = u32::from(sizes.sends).min(sizes.send_bytes / LARGEST).max(1);
        let completions = Completions::new(context, sends + receives)?;
        let sending = Region::new(pd, (sends * LARGEST) as usize, false)?;
        let receiving = Region::new(pd, (receives * STRIDE) as usize, false)?;
        let mut attr = ibv_qp_init_attr::zeroed();
        attr.send_cq = completions.cq();
        attr.recv_cq = completions.cq();
        attr.qp_type = IBV_QPT_UD;
        attr.sq_sig_all = 1;
        attr.cap.max_send_wr = sends;
        attr.cap.max_recv_wr = receives;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        // SAFETY: the domain is the device's, the attributes are a local variable.
        let qp = unsafe { verbs::ibv_create_qp(pd, &raw mut attr) };
        if qp.is_null() {
            return Err(Errno::last());
        }
        let mtu = 128_u32 << device.mtu()?.min(5);
        let most = LARGEST.min(mtu) as usize;
        let nic =
            Self { device, qp, completions, sending, receiving, free: (0..sends).collect(), most };
        nic.start()?;
        for slot in 0..receives {
            nic.receive_into(slot)?;
        }
        Ok(nic)
    }

    fn start(&self) -> Result<()> {
        let keys = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        let steps: [(_, ibv_qp_attr_mask); 3] =
            [(IBV_QPS_INIT, keys), (IBV_QPS_RTR, 0), (IBV_QPS_RTS, IBV_QP_SQ_PSN)];
        for (state, mask) in steps {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = state;
            attr.port_num = 1;
            attr.qkey = RDMA_UDP_QKEY;
            // SAFETY: the queue pair is alive, the attributes are a local variable.
            match unsafe { verbs::ibv_modify_qp(self.qp, &raw mut attr, mask | IBV_QP_STATE) } {
                0 => {}
                errno => return Err(Errno(errno)),
            }
        }
        Ok(())
    }

    /// The queue pair that peers reach at an own address, or 0: at another device's address its
    /// number is none, or another program's.
    pub(crate) fn qpn_at(&self, own: IpAddr) -> u32 {
        if session::devices().is_ok_and(|all| self.device.is_of_another(own, all)) {
            return 0;
        }
        // SAFETY: alive as long as this.
        unsafe { (*self.qp).qp_num }
    }

    /// Has these bytes received into next.
    pub(crate) fn receive_into(&self, slot: u32) -> Result<()> {
        let addr = self.receiving.address() + u64::from(slot * STRIDE);
        let mut sges = [ibv_sge { addr, length: STRIDE, lkey: self.receiving.lkey() }];
        // SAFETY: the queue pair is alive, the bytes are the region's.
        unsafe { post_receive(self.qp, RECEIVE | u64::from(slot), &mut sges) }
    }

    /// Takes what has completed; hands over which bytes have arrived where. True when there was
    /// something.
    pub(crate) fn progress(&mut self, mut arrived: impl FnMut(&Self, u32, Vec<u8>)) -> bool {
        let mut changed = false;
        loop {
            let mut room = [ibv_wc::zeroed(); 16];
            let done = self.completions.poll(&mut room).len();
            changed |= done > 0;
            for wc in room.iter().take(done) {
                let slot = wc.wr_id as u32;
                if wc.wr_id & RECEIVE == 0 {
                    self.free.push(slot);
                } else if wc.status == IBV_WC_SUCCESS {
                    let len = (wc.byte_len.min(STRIDE) as usize).saturating_sub(GRH);
                    let mut bytes = vec![0; len];
                    let at = slot * STRIDE + GRH as u32;
                    // SAFETY: the vector is as long as is said.
                    unsafe {
                        self.receiving.copy_out(u32::MAX, at, bytes.as_mut_ptr(), len as u32);
                    }
                    arrived(self, slot, bytes);
                }
            }
            if done < 16 {
                return changed;
            }
        }
    }

    pub(crate) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Sends a datagram; false when the queue is full.
    ///
    /// # Safety
    /// `data` has `len` bytes.
    pub(crate) unsafe fn send(
        &mut self,
        way: &Way,
        qpn: u32,
        header: &[u8],
        (data, len): (*const u8, usize),
    ) -> Result<bool> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let at = slot * LARGEST;
        let total = u32::try_from(header.len() + len).map_err(|_| Errno(libc::EMSGSIZE))?;
        // SAFETY: both are as long as is said.
        unsafe {
            self.sending.fill(u32::MAX, at, header.as_ptr(), header.len() as u32);
            self.sending.fill(u32::MAX, at + header.len() as u32, data, len as u32);
        }
        let mut request = queues::request(slot.into(), IBV_WR_SEND);
        let (remote_qpn, remote_qkey) = (qpn, RDMA_UDP_QKEY);
        request.wr =
            ibv_send_wr_remote { ud: ibv_send_wr_ud { ah: way.0, remote_qpn, remote_qkey } };
        let addr = self.sending.address() + u64::from(at);
        let mut sges = [ibv_sge { addr, length: total, lkey: self.sending.lkey() }];
        // SAFETY: the queue pair is alive, the bytes are the region's.
        let posted = unsafe { post_send(self.qp, request, &mut sges, false) };
        if posted.is_err() {
            self.free.push(slot);
        }
        posted.map(|()| true)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // The queue pair goes before its completion queue and memory.
        // SAFETY: its own.
        unsafe { verbs::ibv_destroy_qp(self.qp) };
    }
}

/// Bytes before a received datagram.
const GRH: usize = 40;
/// Datagrams are never longer, as upstream's.
pub(crate) const LARGEST: u32 = 2048;
const STRIDE: u32 = LARGEST + 64;
