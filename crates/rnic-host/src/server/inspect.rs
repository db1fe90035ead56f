//! What `rnic status|qp|mr|cq|counters` are answered.

use super::registry::SESSIONS;
use super::service::Service;
use crate::inspect::Kind;
use rnic_abi::control::{Inspect, MAX_MESSAGE, Reply};

/// What there is to see for a user, or for root and the daemon's own user, who see all. Lists come
/// in pages, each from a place on.
pub(super) fn inspect(service: &Service, user: Option<u32>, what: Inspect, from: u32) -> Reply {
    if let Some(kind) = Kind::of(what) {
        return objects(service, user, kind, from);
    }
    let json = match what {
        Inspect::Sessions => return sessions(service, from),
        Inspect::Status => serde_json::to_string(&service.report()),
        _ => {
            let mut counted = service.engines.counters();
            counted.extend(service.connections.counters());
            serde_json::to_string(&counted)
        }
    };
    inspected(json)
}

/// As many objects as fit a message, from a place on, and found in so many looks.
///
/// Keys, QP numbers and PSNs are all that it takes to reach a user's memory: each user sees
/// the objects of that user's clients only, root and the daemon's own user see all.
fn objects(service: &Service, user: Option<u32>, kind: Kind, from: u32) -> Reply {
    let own = user.map(|user| service.registry.clients_of(user));
    let may_see = |client: u32| own.as_ref().is_none_or(|own| own.contains(&client));
    let mut page = Page::default();
    let mut at = Some(from.into());
    for _ in 0..LOOKS {
        let Some(place) = at else { break };
        let (objects, next) = service.engines.objects(kind, place);
        for (place, object) in objects.iter().filter(|(_, object)| may_see(object.client())) {
            if !page.add(&text_of(object.to_json())) {
                return page.reply(Some((*place).into()));
            }
        }
        at = next;
    }
    page.reply(at.map(Into::into))
}

/// Sessions by their numbers.
fn sessions(service: &Service, from: u32) -> Reply {
    let sessions = service.sessions(from);
    let mut page = Page::default();
    for session in &sessions {
        if !page.add(&text_of(serde_json::to_string(session))) {
            return page.reply(Some(session.session));
        }
    }
    let last = sessions.last().filter(|_| sessions.len() == SESSIONS);
    page.reply(last.and_then(|last| last.session.checked_add(1)))
}

/// A part of a list, as JSON.
#[derive(Default)]
struct Page {
    json: String,
}

impl Page {
    /// False when this is too much for one message.
    fn add(&mut self, object: &str) -> bool {
        if self.json.len() + object.len() >= PAGE {
            return false;
        }
        self.json.push(if self.json.is_empty() { '[' } else { ',' });
        self.json.push_str(object);
        true
    }

    /// The list goes on at `next`.
    fn reply(mut self, next: Option<u32>) -> Reply {
        self.json.push_str(if self.json.is_empty() { "[]" } else { "]" });
        Reply::Inspected { json: self.json, next }
    }
}

/// A report that is whole.
pub(super) fn inspected(json: serde_json::Result<String>) -> Reply {
    Reply::Inspected { json: text_of(json), next: None }
}

/// Strings and numbers of our own always become JSON.
fn text_of(json: serde_json::Result<String>) -> String {
    json.unwrap_or_else(|error| {
        tracing::error!("a report does not become JSON: {error}");
        "null".to_owned()
    })
}

/// Looks at an engine's objects for one answer.
const LOOKS: usize = 64;
/// Bytes of JSON in one answer.
const PAGE: usize = MAX_MESSAGE - 4096;
