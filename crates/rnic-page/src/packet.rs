//! RoCEv2 datagrams, base transport header to ICRC, field by field.

use crate::Block;
use crate::fields::{Fields, text};
use roce_wire::cm::CmMad;
use roce_wire::headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, NakCode, Reth, Syndrome, rnr_timer_ns,
};
use roce_wire::{Datagram, HeaderRepr, Operation, Qpn};

/// A datagram in a few words, for an arrow.
pub fn label(datagram: &Datagram<'_>) -> String {
    let bth = datagram.bth();
    if let Some(mad) = cm(datagram) {
        return format!("CM {}", mad.message.name());
    }
    let mut label = bth.opcode.to_string();
    if datagram.opcode().info().operation != Operation::Cnp {
        label += &format!(" psn {}", bth.psn);
    }
    if let Some(aeth) = datagram.aeth() {
        match aeth.syndrome {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak { timer } => {
                label += &format!(" RNR NAK {} us", rnr_timer_ns(timer) / 1000);
            }
            Syndrome::Nak(code) => label += &format!(" NAK {}", short(code)),
            Syndrome::Reserved(byte) => label += &format!(" syndrome {byte:#04x}"),
        }
    }
    if datagram.payload_len() > 0 {
        label += &format!(" {} bytes", datagram.payload_len());
    }
    label
}

fn short(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "sequence",
        NakCode::InvalidRequest => "invalid",
        NakCode::RemoteAccess => "access",
        NakCode::RemoteOperational => "operation",
        NakCode::InvalidRdRequest => "RD",
    }
}

fn cm(datagram: &Datagram<'_>) -> Option<CmMad> {
    let is_management = datagram.bth().dest_qp == Qpn::GSI && datagram.deth().is_some();
    is_management.then(|| CmMad::parse(datagram.payload()).ok()).flatten()
}

/// All of it, called `title`. Of a payload of more than `most` bytes only the beginning is shown,
/// and then nothing behind it.
pub fn block(title: &str, bytes: &[u8], most: usize) -> Block {
    part(title, (bytes, bytes.len()), most)
}

/// The same for a datagram of which only so many bytes are known: the others are not shown.
pub fn part(title: &str, (bytes, known): (&[u8], usize), most: usize) -> Block {
    let known = known.min(bytes.len());
    let Ok(datagram) = Datagram::parse(bytes) else {
        return Fields::new(title.to_owned(), &bytes[..known.min(most)]).finish();
    };
    if datagram.payload_len() > most || known < bytes.len() {
        let payload = datagram.payload_len().min(most);
        let shown = datagram.payload_offset().saturating_add(payload);
        return beginning(title, &datagram, &bytes[..shown.min(known)]);
    }
    let mut f = Fields::new(format!("{title}, base transport header to ICRC"), bytes);
    let headers = datagram.headers();
    base(&mut f, &headers.bth);
    let mut at = Bth::LEN;
    extensions(&mut f, &headers, &mut at);
    let len = datagram.payload_len();
    if let Some(mad) = cm(&datagram) {
        f.add((at, len), "CM message", mad.message, "a management datagram");
    } else if len > 0 {
        f.add((at, len), "payload", text(datagram.payload()), "");
    }
    let pad = usize::from(headers.bth.pad);
    if pad > 0 {
        f.add((at + len, pad), "pad", 0, "to a multiple of four bytes");
    }
    let crc = u32::from_be_bytes(datagram.icrc_bytes());
    let note = "checksum over all that no router changes";
    f.add((bytes.len() - 4, 4), "ICRC", format!("{crc:#010x}"), note);
    f.finish()
}

/// The headers and so much of the payload.
fn beginning(title: &str, datagram: &Datagram<'_>, bytes: &[u8]) -> Block {
    let whole = datagram.payload_len();
    let title = format!("{title}, headers and the beginning of {whole} bytes of payload");
    let mut f = Fields::new(title, bytes);
    let headers = datagram.headers();
    base(&mut f, &headers.bth);
    let mut at = Bth::LEN;
    extensions(&mut f, &headers, &mut at);
    let payload = bytes.get(at..).unwrap_or_default();
    if !payload.is_empty() {
        f.add((at, payload.len()), "payload", text(payload), "its beginning");
    }
    f.finish()
}

fn base(f: &mut Fields, bth: &Bth) {
    let opcode = format!("{:#04x} {}", bth.opcode.code(), bth.opcode);
    f.add((0, 1), "BTH opcode", opcode, "");
    let flags = format!(
        "solicited {} migrated {} pad {} version 0",
        u8::from(bth.solicited),
        u8::from(bth.mig_req),
        bth.pad
    );
    f.add((1, 1), "BTH flags", flags, "");
    f.add((2, 2), "BTH P_Key", format!("{:#06x}", bth.pkey.0), "the partition, like a VLAN");
    let marks = format!("FECN {} BECN {}", u8::from(bth.fecn), u8::from(bth.becn));
    f.add((4, 1), "BTH marks", marks, "congestion; the ICRC leaves this byte out");
    f.add((5, 3), "BTH dest QP", bth.dest_qp, "the receiving queue pair");
    let note = if bth.ack_req { "asks for an acknowledgement" } else { "asks for nothing" };
    f.add((8, 1), "BTH AckReq", u8::from(bth.ack_req), note);
    f.add((9, 3), "BTH PSN", bth.psn, "packet sequence number");
}

fn extensions(f: &mut Fields, headers: &HeaderRepr, at: &mut usize) {
    if let Some(deth) = headers.deth {
        f.add((*at, 4), "DETH Q_Key", format!("{:#010x}", deth.qkey.0), "must be the receiver's");
        f.add((*at + 4, 1), "DETH reserved", deth.reserved, "");
        f.add((*at + 5, 3), "DETH source QP", deth.src_qp, "whom to answer");
        *at += Deth::LEN;
    }
    if let Some(reth) = headers.reth {
        f.add((*at, 8), "RETH address", format!("{:#x}", reth.va), "in the receiver's memory");
        f.add((*at + 8, 4), "RETH rkey", format!("{:#010x}", reth.rkey.0), "the key to it");
        f.add((*at + 12, 4), "RETH length", reth.dma_len, "bytes of the whole message");
        *at += Reth::LEN;
    }
    if let Some(atomic) = headers.atomic {
        f.add((*at, 8), "AtomicETH address", format!("{:#x}", atomic.va), "of eight bytes");
        f.add(
            (*at + 8, 4),
            "AtomicETH rkey",
            format!("{:#010x}", atomic.rkey.0),
            "the key to them",
        );
        let swaps = headers.bth.opcode.operation() == Operation::CmpSwap;
        let (name, note) =
            if swaps { ("AtomicETH swap", "new value") } else { ("AtomicETH add", "") };
        f.add((*at + 12, 8), name, atomic.swap_or_add, note);
        let note = if swaps { "if this is there" } else { "not used" };
        f.add((*at + 20, 8), "AtomicETH compare", atomic.compare, note);
        *at += AtomicEth::LEN;
    }
    if let Some(aeth) = headers.aeth {
        f.add((*at, 1), "AETH syndrome", aeth.syndrome, meaning(aeth.syndrome));
        f.add((*at + 1, 3), "AETH MSN", aeth.msn, "messages completed by the responder");
        *at += Aeth::LEN;
    }
    if let Some(ack) = headers.atomic_ack {
        f.add((*at, 8), "AtomicAckETH", ack.original, "what was there before");
        *at += AtomicAckEth::LEN;
    }
    if let Some(imm) = headers.imm {
        let value = format!("{:#010x}", u32::from_be_bytes(imm.0));
        f.add((*at, 4), "ImmDt", value, "immediate data, for the completion");
        *at += ImmDt::LEN;
    }
    if let Some(ieth) = headers.ieth {
        let value = format!("{:#010x}", ieth.rkey.0);
        f.add((*at, 4), "IETH rkey", value, "the key that becomes invalid");
        *at += Ieth::LEN;
    }
    if headers.cnp.is_some() {
        f.add((*at, 16), "CNP reserved", 0, "");
        *at += 16;
    }
}

fn meaning(syndrome: Syndrome) -> &'static str {
    match syndrome {
        Syndrome::Ack { .. } => "everything up to this PSN has arrived",
        Syndrome::RnrNak { .. } => "receiver not ready: no buffer; try again after this time",
        Syndrome::Nak(NakCode::PsnSequence) => "this PSN is missing: send again from here on",
        Syndrome::Nak(NakCode::InvalidRequest) => "the request makes no sense",
        Syndrome::Nak(NakCode::RemoteAccess) => "the key does not allow it",
        Syndrome::Nak(NakCode::RemoteOperational) => "the responder has a problem of its own",
        Syndrome::Nak(NakCode::InvalidRdRequest) | Syndrome::Reserved(_) => "reserved",
    }
}
