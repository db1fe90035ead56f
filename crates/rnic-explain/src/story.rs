//! The packets of a capture as a story, for a page in a browser: the first ones, and those around
//! everything that went wrong.

use crate::explainer::{Direction, nanos};
use crate::part::Part;
use crate::remark::Remark;
use crate::report::Report;
use rnic_page::packet::{label, part as block};
use rnic_page::{Flight, Kind, Party, SCHEMA, Step, Story};
use roce_wire::{Datagram, Ecn, Flow, Syndrome, Transport};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Packets from the beginning.
const FIRST: usize = 500;
/// Most packets of a story: what a browser draws without a pause.
const MOST: usize = 2000;
/// Packets before and behind one that is worth a look.
const AROUND: usize = 5;
/// Hosts that have a line of their own; packets of others are left out.
const MOST_HOSTS: usize = 6;
/// Findings that are shown.
const MOST_FINDINGS: usize = 12;
/// Payload bytes that are shown.
const PAYLOAD: usize = 32;

/// What a direction counts that tells of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    repeated: u64,
    copies: u64,
    overtaken: u64,
    bad_icrc: u64,
}

impl Tally {
    pub(crate) fn of(direction: &Direction) -> Self {
        Self {
            repeated: direction.requests.repeated,
            copies: direction.requests.copies,
            overtaken: direction.requests.overtaken,
            bad_icrc: direction.bad_icrc,
        }
    }
}

/// A packet that is kept.
#[derive(Debug)]
struct Kept {
    number: u64,
    /// Its place in a train, from 1, and how many there are.
    of_train: Option<(usize, usize)>,
    at: Duration,
    src: IpAddr,
    dst: IpAddr,
    direction: usize,
    again: bool,
    fate: Option<&'static str>,
    reason: Option<String>,
    bytes: Vec<u8>,
    /// So many of the bytes were captured; the others are zeros.
    captured: usize,
    remark: Remark,
}

/// Collects packets, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Storyteller {
    kept: Vec<Kept>,
    /// The last ones that are not kept.
    before: VecDeque<Kept>,
    /// So many are kept although nothing is wrong with them.
    more: usize,
    seen: u64,
}

impl Storyteller {
    /// The next packet, the `number`th of the capture; with it the tally of its direction changed.
    pub(crate) fn packet(
        &mut self,
        (number, at): (u64, Duration),
        part: &Part<'_>,
        datagram: &Datagram<'_>,
        (direction, was, is): (usize, Tally, Tally),
        remark: Remark,
    ) {
        self.seen += 1;
        if self.kept.len() >= MOST {
            return;
        }
        let (fate, reason) = trouble(&part.flow, datagram, was, is);
        let fate = if remark.is_loss() { Some("lost") } else { fate };
        let reason = reason.or_else(|| remark.matter().map(str::to_owned));
        let kept = Kept {
            number,
            of_train: part.of_train,
            at,
            src: part.flow.src,
            dst: part.flow.dst,
            direction,
            again: is.repeated > was.repeated,
            fate,
            reason,
            bytes: part.bytes.to_vec(),
            captured: part.captured,
            remark,
        };
        if kept.reason.is_some() {
            self.more = AROUND + 1;
        }
        if self.kept.len() < FIRST || self.more > 0 {
            self.more = self.more.saturating_sub(1);
            self.kept.extend(self.before.drain(..));
            self.kept.push(kept);
        } else {
            if self.before.len() == AROUND {
                self.before.pop_front();
            }
            self.before.push_back(kept);
        }
    }

    /// The story of a capture called `name`.
    pub(crate) fn tell(self, name: &str, report: &Report, directions: &[Direction]) -> Story {
        let mut hosts: Vec<IpAddr> = Vec::new();
        let mut steps = Vec::new();
        for kept in &self.kept {
            let mut place = |address| place_of(&mut hosts, address);
            if let (Some(from), Some(to)) = (place(kept.src), place(kept.dst)) {
                steps.push(kept.step(from, to, directions));
            }
        }
        let found = report.findings.iter().take(MOST_FINDINGS);
        let mut about: Vec<String> =
            found.map(|finding| format!("{}. {}", finding.what, finding.advice)).collect();
        let more = report.findings.len().saturating_sub(MOST_FINDINGS);
        if more > 0 {
            about.push(format!("There is more of this kind: {more}."));
        }
        if (steps.len() as u64) < self.seen {
            about.push(format!(
                "Here are {} of {} packets: the first ones, and those around what went wrong.",
                steps.len(),
                self.seen
            ));
        }
        let party = |address: &IpAddr| Party { name: address.to_string(), address: String::new() };
        Story {
            schema: SCHEMA,
            name: name.to_owned(),
            title: "what a capture shows".to_owned(),
            about,
            hosts: hosts.iter().map(party).collect(),
            steps,
            series: Vec::new(),
            question: None,
            next: Vec::new(),
        }
    }
}

fn place_of(hosts: &mut Vec<IpAddr>, address: IpAddr) -> Option<usize> {
    let known = hosts.iter().position(|host| *host == address);
    if known.is_none() && hosts.len() < MOST_HOSTS {
        hosts.push(address);
        return Some(hosts.len() - 1);
    }
    known
}

/// What became of a packet, and why it is worth a look.
fn trouble(
    flow: &Flow,
    datagram: &Datagram<'_>,
    was: Tally,
    is: Tally,
) -> (Option<&'static str>, Option<String>) {
    if is.bad_icrc > was.bad_icrc {
        return (Some("damaged"), Some("bad ICRC".to_owned()));
    }
    if is.copies > was.copies {
        return (Some("duplicated"), Some("copy by the network".to_owned()));
    }
    if is.repeated > was.repeated {
        return (None, Some("retransmission".to_owned()));
    }
    if is.overtaken > was.overtaken {
        return (Some("delayed"), Some("overtaken".to_owned()));
    }
    let refusal = datagram.aeth().and_then(|aeth| match aeth.syndrome {
        Syndrome::Nak(code) => Some(format!("NAK: {code}")),
        Syndrome::RnrNak { .. } => Some("RNR NAK".to_owned()),
        Syndrome::Ack { .. } | Syndrome::Reserved(_) => None,
    });
    if refusal.is_some() {
        return (None, refusal);
    }
    if datagram.opcode().transport() == Transport::Cnp {
        return (None, Some("CNP".to_owned()));
    }
    let is_marked = flow.ecn() == Ecn::Ce;
    (is_marked.then_some("marked"), is_marked.then(|| "marked".to_owned()))
}

impl Kept {
    fn step(&self, from: usize, to: usize, directions: &[Direction]) -> Step {
        let datagram = Datagram::parse(&self.bytes).ok();
        let label = datagram.map_or("malformed".to_owned(), |datagram| label(&datagram));
        let at = nanos(self.at);
        let mut step = Step::new(Kind::Packet, at, from, label.clone());
        step.qp = Some(connection(self.direction, directions));
        step.reason.clone_from(&self.reason);
        step.text = self.remark.text().map(str::to_owned).into_iter().collect();
        let title = match self.of_train {
            Some((place, count)) => format!("packet {} ({place} of {count})", self.number),
            None => format!("packet {}", self.number),
        };
        step.blocks = vec![block(&title, (&self.bytes, self.captured), PAYLOAD)];
        step.flight = Some(Flight {
            number: self.number,
            to,
            label,
            arrivals: vec![at],
            fate: self.fate.map(str::to_owned),
            again: self.again,
        });
        step
    }
}

/// The queue pairs of a connection, the same for both directions.
fn connection(index: usize, directions: &[Direction]) -> String {
    let Some(direction) = directions.get(index) else { return String::new() };
    let qpn = |index: usize| directions.get(index).map(|other| other.key.dest_qp.to_string());
    match direction.peer {
        Some(peer) => {
            let (one, other) = (index.min(peer), index.max(peer));
            format!("{} - {}", qpn(other).unwrap_or_default(), qpn(one).unwrap_or_default())
        }
        None => format!("{} of {}", direction.key.dest_qp, direction.key.dst),
    }
}
