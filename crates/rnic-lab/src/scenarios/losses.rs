//! Packets that are lost, late or doubled.

use super::basics::sent;
use super::{A, B, Scenario, plain, verse};
use crate::teller::Teller;
use rnic_core::event::{DropReason, Event, NakReason, RewindCause};
use rnic_sim::link::{Blow, Strike};
use rnic_sim::verbs::SendWr;
use roce_wire::Opcode;

pub(super) const LOSS: Scenario = Scenario {
    name: "loss",
    line: "A packet is lost, and the receiver says which",
    about: &[
        "Ethernet drops packets. A reliable connection repairs that: the receiver accepts packets \
         only in order, so it notices a gap when the next packet comes. It answers with a NAK that \
         names the PSN it is missing, and the sender sends everything from there on again. That is \
         called go-back-N: what arrived behind the gap was dropped, and has to come again.",
    ],
    world: plain,
    play: loss,
    ask: "One packet was lost. How many were sent again, and why more than one?",
    answer: "The lost one and all behind it. The receiver keeps nothing that is out of order: it \
             writes straight into the program's memory and has no place to hold packets back. That \
             is why RDMA networks try so hard not to lose packets.",
    next: &["rnic lab timeout", "rnic lab loss --drop 3 --drop 8", "rnic fault add drop=1%"],
};

fn loss(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(1100);
    t.write(A, a.mr.addr, &data);
    t.world.strike(A, B, Strike::new(Blow::Drop).opcode(Opcode::RcWriteMiddle));
    t.when(
        B,
        |e| matches!(e, Event::Nak { reason: NakReason::Sequence, .. }),
        "B sees the loss by the hole in the PSNs.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Dropped { reason: DropReason::OutOfSequence, .. }),
        "One NAK is enough: more would make A go back more than once.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Rewound { cause: RewindCause::SequenceNak, .. }),
        "Nothing is stored for this: the NIC computes the packets again from the request.",
    );
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 1100)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr, &data, "what A wrote");
}

pub(super) const TIMEOUT: Scenario = Scenario {
    name: "timeout",
    line: "The last packet is lost, and nothing comes behind it",
    about: &[
        "A receiver notices a loss by the packet behind it. Behind the last packet there is none. \
         So the sender has a timer: when nothing is acknowledged for some time (the local ACK \
         timeout, 4.096 us x 2^timeout), it sends everything that is unacknowledged again.",
        "Each attempt without progress uses up one of retry_cnt retries. When they are used up, the \
         request fails and the connection is over.",
    ],
    world: plain,
    play: timeout,
    ask: "Why not choose a very short timeout, to repair losses sooner?",
    answer: "An ACK that is only late would be taken for a loss, and everything be sent again, in \
             the very moment in which the network is busy. The timeout must be longer than the \
             slowest round trip; with a real network and other hosts' load that is milliseconds.",
    next: &["rnic lab loss", "rnic lab ghost-ack", "rnic lab timeout --drop 2 --drop 3"],
};

fn timeout(t: &mut Teller) {
    let (a, b) = t.connected();
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.world.strike(A, B, Strike::new(Blow::Drop).opcode(Opcode::RcSendOnly));
    t.when(
        A,
        |e| matches!(e, Event::Rewound { cause: RewindCause::Timeout, .. }),
        "B knows nothing of the message. Only A's clock tells that something is wrong.",
    );
    t.post(A, a.qp, &[SendWr::send(2, &[]).inline(b"are you there?")]);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, b"are you there?", "what A sent");
    t.wait(A, a.send_cq);
}

pub(super) const REORDER: Scenario = Scenario {
    name: "reorder",
    line: "A packet is overtaken: late looks like lost",
    about: &[
        "Networks may let packets overtake each other. The receiver cannot tell a packet that is \
         late from one that is lost: it sees a gap, and asks for the packet. When the late one \
         arrives after all, everything is on its way twice.",
    ],
    world: plain,
    play: reorder,
    ask: "The late packet came after the NAK had left. Was the retransmission needed?",
    answer: "No, but neither end could know. The receiver must not write out of order, and the \
             sender must believe a NAK. The copies are dropped as duplicates. That is why switches \
             keep all packets of a connection on one path, by its addresses and UDP ports.",
    next: &["rnic lab loss", "rnic lab duplicate", "rnic lab reorder --delay 3"],
};

fn reorder(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(900);
    t.write(A, a.mr.addr, &data);
    t.world.strike(A, B, Strike::new(Blow::Delay(6_000)).opcode(Opcode::RcWriteMiddle));
    t.when(
        B,
        |e| matches!(e, Event::Nak { reason: NakReason::Sequence, .. }),
        "The packet that is asked for is still on its way.",
    );
    t.when(A, |e| matches!(e, Event::Rewound { .. }), "A has to believe that it was lost.");
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 900)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr, &data, "what A wrote");
    t.settle();
}

pub(super) const DUPLICATE: Scenario = Scenario {
    name: "duplicate",
    line: "An atomic arrives twice, and is executed once",
    about: &[
        "A request arrives twice when its ACK was lost and the sender repeats it, or when the \
         network doubles it. To write the same bytes twice would be harmless, but a counter must \
         not count twice, and a message not be delivered twice.",
        "The receiver tells a duplicate by its PSN: it lies before the one that is expected. It is \
         answered as the first one was, and not executed.",
    ],
    world: plain,
    play: duplicate,
    ask: "PSNs have 24 bits and wrap around. How can \"before\" be told from \"after\"?",
    answer: "By the shorter way around the circle: half of all numbers count as before, half as \
             after. A sender never has more than a small part of the circle outstanding, so there \
             is no doubt.",
    next: &["rnic lab psn-wrap", "rnic lab atomic", "rnic lab duplicate --drop 3"],
};

fn duplicate(t: &mut Teller) {
    let (a, b) = t.connected();
    t.write(B, b.mr.addr, &40u64.to_le_bytes());
    t.world.strike(A, B, Strike::new(Blow::Duplicate).opcode(Opcode::RcFetchAdd));
    t.when(B, |e| sent(e, "ATOMIC_ACK"), "The result is remembered, together with its PSN.");
    t.when(B, |e| sent(e, "ATOMIC_ACK"), "The answer to the copy: the result that was remembered.");
    t.when(
        A,
        |e| matches!(e, Event::Dropped { reason: DropReason::GhostResponse, .. }),
        "A has its answer already.",
    );
    t.post(A, a.qp, &[SendWr::fetch_add(1, a.mr.sge(0, 8), b.mr.remote(0), 2)]);
    t.wait(A, a.send_cq);
    t.quiet();
    t.look(A, a.mr.addr, &40u64.to_le_bytes(), "what was there before");
    t.look(B, b.mr.addr, &42u64.to_le_bytes(), "40 and 2: it was counted once");
}
