//! Requests that must be refused.

use super::{A, B, Scenario, plain};
use crate::teller::Teller;
use rnic_abi::verbs::{QpState, WcStatus};
use rnic_core::event::{Event, NakReason};
use rnic_core::mr::KeyFault;
use rnic_sim::verbs::{Remote, SendWr};

pub(super) const BAD_RKEY: Scenario = Scenario {
    name: "bad-rkey",
    line: "A WRITE with a key that opens nothing",
    about: &[
        "A request whose rkey is unknown, or whose range, rights or protection domain do not fit, is \
         refused with the NAK \"remote access error\". The request completes with \
         IBV_WC_REM_ACCESS_ERR, both queue pairs go to ERR, and the responder's program gets an \
         asynchronous event, because no completion could tell it.",
        "This is the most frequent error of people who begin with RDMA. Mostly the rkey was sent in \
         the wrong byte order, or the memory was deregistered.",
    ],
    world: plain,
    play: bad_rkey,
    ask: "Two WRITEs were posted. The second had a good key; why did it fail too?",
    answer: "The first one ended the connection. What is posted behind it is flushed: it completes \
             with IBV_WC_WR_FLUSH_ERR and is not executed. Only the first error tells the cause.",
    next: &["rnic lab memory-registration", "rnic lab bad-length", "rnic explain capture.pcapng"],
};

fn bad_rkey(t: &mut Teller) {
    let (a, b) = t.connected();
    let good = b.mr.remote(0);
    let bad = Remote { rkey: good.rkey ^ 0x0100_0000, ..good };
    t.say("The key of the first request has one wrong bit.");
    t.when(
        B,
        |e| matches!(e, Event::Nak { reason: NakReason::Key(KeyFault::UnknownKey), .. }),
        "B's memory is not touched.",
    );
    t.when(
        B,
        |e| matches!(e, Event::State { to: QpState::Err, .. }),
        "The responder's queue pair is in ERR before its NAK has left.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Completed { status: WcStatus::RemAccessErr, .. }),
        "This is the status to look for.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Completed { status: WcStatus::WrFlushErr, .. }),
        "And this one only says that something before it went wrong.",
    );
    t.post(
        A,
        a.qp,
        &[SendWr::write(1, &[a.mr.sge(0, 8)], bad), SendWr::write(2, &[a.mr.sge(0, 8)], good)],
    );
    t.wait(A, a.send_cq);
    t.wait(A, a.send_cq);
    t.quiet();
    t.async_events(B);
    t.look(B, b.mr.addr, &[0; 8], "untouched");
}

pub(super) const BAD_LENGTH: Scenario = Scenario {
    name: "bad-length",
    line: "A message that is longer than the buffer of the receive",
    about: &[
        "A receive takes a whole message. One that is longer than its buffer does not fit: there is \
         no rest for the next read() as with TCP. It is an error of both programs, which have not \
         agreed on a size, and it ends the connection: the sender gets \
         IBV_WC_REM_INV_REQ_ERR, the receiver IBV_WC_LOC_LEN_ERR.",
    ],
    world: plain,
    play: bad_length,
    ask: "Why does the NIC not simply cut the message off?",
    answer: "Then a reliable transport would have lost data without telling. A program that does \
             not know the size beforehand sends it first, or lets the receiver fetch the data with \
             a READ.",
    next: &["rnic lab bad-rkey", "rnic lab send", "rnic lab rnr"],
};

fn bad_length(t: &mut Teller) {
    let (a, b) = t.connected();
    t.say("A buffer of 16 bytes.");
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 16)]);
    t.when(
        B,
        |e| matches!(e, Event::Nak { reason: NakReason::ReceiveTooShort, .. }),
        "32 bytes do not fit into 16.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Completed { status: WcStatus::LocLenErr, .. }),
        "The receive fails as well, so B's program hears of it.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Completed { status: WcStatus::RemInvReqErr, .. }),
        "\"Remote invalid request\": the peer found the request wrong.",
    );
    t.post(A, a.qp, &[SendWr::send(2, &[]).inline(b"this message has thirty-two byte")]);
    t.wait(B, b.recv_cq);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr, &[0; 16], "untouched");
}
