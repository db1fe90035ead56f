//! Where receives come from, and what happens when there are none.

use super::basics::sent;
use super::{A, B, Scenario, plain};
use crate::decode;
use crate::setup::connection;
use crate::teller::{PATIENCE, Teller};
use rnic_core::event::{Event, RewindCause};
use rnic_page::Kind;
use rnic_sim::pair::End;
use rnic_sim::verbs::SendWr;

pub(super) const SRQ: Scenario = Scenario {
    name: "srq",
    line: "A shared receive queue: one pool of buffers for many connections",
    about: &[
        "Every queue pair has its own receive queue, and each needs enough buffers for what its \
         peer may send. A server with thousands of connections would need thousands of pools, most \
         of them idle. With a shared receive queue (SRQ) all take their buffers from one pool.",
        "The program can ask for an event when the pool runs low: the limit.",
    ],
    world: plain,
    play: srq,
    ask: "A receive completion of a shared queue does not say in its wr_id which connection the \
          message came from. How does the program know?",
    answer: "The completion has the number of the queue pair that took the buffer (qpn in the CQE, \
             qp_num in struct ibv_wc).",
    next: &["rnic lab rnr", "rnic lab events-vs-polling", "rnic lab srq --drop 1"],
};

fn srq(t: &mut Teller) {
    let pd = t.world.host(B).alloc_pd();
    let Ok(pool) = t.world.host(B).create_srq(pd, 8, 1) else { return };
    let cq = t.world.host(B).create_cq(64);
    t.note(Kind::Call, B, "ibv_create_srq(up to 8 receives)".into());
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let a = End::with_memory(&mut t.world, A, 4096, |_| ());
        let b = End::with_memory(&mut t.world, B, 4096, |setup| {
            (setup.pd, setup.recv_cq, setup.srq) = (pd, cq, Some(pool));
        });
        t.qps.extend([(A, a.qp), (B, b.qp)]);
        t.world.connect((A, a.qp), (B, b.qp), &connection());
        t.told_setup(A, &a, Some(&connection()));
        t.told_setup(B, &b, Some(&connection().reversed()));
        pairs.push((a, b));
    }
    let memory = pairs[0].1.mr;
    for wr_id in 1..=3 {
        let sge = memory.sge(64 * wr_id, 64);
        let posted = t.world.host(B).post_srq_recv(pool, wr_id, &[sge]).is_ok();
        let verdict = if posted { "" } else { ": fails" };
        let title = format!("ibv_post_srq_recv(wr_id {wr_id}, a buffer of 64 bytes){verdict}");
        t.note(Kind::Call, B, title);
    }
    t.say("B wants to hear when fewer than 2 buffers are left.");
    if t.world.host(B).set_srq_limit(pool, 2).is_ok() {
        t.note(Kind::Call, B, "ibv_modify_srq(srq_limit = 2)".into());
    }
    t.resync();
    t.when(
        B,
        |e| matches!(e, Event::Received { .. }),
        "Whichever queue pair gets a message takes \
           the next buffer of the pool.",
    );
    for (k, (a, _)) in pairs.iter().enumerate() {
        let text = format!("from connection {k}");
        t.say("One message on this connection.");
        t.post(A, a.qp, &[SendWr::send(9, &[]).inline(text.as_bytes())]);
        t.wait(A, a.send_cq);
        if let Some(cqe) = t.wait(B, cq) {
            let addr = memory.addr + 64 * cqe.wr_id;
            let len = u64::from(cqe.byte_len);
            let bytes = decode::text(t.world.host(B).bytes(addr, len));
            let left = t.world.host(B).srq_posted(pool);
            let title = format!("Buffer {} holds {bytes}; {left} are left in the pool", cqe.wr_id);
            t.note(Kind::Memory, B, title);
        }
    }
    t.quiet();
    t.async_events(B);
}

pub(super) const RNR: Scenario = Scenario {
    name: "rnr",
    line: "Receiver not ready: a message finds no receive",
    about: &[
        "A SEND needs a receive request at the other side. When there is none the responder answers \
         with an RNR NAK (receiver not ready), which names a time. The requester waits at least \
         that long, and sends again. How often it does that is the attribute rnr_retry; 7 means \
         for ever.",
        "This is flow control of a poor kind: each round costs the wait. Programs avoid it by \
         posting receives early, and by counting how many the peer has left.",
    ],
    world: plain,
    play: rnr,
    ask: "The wait is chosen by the responder (min_rnr_timer). Why not by the requester?",
    answer: "The responder knows how soon its program posts receives. A short wait makes many \
             useless retries, a long one makes latency.",
    next: &["rnic lab srq", "rnic lab loss", "rnic fault list"],
};

fn rnr(t: &mut Teller) {
    let (a, b) = t.connected();
    t.say("B has posted nothing.");
    t.when(
        B,
        |e| sent(e, "ACKNOWLEDGE"),
        "The RNR NAK is an ACK packet with \
           another syndrome, the first byte of its AETH.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Rewound { cause: RewindCause::Rnr, .. }),
        "Everything from the refused packet on leaves again.",
    );
    t.post(A, a.qp, &[SendWr::send(1, &[]).inline(b"anyone?")]);
    t.run(PATIENCE, |t| t.steps.iter().any(|step| step.reason.as_deref() == Some("RNR")));
    t.say("Now B posts a receive, late.");
    t.receive(B, b.qp, 2, &[b.mr.sge(0, 64)]);
    t.wait(A, a.send_cq);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, b"anyone?", "what A sent");
}
