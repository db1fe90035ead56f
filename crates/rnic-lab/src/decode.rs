//! Bytes and what they mean, field by field.

mod cqe;
mod wqe;

pub(crate) use cqe::cqe;
pub(crate) use wqe::{receive, send};

use rnic_abi::verbs::{AccessFlags, WcOpcode, WcStatus};
use rnic_page::Fields;
pub(crate) use rnic_page::{hex, text};

/// "LocLenErr" as "LOC_LEN_ERR", with what verbs put in front.
pub(crate) fn constant(prefix: &str, name: &str) -> String {
    let mut text = prefix.to_owned();
    for (k, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && k > 0 {
            text.push('_');
        }
        text.extend(letter.to_uppercase());
    }
    text
}

/// The name that verbs give a status.
pub(crate) fn status(status: WcStatus) -> String {
    constant("IBV_WC_", &format!("{status:?}"))
}

/// The name that verbs give to what completed.
pub(crate) fn completed(opcode: WcOpcode) -> String {
    match opcode {
        WcOpcode::Write => "IBV_WC_RDMA_WRITE".to_owned(),
        WcOpcode::Read => "IBV_WC_RDMA_READ".to_owned(),
        WcOpcode::CmpSwap => "IBV_WC_COMP_SWAP".to_owned(),
        WcOpcode::RecvWriteImm => "IBV_WC_RECV_RDMA_WITH_IMM".to_owned(),
        other => constant("IBV_WC_", &format!("{other:?}")),
    }
}

/// Words as they lie in memory.
fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Names of bits that are set.
fn names<F>(bits: impl Iterator<Item = (&'static str, F)>) -> String {
    let names: Vec<_> = bits.map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// Names of rights.
pub(crate) fn rights(access: AccessFlags) -> String {
    names(access.iter_names())
}
