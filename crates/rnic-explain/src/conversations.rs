//! Connections as the connection manager makes and ends them.

use roce_wire::Qpn;
use roce_wire::cm::{CmMad, CmMessage, RejectReason, service_id_parts};
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
    /// From the first message to the one that made the connection.
    pub took_ns: Option<u64>,
}

/// The other end of each queue pair.
type Ends = HashMap<(IpAddr, Qpn), (IpAddr, Qpn)>;

#[derive(Debug, Default)]
pub(crate) struct Conversations {
    all: Vec<Conversation>,
    /// By the address and the number of the end that asked.
    by_id: HashMap<(IpAddr, u32), usize>,
    /// Which conversation the other end's number belongs to.
    by_other_id: HashMap<(IpAddr, u32), usize>,
    ends: Ends,
    pub(crate) untold: u64,
}

impl Conversations {
    /// A message.
    pub(crate) fn message(&mut self, mad: &CmMad, from: IpAddr, to: IpAddr, at: Duration) {
        /// A message that is repeated for ever takes no more memory than this.
        const MESSAGES: usize = 32;
        let Some(index) = self.find(&mad.message, from, to, at) else {
            self.untold += 1;
            return;
        };
        self.learn_ends(index, &mad.message, from);
        let conversation = &mut self.all[index];
        if conversation.messages.len() < MESSAGES {
            conversation.messages.push(mad.message.name());
        }
        let began = Duration::from_nanos(conversation.at_ns);
        match &mad.message {
            CmMessage::Rtu(_) | CmMessage::SidrRep(_) => {
                let took = at.saturating_sub(began).as_nanos();
                conversation.took_ns.get_or_insert(u64::try_from(took).unwrap_or(u64::MAX));
            }
            CmMessage::Rej(rej) => conversation.refused = Some(reason(rej.reason)),
            _ => {}
        }
        if let CmMessage::SidrRep(rep) = &mad.message
            && rep.status.0 != 0
        {
            conversation.refused = Some(format!("status {}", rep.status.0));
        }
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
                self.by_other_id.insert((from, rep.local_comm_id), index);
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
            took_ns: None,
        });
        self.by_id.insert((from, id), self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    /// REQ and REP name the queue pairs.
    fn learn_ends(&mut self, index: usize, message: &CmMessage, from: IpAddr) {
        let conversation = &mut self.all[index];
        match message {
            CmMessage::Req(req) => conversation.qpns.0 = Some(req.local_qpn.value()),
            CmMessage::Rep(rep) => conversation.qpns.1 = Some(rep.local_qpn.value()),
            CmMessage::SidrRep(rep) => conversation.qpns.1 = Some(rep.qpn.value()),
            _ => return,
        }
        if let (CmMessage::Rep(_), (Some(asking), Some(answering))) = (message, conversation.qpns) {
            let asking = (conversation.from, Qpn::new(asking));
            let answering = (from, Qpn::new(answering));
            self.ends.insert(asking, answering);
            self.ends.insert(answering, asking);
        }
    }

    /// The other end of a queue pair, if the capture shows how it was connected.
    pub(crate) fn peer_of(&self, address: IpAddr, qpn: Qpn) -> Option<(IpAddr, Qpn)> {
        self.ends.get(&(address, qpn)).copied()
    }

    pub(crate) fn into_list(self) -> Vec<Conversation> {
        self.all
    }
}

/// A reason in words, as the specification has them.
fn reason(reason: RejectReason) -> String {
    let text = match reason {
        RejectReason::NO_QP => "no queue pair is available",
        RejectReason::NO_RESOURCES => "no resources are available",
        RejectReason::TIMEOUT => "a message of the other end did not come in time",
        RejectReason::UNSUPPORTED_REQUEST => "the request is not supported",
        RejectReason::INVALID_COMM_ID => "the communication id is not known",
        RejectReason::INVALID_COMM_INSTANCE => "the communication instance is not known",
        RejectReason::INVALID_SERVICE_ID => "nothing listens for this service",
        RejectReason::INVALID_TRANSPORT => "the transport type is not that of the service",
        RejectReason::STALE_CONNECTION => "the queue pair has a connection already",
        RejectReason::INVALID_GID => "the GID is not that of this port",
        RejectReason::INVALID_MTU => "the path MTU is not possible",
        RejectReason::CONSUMER_DEFINED => "the program at the other end refused",
        RejectReason::DUPLICATE_COMM_ID => "the communication id is in use",
        _ => return format!("reason {}", reason.0),
    };
    format!("{text} (reason {})", reason.0)
}
