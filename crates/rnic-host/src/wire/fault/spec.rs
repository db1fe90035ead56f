//! Parses which faults to inject, how often, and into which packets:
//! `drop=1%,qp=0x000011,opcode=RC_SEND_ONLY,psn=100-200,count=3`, `nak:access,nth=100,dir=sent`.

use crate::report;
use rnic_core::event::Disturbance;
use roce_wire::{NakCode, Opcode, Psn, Qpn, Syndrome};
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
    /// An acknowledgement becomes an RNR NAK with this timer code.
    Rnr(u8),
    /// An acknowledgement becomes a NAK; the code is one that exists.
    Nak(u8),
    /// The completion queue of the queue pair that it is for breaks.
    CqError,
}

impl FaultKind {
    pub(super) fn disturbance(self) -> Disturbance {
        match self {
            Self::Drop => Disturbance::Drop,
            Self::Duplicate => Disturbance::Duplicate,
            Self::Reorder => Disturbance::Reorder,
            Self::Delay(_) => Disturbance::Delay,
            Self::Corrupt => Disturbance::Corrupt,
            Self::Mark => Disturbance::Mark,
            Self::Rnr(_) => Disturbance::Rnr,
            Self::Nak(_) => Disturbance::Nak,
            Self::CqError => Disturbance::CqError,
        }
    }

    /// What an acknowledgement says instead.
    pub(super) fn syndrome(self) -> Option<u8> {
        match self {
            Self::Rnr(timer) => Some(Syndrome::RnrNak { timer }.to_u8()),
            Self::Nak(code) => Some(Syndrome::Nak(NakCode::from_u8(code)?).to_u8()),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rnr(_) => "rnr",
            Self::Nak(_) => "nak",
            Self::CqError => "cq-error",
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
    /// Names it as long as it is in force; 0 before it is.
    pub number: u32,
    /// How often, from 0 to 1.
    probability: f64,
    /// It strikes what is sent, not what is received.
    outgoing: bool,
    qpn: Option<u32>,
    opcode: Option<u8>,
    psn: Option<RangeInclusive<u32>>,
    /// It spares so many packets that match.
    after: u32,
    /// Then it strikes every so many.
    every: u32,
    /// How often it may still strike.
    left: Option<u64>,
    /// How many packets matched, and how many it struck.
    seen: u64,
    struck: u64,
}

impl Fault {
    /// Strikes any datagram that is received with this probability.
    pub fn new(kind: FaultKind, probability: f64) -> Self {
        Self {
            kind,
            number: 0,
            probability,
            outgoing: false,
            qpn: None,
            opcode: None,
            psn: None,
            after: 0,
            every: 1,
            left: None,
            seen: 0,
            struck: 0,
        }
    }

    /// For `rnic fault list`.
    pub fn report(&self) -> report::Fault {
        let delay_us = match self.kind {
            FaultKind::Delay(time) => Some(time.as_micros() as u64),
            _ => None,
        };
        report::Fault {
            fault: self.number,
            kind: self.kind.name().to_owned(),
            delay_us,
            syndrome: self.kind.syndrome(),
            probability: self.probability,
            sent: self.outgoing,
            qpn: self.qpn,
            opcode: self.opcode,
            psn_first: self.psn.as_ref().map(|psn| *psn.start()),
            psn_last: self.psn.as_ref().map(|psn| *psn.end()),
            after: self.after,
            every: self.every,
            left: self.left,
            matched: self.seen,
            struck: self.struck,
        }
    }

    /// It has struck nothing yet, whatever it did elsewhere.
    pub(super) fn begin(&mut self) {
        (self.seen, self.struck) = (0, 0);
    }

    /// How many packets matched, and how many it struck.
    pub fn counts(&self) -> [u64; 2] {
        [self.seen, self.struck]
    }

    /// Adds what it did elsewhere.
    pub fn add_counts(&mut self, [seen, struck]: [u64; 2]) {
        self.seen = self.seen.saturating_add(seen);
        self.struck = self.struck.saturating_add(struck);
    }

    /// It strikes what is sent.
    pub(super) fn is_outgoing(&self) -> bool {
        self.outgoing
    }

    /// Whether the datagram is one of those it strikes.
    pub(super) fn matches(&self, datagram: &[u8]) -> bool {
        if self.left == Some(0) {
            return false;
        }
        let Some(bth) = datagram.first_chunk::<12>() else {
            let is_any = self.opcode.is_none() && self.qpn.is_none() && self.psn.is_none();
            return is_any && self.kind.syndrome().is_none();
        };
        let word = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
        self.opcode.is_none_or(|opcode| opcode == bth[0])
            && self.qpn.is_none_or(|qpn| qpn == word(5))
            && self.psn.as_ref().is_none_or(|range| range.contains(&word(9)))
            && (self.kind.syndrome().is_none() || is_ack(datagram))
    }

    /// Whether it strikes a datagram that [matches](Self::matches).
    pub(super) fn strikes(&mut self, random: u64) -> bool {
        self.seen += 1;
        let chosen = self
            .seen
            .checked_sub(1 + u64::from(self.after))
            .is_some_and(|spared| (spared + 1).is_multiple_of(self.every.max(1).into()));
        let likely = self.probability >= 1.0 || (random as f64) < self.probability * 2f64.powi(64);
        let strikes = chosen && likely;
        if strikes {
            self.struck += 1;
            self.left = self.left.map(|left| left.saturating_sub(1));
        }
        strikes
    }
}

/// A positive acknowledgement.
fn is_ack(datagram: &[u8]) -> bool {
    let opcode = datagram.first().copied().and_then(Opcode::from_u8);
    let is_acknowledge = matches!(opcode, Some(Opcode::RcAck | Opcode::XrcAck));
    let syndrome = datagram.get(SYNDROME).map(|byte| Syndrome::from_u8(*byte));
    is_acknowledge && matches!(syndrome, Some(Syndrome::Ack { .. }))
}

/// As it is written on a command line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match self.kind {
            FaultKind::Delay(time) => write!(f, ":{}us", time.as_micros())?,
            FaultKind::Rnr(timer) => write!(f, ":{timer}")?,
            FaultKind::Nak(code) => {
                let name = NAKS.iter().find(|(_, known)| *known as u8 == code);
                write!(f, ":{}", name.map_or("?", |(name, _)| name))?;
            }
            _ => {}
        }
        write!(f, "={}", self.probability)?;
        if self.outgoing {
            write!(f, ",dir=sent")?;
        }
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
        if self.after > 0 {
            write!(f, ",after={}", self.after)?;
        }
        if self.every > 1 {
            write!(f, ",every={}", self.every)?;
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
                "count" => fault.left = Some(at_least_1(key, value)?.into()),
                "after" => fault.after = number(value, u32::MAX)?,
                "every" => fault.every = at_least_1(key, value)?,
                "nth" => {
                    fault.after = at_least_1(key, value)? - 1;
                    fault.left = Some(1);
                }
                "dir" => fault.outgoing = is_outgoing(value)?,
                _ => return Err(format!("{key:?} is not one of {KEYS}")),
            }
        }
        if fault.outgoing && fault.kind == FaultKind::CqError {
            return Err("cq-error strikes queue pairs of this device, which dir=received \
                        packets are for"
                .to_owned());
        }
        Ok(fault)
    }
}

fn is_outgoing(text: &str) -> Result<bool, String> {
    match text {
        "sent" => Ok(true),
        "received" => Ok(false),
        _ => Err(format!("dir={text} is neither dir=sent nor dir=received")),
    }
}

fn at_least_1(key: &str, text: &str) -> Result<u32, String> {
    match number(text, u32::MAX)? {
        0 => Err(format!("{key}=0 means nothing: give 1 or more")),
        number => Ok(number),
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
        ("rnr", "") => FaultKind::Rnr(DEFAULT_TIMER),
        ("rnr", timer) => FaultKind::Rnr(number(timer, 31)? as u8),
        ("nak", code) => FaultKind::Nak(nak(code)?),
        ("cq-error", "") => FaultKind::CqError,
        _ => {
            return Err(format!(
                "{name:?} is not one of drop, duplicate, reorder, delay:TIME, corrupt, mark, \
                 rnr:TIMER, nak:CODE, cq-error"
            ));
        }
    };
    Ok(Fault::new(kind, probability(chance)?))
}

fn nak(text: &str) -> Result<u8, String> {
    let known = NAKS.iter().find(|(name, _)| *name == text);
    known.map(|(_, code)| *code as u8).ok_or_else(|| {
        let names = NAKS.map(|(name, _)| name).join(", ");
        format!("{text:?} is no NAK: give nak:CODE, where CODE is one of {names}")
    })
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
    if let Some(opcode) = Opcode::named(&text.to_ascii_uppercase()) {
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

/// The NAKs by name.
const NAKS: [(&str, NakCode); 5] = [
    ("sequence", NakCode::PsnSequence),
    ("invalid", NakCode::InvalidRequest),
    ("access", NakCode::RemoteAccess),
    ("operational", NakCode::RemoteOperational),
    ("invalid-rd", NakCode::InvalidRdRequest),
];
/// Timer code of an RNR NAK: 0.64 ms.
const DEFAULT_TIMER: u8 = 12;
/// Place of the syndrome in an acknowledgement.
pub(super) const SYNDROME: usize = 12;
const KEYS: &str = "qp, opcode, psn, dir, after, every, nth, count";
/// QP numbers and PSNs have 24 bits.
const MAX_24: u32 = 0xff_ffff;
