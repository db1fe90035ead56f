//! The rules of connections, one named test each: a real engine and a scripted peer.

mod acks;
mod answers;
mod attributes;
mod by_reference;
mod drops;
mod duplicates;
mod groups;
mod isolation;
mod management;
mod memory;
mod objects;
mod placement;
mod profiles;
mod read_responses;
mod recorded;
mod refusals;
mod requests;
mod resizes;
mod responder;
mod retries;
mod sender_core;
mod shown;
mod srq;
mod states;
mod timers;
mod uc;
mod uc_sends;
mod ud;
mod ud_sends;
mod windows;
mod xrc;
mod xrc_objects;

use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::WcStatus;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::verbs::{Connection, SendWr};
use roce_wire::{Feth, NakCode, Opcode, Syndrome};

/// Path MTU of most scripts: 256 bytes.
fn small_mtu() -> Connection {
    Connection { path_mtu: 1, ..Connection::default() }
}

fn dialogue() -> Dialogue {
    Dialogue::new(small_mtu())
}

const ACK: Syndrome = Syndrome::ACK;
const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
const OPERATIONAL: Syndrome = Syndrome::Nak(NakCode::RemoteOperational);

/// The peer's request with the PSN that is `offset` after its first one, in the engine's memory at
/// `at`, with DMA length `len`.
fn request(dialogue: &Dialogue, opcode: Opcode, offset: u32, (at, len): (u64, u32)) -> Say {
    let say = Say::new(opcode, dialogue.peer_psn(offset));
    let mr = &dialogue.nic.mr;
    if opcode == Opcode::RcFlush {
        let feth = Feth::new(Feth::GLOBAL_VISIBILITY, Feth::RANGE);
        say.reth(mr.addr + at, mr.rkey, len).with(|h| h.feth = Some(feth))
    } else if opcode.info().has(roce_wire::HeaderSet::RETH) {
        say.reth(mr.addr + at, mr.rkey, len)
    } else if opcode.info().has(roce_wire::HeaderSet::ATOMIC_ETH) {
        say.atomic(mr.addr + at, mr.rkey, 1, 0)
    } else {
        say
    }
}

/// The peer's SEND_ONLY with AckReq.
fn send_only(dialogue: &Dialogue, offset: u32, payload: &[u8]) -> Say {
    Say::new(Opcode::RcSendOnly, dialogue.peer_psn(offset)).payload(payload).ack_req()
}

/// The peer's WRITE_ONLY with AckReq.
fn write_only(dialogue: &Dialogue, offset: u32, at: u64, payload: &[u8]) -> Say {
    let len = u32::try_from(payload.len()).unwrap();
    request(dialogue, Opcode::RcWriteOnly, offset, (at, len)).payload(payload).ack_req()
}

/// The peer's READ_REQUEST.
fn read_request(dialogue: &Dialogue, offset: u32, at: u64, len: u32) -> Say {
    request(dialogue, Opcode::RcReadRequest, offset, (at, len))
}

/// `wr_id` and status of completions.
fn statuses(completions: &[Cqe]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

/// All of these numbers with success.
fn ok(wr_ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, WcStatus::Success)).collect()
}

/// A SEND of `len` bytes.
fn send(dialogue: &Dialogue, wr_id: u64, len: u32) -> SendWr {
    SendWr::send(wr_id, &[dialogue.nic.mr.sge(0, len)])
}

/// A READ of `len` bytes of the peer to `offset`.
fn read(dialogue: &Dialogue, wr_id: u64, offset: u64, len: u32) -> SendWr {
    let remote = rnic_sim::verbs::Remote { addr: 0x5000, rkey: 0x99 };
    SendWr::read(wr_id, &[dialogue.nic.mr.sge(offset, len)], remote)
}

/// An atomic whose result goes to `offset`.
fn fetch_add(dialogue: &Dialogue, wr_id: u64, offset: u64) -> SendWr {
    let remote = rnic_sim::verbs::Remote { addr: 0x5000, rkey: 0x99 };
    SendWr::fetch_add(wr_id, dialogue.nic.mr.sge(offset, 8), remote, 1)
}
