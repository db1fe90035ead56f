//! The rules of reliable connections, one named test each: a real engine and a scripted peer.

mod acks;
mod read_responses;
mod retries;

use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::WcStatus;
use rnic_sim::dialogue::Dialogue;
use rnic_sim::verbs::{Connection, SendWr};
use roce_wire::Syndrome;

/// Path MTU of most scripts: 256 bytes.
fn small_mtu() -> Connection {
    Connection { path_mtu: 1, ..Connection::default() }
}

fn dialogue() -> Dialogue {
    Dialogue::new(small_mtu())
}

const ACK: Syndrome = Syndrome::ACK;

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
