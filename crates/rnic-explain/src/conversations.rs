//! Connections as the connection manager makes and ends them.

mod refusals;

use roce_wire::Qpn;
use roce_wire::cm::{CmMad, CmMessage, SidrStatus, service_id_parts};
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Conversations that are kept; further ones are only counted.
const MOST: usize = 4096;

/// One exchange of connection management messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Conversation {
    /// Since the first packet of the capture.
    pub at_ns: u64,
    /// The end that asked.
    pub from: IpAddr,
    pub to: IpAddr,
    /// What was asked for.
    pub service: String,
    /// Queue pairs of the end that asked and of the other one.
    pub qpns: (Option<u32>, Option<u32>),
    /// The names of the messages in their order; one that was repeated is there again.
    pub messages: Vec<&'static str>,
    /// Why it was refused.
    pub refused: Option<String>,
    /// The end that asked refused: the answer did not suit it, or did not come.
    pub refused_by_asking: bool,
    /// What to do about it.
    #[serde(skip)]
    pub(crate) advice: &'static str,
    /// From the first message to the one that made the connection.
    pub took_ns: Option<u64>,
}

/// A queue pair.
type At = (IpAddr, Qpn);

#[derive(Debug, Default)]
pub(crate) struct Conversations {
    all: Vec<Conversation>,
    /// By the address and the number of the end that asked.
    by_id: HashMap<(IpAddr, u32), usize>,
    /// Which conversation the other end's number belongs to.
    by_other_id: HashMap<(IpAddr, u32), usize>,
    /// The other end of each queue pair.
    ends: HashMap<At, At>,
    pub(crate) untold: u64,
}

impl Conversations {
    /// A message. Returns the queue pairs that it connects, that of the end that asked first.
    pub(crate) fn message(
        &mut self,
        mad: &CmMad,
        from: IpAddr,
        to: IpAddr,
        at: Duration,
    ) -> Option<(At, At)> {
        /// A message that is repeated for ever takes no more memory than this.
        const MESSAGES: usize = 32;
        let Some(index) = self.find(&mad.message, from, to, at) else {
            self.untold += 1;
            return None;
        };
        let connected = self.learn_ends(index, &mad.message, from);
        let by_asking = matches!(&mad.message,
            CmMessage::Rej(rej) if self.by_id.get(&(from, rej.local_comm_id)) == Some(&index));
        let conversation = &mut self.all[index];
        if conversation.messages.len() < MESSAGES {
            conversation.messages.push(mad.message.name());
        }
        match &mad.message {
            CmMessage::Rtu(_) => conversation.is_made(at),
            CmMessage::SidrRep(rep) if rep.status == SidrStatus::VALID => conversation.is_made(at),
            CmMessage::SidrRep(rep) => conversation.refuse(refusals::status(rep.status), false),
            CmMessage::Rej(rej) => conversation.refuse(refusals::reason(rej.reason), by_asking),
            _ => {}
        }
        connected
    }

    fn find(
        &mut self,
        message: &CmMessage,
        from: IpAddr,
        to: IpAddr,
        at: Duration,
    ) -> Option<usize> {
        let (own, other) = match message {
            CmMessage::Req(req) => {
                return self.asked(from, to, req.local_comm_id, req.service_id, at);
            }
            CmMessage::SidrReq(req) => {
                return self.asked(from, to, req.request_id, req.service_id, at);
            }
            CmMessage::SidrRep(rep) => return self.by_id.get(&(to, rep.request_id)).copied(),
            CmMessage::Rep(rep) => {
                let index = *self.by_id.get(&(to, rep.remote_comm_id))?;
                // The first one counts. A hostile capture has as many as it wants, each with
                // another number, and all would be kept.
                if self.all[index].qpns.1.is_none() {
                    self.by_other_id.insert((from, rep.local_comm_id), index);
                }
                return Some(index);
            }
            CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Mra(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Lap(m) | CmMessage::Apr(m) => (m.local_comm_id(), m.remote_comm_id()),
        };
        let known = [(from, own), (to, other)];
        known.iter().find_map(|id| self.by_id.get(id).or(self.by_other_id.get(id)).copied())
    }

    /// A request begins a conversation, if it is not a repetition.
    fn asked(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        id: u32,
        service_id: u64,
        at: Duration,
    ) -> Option<usize> {
        if let Some(&index) = self.by_id.get(&(from, id))
            && self.all[index].took_ns.is_none()
        {
            return Some(index);
        }
        if self.all.len() == MOST {
            return None;
        }
        let service = match service_id_parts(service_id) {
            Some((space, port)) => format!("{space:?} port {port}").to_lowercase(),
            None => format!("service {service_id:#x}"),
        };
        self.all.push(Conversation {
            at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            from,
            to,
            service,
            qpns: (None, None),
            messages: Vec::new(),
            refused: None,
            refused_by_asking: false,
            advice: "",
            took_ns: None,
        });
        self.by_id.insert((from, id), self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    /// REQ and REP name the queue pairs. Returns those that the first REP connects.
    fn learn_ends(&mut self, index: usize, message: &CmMessage, from: IpAddr) -> Option<(At, At)> {
        let conversation = &mut self.all[index];
        match message {
            CmMessage::Req(req) if conversation.qpns.1.is_none() => {
                conversation.qpns.0 = Some(req.local_qpn.value());
            }
            CmMessage::SidrRep(rep) if rep.status == SidrStatus::VALID => {
                conversation.qpns.1 = Some(rep.qpn.value());
            }
            CmMessage::Rep(rep) if conversation.qpns.1.is_none() => {
                conversation.qpns.1 = Some(rep.local_qpn.value());
                let asking = (conversation.from, Qpn::new(conversation.qpns.0?));
                let answering = (from, rep.local_qpn);
                self.ends.insert(asking, answering);
                self.ends.insert(answering, asking);
                return Some((asking, answering));
            }
            _ => {}
        }
        None
    }

    /// The other end of a queue pair, if the capture shows how it was connected.
    pub(crate) fn peer_of(&self, address: IpAddr, qpn: Qpn) -> Option<(IpAddr, Qpn)> {
        self.ends.get(&(address, qpn)).copied()
    }

    pub(crate) fn into_list(self) -> Vec<Conversation> {
        self.all
    }
}

impl Conversation {
    fn is_made(&mut self, at: Duration) {
        let took = at.saturating_sub(Duration::from_nanos(self.at_ns)).as_nanos();
        self.took_ns.get_or_insert(u64::try_from(took).unwrap_or(u64::MAX));
    }

    fn refuse(&mut self, (reason, advice): (String, &'static str), by_asking: bool) {
        (self.refused, self.advice, self.refused_by_asking) = (Some(reason), advice, by_asking);
    }

    /// How often it was asked, if nothing ever answered and the asking end asked again.
    pub(crate) fn unanswered(&self) -> Option<usize> {
        let mut all = self.messages.iter();
        let is_unanswered = all.all(|name| matches!(*name, "REQ" | "SIDR_REQ"));
        Some(self.messages.len()).filter(|count| is_unanswered && *count > 1)
    }
}

#[cfg(test)]
mod tests;
