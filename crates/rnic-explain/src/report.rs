//! The result: facts first, then what follows from them.

use crate::conversations::Conversation;
use crate::explainer::{Direction, nanos};
use crate::findings::{self, Finding};
pub use crate::latency::Latency;
use crate::responses::Refusal;
use crate::rewinds;
use roce_wire::Transport;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

/// What a capture says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    pub capture: Capture,
    pub connections: Vec<Connection>,
    pub conversations: Vec<Conversation>,
    pub findings: Vec<Finding>,
}

/// The capture as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Capture {
    /// Packets as they are on a link: each one of a train counts.
    pub packets: u64,
    pub roce_packets: u64,
    /// From the first packet to the last.
    pub length_ns: u64,
    /// Packets whose end was not captured: their ICRC is not checked.
    pub cut_packets: u64,
    /// Packets of the file that were several on a link, which a kernel had joined.
    pub trains: u64,
    /// Those of which only the beginning was captured: each counts as one packet.
    pub cut_trains: u64,
    /// The file ends within a packet.
    pub is_cut: bool,
    /// Packets that are damaged or of no known kind, by reason. Packets of other protocols are not
    /// among them.
    pub refused: Vec<(String, u64)>,
    /// Packets of connections beyond the number that is kept.
    pub of_further_connections: u64,
    /// Messages of conversations that are not kept, or whose first message is not in the capture.
    pub further_conversations: u64,
}

/// A connection, or datagrams from one queue pair to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Connection {
    pub transport: &'static str,
    pub ends: [End; 2],
    /// The queue pairs had another connection before, in this capture.
    pub is_anew: bool,
    /// What the first end sent to the second one, and the other way.
    pub sent: [Sent; 2],
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct End {
    pub address: IpAddr,
    /// Not known where no packet to it is in the capture.
    pub qpn: Option<u32>,
}

/// What one end sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sent {
    pub requests: u64,
    pub messages: u64,
    pub request_bytes: u64,
    /// Request packets that were sent again.
    pub repeated: u64,
    /// Those that were sent again because the other end had no receive.
    pub repeated_after_rnr_nak: u64,
    /// Those that ask again for data of READs or atomics of which the capture has only later parts.
    pub repeated_for_data: u64,
    /// Those that the capture shows to be acknowledged already: the acknowledgement was lost or
    /// late.
    pub needless: u64,
    /// Those whose first transmission is not in the capture: it was lost before it came here.
    pub lost_before_capture: u64,
    /// How often the sender went back for packets that are all in the capture and not acknowledged
    /// there: something was lost behind its place.
    pub losses_behind_capture: u64,
    /// PSNs that are not in the capture at all.
    pub never_seen: u64,
    pub copies_made_by_the_network: u64,
    pub overtaken: u64,
    /// How often the sender went back, by what made it do so.
    pub went_back: WentBack,
    /// The path MTU, as far as packets show it.
    pub mtu: Option<usize>,
    /// From a request to its answer, where the request was sent once.
    pub latency: Option<Latency>,
    pub responses: u64,
    pub response_bytes: u64,
    pub acks: u64,
    pub sequence_naks: u64,
    pub rnr_naks: u64,
    pub longest_rnr_wait_ns: u64,
    pub refused: u64,
    pub refusals: Vec<Refusal>,
    pub repeated_responses: u64,
    pub responses_to_unknown: u64,
    pub bad_icrc: u64,
    pub congestion_marks: u64,
    pub congestion_notifications: u64,
    /// PSN of the request that was sent again so often, to the end, and never acknowledged.
    pub given_up: Option<(u32, u32)>,
    /// How often the other end asked for that request by a sequence NAK.
    pub given_up_asked: u32,
    /// The request for which the other end never had a receive.
    pub never_ready: Option<NeverReady>,
    pub first_ns: u64,
    pub last_ns: u64,
}

/// A request for which there was no receive at the other end, to the end of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct NeverReady {
    pub psn: u32,
    /// RNR NAKs in a row.
    pub rnr_naks: u32,
    /// The sender had time to send it again, and did not: it gave up.
    pub is_over: bool,
}

/// Reasons to go back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WentBack {
    pub after_sequence_nak: u64,
    pub after_rnr_nak: u64,
    /// Data of a READ or atomic was missing.
    pub after_lost_data: u64,
    pub after_silence: u64,
    pub unexplained: u64,
    /// The most packets from where it went back to, to the first that was not sent yet.
    pub farthest: u32,
}

impl Connection {
    /// Packets in both directions.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.sent.iter().map(|sent| sent.requests + sent.responses).sum()
    }
}

/// Puts the directions together, the busiest connection first.
pub(crate) fn of(
    capture: Capture,
    directions: &[Direction],
    conversations: Vec<Conversation>,
) -> Report {
    let one_of_both =
        |(index, direction): &(usize, &Direction)| direction.peer.is_none_or(|peer| index < &peer);
    let chosen = directions.iter().enumerate().filter(one_of_both);
    let end = Duration::from_nanos(capture.length_ns);
    let mut connections: Vec<_> = chosen
        .map(|(_, one)| connection(one, one.peer.map(|peer| &directions[peer]), end))
        .collect();
    connections.sort_by_key(|connection| std::cmp::Reverse(connection.packets()));
    let findings = findings::of(&capture, &connections, &conversations);
    Report { capture, connections, conversations, findings }
}

fn connection(there: &Direction, back: Option<&Direction>, end: Duration) -> Connection {
    let key = there.key;
    let sender = back.map(|back| back.key.dest_qp).or(key.src_qp);
    let ends = [
        End { address: key.src, qpn: sender.map(|qpn| qpn.value()) },
        End { address: key.dst, qpn: Some(key.dest_qp.value()) },
    ];
    let sent = [sent(there, end), back.map(|back| sent(back, end)).unwrap_or_default()];
    let is_anew = there.is_anew || back.is_some_and(|back| back.is_anew);
    Connection { transport: name(there.transport), ends, is_anew, sent }
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Rd => "RD",
        Transport::Ud => "UD",
        Transport::Cnp => "CNP",
        Transport::Xrc => "XRC",
    }
}

fn sent(direction: &Direction, end: Duration) -> Sent {
    let (requests, responses) = (&direction.requests, &direction.responses);
    let given_up = requests.rewinds.given_up();
    let never_ready = requests.rewinds.never_ready(end);
    Sent {
        requests: requests.packets,
        messages: requests.messages,
        request_bytes: requests.bytes,
        repeated: requests.repeated,
        repeated_after_rnr_nak: requests.repeated_after_rnr,
        repeated_for_data: requests.repeated_for_data,
        needless: requests.needless,
        lost_before_capture: requests.lost_before,
        losses_behind_capture: requests.rewinds.seen_before,
        never_seen: requests.missing.count(),
        copies_made_by_the_network: requests.copies,
        overtaken: requests.overtaken,
        went_back: WentBack {
            after_sequence_nak: requests.rewinds.after_nak,
            after_rnr_nak: requests.rewinds.after_rnr,
            after_lost_data: requests.rewinds.after_data_lost,
            after_silence: requests.rewinds.after_silence,
            unexplained: requests.rewinds.unexplained,
            farthest: requests.rewinds.farthest,
        },
        mtu: requests.mtu(),
        latency: requests.latency.summary(),
        responses: responses.packets,
        response_bytes: responses.bytes,
        acks: responses.acks,
        sequence_naks: responses.sequence_naks,
        rnr_naks: responses.rnr_naks,
        longest_rnr_wait_ns: nanos(responses.rnr_wait),
        refused: responses.refused,
        refusals: responses.refusals.clone(),
        repeated_responses: responses.repeated,
        responses_to_unknown: direction.unmatched,
        bad_icrc: direction.bad_icrc,
        congestion_marks: direction.congestion_marks,
        congestion_notifications: direction.notifications,
        given_up: given_up.map(|given_up| (given_up.psn.value(), given_up.times)),
        given_up_asked: given_up.map_or(0, |given_up| given_up.sequence_naks),
        never_ready: never_ready.map(|rewinds::NeverReady { psn, rnr_naks, is_over }| NeverReady {
            psn: psn.value(),
            rnr_naks,
            is_over,
        }),
        first_ns: nanos(direction.first),
        last_ns: nanos(direction.last),
    }
}
