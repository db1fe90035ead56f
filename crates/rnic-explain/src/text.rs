//! The report as text for a terminal.

use crate::conversations::Conversation;
use crate::findings::Finding;
use crate::report::{Capture, Connection, Report, Sent};
use std::fmt;
use std::time::Duration;

/// Connections and conversations that are shown; JSON has all of them.
const MOST: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.capture)?;
        for connection in self.connections.iter().take(MOST) {
            write!(f, "\n\n{connection}")?;
        }
        further(f, self.connections.len(), "connections")?;
        for conversation in self.conversations.iter().take(MOST) {
            write!(f, "\n\n{conversation}")?;
        }
        further(f, self.conversations.len(), "conversations of the connection manager")?;
        if self.findings.is_empty() {
            return f.write_str("\n\nNothing is wrong in what was captured.");
        }
        f.write_str("\n\nFindings")?;
        for (number, finding) in self.findings.iter().take(MOST).enumerate() {
            write!(f, "\n{:2}. {finding}", number + 1)?;
        }
        further(f, self.findings.len(), "findings")
    }
}

fn further(f: &mut fmt::Formatter<'_>, count: usize, what: &str) -> fmt::Result {
    match count.saturating_sub(MOST) {
        0 => Ok(()),
        more => write!(f, "\n\n{more} further {what}: --json shows all"),
    }
}

impl fmt::Display for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, roce_packets, cut_packets, .. } = self;
        let length = Duration::from_nanos(self.length_ns);
        write!(f, "{packets} packets in {length:.3?}, {roce_packets} of them RoCEv2")?;
        if *cut_packets > 0 {
            write!(f, "; {cut_packets} without their end, so that the ICRC is not checked")?;
        }
        if self.trains > 0 {
            let trains = many((self.trains, "train"));
            write!(f, "\n{trains} of several packets, joined by a kernel, were taken apart")?;
        }
        for (reason, count) in &self.refused {
            write!(f, "\n{count} packets are not understood: {reason}")?;
        }
        if self.of_further_connections > 0 {
            let count = self.of_further_connections;
            write!(f, "\n{count} packets are of further connections, which are not looked at")?;
        }
        Ok(())
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.ends;
        write!(f, "{} {one} and {other}", self.transport)?;
        if self.is_anew {
            f.write_str(", connected anew")?;
        }
        for (sent, arrow) in self.sent.iter().zip(["->", "<-"]) {
            let counts = [
                (sent.bad_icrc, "packets with a wrong ICRC"),
                (sent.congestion_marks, "packets marked as congested"),
                (sent.congestion_notifications, "congestion notifications"),
            ];
            list(f, &format!("\n  {arrow} "), &counts)?;
            if sent.requests > 0 {
                write!(f, "\n  {arrow} ")?;
                requests(f, sent)?;
            }
            if sent.responses > 0 {
                write!(f, "\n  {arrow} ")?;
                responses(f, sent)?;
            }
        }
        let is_silent = |sent: &Sent| sent.requests + sent.responses == 0;
        if matches!(self.transport, "RC" | "XRC") && self.sent.iter().any(is_silent) {
            f.write_str("\n  nothing of the other direction is in the capture")?;
        }
        Ok(())
    }
}

fn requests(f: &mut fmt::Formatter<'_>, sent: &Sent) -> fmt::Result {
    let [packets, messages] = [(sent.requests, "request packet"), (sent.messages, "message")];
    write!(f, "{}, {}, {} bytes", many(packets), many(messages), sent.request_bytes)?;
    if let Some(mtu) = sent.mtu {
        write!(f, ", path MTU {mtu}")?;
    }
    if let Some(latency) = sent.latency {
        let time = Duration::from_nanos;
        write!(f, "\n     answered after {:.1?}", time(latency.median_ns))?;
        write!(f, " (median), 99 % within {:.1?}", time(latency.p99_ns))?;
        write!(f, ", at most {:.1?}", time(latency.max_ns))?;
    }
    let counts = [
        (sent.repeated, "sent again"),
        (sent.never_seen, "never seen"),
        (sent.overtaken, "overtaken"),
        (sent.copies_made_by_the_network, "copied by the network"),
    ];
    list(f, "\n     packets: ", &counts)
}

fn responses(f: &mut fmt::Formatter<'_>, sent: &Sent) -> fmt::Result {
    write!(f, "{}", many((sent.responses, "response packet")))?;
    let counts = [
        (sent.acks, "ACK"),
        (sent.sequence_naks, "NAK (PSN sequence error)"),
        (sent.rnr_naks, "RNR NAK"),
        (sent.refused, "NAK (refusal)"),
        (sent.repeated_responses, "data sent again"),
        (sent.responses_to_unknown, "answer to what is not in the capture"),
    ];
    list(f, ": ", &counts)
}

/// A number and a word in the plural, if it is not one.
fn many((count, what): (u64, &str)) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What is not zero.
fn list(f: &mut fmt::Formatter<'_>, before: &str, counts: &[(u64, &str)]) -> fmt::Result {
    let mut separator = before;
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        write!(f, "{separator}{what} {count}")?;
        separator = ", ";
    }
    Ok(())
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, service, messages, .. } = self;
        write!(f, "CM {from} asked {to} for {service}: {}", messages.join(" "))?;
        if let (Some(asking), Some(answering)) = self.qpns {
            write!(f, "\n  queue pairs {asking:#08x} and {answering:#08x}")?;
        }
        if let Some(took) = self.took_ns {
            write!(f, "\n  connected after {:.1?}", Duration::from_nanos(took))?;
        }
        match &self.refused {
            Some(reason) if self.refused_by_asking => {
                write!(f, "\n  given up by the end that asked: {reason}")
            }
            Some(reason) => write!(f, "\n  refused: {reason}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}", self.what, self.advice)
    }
}
