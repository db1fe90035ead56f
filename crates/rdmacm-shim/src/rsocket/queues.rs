//! A queue pair with a completion queue and its channel.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use verbs_abi::{
    IBV_SEND_INLINE, Zeroed, ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode,
};

use crate::{
    error::{Errno, Result},
    qp, verbs,
};

/// A completion queue with a channel of its own, whose descriptor does not block.
pub(crate) struct Completions {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// An event comes with the next completion.
    armed: bool,
    unacknowledged: u32,
}

// SAFETY: objects of libibverbs may be used by any thread.
unsafe impl Send for Completions {}

impl Completions {
    pub(crate) fn new(context: *mut ibv_context, depth: u32) -> Result<Self> {
        // SAFETY: the context is open.
        let (channel, cq) = unsafe { qp::make_cq(context, ptr::null_mut(), depth) }?;
        let made = Self { cq, channel, armed: false, unacknowledged: 0 };
        super::unblock(made.fd());
        Ok(made)
    }

    pub(crate) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: alive as long as this.
        unsafe { (*self.channel).fd }
    }

    /// The next completions, as many as there is room for.
    pub(crate) fn poll<'a>(&self, room: &'a mut [ibv_wc]) -> &'a [ibv_wc] {
        // SAFETY: the queue is alive, and the room as long as is said; every library of ours sets
        // this function.
        let got = unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq;
            let most = c_int::try_from(room.len()).unwrap_or(0);
            poll.map_or(0, |poll| poll(self.cq, most, room.as_mut_ptr()))
        };
        room.get(..usize::try_from(got).unwrap_or(0)).unwrap_or(&[])
    }

    /// Asks for an event with the next completion. False when one is asked for already.
    pub(crate) fn arm(&mut self) -> bool {
        if self.armed {
            return false;
        }
        // SAFETY: as above.
        unsafe {
            if let Some(notify) = (*(*self.cq).context).ops.req_notify_cq {
                notify(self.cq, 0);
            }
        }
        self.armed = true;
        true
    }

    /// Takes the event, if there is one.
    pub(crate) fn take_event(&mut self) -> Result<()> {
        let (mut cq, mut of) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, the rest are local variables.
        let got = unsafe { verbs::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut of) };
        if got == 0 {
            self.armed = false;
            self.unacknowledged += 1;
            return Ok(());
        }
        match Errno::last() {
            Errno(libc::EAGAIN | libc::EINTR) => Ok(()),
            error => Err(error),
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: its own; queue pairs that used it are destroyed before.
        unsafe {
            verbs::ibv_ack_cq_events(self.cq, self.unacknowledged);
            verbs::ibv_destroy_cq(self.cq);
            verbs::ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// A send request, but for its bytes.
pub(crate) fn request(id: u64, opcode: ibv_wr_opcode) -> ibv_send_wr {
    ibv_send_wr { wr_id: id, opcode, ..Zeroed::zeroed() }
}

/// Posts one send request with these bytes.
///
/// # Safety
/// The queue pair is alive; inline bytes are readable, others registered.
pub(crate) unsafe fn post_send(
    qp: *mut ibv_qp,
    mut request: ibv_send_wr,
    sges: &mut [ibv_sge],
    inline: bool,
) -> Result<()> {
    request.sg_list = sges.as_mut_ptr();
    request.num_sge = c_int::try_from(sges.len()).unwrap_or(0);
    request.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
    let mut bad = ptr::null_mut();
    // SAFETY: by contract.
    let errno = unsafe {
        let post = (*(*qp).context).ops.post_send.ok_or(Errno(libc::EOPNOTSUPP))?;
        post(qp, &raw mut request, &raw mut bad)
    };
    if errno == 0 { Ok(()) } else { Err(Errno(errno)) }
}

/// Posts one receive request.
///
/// # Safety
/// The queue pair is alive, the bytes are registered.
pub(crate) unsafe fn post_receive(qp: *mut ibv_qp, id: u64, sges: &mut [ibv_sge]) -> Result<()> {
    let mut request = ibv_recv_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: c_int::try_from(sges.len()).unwrap_or(0),
    };
    let mut bad = ptr::null_mut();
    // SAFETY: by contract.
    let errno = unsafe {
        let post = (*(*qp).context).ops.post_recv.ok_or(Errno(libc::EOPNOTSUPP))?;
        post(qp, &raw mut request, &raw mut bad)
    };
    if errno == 0 { Ok(()) } else { Err(Errno(errno)) }
}

/// Bytes of the program, which the request takes itself.
pub(crate) fn inline(data: *const c_void, len: u32) -> ibv_sge {
    ibv_sge { addr: data.addr() as u64, length: len, lkey: 0 }
}

/// Bit of a receive's identifier.
pub(crate) const RECEIVE: u64 = 1 << 63;
