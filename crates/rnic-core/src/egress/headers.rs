//! The headers of planned packets.

use crate::event::PacketInfo;
use crate::profile::Profile;
use crate::qp::Qp;
use crate::qp::plan::{Segment, Source};
use crate::qp::requester::sq::feth_of;
use crate::qp::responder::Ack;
use crate::qp::responder::replies::ReplyKind;
use rnic_abi::verbs::WrOpcode;
use rnic_abi::wqe::SendControl;
use roce_wire::headers::credit_code;
use roce_wire::opcode::HeaderSet;
use roce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeaderRepr, Ieth, ImmDt, QKey, Qpn, RKey, Reth,
    Syndrome, XrcEth,
};

/// The extension headers that most packets have no others than.
const COMMON: HeaderSet = HeaderSet::RETH.with(HeaderSet::AETH).with(HeaderSet::IMM_DT);

/// Writes the headers of a planned packet and returns their length. Where all the others are known
/// to be missing, they cost nothing.
#[inline(always)]
pub(super) fn write(qp: &Qp, segment: &Segment, profile: Profile, datagram: &mut [u8]) -> usize {
    // Rule: DestQpn
    let dest = qp.dest_qpn();
    let bth = bth_of(qp, segment, dest);
    let present = segment.opcode.info().headers;
    if present == HeaderSet::NONE {
        return bth.emit(datagram);
    }
    if !present.is_within(COMMON) {
        return all_headers(qp, segment, profile, bth).emit(datagram);
    }
    match segment.source {
        Source::Request { index, offset } => {
            request_headers(qp, segment, (index, offset), bth).emit(datagram)
        }
        Source::QueuedReply { .. } | Source::Ack => {
            answer_headers(qp, segment, profile, bth).emit(datagram)
        }
    }
}

/// The headers of a planned packet that may have any.
#[inline(never)]
fn all_headers(qp: &Qp, segment: &Segment, profile: Profile, bth: Bth) -> HeaderRepr {
    match segment.source {
        Source::Request { index, offset } => {
            let mut headers = request_headers(qp, segment, (index, offset), bth);
            seldom_headers(&mut headers, &qp.sq.wr(index).control);
            headers
        }
        Source::QueuedReply { nth, .. } => {
            let mut headers = answer_headers(qp, segment, profile, bth);
            if let Some(ReplyKind::Atomic { value }) =
                qp.responder.replies.get(nth).map(|reply| reply.kind)
            {
                headers.atomic_ack = Some(AtomicAckEth { original: value });
            }
            headers
        }
        Source::Ack => answer_headers(qp, segment, profile, bth),
    }
}

/// The common headers of an answer.
#[inline(always)]
fn answer_headers(qp: &Qp, segment: &Segment, profile: Profile, bth: Bth) -> HeaderRepr {
    let aeth = aeth_of(qp, segment, profile);
    HeaderRepr { aeth, ..HeaderRepr::new(bth) }
}

#[inline(always)]
fn bth_of(qp: &Qp, segment: &Segment, dest: Qpn) -> Bth {
    let mut bth = Bth::new(segment.opcode, dest, segment.psn);
    // Rule: PKeySent
    bth.pkey = qp.pkey();
    bth.pad = segment.pad();
    bth.ack_req = segment.ack_req;
    bth.solicited = segment.solicited;
    bth
}

/// The headers of a planned datagram, which has no connection.
pub(super) fn datagram_headers(qp: &Qp, segment: &Segment) -> HeaderRepr {
    let mut headers = HeaderRepr::new(bth_of(qp, segment, dest_of(qp, segment)));
    if let Source::Request { index, .. } = segment.source {
        let control = &qp.sq.wr(index).control;
        headers.deth = Some(Deth::new(qkey_of(qp, control), qp.qpn));
        if headers.bth.opcode.info().has(HeaderSet::IMM_DT) {
            headers.imm = Some(ImmDt(control.imm_or_key.to_ne_bytes()));
        }
    }
    headers
}

/// The queue pair that a packet is for.
pub(super) fn dest_of(qp: &Qp, segment: &Segment) -> Qpn {
    match segment.source {
        // Rule: DatagramNamesQpn
        Source::Request { index, .. } if !qp.rules.is_connected => {
            Qpn::new(qp.sq.wr(index).control.remote_qpn)
        }
        _ => qp.dest_qpn(),
    }
}

/// The Q_Key that a datagram shows. Where the high bit of the work request's is set, the program
/// may not choose it: the queue pair's own is meant.
fn qkey_of(qp: &Qp, control: &SendControl) -> QKey {
    // Rule: ControlledQKey
    let is_controlled = control.qkey >> 31 != 0;
    QKey(if is_controlled { qp.attr.qkey } else { control.qkey })
}

/// The AETH of an answer. A MIDDLE has none.
fn aeth_of(qp: &Qp, segment: &Segment, profile: Profile) -> Option<Aeth> {
    let syndrome = match (segment.source, qp.responder.ack) {
        (Source::Request { .. }, _) => return None,
        (Source::QueuedReply { .. }, _) if !segment.opcode.info().has(HeaderSet::AETH) => {
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

/// The common headers of a request.
#[inline(always)]
fn request_headers(
    qp: &Qp,
    segment: &Segment,
    (index, offset): (u32, u32),
    bth: Bth,
) -> HeaderRepr {
    let mut headers = HeaderRepr::new(bth);
    let wr = qp.sq.wr(index);
    let control = &wr.control;
    let info = segment.opcode.info();
    if info.has(HeaderSet::RETH) {
        // A READ asks for what its response packets hold, a WRITE announces everything.
        // Rule: ReadRestart, WriteAnnouncesAll
        let rest = wr.length - offset;
        let dma_len = match control.opcode {
            WrOpcode::Read => rest.min(segment.span.saturating_mul(qp.mtu)),
            _ => rest,
        };
        let va = control.remote_addr.wrapping_add(offset.into());
        headers.reth = Some(Reth { va, rkey: RKey(control.rkey), dma_len });
    }
    if info.has(HeaderSet::IMM_DT) {
        // Rule: ImmediateSentRaw
        let imm = control.imm_or_key;
        headers.imm = Some(ImmDt(imm.to_ne_bytes()));
    }
    headers
}

/// The headers that few requests have.
fn seldom_headers(headers: &mut HeaderRepr, control: &SendControl) {
    let info = headers.bth.opcode.info();
    let (va, rkey) = (control.remote_addr, RKey(control.rkey));
    if info.has(HeaderSet::XRCETH) {
        // Rule: XrcNamesSrq
        headers.xrceth = Some(XrcEth::new(control.srqn));
    }
    if info.has(HeaderSet::IETH) {
        // Rule: InvalidateAtEnd
        headers.ieth = Some(Ieth { rkey: RKey(control.imm_or_key) });
    }
    match control.opcode {
        WrOpcode::CmpSwap => {
            let (swap_or_add, compare) = (control.swap, control.compare_add);
            headers.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
        }
        WrOpcode::FetchAdd => {
            let add = control.compare_add;
            headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
        }
        WrOpcode::Flush => {
            headers.feth = feth_of(control);
            let dma_len = u32::try_from(control.compare_add).unwrap_or(u32::MAX);
            headers.reth = Some(Reth { va, rkey, dma_len });
        }
        _ => {}
    }
}

/// What an event says about a planned packet.
pub(super) fn info_of(qp: &Qp, segment: &Segment, profile: Profile) -> PacketInfo {
    let aeth = aeth_of(qp, segment, profile);
    PacketInfo {
        opcode: segment.opcode,
        dest_qpn: dest_of(qp, segment),
        psn: segment.psn,
        ack_req: segment.ack_req,
        payload: segment.len,
        aeth: aeth.map(|aeth| (aeth.syndrome.to_u8(), aeth.msn.value())),
    }
}
