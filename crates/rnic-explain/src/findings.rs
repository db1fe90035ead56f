//! What follows from the facts, and what a person may do about it.

use crate::conversations::Conversation;
use crate::report::{Capture, Connection, End, NeverReady, Sent};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Something that is worth a look.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Programs failed, or will.
    pub is_serious: bool,
    /// What happened, where.
    pub what: String,
    /// What to do.
    pub advice: &'static str,
}

/// A share of more than this is worth a word, in thousandths.
const NOTABLE: u64 = 1;

/// The most serious first.
pub(crate) fn of(
    capture: &Capture,
    connections: &[Connection],
    conversations: &[Conversation],
) -> Vec<Finding> {
    let mut found = Vec::new();
    for connection in connections {
        for (from, to) in [(0, 1), (1, 0)] {
            let way = Way {
                from: connection.ends[from],
                to: connection.ends[to],
                there: &connection.sent[from],
                back: &connection.sent[to],
            };
            way.look(&mut found);
        }
    }
    found.extend(conversations.iter().filter_map(refused_connection));
    found.extend(cut_trains(capture));
    if capture.is_cut {
        found.push(Finding {
            is_serious: false,
            what: "the file ends within a packet".into(),
            advice: "What wrote it was killed or still runs: its last packets are not here.",
        });
    }
    found.sort_by_key(|finding| !finding.is_serious);
    found
}

fn cut_trains(capture: &Capture) -> Option<Finding> {
    let count = capture.cut_trains;
    (count > 0).then(|| Finding {
        is_serious: false,
        what: format!(
            "{count} packets are trains, several RoCEv2 packets that a kernel had joined, of which \
             only the beginning is in the file"
        ),
        advice: "Each counts as one packet here, so that numbers, losses and times are not \
                 complete. Capture whole packets (tcpdump -s 0), or let `rnic capture -w` write \
                 the file, which sees each packet by itself.",
    })
}

fn refused_connection(conversation: &Conversation) -> Option<Finding> {
    let Conversation { from, to, service, advice, .. } = conversation;
    let (what, advice) = match (&conversation.refused, conversation.unanswered()) {
        (Some(reason), _) if conversation.refused_by_asking => {
            (format!("{from} asked {to} for {service}, but did not connect: {reason}"), *advice)
        }
        (Some(reason), _) => {
            (format!("{to} refused to connect {from} to {service}: {reason}"), *advice)
        }
        (None, Some(count)) => (
            format!("{from} asked {to} for {service} {count} times without an answer"),
            "No RDMA device answers at this address: look whether the other host's device or \
             daemon runs and has this address, and whether a firewall drops UDP port 4791.",
        ),
        (None, None) => return None,
    };
    Some(Finding { is_serious: true, what, advice })
}

/// Requests of one end, with what the other end answered.
struct Way<'a> {
    from: End,
    to: End,
    there: &'a Sent,
    back: &'a Sent,
}

impl Way<'_> {
    /// The checks, in the order in which people would ask.
    fn look(&self, found: &mut Vec<Finding>) {
        let checks = [
            Self::gave_up,
            Self::never_ready,
            Self::refusals,
            Self::losses,
            Self::lost_answers,
            Self::lost_data,
            Self::not_ready,
            Self::damage,
            Self::congestion,
            Self::order,
            Self::never_seen,
        ];
        found.extend(checks.iter().filter_map(|check| check(self)));
    }

    fn gave_up(&self) -> Option<Finding> {
        let (psn, times) = self.there.given_up?;
        let (sent, asked) = (u64::from(times) + 1, self.there.given_up_asked);
        let what = match asked {
            0 => format!("{self}: PSN {psn:#08x} was sent {sent} times without an answer"),
            _ => format!(
                "{self}: PSN {psn:#08x} was sent {sent} times and never acknowledged; the other \
                 end asked for it {} (NAK, PSN sequence error)",
                self::times(u64::from(asked))
            ),
        };
        let advice = if asked > times / 2 {
            "The other end lives and waits for this packet, which is lost each time: it is longer \
             than something on the way lets through (compare the path MTU with the MTU of each \
             interface and switch), or is dropped for what it holds. The sender reports \
             RETRY_EXC_ERR."
        } else if self.back.responses == 0 {
            "The other end never answered. Its queue pair does not exist (any more), is in \
             another state than RTR or RTS, expects another PSN or peer, or a firewall drops UDP \
             port 4791, or nothing was captured in that direction."
        } else {
            "The other end stopped to answer: its program ended, its queue pair went to the error \
             state, or the way there broke. The sender reports RETRY_EXC_ERR."
        };
        Some(Finding { is_serious: true, what, advice })
    }

    fn never_ready(&self) -> Option<Finding> {
        let NeverReady { psn, rnr_naks, is_over } = self.there.never_ready?;
        let end = if is_over { " and not sent again" } else { ", to the end of the capture" };
        Some(Finding {
            is_serious: is_over,
            what: format!(
                "{self}: PSN {psn:#08x} was refused {} by an RNR NAK{end}: no receive was posted \
                 for it",
                times(u64::from(rnr_naks))
            ),
            advice: if is_over {
                "The sender tried as often as its rnr_retry allows and reports RNR_RETRY_EXC_ERR, \
                 unless its program ended. Post receives before the peer sends, or set rnr_retry \
                 to 7, with which a sender tries for ever."
            } else {
                "The other end's program posts no receive. With an rnr_retry below 7 the sender \
                 gives up and reports RNR_RETRY_EXC_ERR; with 7 it tries for ever."
            },
        })
    }

    fn refusals(&self) -> Option<Finding> {
        let first = self.back.refusals.first()?;
        let request = first.request.as_deref().unwrap_or("a request that is not in the capture");
        let more = self.back.refused.saturating_sub(1);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        Some(Finding {
            is_serious: true,
            what: format!("{self}: {} for {request} (PSN {:#08x}){more}", first.reason, first.psn),
            advice: match first.reason.as_str() {
                "remote access error" => {
                    "The key is not (any more) that of a region of the other queue pair's \
                     protection domain, the range leaves the region, or the region or queue pair \
                     was not given this right (IBV_ACCESS_REMOTE_...)."
                }
                "invalid request" => {
                    "The message is longer than the receive that it met, both ends have different \
                     path MTUs, more READs or atomics are outstanding than max_dest_rd_atomic, an \
                     atomic is not aligned to 8 bytes, or the operation is not supported or not \
                     enabled there."
                }
                _ => {
                    "The responder failed by itself: its receive names memory that is not \
                     registered, or its completion queue is full. Linux's rxe says this, too, of a \
                     message that is longer than the receive that it met."
                }
            },
        })
    }

    fn losses(&self) -> Option<Finding> {
        let Sent { repeated, needless, lost_before_capture: before, requests, went_back, .. } =
            self.there;
        let others = self.there.repeated_after_rnr_nak + self.there.repeated_for_data;
        let lost = repeated.saturating_sub(*needless).saturating_sub(others);
        if thousandths(lost, *requests) < NOTABLE {
            return None;
        }
        let reasons = [
            (went_back.after_sequence_nak, "after a sequence NAK"),
            (went_back.after_silence, "after a timeout"),
            (went_back.unexplained, "for a reason that is not in the capture"),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0);
        let reasons: Vec<_> =
            reasons.map(|(count, why)| format!("{} {why}", times(*count))).collect();
        // What went back for an RNR NAK, or for lost data, may have mended a loss as well.
        let why = match reasons.is_empty() {
            true => String::new(),
            false => {
                format!(", {}, by at most {} packets", reasons.join(" and "), went_back.farthest)
            }
        };
        let place = match (*before, self.there.losses_behind_capture) {
            (0, _) => {
                "all of them passed the place of the capture before: what was lost was lost behind \
                 it, on the way there or back"
            }
            (_, 0) => "what was lost was lost before it came to the place of the capture",
            _ => "some were lost before the place of the capture, some behind it",
        };
        Some(Finding {
            is_serious: false,
            what: format!(
                "{self}: {lost} of {requests} request packets were sent again ({}){why}; {place}",
                share(lost, *requests),
            ),
            advice: "Packets get lost. Look at the drop counters of both network cards, the sockets \
                     or rings, and the switches (ethtool -S; nstat -az UdpRcvbufErrors); on a \
                     lossless network, look at PFC and the priority of the traffic class.",
        })
    }

    fn lost_answers(&self) -> Option<Finding> {
        let Sent { needless, requests, .. } = self.there;
        (thousandths(*needless, *requests) >= NOTABLE).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: {needless} of {requests} request packets ({}) were sent again although \
                 their answer is in the capture",
                share(*needless, *requests)
            ),
            advice: "The answers were lost behind the place of the capture, or came later than the \
                     sender's timeout: raise the timeout attribute of the queue pair, or look for \
                     losses on the way back.",
        })
    }

    fn lost_data(&self) -> Option<Finding> {
        let Sent { repeated_for_data: again, went_back, .. } = self.there;
        (*again > 0).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: {} data of READs or atomics was lost on its way back, before it came to \
                 the place of the capture; request packets that were sent again for that: {again}",
                times(went_back.after_lost_data)
            ),
            advice: "Packets get lost between the other end and the capture. Look at the drop \
                     counters of its network card and of the switches (ethtool -S), and, on a \
                     lossless network, at PFC.",
        })
    }

    fn not_ready(&self) -> Option<Finding> {
        let Sent { rnr_naks, longest_rnr_wait_ns: wait, .. } = *self.back;
        (rnr_naks > 0).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: {} there was no receive at the other end, which asked to wait for up to \
                 {:?}",
                times(rnr_naks),
                Duration::from_nanos(wait)
            ),
            advice: "Post more receives before the peer sends, post them sooner, or ask for shorter \
                     waits (min_rnr_timer).",
        })
    }

    fn damage(&self) -> Option<Finding> {
        let bad = self.there.bad_icrc;
        (bad > 0).then(|| Finding {
            is_serious: true,
            what: format!("{self}: packets with a wrong ICRC: {bad}"),
            advice: "Something on the way changes packets (address translation, a tunnel, offloads \
                     of a virtual switch), a device computes the ICRC wrongly, or memory or a link \
                     is faulty. Receivers drop such packets without a word.",
        })
    }

    fn congestion(&self) -> Option<Finding> {
        let (marks, told) = (self.there.congestion_marks, self.back.congestion_notifications);
        (marks + told > 0).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: packets that a congested switch marked: {marks}; congestion notifications \
                 that came back: {told}"
            ),
            advice: if told > 0 {
                "The sender is told to slow down (DCQCN): the network is busier than it can carry."
            } else {
                "No notification came back: the receiver's congestion control is off, or its CNPs \
                 are not in the capture."
            },
        })
    }

    fn never_seen(&self) -> Option<Finding> {
        let count = self.there.never_seen;
        (count > 0).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: packets that are missing in the capture, by their PSNs: {count}"
            ),
            advice: "What wrote the file lost them (tcpdump: \"dropped by kernel\"), or they took \
                     another way. On an unreliable connection they may have been lost before they \
                     came here: none is sent again.",
        })
    }

    fn order(&self) -> Option<Finding> {
        let Sent { overtaken, copies_made_by_the_network: copies, .. } = self.there;
        (overtaken + copies > 0).then(|| Finding {
            is_serious: false,
            what: format!(
                "{self}: packets that later ones overtook: {overtaken}; that came twice: {copies}"
            ),
            advice: "The network reorders or copies packets (several ways, a bond, a bridge loop). \
                     A receiver takes an overtaken packet for a lost one.",
        })
    }
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.from, self.to)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.qpn {
            Some(qpn) => write!(f, "{} qp {qpn:#08x}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

fn thousandths(part: u64, whole: u64) -> u64 {
    part.saturating_mul(1000) / whole.max(1)
}

fn share(part: u64, whole: u64) -> String {
    let thousandths = thousandths(part, whole);
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}
