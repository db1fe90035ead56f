//! What tshark and `rnic capture` read from the same frames.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use system_tests::lab::Lab;

use crate::account::{fields, same};

/// Words of tshark for what every packet has.
const BASE: [&str; 4] =
    ["infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.a", "infiniband.aeth.syndrome"];
/// How tshark and `rnic capture` call the same number.
const NUMBERS: [(&str, &str); 13] = [
    ("infiniband.bth.destqp", "qp"),
    ("infiniband.bth.psn", "psn"),
    ("infiniband.deth.srcqp", "from qp"),
    ("infiniband.deth.q_key", "qkey"),
    ("infiniband.reth.va", "va"),
    ("infiniband.reth.r_key", "rkey"),
    ("infiniband.reth.dmalen", "dma_len"),
    ("infiniband.atomiceth.swapdt", "swap"),
    ("infiniband.atomiceth.cmpdt", "compare"),
    ("infiniband.aeth.msn", "msn"),
    ("infiniband.atomicacketh.origremdt", "original"),
    ("infiniband.immdt", "imm"),
    ("infiniband.ieth", "invalidate"),
];
/// These are bytes to tshark, the first one first.
const BYTES: [&str; 2] = ["imm", "invalidate"];
const COMMENT: &str = "frame.comment";

/// Hundredths of a millisecond of each code, as the InfiniBand specification has them.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// A line of `rnic capture`, without time, direction and addresses.
struct Shown<'a> {
    words: Vec<&'a str>,
    text: &'a str,
    comment: &'a str,
}

impl<'a> Shown<'a> {
    fn new(line: &'a str) -> Result<Self> {
        let (text, comment) = match line.split_once(" [") {
            Some((text, comment)) => (text, comment.trim_end_matches(']')),
            None => (line, ""),
        };
        let words: Vec<_> = text.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "qp").context("no qp")?;
        Ok(Self { words: words[at - 1..].to_vec(), text, comment })
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    fn number(&self, name: &str) -> Option<u64> {
        let name: Vec<_> = name.split(' ').collect();
        let at = self.words.windows(name.len()).position(|words| words == name)?;
        number(self.words.get(at + name.len())?)
    }
}

/// Of decimal and hexadecimal text.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Of bytes, which tshark may show twice.
fn bytes(text: &str) -> Option<u64> {
    let first = text.split(',').next()?;
    u64::from_str_radix(&first.replace(':', ""), 16).ok()
}

/// What `rnic capture` writes for a syndrome.
fn syndrome(byte: u64) -> String {
    let low = byte & 0x1f;
    match byte >> 5 {
        0 if low == 31 => " ACK msn".to_owned(),
        0 => " ACK credits".to_owned(),
        1 => {
            let time = RNR_TIMERS[low as usize];
            format!(" RNR NAK {}.{:02} ms msn", time / 100, time % 100)
        }
        3 => {
            let names = ["PSN sequence", "invalid request", "remote access", "remote operational"];
            let error = names.get(low as usize).copied().unwrap_or("?");
            let error = if error == "invalid request" {
                error.to_owned()
            } else {
                format!("{error} error")
            };
            format!(" NAK {error} msn")
        }
        _ => format!(" reserved syndrome {byte:#04x} msn"),
    }
}

/// Compares them frame by frame. Returns the names of the numbers that were compared.
pub(crate) fn tshark_reads_the_same(
    lab: &Lab,
    file: &Path,
    ours: &str,
) -> Result<BTreeSet<&'static str>> {
    let numbers = NUMBERS.iter().map(|(theirs, _)| *theirs);
    let names: Vec<_> = BASE.into_iter().chain(numbers).chain([COMMENT]).collect();
    let theirs = fields(lab, file, &names)?;
    let ours: Vec<_> = ours.lines().map(Shown::new).collect::<Result<_>>()?;
    same("frames", theirs.len() as u64, ours.len() as u64)?;
    let (mut opcodes, mut compared) = (BTreeMap::new(), BTreeSet::new());
    for (at, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        let what = || format!("frame {at}: {theirs:?}, {}", ours.text);
        // Opcodes have a number there and a name here: the same one each time.
        let name = *opcodes.entry(theirs[0].clone()).or_insert(ours.words[0]);
        ensure!(name == ours.words[0], "{}: the opcode was {name}", what());
        for (flag, word) in [(1, "SE"), (2, "A")] {
            let is_set = matches!(theirs[flag].as_str(), "1" | "True");
            ensure!(is_set == ours.has(word), "{}: {word}", what());
        }
        if let Some(byte) = number(&theirs[3]) {
            ensure!(ours.text.contains(&syndrome(byte)), "{}: syndrome {byte:#x}", what());
            compared.insert("syndrome");
        }
        for (theirs, (_, name)) in theirs[BASE.len()..].iter().zip(NUMBERS) {
            // A FETCH_ADD has what it adds in the place of a new value, and nothing to compare.
            let key = if name == "swap" && ours.has("add") { "add" } else { name };
            let is_unused = name == "compare" && ours.has("add")
                // Of XRC it knows the base header only.
                || ours.words[0].starts_with("XRC_") && !["qp", "psn"].contains(&name);
            let theirs = match BYTES.contains(&name) {
                true => bytes(theirs),
                false => number(theirs),
            };
            ensure!(is_unused || theirs == ours.number(key), "{}: {key} {theirs:?}", what());
            compared.extend(theirs.map(|_| name));
        }
        let comment = theirs.last().map_or("", String::as_str);
        ensure!(comment == ours.comment, "{}: {comment}", what());
        compared.extend((!comment.is_empty()).then_some(COMMENT));
    }
    ensure!(opcodes.len() >= 8, "only {opcodes:?}");
    Ok(compared)
}

/// All there is to compare.
pub(crate) fn everything() -> BTreeSet<&'static str> {
    NUMBERS.iter().map(|(_, ours)| *ours).chain(["syndrome", COMMENT]).collect()
}
