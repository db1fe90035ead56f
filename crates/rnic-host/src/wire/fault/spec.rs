//! Parses which faults to inject, how often, and into which packets:
//! `drop=1%,qp=0x000011,opcode=RC_SEND_ONLY,psn=100-200,count=3`.

use crate::report;
use roce_wire::{Opcode, Psn, Qpn};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// What happens to a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FaultKind {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// Up to four later ones overtake it.
    Reorder,
    /// It arrives so much later.
    Delay(Duration),
    /// One bit is flipped.
    Corrupt,
    /// A switch was congested: ECN says CE.
    Mark,
}

impl FaultKind {
    fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Delay(_) => "delay",
            Self::Corrupt => "corrupt",
            Self::Mark => "mark",
        }
    }
}

/// A fault and what it strikes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// How often, from 0 to 1.
    probability: f64,
    qpn: Option<u32>,
    opcode: Option<u8>,
    psn: Option<RangeInclusive<u32>>,
    /// How often it may still strike.
    left: Option<u64>,
    /// How often it has.
    struck: u64,
}

impl Fault {
    /// Strikes any datagram with this probability.
    pub fn new(kind: FaultKind, probability: f64) -> Self {
        Self { kind, probability, qpn: None, opcode: None, psn: None, left: None, struck: 0 }
    }

    /// For `rnic fault list`.
    pub fn report(&self) -> report::Fault {
        let delay_us = match self.kind {
            FaultKind::Delay(time) => Some(time.as_micros() as u64),
            _ => None,
        };
        report::Fault {
            kind: self.kind.name().to_owned(),
            delay_us,
            probability: self.probability,
            qpn: self.qpn,
            opcode: self.opcode,
            psn_first: self.psn.as_ref().map(|psn| *psn.start()),
            psn_last: self.psn.as_ref().map(|psn| *psn.end()),
            left: self.left,
            struck: self.struck,
        }
    }

    /// Whether the datagram is one of those it strikes.
    pub(super) fn matches(&self, datagram: &[u8]) -> bool {
        let Some(bth) = datagram.first_chunk::<12>() else { return true };
        let word = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
        self.left != Some(0)
            && self.opcode.is_none_or(|opcode| opcode == bth[0])
            && self.qpn.is_none_or(|qpn| qpn == word(5))
            && self.psn.as_ref().is_none_or(|range| range.contains(&word(9)))
    }

    /// Whether it strikes this time.
    pub(super) fn strikes(&mut self, random: u64) -> bool {
        let strikes = self.probability >= 1.0 || (random as f64) < self.probability * 2f64.powi(64);
        if strikes {
            self.struck += 1;
            self.left = self.left.map(|left| left - 1);
        }
        strikes
    }
}

/// As it is written on a command line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let FaultKind::Delay(time) = self.kind {
            write!(f, ":{}us", time.as_micros())?;
        }
        write!(f, "={}", self.probability)?;
        if let Some(qpn) = self.qpn {
            write!(f, ",qp={}", Qpn::new(qpn))?;
        }
        match self.opcode.map(|code| Opcode::from_u8(code).ok_or(code)) {
            Some(Ok(opcode)) => write!(f, ",opcode={opcode}")?,
            Some(Err(code)) => write!(f, ",opcode={code:#04x}")?,
            None => {}
        }
        if let Some(range) = &self.psn {
            write!(f, ",psn={}-{}", Psn::new(*range.start()), Psn::new(*range.end()))?;
        }
        match self.left {
            Some(left) => write!(f, ",count={left}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut fault = parse_kind(parts.next().unwrap_or_default())?;
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not KEY=VALUE, where KEY is {KEYS}"))?;
            match key {
                "qp" => fault.qpn = Some(number(value, MAX_24)?),
                "opcode" => fault.opcode = Some(opcode(value)?),
                "psn" => {
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    let (first, last) = (number(first, MAX_24)?, number(last, MAX_24)?);
                    if first > last {
                        return Err(format!("psn={value} is empty: the smaller PSN comes first"));
                    }
                    fault.psn = Some(first..=last);
                }
                "count" => fault.left = Some(number(value, u32::MAX)?.into()),
                _ => return Err(format!("{key:?} is not one of {KEYS}")),
            }
        }
        Ok(fault)
    }
}

/// `drop=0.01`, `drop=1%`, `delay:250us=0.5`, ...; without a probability it is 1.
fn parse_kind(text: &str) -> Result<Fault, String> {
    let (name, chance) = text.split_once('=').unwrap_or((text, "1"));
    let kind = match name.split_once(':').unwrap_or((name, "")) {
        ("drop", "") => FaultKind::Drop,
        ("duplicate", "") => FaultKind::Duplicate,
        ("reorder", "") => FaultKind::Reorder,
        ("corrupt", "") => FaultKind::Corrupt,
        ("mark", "") => FaultKind::Mark,
        ("delay", time) => FaultKind::Delay(duration(time)?),
        _ => {
            return Err(format!(
                "{name:?} is not one of drop, duplicate, reorder, delay:TIME, corrupt, mark"
            ));
        }
    };
    Ok(Fault::new(kind, probability(chance)?))
}

fn probability(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (text, 1.0),
    };
    let parsed = number.parse::<f64>().ok().map(|number| number / whole);
    parsed.filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| {
        format!("{text:?} is not a probability: give 0 to 1, or 0% to 100%, as in drop=1%")
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let parsed = units.iter().find_map(|(unit, micros)| {
        let value: u32 = text.strip_suffix(unit)?.parse().ok()?;
        Some(Duration::from_micros(u64::from(value) * micros))
    });
    parsed.ok_or_else(|| format!("{text:?} is not a time: give delay:250us, delay:3ms or delay:1s"))
}

/// As captures show it, or its number.
fn opcode(text: &str) -> Result<u8, String> {
    let mut known = (0..=u8::MAX).filter_map(Opcode::from_u8);
    if let Some(opcode) = known.find(|opcode| opcode.name().eq_ignore_ascii_case(text)) {
        return Ok(opcode.code());
    }
    let code = number(text, u8::MAX.into()).map_err(|error| {
        format!("{error}; opcodes are numbers, or names as `rnic capture` shows them: RC_SEND_ONLY")
    })?;
    Ok(code as u8)
}

/// Decimal, or hexadecimal with 0x.
fn number(text: &str, max: u32) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match digits {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) if number <= max => Ok(number),
        Ok(number) => Err(format!("{number} is too much: the most is {max} ({max:#x})")),
        Err(_) if digits.is_none() && u32::from_str_radix(text, 16).is_ok() => {
            Err(format!("{text:?} is no decimal number; hexadecimal would be 0x{text}"))
        }
        Err(_) => Err(format!("{text:?} is not a number")),
    }
}

const KEYS: &str = "qp, opcode, psn, count";
/// QP numbers and PSNs have 24 bits.
const MAX_24: u32 = 0xff_ffff;
