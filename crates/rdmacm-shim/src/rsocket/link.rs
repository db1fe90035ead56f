//! A stream's queue pair, memory and state: what [`Flow`] says, done with verbs.

use std::ffi::c_int;

use verbs_abi::{
    IBV_QPT_RC, IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, Zeroed, ibv_qp, ibv_qp_init_attr, ibv_send_wr_rdma,
    ibv_send_wr_remote, ibv_sge, ibv_wc, ibv_wc_status,
};

use super::{
    flow::{Flow, Outgoing, Sizes},
    queues::{self, Completions, RECEIVE, inline, post_receive, post_send},
    region::{Region, pieces},
    wire::{
        CONNECT_LEN, Connect, Control, MAPPING_LEN, Mapping, Message, PLACE_LEN, PLACES, Place,
    },
};
use crate::{
    error::{Errno, Result},
    id::Id,
    qp,
};

pub(crate) struct Link {
    id: *mut Id,
    qp: *mut ibv_qp,
    pub(crate) completions: Completions,
    sending: Region,
    receiving: Region,
    table: Region,
    inline: u32,
    pub(crate) flow: Flow,
}

// SAFETY: a link is behind its stream's lock, and objects of libibverbs may be used by any thread.
unsafe impl Send for Link {}

// What a send request is, in the upper half of its identifier; the lower half has its bytes.
const DATA: u64 = 0;
const CONTROL: u64 = 1;
const DISCONNECT: u64 = 2;

impl Link {
    /// Makes the queue pair of an identifier, with receives posted.
    pub(crate) fn new(id: &mut Id, sizes: Sizes, wanted_inline: u32) -> Result<Self> {
        let depth = u32::from(sizes.sends) + u32::from(sizes.receives);
        let completions = Completions::new(id.public.verbs, depth)?;
        let pd = id.public.pd;
        let table = PLACES * PLACE_LEN + usize::from(sizes.mappings) * MAPPING_LEN;
        let sending = Region::new(pd, sizes.send_bytes as usize, false)?;
        let receiving = Region::new(pd, sizes.receive_bytes as usize, true)?;
        let table = Region::new(pd, table, true)?;
        let mut attr = ibv_qp_init_attr::zeroed();
        attr.send_cq = completions.cq();
        attr.recv_cq = completions.cq();
        attr.qp_type = IBV_QPT_RC;
        attr.sq_sig_all = 1;
        attr.cap.max_send_wr = sizes.sends.into();
        attr.cap.max_recv_wr = sizes.receives.into();
        attr.cap.max_send_sge = 2;
        attr.cap.max_recv_sge = 1;
        // What ends say of their tables always goes inline.
        attr.cap.max_inline_data = wanted_inline.max(MAPPING_LEN as u32);
        let raw: *mut Id = id;
        // SAFETY: the identifier is the caller's, the attributes are a local variable.
        let made = unsafe { qp::rdma_create_qp(raw.cast(), pd, &raw mut attr) };
        if made != 0 {
            return Err(Errno::last());
        }
        // SAFETY: as above.
        let qp = unsafe { (*raw).public.qp };
        let flow = Flow::new(sizes, receiving.place(0));
        let inline = wanted_inline.min(attr.cap.max_inline_data);
        let link = Self { id: raw, qp, completions, sending, receiving, table, inline, flow };
        for _ in 0..sizes.receives {
            link.receive()?;
        }
        Ok(link)
    }

    /// What this end says when it connects.
    pub(crate) fn introduce(&self) -> [u8; CONNECT_LEN] {
        self.flow.introduce(self.table.place(0)).encode()
    }

    /// The other end's answer.
    pub(crate) fn meet(&mut self, private: &[u8]) -> Result<()> {
        let peer = Connect::decode(private).ok_or(Errno(libc::EOPNOTSUPP))?;
        self.flow.meet(peer).map_err(|_| Errno(libc::EPROTO))
    }

    fn receive(&self) -> Result<()> {
        // SAFETY: the queue pair lives as long as the link.
        unsafe { post_receive(self.qp, RECEIVE, &mut []) }
    }

    /// The connection is broken.
    pub(crate) fn fail(&mut self, errno: c_int) {
        self.flow.fail(errno);
        self.stop();
    }

    /// Nothing is sent or received any more; what is posted is flushed.
    pub(crate) fn stop(&self) {
        // SAFETY: the identifier lives longer than the link.
        qp::stop(unsafe { &*self.id });
    }

    /// Handles what has completed. True when the state has changed.
    pub(crate) fn progress(&mut self) -> bool {
        let mut changed = false;
        let mut received = 0_u32;
        let mut room = [ibv_wc::zeroed(); 16];
        loop {
            let done = self.completions.poll(&mut room);
            let last = done.len() < 16;
            changed |= !done.is_empty();
            let count = done.len();
            for wc in room.iter().take(count) {
                if wc.wr_id & RECEIVE == 0 {
                    self.sent(wc);
                } else if wc.status == IBV_WC_SUCCESS {
                    received += 1;
                    self.received(wc);
                } else if self.flow.is_up() {
                    // The queue pair receives no more, which a thread that only reads hears here.
                    self.fail(broken(wc.status));
                }
            }
            if last {
                break;
            }
        }
        for _ in 0..received {
            if self.flow.is_up()
                && let Err(Errno(errno)) = self.receive()
            {
                self.fail(errno);
            }
        }
        self.grant();
        changed
    }

    fn received(&mut self, wc: &ibv_wc) {
        let has_imm = wc.wc_flags & IBV_WC_WITH_IMM != 0;
        let message =
            if has_imm { Message::decode(u32::from_be(wc.imm_data)) } else { Message::Unknown };
        let (flow, table) = (&mut self.flow, &self.table);
        let read = |index| Place::from_table(&table.read(index * PLACE_LEN));
        if flow.is_up() && flow.received(message, wc.byte_len, read).is_err() {
            self.fail(libc::EPROTO);
        }
    }

    fn sent(&mut self, wc: &ibv_wc) {
        match wc.wr_id >> 32 {
            DATA => self.flow.sent(wc.wr_id as u32),
            CONTROL => self.flow.control_sent(),
            _ => {
                self.flow.control_sent();
                self.flow.disconnect();
            }
        }
        if wc.status != IBV_WC_SUCCESS && self.flow.is_up() {
            self.fail(broken(wc.status));
        }
    }

    /// Tells the other end what it may send.
    pub(crate) fn grant(&mut self) {
        while let Some(grant) = self.flow.grant() {
            let posted = match grant.half {
                None => self.post(CONTROL << 32, grant.message, Place::default(), &mut [], true),
                Some((body, to)) => {
                    let mut sges = [inline(body.as_ptr().cast(), PLACE_LEN as u32)];
                    self.post(CONTROL << 32, grant.message, to, &mut sges, true)
                }
            };
            if let Err(Errno(errno)) = posted {
                return self.fail(errno);
            }
        }
    }

    /// Sends a control message, if one more can be under way.
    pub(crate) fn control(&mut self, control: Control) -> Result<bool> {
        let Some(message) = self.flow.control(control) else { return Ok(false) };
        let kind = if control == Control::Disconnect { DISCONNECT } else { CONTROL };
        match control {
            // A write without immediate: it costs the other end no receive.
            Control::KeepAlive => self.write(kind << 32, Place::default(), &mut [], false),
            _ => self.post(kind << 32, message, Place::default(), &mut [], false),
        }?;
        Ok(true)
    }

    /// Sends some of the program's bytes; how many. 0 when none can be sent now.
    ///
    /// # Safety
    /// `data` has `len` bytes.
    pub(crate) unsafe fn send(&mut self, data: *const u8, len: u32) -> Result<u32> {
        let Some(out) = self.flow.send(len, self.inline) else { return Ok(0) };
        // SAFETY: by contract.
        unsafe { self.send_bytes(out, data) }
    }

    /// Writes some of the program's bytes into a buffer that the other end has mapped.
    ///
    /// # Safety
    /// `data` has `len` bytes.
    pub(crate) unsafe fn write_mapped(
        &mut self,
        data: *const u8,
        len: u32,
        to: Place,
    ) -> Result<u32> {
        let Some(out) = self.flow.write(len, self.inline, to) else { return Ok(0) };
        // SAFETY: by contract.
        unsafe { self.send_bytes(out, data) }
    }

    /// Tells the other end of a buffer that this one has mapped.
    pub(crate) fn announce(&mut self, index: u16, mapping: Mapping) -> Result<bool> {
        let Some(out) = self.flow.announce(index) else { return Ok(false) };
        let body = mapping.to_table(self.flow.peer().order);
        let mut sges = [inline(body.as_ptr().cast(), MAPPING_LEN as u32)];
        self.post(DATA << 32, out.message, out.to, &mut sges, true)?;
        Ok(true)
    }

    /// A place for buffers that the other end has mapped.
    pub(crate) fn mapping(&self, index: u16) -> Mapping {
        let at = PLACES * PLACE_LEN + usize::from(index) * MAPPING_LEN;
        Mapping::from_table(&self.table.read(at))
    }

    /// # Safety
    /// `data` has as many bytes as the message.
    unsafe fn send_bytes(&mut self, out: Outgoing, data: *const u8) -> Result<u32> {
        let len = out.to.len;
        let ring = self.flow.sizes().send_bytes;
        let mut sges = [inline(data.cast(), len); 2];
        let mut count = 1;
        let is_inline = len <= self.inline;
        if !is_inline {
            // SAFETY: by contract.
            unsafe { self.sending.fill(ring, out.from, data, len) };
            let (base, lkey) = (self.sending.address(), self.sending.lkey());
            for (sge, (at, _, len)) in sges.iter_mut().zip(pieces(ring, out.from, len)) {
                *sge = ibv_sge { addr: base + at as u64, length: len as u32, lkey };
            }
            count = if sges[1].length == 0 { 1 } else { 2 };
        }
        let id = DATA << 32 | u64::from(if is_inline { 0 } else { len });
        let sges = sges.get_mut(..count).unwrap_or_default();
        match out.message {
            Message::Unknown => self.write(id, out.to, sges, is_inline),
            message => self.post(id, message, out.to, sges, is_inline),
        }?;
        Ok(len)
    }

    fn post(
        &mut self,
        id: u64,
        message: Message,
        to: Place,
        sges: &mut [ibv_sge],
        is_inline: bool,
    ) -> Result<()> {
        let mut request = queues::request(id, IBV_WR_RDMA_WRITE_WITH_IMM);
        request.imm_data = message.encode().to_be();
        request.wr = remote(to);
        // SAFETY: the queue pair lives as long as the link; what is not inline is a region's.
        unsafe { post_send(self.qp, request, sges, is_inline) }
    }

    fn write(&mut self, id: u64, to: Place, sges: &mut [ibv_sge], is_inline: bool) -> Result<()> {
        let mut request = queues::request(id, IBV_WR_RDMA_WRITE);
        request.wr = remote(to);
        // SAFETY: the queue pair lives as long as the link; what is not inline is a region's.
        unsafe { post_send(self.qp, request, sges, is_inline) }
    }

    /// Copies received bytes to the program, from `skip` bytes behind the first on.
    ///
    /// # Safety
    /// `to` has room for `len` bytes; at least `skip + len` are unread.
    pub(crate) unsafe fn copy_out(&self, at: u32, to: *mut u8, len: u32) {
        // SAFETY: by contract.
        unsafe { self.receiving.copy_out(self.flow.sizes().receive_bytes, at, to, len) };
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The queue pair goes before its completion queue and memory.
        // SAFETY: the identifier lives longer than the link.
        unsafe { qp::rdma_destroy_qp(self.id.cast()) };
    }
}

/// What a program hears of a stream with such a completion.
fn broken(status: ibv_wc_status) -> c_int {
    match status {
        IBV_WC_RETRY_EXC_ERR => libc::ETIMEDOUT,
        _ => libc::ECONNRESET,
    }
}

fn remote(to: Place) -> ibv_send_wr_remote {
    ibv_send_wr_remote { rdma: ibv_send_wr_rdma { remote_addr: to.addr, rkey: to.rkey } }
}
