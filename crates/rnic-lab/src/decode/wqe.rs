//! Work queue entries.

use super::{Fields, bytes_of, names, text};
use rnic_abi::verbs::{SendFlags, WrOpcode};
use rnic_abi::words::WORD;
use rnic_abi::wqe::{CONTROL_WORDS, RECV_CONTROL_WORDS, RecvControl, SGE_WORDS, SendControl, Sge};
use rnic_page::Block;

/// Bytes of an SGE.
const SGE: usize = SGE_WORDS * WORD;

/// The send request in a slot of so many words.
pub(crate) fn send(index: u32, slot: &[u64]) -> Block {
    let title = format!("send WQE {index}");
    let Some(control) = slot.first_chunk::<CONTROL_WORDS>() else {
        return Fields::new(title, &[]).finish();
    };
    let Ok(control) = SendControl::decode(control, slot.len()) else {
        return Fields::new(title, &bytes_of(slot)).finish();
    };
    let bytes = bytes_of(&slot[..control.words().min(slot.len())]);
    let mut f = Fields::new(title, &bytes);
    head(&mut f, &control);
    target(&mut f, &control);
    sges(&mut f, &slot[CONTROL_WORDS..], CONTROL_WORDS * WORD, usize::from(control.num_sge));
    let at = control.data_at() * WORD;
    let len = usize::from(control.data_len);
    if len > 0 {
        let data = bytes.get(at..at + len).unwrap_or_default();
        f.add((at, len), "data", text(data), "payload inside the WQE");
    }
    f.finish()
}

fn head(f: &mut Fields, control: &SendControl) {
    let opcode = format!("{} {:?}", control.opcode.number(), control.opcode);
    f.add((0, 1), "opcode", opcode, "what to do");
    let signaled = control.flags.contains(SendFlags::SIGNALED);
    let note = if signaled { "" } else { "not signaled: success makes no completion" };
    f.add((1, 1), "flags", names(control.flags.iter_names()), note);
    f.add((2, 1), "num_sge", control.num_sge, "pieces of memory that follow");
    f.add((3, 1), "has", u8::from(control.carried), "");
    f.add((4, 2), "data_len", control.data_len, "bytes of data inside the WQE");
    f.unused((6, 2));
    f.add((8, 8), "wr_id", control.wr_id, "comes back in the completion");
}

/// The part that depends on the operation.
fn target(f: &mut Fields, control: &SendControl) {
    use WrOpcode::{AtomicWrite, CmpSwap, FetchAdd, Flush, Read, SendImm, Write, WriteImm};
    let opcode = control.opcode;
    let mut field = |used: bool, place, name, value: String, note| {
        if used { f.add(place, name, value, note) } else { f.unused(place) }
    };
    let imm = matches!(opcode, SendImm | WriteImm);
    let value = format!("{:#010x}", u32::from_be(control.imm_or_key));
    field(imm, (16, 4), "imm", value, "immediate data, in network order");
    let ud = control.ah != 0 || control.remote_qpn != 0;
    let qpn = format!("{:#08x}", control.remote_qpn);
    field(ud, (20, 4), "remote_qpn", qpn, "the queue pair that the datagram is for");
    let remote =
        matches!(opcode, Write | WriteImm | Read | CmpSwap | FetchAdd | Flush | AtomicWrite);
    let (addr, rkey) = (format!("{:#x}", control.remote_addr), format!("{:#010x}", control.rkey));
    field(remote, (24, 8), "remote_addr", addr, "in the peer's memory");
    field(remote, (32, 4), "rkey", rkey, "the peer's key for it");
    field(ud, (36, 4), "qkey", format!("{:#010x}", control.qkey), "the datagram must show it");
    let (swaps, atomic) = (opcode == CmpSwap, matches!(opcode, CmpSwap | FetchAdd));
    let note = if swaps { "compare with this" } else { "add this" };
    field(atomic, (40, 8), "compare_add", control.compare_add.to_string(), note);
    field(swaps, (48, 8), "swap", control.swap.to_string(), "and then store this");
    field(ud, (56, 4), "ah", control.ah.to_string(), "address handle");
    field(false, (60, 4), "srqn", String::new(), "");
}

fn sges(f: &mut Fields, words: &[u64], start: usize, count: usize) {
    let (sges, _) = words.as_chunks::<SGE_WORDS>();
    for (k, words) in sges.iter().take(count).enumerate() {
        let (sge, at) = (Sge::decode(*words), start + k * SGE);
        let name = |field: &str| format!("sge[{k}].{field}");
        f.add((at, 8), &name("addr"), format!("{:#x}", sge.addr), "local memory");
        f.add((at + 8, 4), &name("lkey"), format!("{:#010x}", sge.lkey), "its local key");
        f.add((at + 12, 4), &name("length"), sge.length, "bytes");
    }
}

/// The receive request in a slot.
pub(crate) fn receive(index: u32, slot: &[u64]) -> Block {
    let title = format!("receive WQE {index}");
    let Some(words) = slot.first_chunk::<RECV_CONTROL_WORDS>() else {
        return Fields::new(title, &[]).finish();
    };
    let count = RecvControl::decode(words, slot.len()).map_or(0, |c| usize::from(c.num_sge));
    let used = (RECV_CONTROL_WORDS + count * SGE_WORDS).min(slot.len());
    let mut f = Fields::new(title, &bytes_of(&slot[..used]));
    f.add((0, 1), "num_sge", count, "pieces of memory that follow");
    f.unused((1, 7));
    f.add((8, 8), "wr_id", words[1], "comes back in the completion");
    sges(&mut f, &slot[RECV_CONTROL_WORDS..], RECV_CONTROL_WORDS * WORD, count);
    f.finish()
}
