//! What an event of an engine means, in words, and which rules it follows.

use crate::decode;
use crate::reasons;
use crate::rules::rules;
use crate::teller::Teller;
use rnic_abi::verbs::{QpState, WcStatus, WrOpcode};
use rnic_core::event::{DropReason, Event, PacketInfo, RewindCause};
use rnic_page::{Kind, Step};
use rnic_sim::world::{Carried, HostId};
use roce_wire::headers::{Syndrome, rnr_timer_ns};
use roce_wire::{Opcode, Operation, Position, Psn, Qpn, Transport};

/// A step: kind, title, what it means, reason, rules.
struct Told {
    kind: Kind,
    title: String,
    text: String,
    reason: Option<String>,
    rules: &'static [&'static str],
}

impl Told {
    fn new(kind: Kind, title: String, text: String, rules: &'static [&'static str]) -> Self {
        Self { kind, title, text, reason: None, rules }
    }
}

/// The step of an event.
pub(crate) fn event(teller: &Teller, host: HostId, event: &Event) -> Step {
    let told = told(teller, host, event);
    let mut step = Step::new(told.kind, 0, host, told.title);
    step.text = if told.text.is_empty() { Vec::new() } else { vec![told.text] };
    step.reason = told.reason;
    step.rules = rules(told.rules);
    step.qp = qpn_of(event).map(|qpn| Teller::qp_name(host, qpn.value()));
    step
}

/// A dropped packet is told of beside the queue pair that it names.
fn qpn_of(event: &Event) -> Option<Qpn> {
    match event {
        Event::Dropped { packet, .. } => packet.map(|packet| packet.dest_qpn),
        _ => event.qpn(),
    }
}

fn told(teller: &Teller, host: HostId, event: &Event) -> Told {
    let number = teller.current[host];
    let opcode = teller.packet[host].map(|packet| packet.opcode);
    match event {
        Event::Doorbell { .. } => {
            let title = "The NIC finds that the doorbell was rung".to_owned();
            Told::new(Kind::Doorbell, title, String::new(), &[])
        }
        Event::WqeFetched { qpn, message, first_psn, last_psn, length, .. } => {
            let opcode = teller.posted.get(&(host, qpn.value(), *message)).copied();
            fetched(opcode, *message, (*first_psn, *last_psn), *length)
        }
        Event::Received { qpn, packet } => received(teller, host, *qpn, packet),
        Event::Dropped { reason: DropReason::GhostResponse, .. } => ghost(teller, host),
        Event::Dropped { reason, .. } => {
            let (text, rules) = reasons::dropped(*reason, opcode);
            let title = format!("The NIC drops packet #{number}");
            let reason = Some(reasons::drop_name(*reason));
            Told { reason, ..Told::new(Kind::Refusal, title, text.to_owned(), rules) }
        }
        Event::Nak { psn, reason, .. } => {
            let (text, rules) = reasons::refused(*reason, opcode);
            let title = format!("The NIC refuses packet #{number}: a NAK with PSN {psn}");
            let reason = Some(reasons::nak_name(*reason));
            Told { reason, ..Told::new(Kind::Refusal, title, text.to_owned(), rules) }
        }
        Event::RnrNak { psn, timer, .. } => not_ready(*psn, *timer),
        Event::Rewound { psn: to, cause, .. } => rewound(*to, *cause),
        Event::Acked { psn, .. } => acknowledged(*psn, teller.packet[host]),
        Event::Completed { status, receive, wr_id, .. } => completed(*status, *receive, *wr_id),
        _ => other(event),
    }
}

/// An answer to nothing that is open.
fn ghost(teller: &Teller, host: HostId) -> Told {
    let title = format!("The NIC drops packet #{}", teller.current[host]);
    let (text, rules): (_, &'static [&'static str]) = if teller.is_behind(host) {
        ("Its PSN is acknowledged already. Such an answer is called a ghost.", &["ResponseBehind"])
    } else {
        ("It answers nothing that is open. Such an answer is called a ghost.", &["ResponseAhead"])
    };
    let reason = Some("ghost".to_owned());
    Told { reason, ..Told::new(Kind::Refusal, title, text.to_owned(), rules) }
}

fn acknowledged(psn: Psn, by: Option<PacketInfo>) -> Told {
    let title = format!("Everything up to PSN {psn} is acknowledged");
    let syndrome = by.and_then(|packet| packet.aeth).map(|aeth| Syndrome::from_u8(aeth.0));
    let is_ack = by.is_some_and(|packet| packet.opcode == Opcode::RcAck);
    let rules: &'static [&'static str] = match syndrome {
        Some(Syndrome::Ack { .. }) if is_ack => &["AckUpToItsPsn", "AckCoalesces"],
        Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }) => &["NakAcknowledgesEarlier"],
        _ => &[],
    };
    Told::new(Kind::Nic, title, String::new(), rules)
}

fn fetched(opcode: Option<WrOpcode>, index: u32, psns: (Psn, Psn), length: u32) -> Told {
    let packets = psns.0.steps_to(psns.1) + 1;
    let which = if packets == 1 {
        format!("PSN {}", psns.0)
    } else {
        format!("PSNs {} to {}", psns.0, psns.1)
    };
    let title = format!("The NIC copies send WQE {index}: {length} bytes, {which}");
    let text = "It checks the copy and its keys, and never reads the ring's slot again. Every packet \
                of a queue pair gets a packet sequence number (PSN), one more than the one before.";
    let rules: &'static [&'static str] = match opcode {
        Some(WrOpcode::Read) => &["ReadPsns"],
        Some(WrOpcode::CmpSwap | WrOpcode::FetchAdd) => &["AtomicSink"],
        _ => &["Segmentation"],
    };
    Told::new(Kind::Nic, title, text.to_owned(), rules)
}

fn not_ready(psn: Psn, timer: u8) -> Told {
    let wait = rnr_timer_ns(timer) / 1000;
    let title = format!("No receive request is posted: an RNR NAK with PSN {psn}, {wait} us");
    let text = "Receiver not ready (RNR). The request is not executed; the sender has to wait at \
                least as long as the NAK says, and then to send it again.";
    let rules = &["RnrNakPsn", "RnrTimer", "RnrSilencesGap"];
    let reason = Some("RNR".to_owned());
    Told { reason, ..Told::new(Kind::Refusal, title, text.to_owned(), rules) }
}

fn rewound(to: Psn, cause: RewindCause) -> Told {
    let (why, text, rules): (_, _, &'static [&'static str]) = match cause {
        RewindCause::SequenceNak => (
            "a NAK",
            "Everything from the PSN of the NAK on is sent again: go-back-N. What was before it \
             has arrived.",
            &["SequenceNakRewinds", "SequenceNakCostsRetry"],
        ),
        RewindCause::ImpliedNak => (
            "an answer that is missing",
            "The peer answered a later request but not this one: that answer was lost, and the \
             request is repeated.",
            &["ImpliedNak", "ImpliedNakCostsRetry"],
        ),
        RewindCause::Timeout => (
            "the timer",
            "Nothing was acknowledged for longer than the local ACK timeout, so a packet or its \
             ACK is taken for lost.",
            &["TimeoutRange", "GoBackN"],
        ),
        RewindCause::Rnr => (
            "the end of the RNR wait",
            "The time that the RNR NAK named is over.",
            &["RnrWait", "RnrResends"],
        ),
    };
    let title = format!("The NIC goes back to PSN {to}, because of {why}");
    let reason = Some(format!("go back: {why}"));
    Told { reason, ..Told::new(Kind::Retry, title, text.to_owned(), rules) }
}

fn completed(status: WcStatus, receive: bool, wr_id: u64) -> Told {
    let side = if receive { "receive" } else { "send" };
    let name = decode::status(status);
    let title = format!("The NIC writes a completion: {side}, wr_id {wr_id}, {name}");
    let rules: &'static [&'static str] = match (status, receive) {
        (WcStatus::Success, true) => &["DataBeforeCompletion"],
        (WcStatus::Success, false) => &[],
        (WcStatus::WrFlushErr, true) => &["ErrFlushesReceives"],
        (WcStatus::WrFlushErr, false) => &["ErrFlushesSends"],
        (WcStatus::RetryExcErr, _) => &["RetriesEnd", "ErrorsAlwaysTold", "SendErrorEndsQp"],
        (WcStatus::RnrRetryExcErr, _) => &["RnrRetriesEnd", "ErrorsAlwaysTold", "SendErrorEndsQp"],
        (WcStatus::RemAccessErr, _) => {
            &["AccessErrorStatus", "ErrorsAlwaysTold", "SendErrorEndsQp"]
        }
        (WcStatus::RemInvReqErr, _) => {
            &["InvalidRequestStatus", "ErrorsAlwaysTold", "SendErrorEndsQp"]
        }
        (WcStatus::LocLenErr, true) => &["TooLongStatus"],
        _ => &[],
    };
    Told::new(Kind::Completion, title, String::new(), rules)
}

/// A packet that passed the checks of every packet.
fn received(teller: &Teller, host: HostId, qpn: Qpn, packet: &PacketInfo) -> Told {
    let (number, info) = (teller.current[host], packet.opcode.info());
    let title = format!("Packet #{number} arrives: {} psn {}", packet.opcode, packet.psn);
    let rules: &'static [&'static str] = match info.transport {
        _ if qpn == Qpn::GSI => &["Icrc", "ManagementIsUd", "ManagementPKey", "ManagementQKey"],
        Transport::Ud => &["Icrc", "WholeQpn", "TransportFits", "StateReceives", "QKeyMatches"],
        _ => &["Icrc", "WholeQpn", "TransportFits", "StateReceives", "PKeyMatches", "PeerAddress"],
    };
    let verdict = if info.transport == Transport::Ud {
        "Its PSN means nothing: each datagram stands alone.".to_owned()
    } else if info.is_request {
        let expected = teller.expected_now(host, qpn);
        sequence(packet.psn, expected)
    } else {
        "It is an answer, so it goes to the requester half of the queue pair.".to_owned()
    };
    let last = if info.transport == Transport::Ud { "Q_Key" } else { "address" };
    let text =
        format!("Checksum, queue pair number, transport, state and {last} are good. {verdict}");
    Told::new(Kind::Arrival, title, text, rules)
}

fn sequence(psn: Psn, expected: Option<u32>) -> String {
    let Some(expected) = expected.map(Psn::new) else { return String::new() };
    match psn.distance_from(expected) {
        0 => "Its PSN is the one that is expected.".to_owned(),
        ahead if ahead > 0 => format!("Expected was PSN {expected}: something is missing."),
        _ => format!("Expected is PSN {expected}: this one has been here before."),
    }
}

fn other(event: &Event) -> Told {
    match event {
        Event::Placed { bytes, .. } => {
            let title =
                format!("The NIC writes {} into the program's memory", count(*bytes, "byte"));
            Told::new(Kind::Memory, title, String::new(), &[])
        }
        Event::Lost { psn, .. } => {
            let title = format!("What had PSN {psn} is lost for good");
            let text = "A later message begins, and nothing is ever sent again on this transport.";
            let rules = &["UcLossEndsMessage", "UcLossKeepsReceive"];
            let reason = Some("lost for good".to_owned());
            Told { reason, ..Told::new(Kind::Refusal, title, text.to_owned(), rules) }
        }
        Event::State { from, to, .. } => {
            let title = format!("The queue pair goes from {} to {}", state(*from), state(*to));
            let text = match to {
                QpState::Err => {
                    "Nothing is sent or received any more, and all that is posted \
                                 comes back as flushed."
                }
                QpState::Sqe => "Nothing more is sent; receiving goes on.",
                _ => "",
            };
            Told::new(Kind::State, title, text.to_owned(), &[])
        }
        Event::DmaFault { psn, .. } => {
            let title = format!("Memory of the packet with PSN {psn} cannot be accessed");
            Told::new(Kind::Refusal, title, String::new(), &["FaultRollsBack"])
        }
        _ => Told::new(Kind::Nic, format!("{event:?}"), String::new(), &[]),
    }
}

/// Rules that show in a packet that leaves.
pub(crate) fn departure_rules(carried: &Carried) -> &'static [&'static str] {
    let Some(datagram) = carried.packet.parse() else { return &[] };
    let info = datagram.opcode().info();
    match (info.transport, info.operation) {
        (Transport::Ud, _) if datagram.bth().dest_qp == Qpn::GSI => &["ManagementLength"],
        (Transport::Ud, _) => &["DatagramIsOnePacket", "ControlledQKey"],
        (Transport::Uc, _) => &["UcAsksForNoAck"],
        (_, Operation::Ack) => match datagram.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack { .. }) => &["AckNamesLast", "MsnCountsMessages"],
            _ => &[],
        },
        (_, Operation::AtomicAck) => &["MsnCountsAtomics"],
        (_, Operation::ReadResponse) if datagram.aeth().is_some() => &["MsnCountsReads"],
        (_, Operation::Write) if info.position == Position::First => &["WriteAnnouncesAll"],
        _ if info.position.is_end() && datagram.bth().ack_req => &["AckReqAtEnd"],
        _ => &[],
    }
}

/// A number of things.
pub(crate) fn count(number: u32, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// The name of a state, as verbs have it.
pub(crate) fn state(state: QpState) -> String {
    format!("{state:?}").to_uppercase()
}
