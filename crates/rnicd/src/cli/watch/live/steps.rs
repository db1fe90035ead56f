//! Frames and events as steps of a story.

use super::lanes::{End, Lanes};
use rnic_host::observe::comments::Commented;
use rnic_host::observe::{Record, Way};
use rnic_page::packet::{block, label};
use rnic_page::{Flight, Kind, Step};
use roce_wire::{Datagram, Frame};
use std::collections::VecDeque;
use std::time::SystemTime;

/// Since 1970.
pub(super) fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A frame, which came so long after the beginning and is the one with this number.
pub(super) fn of_frame(
    frame: &Commented,
    (at, number): (u64, u64),
    lanes: &mut Lanes,
    steps: &VecDeque<Step>,
) -> Step {
    let bytes = &frame.captured.frame;
    let parsed = Frame::parse(bytes).ok();
    let payload = parsed.as_ref().map_or(&bytes[..], |frame| frame.payload());
    let datagram = Datagram::parse(payload).ok();
    let label = datagram.map_or("malformed".to_owned(), |datagram| label(&datagram));
    let flow = parsed.as_ref().map(|frame| frame.flow);
    let (from, to) = ends(frame, flow.map(|flow| (flow.src, flow.dst)));
    let from = lanes.of(from, None, steps);
    let to = lanes.of(to, Some(from), steps);
    let said: Vec<&str> = frame.comment.split("; ").filter(|part| !part.is_empty()).collect();
    let faults = said.iter().filter_map(|part| part.strip_prefix("fault "));
    let fate = faults.filter_map(|fault| fate(fault.split_once(": ")?.1)).next();
    let is_lost = frame.captured.way == Way::Unsent || fate == Some("lost");
    let mut step = Step::new(Kind::Packet, at, from, label.clone());
    step.qp = queue_pairs(frame.qpns);
    step.reason = said.iter().find(|part| !part.starts_with("message ")).map(|part| (*part).into());
    step.text = said.iter().map(|part| (*part).to_owned()).collect();
    step.blocks = vec![block(&format!("packet {number}"), payload, PAYLOAD)];
    step.flight = Some(Flight {
        number,
        to,
        label,
        arrivals: if is_lost { Vec::new() } else { vec![at] },
        fate: if is_lost { Some("lost".to_owned()) } else { fate.map(str::to_owned) },
        again: frame.comment.contains("sent again"),
    });
    step
}

/// From where a frame comes and where it goes.
fn ends(frame: &Commented, addresses: Option<(std::net::IpAddr, std::net::IpAddr)>) -> (End, End) {
    let Some((src, dst)) = addresses else { return (End::Own, End::Own) };
    let of = |qpn: Option<u32>, address| qpn.map_or(End::Peer(address), End::Qp);
    match frame.captured.way {
        Way::Looped => (of(frame.qpns[0], src), of(frame.qpns[1], dst)),
        Way::Sent | Way::Unsent => (End::Own, End::Peer(dst)),
        Way::Received => (End::Peer(src), End::Own),
    }
}

/// The same for both directions.
fn queue_pairs(qpns: [Option<u32>; 2]) -> Option<String> {
    match qpns {
        [Some(one), Some(other)] => {
            Some(format!("{:#08x} - {:#08x}", one.min(other), one.max(other)))
        }
        [Some(one), None] | [None, Some(one)] => Some(format!("{one:#08x}")),
        [None, None] => None,
    }
}

/// What the page calls what a fault does.
fn fate(kind: &str) -> Option<&'static str> {
    match kind {
        "drop" => Some("lost"),
        "corrupt" => Some("damaged"),
        "duplicate" => Some("duplicated"),
        "delay" | "reorder" => Some("delayed"),
        "mark" => Some("marked"),
        _ => None,
    }
}

/// An event becomes a step of its own: no frame says the same.
pub(super) fn is_told(record: &Record) -> bool {
    record.is_error || matches!(&*record.event, "rewound" | "rnr_nak" | "nak" | "state")
}

/// An event that [is told](is_told), so long after the beginning.
pub(super) fn of_event(record: &Record, at: u64, lanes: &Lanes) -> Step {
    let name = |field: &str| record.name(field).unwrap_or("?");
    let psn = record.number("psn").map_or(String::new(), |psn| format!(" psn {psn:#08x}"));
    let (kind, title, reason) = match &*record.event {
        "rewound" => (Kind::Retry, format!("goes back to{psn}"), Some(name("cause"))),
        "nak" => (Kind::Refusal, format!("refuses{psn}"), Some(name("reason"))),
        "rnr_nak" => (Kind::Refusal, format!("refuses{psn}"), Some("no receive WQE")),
        "state" => (Kind::State, format!("{} to {}", name("from"), name("to")), None),
        "completed" => (Kind::Completion, "completes with".to_owned(), Some(name("status"))),
        other => (Kind::Nic, format!("{other}{psn}"), record.name("reason")),
    };
    let qpn = record.number("qpn");
    // Where it talks to another one of this device, it has a lane of its own.
    let lane = qpn.and_then(|qpn| lanes.known(End::Qp(qpn))).unwrap_or(0);
    let title = match reason {
        Some(reason) => format!("{title}: {reason}"),
        None => title,
    };
    let mut step = Step::new(kind, at, lane, title);
    step.qp = queue_pairs([qpn, None]);
    step.reason = reason.map(str::to_owned);
    step
}

/// Bytes of payload that a page shows.
const PAYLOAD: usize = 32;
