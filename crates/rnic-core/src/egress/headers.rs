//! The headers of planned packets.

use crate::event::PacketInfo;
use crate::profile::Profile;
use crate::qp::Qp;
use crate::qp::plan::{Segment, Source};
use crate::qp::responder::Ack;
use crate::qp::responder::replies::ReplyKind;
use rnic_abi::verbs::WrOpcode;
use roce_wire::headers::credit_code;
use roce_wire::opcode::HeaderSet;
use roce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, HeaderRepr, ImmDt, Opcode, RKey, Reth, Syndrome,
};

/// The headers of a planned packet.
pub(super) fn headers_of(qp: &Qp, segment: &Segment, profile: Profile) -> HeaderRepr {
    // Rule: DestQpn
    let dest = qp.dest_qpn();
    let mut bth = Bth::new(segment.opcode, dest, segment.psn);
    // Rule: PKeySent
    bth.pkey = qp.pkey();
    bth.pad = segment.pad();
    bth.ack_req = segment.ack_req;
    bth.solicited = segment.solicited;
    let mut headers = HeaderRepr::new(bth);
    headers.aeth = aeth_of(qp, segment, profile);
    match segment.source {
        Source::Request { index, offset } => {
            request_headers(&mut headers, qp, segment, index, offset)
        }
        Source::QueuedReply { nth, .. } => {
            if let Some(ReplyKind::Atomic { value }) =
                qp.responder.replies.get(nth).map(|reply| reply.kind)
            {
                headers.atomic_ack = Some(AtomicAckEth { original: value });
            }
        }
        Source::Ack => {}
    }
    headers
}

/// The AETH of an answer. A MIDDLE has none.
fn aeth_of(qp: &Qp, segment: &Segment, profile: Profile) -> Option<Aeth> {
    let syndrome = match (segment.source, qp.responder.ack) {
        (Source::Request { .. }, _) => return None,
        (Source::QueuedReply { .. }, _) if segment.opcode == Opcode::RcReadRespMiddle => {
            return None;
        }
        (Source::Ack, Some(Ack { syndrome, .. })) if syndrome != Syndrome::ACK => syndrome,
        _ => good(qp, profile),
    };
    Some(Aeth { syndrome, msn: qp.responder.msn })
}

/// An ACK, with credits where the profile tells them.
fn good(qp: &Qp, profile: Profile) -> Syndrome {
    // Rule: SrqTellsNoCredits
    if profile.tells_credits() && qp.receive_source.own().is_some() {
        return Syndrome::Ack { credits: credit_code(qp.credits()) };
    }
    no_credits()
}

/// An ACK that says nothing about credits.
fn no_credits() -> Syndrome {
    // Rule: NoCredits
    Syndrome::ACK
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
                // Rule: ReadRestart, WriteAnnouncesAll
                let rest = wr.length - offset;
                let dma_len = match control.opcode {
                    WrOpcode::Read => rest.min(segment.span.saturating_mul(qp.mtu)),
                    _ => rest,
                };
                let va = control.remote_addr.wrapping_add(offset.into());
                headers.reth = Some(Reth { va, rkey, dma_len });
            }
            if info.has(HeaderSet::IMM_DT) {
                // Rule: ImmediateSentRaw
                let imm = control.imm_or_key;
                headers.imm = Some(ImmDt(imm.to_ne_bytes()));
            }
        }
    }
}

/// What an event says about a planned packet.
pub(super) fn info_of(qp: &Qp, segment: &Segment, profile: Profile) -> PacketInfo {
    let aeth = aeth_of(qp, segment, profile);
    PacketInfo {
        opcode: segment.opcode,
        dest_qpn: qp.dest_qpn(),
        psn: segment.psn,
        ack_req: segment.ack_req,
        payload: segment.len,
        aeth: aeth.map(|aeth| (aeth.syndrome.to_u8(), aeth.msn.value())),
    }
}
