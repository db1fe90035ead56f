//! An event as others read it.

use rnic_core::Event;
use rnic_core::event::Value;
use rnic_core::qpn::shard_of;
use roce_wire::Qpn;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

/// An event by its names, which `Event::schema` explains.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// When, in nanoseconds since 1970 (UTC).
    pub time_ns: u64,
    /// Which event.
    pub event: String,
    /// A program or its connection is in trouble.
    pub is_error: bool,
    fields: Vec<(String, Value)>,
}

impl Record {
    /// Of an event that happened at a time.
    pub fn new(at: SystemTime, event: &Event) -> Self {
        let mut fields = Vec::new();
        event.fields(&mut |name, value| fields.push((name.to_owned(), value)));
        Self { time_ns: nanos(at), event: event.name(), is_error: event.is_error(), fields }
    }

    /// When.
    pub fn at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.time_ns)
    }

    /// Its fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// A number that it has.
    pub fn number(&self, name: &str) -> Option<u32> {
        match self.field(name)? {
            Value::Number(number) => u32::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A name that it has.
    pub fn name(&self, name: &str) -> Option<&str> {
        match self.field(name)? {
            Value::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it has a flag that is set.
    pub fn flag(&self, name: &str) -> bool {
        self.field(name) == Some(&Value::Flag(true))
    }

    /// Its fields as JSON.
    pub fn to_json(&self) -> Map<String, serde_json::Value> {
        let fields = self.fields().map(|(name, value)| {
            let value = match value {
                Value::Number(number) => (*number).into(),
                Value::Flag(flag) => (*flag).into(),
                Value::Name(name) => name.as_str().into(),
            };
            (name.to_owned(), value)
        });
        fields.collect()
    }

    /// Says something else of a number.
    #[cfg(test)]
    pub(super) fn claim(&mut self, name: &str, number: u64) {
        self.say(name, Value::Number(number));
    }

    /// Says a name in place of a number.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, name: &str, value: &str) {
        self.say(name, Value::Name(value.to_owned()));
    }

    #[cfg(test)]
    fn say(&mut self, name: &str, value: Value) {
        self.fields.retain(|(other, _)| other != name);
        self.fields.push((name.to_owned(), value));
    }

    /// An engine of this number may tell it: what happened to a queue pair happened to one of its
    /// own, and what arrived for none could be for one of them, or for several engines.
    pub(super) fn is_of(&self, shard: u8) -> bool {
        let named = |what: &'static str| {
            let fields = self.fields.iter().filter(move |(name, _)| name == what);
            fields.map(|(_, value)| match value {
                Value::Number(qpn) if qpn >> 24 == 0 => u32::try_from(*qpn).ok().map(Qpn::new),
                _ => None,
            })
        };
        if named("qpn").next().is_some() || self.flag("outgoing") {
            return named("qpn").all(|qpn| qpn.is_some_and(|qpn| is_in(shard, qpn)));
        }
        let may_arrive = |qpn| matches!(qpn, Qpn::GSI | Qpn::MULTICAST) || is_in(shard, qpn);
        named("dest_qpn").all(|qpn| qpn.is_some_and(may_arrive))
    }

    /// What another process sent may be shown: it is a known event, short, and made of letters.
    pub(super) fn is_sane(&self) -> bool {
        let fields = self.fields.iter().all(|(name, value)| match value {
            Value::Name(value) => is_word(name) && is_word(value),
            Value::Number(_) | Value::Flag(_) => is_word(name),
        });
        fields && NAMES.contains(&self.event) && self.fields.len() <= MAX_FIELDS
    }
}

/// A queue pair with this number is one of the engine of this number.
pub(super) fn is_in(shard: u8, qpn: Qpn) -> bool {
    shard_of(qpn) == shard && !matches!(qpn, Qpn::GSI | Qpn::MULTICAST)
}

/// Since 1970 (UTC).
pub(super) fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Of all events.
static NAMES: LazyLock<HashSet<String>> =
    LazyLock::new(|| Event::schema().into_iter().map(|event| event.name).collect());

fn is_word(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:.".contains(&byte);
    text.len() <= LONGEST_WORD && text.bytes().all(known)
}

/// More than any event has.
const MAX_FIELDS: usize = 32;
const LONGEST_WORD: usize = 64;
