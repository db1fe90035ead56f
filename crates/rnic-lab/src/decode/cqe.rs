//! Completion queue entries.

use super::{Fields, bytes_of, names, text};
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::WcStatus;
use rnic_abi::words::LINE;
use rnic_page::Block;

/// Word of the sequence number.
const SEQUENCE: usize = 7;
/// Bytes of the first line.
const HEAD: usize = 64;

/// A completion that was the `sequence`th of its queue.
pub(crate) fn cqe(sequence: u64, cqe: &Cqe) -> Block {
    let mut words = cqe.encode().to_vec();
    words[SEQUENCE] = sequence;
    let carried = cqe.carried_len();
    words.truncate(if carried > 0 { words.len() } else { LINE });
    let mut f = Fields::new(format!("CQE {sequence}"), &bytes_of(&words));
    f.add((0, 8), "wr_id", cqe.wr_id, "that of the work request");
    f.add((8, 4), "qpn", format!("{:#08x}", cqe.qpn), "our queue pair");
    let status = format!("{} {}", cqe.status.number(), super::status(cqe.status));
    f.add((12, 1), "status", status, "");
    let good = cqe.status == WcStatus::Success;
    let opcode = format!("{} {}", cqe.opcode.number(), super::completed(cqe.opcode));
    f.add((13, 1), "opcode", opcode, if good { "" } else { "means nothing in a failure" });
    f.add((14, 1), "flags", names(cqe.flags.iter_names()), "");
    f.add((15, 1), "sl", cqe.sl, "");
    f.add((16, 4), "byte_len", cqe.byte_len, "bytes received, or fetched");
    let imm = cqe.flags.contains(CqeFlags::IMM);
    if imm {
        let value = format!("{:#010x}", u32::from_be(cqe.imm_or_key));
        f.add((20, 4), "imm", value, "immediate data");
    } else {
        f.unused((20, 4));
    }
    if cqe.flags.contains(CqeFlags::GRH) {
        f.add((24, 4), "src_qp", format!("{:#08x}", cqe.src_qp), "the sender's queue pair");
    } else {
        f.unused((24, 4));
    }
    f.add((28, 4), "vendor_err", cqe.vendor_err, "");
    f.add((32, 8), "timestamp", cqe.timestamp, "nanoseconds of the NIC's clock");
    f.add((40, 4), "record", cqe.record, "the queue's doorbell record");
    f.add((44, 4), "wqe_index", cqe.wqe_index, "which WQE of it");
    f.add((48, 2), "pkey_index", cqe.pkey_index, "");
    f.add((50, 1), "carried_len", carried, "bytes of data inside the CQE");
    f.unused((51, 5));
    f.add((56, 8), "sequence", sequence, "written last: the CQE is complete");
    if carried > 0 {
        let data = cqe.carried();
        f.add(
            (HEAD, carried),
            "data",
            text(&data[..carried]),
            "the library copies it to the buffer",
        );
    }
    f.finish()
}
