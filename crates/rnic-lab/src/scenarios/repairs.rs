//! Answers that come too late, damaged packets, numbers that wrap.

use super::basics::sent;
use super::{A, B, Scenario, plain, verse};
use crate::setup::connection;
use crate::teller::{PATIENCE, Teller};
use rnic_abi::verbs::QpType;
use rnic_core::event::{DropReason, Event, RewindCause};
use rnic_sim::link::{Blow, Strike};
use rnic_sim::verbs::{Connection, SendWr};
use roce_wire::Opcode;

pub(super) const GHOST_ACK: Scenario = Scenario {
    name: "ghost-ack",
    line: "An ACK is late, the request is repeated, and then there are two ACKs",
    about: &[
        "When an ACK takes longer than the timeout, the sender repeats the request. The receiver, \
         which has it already, acknowledges again. Then both ACKs arrive. The second acknowledges \
         what is no longer open: it is a ghost.",
        "A ghost must change nothing. In particular it must not complete a request that was posted \
         meanwhile.",
    ],
    world: plain,
    play: ghost_ack,
    ask: "Between the two ACKs A posts another SEND. Why does the ghost not complete that one?",
    answer: "An ACK acknowledges up to its PSN, and the new request has a later one. That is why \
             PSNs count over the whole life of a connection, instead of starting over with each \
             message.",
    next: &["rnic lab timeout", "rnic lab duplicate", "rnic lab ghost-ack --drop 2"],
};

fn ghost_ack(t: &mut Teller) {
    let (a, b) = t.connected();
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.receive(B, b.qp, 2, &[b.mr.sge(64, 64)]);
    t.world.strike(B, A, Strike::new(Blow::Delay(205_500)).opcode(Opcode::RcAck));
    t.when(
        A,
        |e| matches!(e, Event::Rewound { cause: RewindCause::Timeout, .. }),
        "The message has arrived, and its ACK is under way. A cannot know.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Dropped { reason: DropReason::GhostResponse, .. }),
        "This is the ACK that was late. What it acknowledges is acknowledged already.",
    );
    t.post(A, a.qp, &[SendWr::send(3, &[]).inline(b"once only")]);
    t.wait(B, b.recv_cq);
    t.wait(A, a.send_cq);
    t.say("The next message.");
    t.post(A, a.qp, &[SendWr::send(4, &[]).inline(b"the next")]);
    t.run(PATIENCE, |t| t.steps.iter().any(|step| step.reason.as_deref() == Some("ghost")));
    t.say("Has the ghost completed the new request?");
    t.poll(A, a.send_cq);
    t.wait(A, a.send_cq);
    t.wait(B, b.recv_cq);
    t.say("Was the first message delivered twice?");
    t.poll(B, b.recv_cq);
}

pub(super) const ICRC: Scenario = Scenario {
    name: "icrc",
    line: "A bit flips on the way",
    about: &[
        "Each packet ends with a checksum, the invariant CRC (ICRC). It covers the payload, the \
         transport headers, and those fields of the IP header that no router changes. Ethernet has \
         a checksum too, but each switch makes that anew: a switch with bad memory would go \
         unnoticed.",
        "A packet with a wrong ICRC is dropped without a word, so that to both ends it is a lost \
         packet.",
    ],
    world: plain,
    play: icrc,
    ask: "Why does the receiver not send a NAK for the damaged packet?",
    answer: "It cannot trust any byte of it, not even the number of the queue pair or the PSN. The \
             hole that it leaves in the sequence is noticed by the next packet, or by the timer.",
    next: &["rnic lab loss", "rnic lab icrc --corrupt 3", "rnic fault add corrupt=1%"],
};

fn icrc(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(700);
    t.write(A, a.mr.addr, &data);
    t.world.strike(A, B, Strike::new(Blow::Corrupt).opcode(Opcode::RcWriteMiddle));
    t.when(
        B,
        |e| matches!(e, Event::Dropped { reason: DropReason::Icrc, .. }),
        "From here on the story is that of a loss.",
    );
    t.when(A, |e| matches!(e, Event::Rewound { .. }), "And so is the repair.");
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 700)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr, &data, "what A wrote");
}

pub(super) const PSN_WRAP: Scenario = Scenario {
    name: "psn-wrap",
    line: "After 16 million packets the numbers start over, in the middle of a message",
    about: &[
        "PSNs have 24 bits. At 100 Gbit/s with packets of 4096 bytes all of them are used in five \
         seconds, so a NIC that gets the wrap wrong does not live long. This connection begins two \
         packets before the end of the numbers.",
    ],
    world: plain,
    play: psn_wrap,
    ask: "A packet that was sent before the wrap is delayed for several seconds, and arrives when \
          its PSN is in use again. What then?",
    answer: "It would be taken for a new packet. The network must not keep packets that long; IP's \
             time to live and real switches' queues make sure of it. A connection manager also \
             waits before a queue pair number is used again.",
    next: &["rnic lab duplicate", "rnic lab psn-wrap --drop 3", "rnic lab loss"],
};

fn psn_wrap(t: &mut Teller) {
    let how = Connection { sq_psn: 0xff_fffe, ..connection() };
    let (a, b) = t.connected_by(&how, QpType::Rc);
    let data = verse(1000);
    t.write(A, a.mr.addr, &data);
    t.when(A, |e| sent_with(e, 0), "After 0xffffff comes 0.");
    t.when(B, |e| received_with(e, 0), "B expects exactly this.");
    t.when(
        B,
        |e| sent(e, "ACKNOWLEDGE"),
        "The ACK has a small number, and acknowledges the large ones.",
    );
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 1000)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr, &data, "what A wrote");
}

fn sent_with(event: &Event, psn: u32) -> bool {
    matches!(event, Event::Sent { packet, .. } if packet.psn.value() == psn)
}

fn received_with(event: &Event, psn: u32) -> bool {
    matches!(event, Event::Received { packet, .. } if packet.psn.value() == psn)
}
