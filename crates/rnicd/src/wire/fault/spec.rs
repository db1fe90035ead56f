//! Which faults, how often, and to whom: `drop=0.01,qp=0x11,opcode=4,psn=100-200,count=3`.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// What happens to a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
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

/// A fault and what it strikes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fault {
    /// What happens.
    pub(crate) kind: FaultKind,
    /// How often, in 2^-64.
    threshold: u64,
    qpn: Option<u32>,
    opcode: Option<u8>,
    psn: Option<RangeInclusive<u32>>,
    /// How often it may still strike.
    left: Option<u64>,
}

impl Fault {
    /// Strikes any datagram with this probability.
    pub(crate) fn new(kind: FaultKind, probability: f64) -> Self {
        let threshold = if probability >= 1.0 {
            u64::MAX
        } else {
            // Saturates: negative and not-a-number become 0.
            (probability * 2f64.powi(64)) as u64
        };
        Self { kind, threshold, qpn: None, opcode: None, psn: None, left: None }
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
        let strikes = random < self.threshold || self.threshold == u64::MAX;
        if strikes && let Some(left) = &mut self.left {
            *left -= 1;
        }
        strikes
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut fault = parse_kind(parts.next().unwrap_or_default())?;
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            match key {
                "qp" => fault.qpn = Some(number(value)?),
                "opcode" => {
                    let opcode = number(value)?;
                    let small = u8::try_from(opcode);
                    fault.opcode =
                        Some(small.map_err(|_| format!("opcode {opcode} is above 255"))?);
                }
                "psn" => {
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    fault.psn = Some(number(first)?..=number(last)?);
                }
                "count" => fault.left = Some(u64::from(number(value)?)),
                _ => return Err(format!("{key:?} is not one of qp, opcode, psn, count")),
            }
        }
        Ok(fault)
    }
}

/// `drop=0.01`, `delay:250us=0.5`, ...; without a probability it is 1.
fn parse_kind(text: &str) -> Result<Fault, String> {
    let (name, probability) = text.split_once('=').unwrap_or((text, "1"));
    let probability: f64 = probability
        .parse()
        .ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| format!("{probability:?} is not a probability from 0 to 1"))?;
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
    Ok(Fault::new(kind, probability))
}

fn duration(text: &str) -> Result<Duration, String> {
    let (value, unit) = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(value), _) => (value, 1),
        (_, Some(value)) => (value, 1000),
        _ => return Err(format!("{text:?} is not a time like 250us or 3ms")),
    };
    let value: u32 =
        value.parse().map_err(|_| format!("{text:?} is not a time like 250us or 3ms"))?;
    Ok(Duration::from_micros(u64::from(value) * unit))
}

/// Decimal, or hexadecimal with 0x.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is not a number"))
}
