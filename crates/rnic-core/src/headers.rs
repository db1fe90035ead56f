//! The headers of planned packets.

use crate::event::PacketInfo;
use crate::qp::Qp;
use crate::qp::replies::ReplyKind;
use crate::qp::segment::{Segment, Source};
use rnic_abi::verbs::WrOpcode;
use roce_wire::opcode::HeaderSet;
use roce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, HeaderRepr, ImmDt, Opcode, RKey, Reth, Syndrome,
};

/// The headers of a planned packet.
pub(crate) fn headers_of(qp: &Qp, segment: &Segment) -> HeaderRepr {
    let mut bth = Bth::new(segment.opcode, qp.dest_qpn(), segment.psn);
    bth.pkey = qp.pkey();
    bth.pad = segment.pad();
    bth.ack_req = segment.ack_req;
    bth.solicited = segment.solicited;
    let mut headers = HeaderRepr::new(bth);
    match segment.source {
        Source::Request { index, offset } => {
            request_headers(&mut headers, qp, segment, index, offset)
        }
        Source::Reply { nth, .. } => {
            // A MIDDLE has no AETH.
            if segment.opcode != Opcode::RcReadRespMiddle {
                headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: qp.responder.msn });
            }
            if let Some(ReplyKind::Atomic { value }) =
                qp.responder.replies.get(nth).map(|reply| reply.kind)
            {
                headers.atomic_ack = Some(AtomicAckEth { original: value });
            }
        }
        Source::Ack => {
            let syndrome = qp.responder.ack.map_or(Syndrome::ACK, |ack| ack.syndrome);
            headers.aeth = Some(Aeth { syndrome, msn: qp.responder.msn });
        }
    }
    headers
}

fn request_headers(headers: &mut HeaderRepr, qp: &Qp, segment: &Segment, index: u32, offset: u32) {
    let wr = qp.sq.wr(index);
    let control = &wr.control;
    let info = headers.bth.opcode.info();
    let rkey = RKey(control.rkey);
    match control.opcode {
        WrOpcode::CmpSwap => {
            headers.atomic = Some(AtomicEth {
                va: control.remote_addr,
                rkey,
                swap_or_add: control.swap,
                compare: control.compare_add,
            });
        }
        WrOpcode::FetchAdd => {
            let add = control.compare_add;
            let va = control.remote_addr;
            headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
        }
        _ => {
            if info.has(HeaderSet::RETH) {
                // A READ asks for what its response packets hold, a WRITE announces everything.
                let rest = wr.length - offset;
                let dma_len = match control.opcode {
                    WrOpcode::Read => rest.min(segment.span.saturating_mul(qp.mtu)),
                    _ => rest,
                };
                let va = control.remote_addr.wrapping_add(offset.into());
                headers.reth = Some(Reth { va, rkey, dma_len });
            }
            if info.has(HeaderSet::IMM_DT) {
                headers.imm = Some(ImmDt(control.imm_or_key.to_ne_bytes()));
            }
        }
    }
}

pub(crate) fn info_of(qp: &Qp, segment: &Segment) -> PacketInfo {
    PacketInfo {
        opcode: segment.opcode,
        dest_qpn: qp.dest_qpn(),
        psn: segment.psn,
        ack_req: segment.ack_req,
        payload: segment.len,
        aeth: None,
    }
}
