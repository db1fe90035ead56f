//! Datagrams of a hostile peer, read from a script: anything, but mostly almost correct.

use crate::script::Script;
use crate::tenant::QKEY;
use rnic_sim::port::Packet;
use roce_wire::datagram::{ICRC_LEN, pad_for};
use roce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpBody, Datagram, Deth, Feth, Flow, HeaderRepr, HeaderSet,
    Ieth, ImmDt, Msn, NakCode, Opcode, Operation, PKey, Position, Psn, QKey, Qpn, RKey, Rdeth,
    Reth, Syndrome, Trailer, Transport, XrcEth, icrc,
};
use std::net::{IpAddr, Ipv4Addr};

/// Memory that a peer may try to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
}

/// What a peer knows of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    /// XRC: the number of a shared receive queue that it may name.
    pub(crate) srqn: u32,
    pub(crate) mtu: usize,
    /// Expected by the responder.
    pub(crate) expected: Psn,
    /// Oldest unacknowledged, next to be sent.
    pub(crate) in_flight: (Psn, Psn),
    /// From the peer to us.
    pub(crate) flow: Flow,
}

impl Aim {
    /// An opcode of RC as the QP's transport has it, if it does.
    fn form(&self, rc: Opcode) -> Opcode {
        rc.on(self.transport).unwrap_or(rc)
    }
}

/// Longest payload that is tried.
const MAX_PAYLOAD: usize = 1200;
const ZEROS: [u8; MAX_PAYLOAD] = [0x5c; MAX_PAYLOAD];

/// Puts headers and payload together.
pub(crate) fn assemble(flow: Flow, headers: &HeaderRepr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.datagram_len(payload.len())];
    let at = headers.emit(&mut bytes);
    bytes[at..at + payload.len()].copy_from_slice(payload);
    headers.write_pad_and_icrc(&flow, 0, &mut bytes);
    bytes
}

fn packet(flow: Flow, bytes: Vec<u8>) -> Packet {
    Packet { flow, ip_id: 0, bytes: bytes.into() }
}

/// Any datagram with a header for `aim`.
pub(crate) fn any(script: &mut Script<'_>, aim: &Aim, places: &[Place]) -> Packet {
    let opcode = match script.u8() {
        byte @ 0..=0xbf => aim.form(Opcode::ALL[usize::from(byte) % RC_OPCODES]),
        byte => Opcode::ALL[usize::from(byte) % Opcode::ALL.len()],
    };
    let len = payload_len(script, aim.mtu);
    let mut bth = Bth::new(opcode, aim.qpn, any_psn(script, aim));
    let bits = script.u8();
    bth.ack_req = bits & 1 != 0;
    bth.solicited = bits & 2 != 0;
    bth.pad = if bits & 0x3c == 0x3c { bits >> 6 } else { pad_for(len) };
    if bits & 0x1c == 0x1c {
        bth.pkey = PKey(script.u16());
        bth.mig_req = false;
        bth.resv7 = script.u8() & 0x7f;
    }
    let mut headers = HeaderRepr::new(bth);
    add_extensions(script, &mut headers, (aim, places), len);
    finish(script, aim.flow, &headers, len)
}

/// `Opcode::ALL` begins with the opcodes of reliable connections.
const RC_OPCODES: usize = 24;

fn any_psn(script: &mut Script<'_>, aim: &Aim) -> Psn {
    let base = match script.below(8) {
        0..=3 => aim.expected,
        4 | 5 => aim.in_flight.0,
        6 => aim.in_flight.1,
        _ => Psn::new(script.u32()),
    };
    base.wrapping_add(script.nudge().cast_unsigned())
}

fn payload_len(script: &mut Script<'_>, mtu: usize) -> usize {
    match script.below(9) {
        0 | 1 => 0,
        2 => 1,
        3 => mtu - 1,
        4 | 5 => mtu,
        6 => mtu + 4,
        7 => 8,
        _ => usize::from(script.u16()) % MAX_PAYLOAD,
    }
}

/// An address range: correct, almost correct, or anywhere.
fn any_place(script: &mut Script<'_>, places: &[Place]) -> (u64, RKey, u64) {
    let place = places[script.below(places.len())];
    let (offset, key) = match script.below(6) {
        0..=2 => (0, place.rkey),
        3 => (u64::from(script.u16()), place.rkey),
        4 => (place.len.wrapping_sub(u64::from(script.u8())), place.rkey),
        _ => (script.u64(), place.rkey ^ script.u32()),
    };
    (place.addr.wrapping_add(offset), RKey(key), place.len)
}

fn any_dma_len(script: &mut Script<'_>, payload: usize, place: u64) -> u32 {
    let payload = u32::try_from(payload).unwrap_or(u32::MAX);
    match script.below(6) {
        0 | 1 => payload,
        2 => payload + u32::from(script.u16()),
        3 => u32::from(script.u16()),
        4 => u32::try_from(place).unwrap_or(u32::MAX),
        _ => script.pick(&[0, 1 << 31, (1 << 31) + 1, u32::MAX, 1 << 30, (1 << 31) - 256]),
    }
}

fn add_extensions(
    script: &mut Script<'_>,
    out: &mut HeaderRepr,
    (aim, places): (&Aim, &[Place]),
    len: usize,
) {
    let set = out.bth.opcode.info().headers;
    if set.has(HeaderSet::RDETH) {
        out.rdeth = Some(Rdeth { reserved: 0, ee_context: 0 });
    }
    if set.has(HeaderSet::DETH) {
        let key = script.u32();
        let key = QKey(if key & 7 == 0 { key } else { QKEY });
        out.deth = Some(Deth::new(key, Qpn::new(script.u32())));
    }
    if set.has(HeaderSet::XRCETH) {
        out.xrceth = Some(any_name(script, aim));
    }
    if set.has(HeaderSet::FETH) {
        out.feth = Some(Feth(script.u32()));
    }
    if set.has(HeaderSet::RETH) {
        let (va, rkey, room) = any_place(script, places);
        out.reth = Some(Reth { va, rkey, dma_len: any_dma_len(script, len, room) });
    }
    if set.has(HeaderSet::ATOMIC_ETH) {
        let (va, rkey, _) = any_place(script, places);
        let (swap_or_add, compare) = (u64::from(script.u8()), u64::from(script.u8()));
        out.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
    }
    if set.has(HeaderSet::AETH) {
        out.aeth =
            Some(Aeth { syndrome: any_syndrome(script), msn: Msn::new(script.u16().into()) });
    }
    if set.has(HeaderSet::ATOMIC_ACK_ETH) {
        out.atomic_ack = Some(AtomicAckEth { original: script.u16().into() });
    }
    if set.has(HeaderSet::IMM_DT) {
        out.imm = Some(ImmDt(script.bytes()));
    }
    if set.has(HeaderSet::IETH) {
        out.ieth = Some(Ieth { rkey: RKey(script.u32()) });
    }
    if set.has(HeaderSet::CNP) {
        out.cnp = Some(CnpBody::default());
    }
}

/// The number of a shared receive queue: mostly one that exists.
fn any_name(script: &mut Script<'_>, aim: &Aim) -> XrcEth {
    let srqn = if script.u8() & 7 == 0 { script.u32() & 0x00ff_ffff } else { aim.srqn };
    XrcEth::new(srqn)
}

fn any_syndrome(script: &mut Script<'_>) -> Syndrome {
    match script.below(8) {
        0..=3 => Syndrome::ACK,
        4 => Syndrome::RnrNak { timer: script.u8() & 0x1f },
        5 => Syndrome::Nak(NakCode::PsnSequence),
        6 => Syndrome::Nak(script.pick(&[
            NakCode::InvalidRequest,
            NakCode::RemoteAccess,
            NakCode::RemoteOperational,
            NakCode::InvalidRdRequest,
        ])),
        _ => Syndrome::from_u8(script.u8()),
    }
}

/// Payload, damage and addresses.
fn finish(script: &mut Script<'_>, flow: Flow, headers: &HeaderRepr, len: usize) -> Packet {
    let mut bytes = assemble(flow, headers, &ZEROS[..len]);
    let bits = script.u8();
    if bits & 0xc0 == 0xc0 {
        let at = usize::from(script.u16()) % bytes.len();
        bytes[at] ^= script.u8();
        if bits & 0x20 == 0 {
            icrc::seal(&flow, 0, &mut bytes);
        }
    }
    if bits & 0x1f == 0x1f {
        bytes.truncate(usize::from(script.u16()) % (bytes.len() + 1));
    }
    let flow = if bits & 0x1e == 0x0e { stranger(script, flow) } else { flow };
    packet(flow, bytes)
}

/// Addresses other than the connection's; the ICRC is the old one, or correct for them.
fn stranger(script: &mut Script<'_>, flow: Flow) -> Flow {
    let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, script.u8() | 0x80));
    match script.below(3) {
        0 => Flow { src: other, ..flow },
        1 => Flow { dst: other, ..flow },
        _ => Flow { tos: script.u8(), hop_limit: script.u8(), sport: script.u16(), ..flow },
    }
}

/// Bytes that need not be a datagram at all.
pub(crate) fn raw(script: &mut Script<'_>, flow: Flow) -> Packet {
    let len = usize::from(script.u8());
    let mut bytes = script.slice(len).to_vec();
    if len & 1 == 0 && bytes.len() >= ICRC_LEN {
        icrc::seal(&flow, 0, &mut bytes);
    }
    packet(flow, bytes)
}

/// A whole message in sequence, some of its packets lost or sent twice.
pub(crate) fn message(script: &mut Script<'_>, aim: &Aim, places: &[Place]) -> Vec<Packet> {
    let bits = script.u8();
    let packets = 1 + u32::from(bits & 7);
    let trailer = if bits & 8 != 0 { Trailer::Imm } else { Trailer::None };
    let is_write = bits & 0x10 != 0;
    let last = script.below(aim.mtu.min(255)) + usize::from(packets > 1);
    let first_psn = aim.expected.wrapping_add(script.nudge().cast_unsigned());
    let (va, rkey, _) = any_place(script, places);
    let (lost, twice) = (script.u8() & script.u8(), script.u8() & script.u8());
    let mut sent = Vec::new();
    for k in 0..packets {
        let ends = k + 1 == packets;
        let position = Position::new(k == 0, ends);
        let opcode = match is_write {
            true => Opcode::rc_write(position, ends && trailer == Trailer::Imm),
            false => Opcode::rc_send(position, if ends { trailer } else { Trailer::None }),
        };
        let opcode = aim.form(opcode);
        let len = if ends { last } else { aim.mtu };
        let mut headers = HeaderRepr::new(Bth::new(opcode, aim.qpn, first_psn.wrapping_add(k)));
        headers = headers.with_payload_len(len);
        headers.bth.ack_req = ends;
        if opcode.info().has(HeaderSet::DETH) {
            headers.deth = Some(Deth::new(QKey(QKEY), Qpn::GSI));
        }
        if opcode.info().has(HeaderSet::XRCETH) {
            headers.xrceth = Some(any_name(script, aim));
        }
        if opcode.info().has(HeaderSet::RETH) {
            let whole = (packets as usize - 1) * aim.mtu + last;
            let dma_len = u32::try_from(whole).unwrap_or(u32::MAX);
            headers.reth = Some(Reth { va, rkey, dma_len });
        }
        if opcode.info().has(HeaderSet::IMM_DT) {
            headers.imm = Some(ImmDt([1, 2, 3, 4]));
        }
        let datagram = packet(aim.flow, assemble(aim.flow, &headers, &ZEROS[..len]));
        if lost >> k & 1 == 0 {
            sent.push(datagram.clone());
        }
        if twice >> k & 1 == 1 {
            sent.push(datagram);
        }
    }
    sent
}

/// A response to one of our requests, or something close to it.
pub(crate) fn answer(script: &mut Script<'_>, aim: &Aim, request: &Packet) -> Vec<Packet> {
    let Some(request) = request.parse() else { return Vec::new() };
    let psn = request.bth().psn.wrapping_add(script.nudge().cast_unsigned());
    let aeth = Some(Aeth { syndrome: any_syndrome(script), msn: Msn::new(1) });
    let single = |opcode| {
        let mut headers = HeaderRepr::new(Bth::new(opcode, aim.qpn, psn));
        headers.aeth = aeth;
        if opcode == Opcode::RcAtomicAck {
            headers.atomic_ack = Some(AtomicAckEth { original: 7 });
        }
        vec![packet(aim.flow, assemble(aim.flow, &headers, &[]))]
    };
    match request.opcode().operation() {
        Operation::ReadRequest => read_responses(script, aim, &request, psn),
        Operation::CmpSwap | Operation::FetchAdd => single(Opcode::RcAtomicAck),
        Operation::Flush | Operation::AtomicWrite => single(Opcode::RcReadRespOnly),
        _ => single(Opcode::RcAck),
    }
}

fn read_responses(
    script: &mut Script<'_>,
    aim: &Aim,
    request: &Datagram<'_>,
    first: Psn,
) -> Vec<Packet> {
    let Some(reth) = request.reth() else { return Vec::new() };
    let total = reth.dma_len as usize;
    let packets = total.div_ceil(aim.mtu).max(1);
    let lost = script.u8() & script.u8();
    let mut sent = Vec::new();
    for k in 0..packets.min(8) {
        if lost >> k & 1 == 1 {
            continue;
        }
        let opcode = Opcode::rc_read_response(Position::new(k == 0, k + 1 == packets));
        let len = (total - k * aim.mtu).min(aim.mtu);
        let psn = first.wrapping_add(u32::try_from(k).unwrap_or(0));
        let mut headers = HeaderRepr::new(Bth::new(opcode, aim.qpn, psn)).with_payload_len(len);
        if opcode.info().has(HeaderSet::AETH) {
            headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
        }
        sent.push(packet(aim.flow, assemble(aim.flow, &headers, &ZEROS[..len])));
    }
    sent
}
