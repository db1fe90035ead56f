//! How requests are posted, and how programs hear of their end.

use super::basics::sent;
use super::{A, B, Scenario, plain, verse};
use crate::teller::Teller;
use rnic_abi::cq::ArmKind;
use rnic_abi::verbs::{AttrMask, QpAttr, QpState, SendFlags};
use rnic_core::event::Event;
use rnic_sim::pair::End;
use rnic_sim::verbs::SendWr;

pub(super) const INLINE: Scenario = Scenario {
    name: "inline",
    line: "Inline data: the payload travels inside the work request",
    about: &[
        "A work request usually names memory by address and lkey, as a scatter/gather element \
         (SGE), and the NIC fetches the bytes from there when it sends. For a few bytes that is more work \
         than it is worth. With IBV_SEND_INLINE the library copies the payload into the WQE itself.",
        "Then the memory needs no registration, and may be used again as soon as ibv_post_send \
         returns.",
    ],
    world: plain,
    play: inline,
    ask: "Why may a READ not be inline?",
    answer: "Inline data leaves with the request. A READ's data comes back, and needs memory to go \
             to.",
    next: &["rnic lab unsignaled", "rnic lab send", "rnic lab inline --duplicate 1"],
};

fn inline(t: &mut Teller) {
    let (a, b) = t.connected();
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.receive(B, b.qp, 2, &[b.mr.sge(64, 64)]);
    t.write(A, a.mr.addr, b"by SGE");
    t.say("For comparison one with an SGE: the WQE has an address, a key and a length.");
    t.post(A, a.qp, &[SendWr::send(3, &[a.mr.sge(0, 6)])]);
    t.say("Here the WQE has no SGE: the bytes themselves follow the control block.");
    t.post(A, a.qp, &[SendWr::send(4, &[]).inline(b"inline")]);
    t.wait(B, b.recv_cq);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, b"by SGE", "the first message");
    t.look(B, b.mr.addr + 64, b"inline", "the second message");
    t.wait(A, a.send_cq);
    t.wait(A, a.send_cq);
}

pub(super) const UNSIGNALED: Scenario = Scenario {
    name: "unsignaled",
    line: "Unsignaled requests: fewer completions to poll",
    about: &[
        "A request without IBV_SEND_SIGNALED makes no completion when it succeeds. Requests of one \
         queue pair complete in order, so the completion of a later one says that all before it \
         are done. Programs signal every tenth request, say, and poll ten times less.",
    ],
    world: plain,
    play: unsignaled,
    ask: "What goes wrong if a program never signals any request?",
    answer: "It never learns that its requests are done, so it may not use their memory again, and \
             it does not know when slots of the send queue are free: sooner or later ibv_post_send \
             says ENOMEM, and it cannot tell how long to wait. An unsignaled request that fails \
             still makes a completion.",
    next: &["rnic lab events-vs-polling", "rnic lab inline", "rnic lab unsignaled --drop 2"],
};

fn unsignaled(t: &mut Teller) {
    let (a, b) = t.connected();
    let wr = |id: u64| SendWr::write(id, &[a.mr.sge(0, 8)], b.mr.remote(8 * id));
    t.write(A, a.mr.addr, b"the data");
    t.say("Three requests with one doorbell; only the last is signaled.");
    t.when(
        A,
        |e| matches!(e, Event::Completed { wr_id: 3, .. }),
        "There was none for the first two \
           requests: they are done, silently.",
    );
    t.post(A, a.qp, &[wr(1).unsignaled(), wr(2).unsignaled(), wr(3)]);
    t.wait(A, a.send_cq);
    t.say("Is there anything else?");
    t.poll(A, a.send_cq);
    t.look(B, b.mr.addr + 8, b"the data", "what the first request wrote");
}

pub(super) const EVENTS_VS_POLLING: Scenario = Scenario {
    name: "events-vs-polling",
    line: "Sleeping instead of polling: arming a completion queue",
    about: &[
        "A program that polls sees a completion soonest, and burns a CPU. One that would rather \
         sleep arms the completion queue (ibv_req_notify_cq): the next completion then makes one \
         event, which wakes ibv_get_cq_event(), or poll() on its file descriptor. After one event \
         the queue is disarmed.",
        "It can be armed for solicited completions only: those whose sender asked for it with \
         IBV_SEND_SOLICITED. So a sender can wake the receiver with the last of many messages.",
    ],
    world: plain,
    play: events_vs_polling,
    ask: "A program arms the queue and goes to sleep at once, although a completion had come just \
          before. What happens?",
    answer: "It sleeps, perhaps for ever: that completion made no event, as the queue was not \
             armed yet. So the rule is: arm, poll once more, and only then sleep.",
    next: &["rnic lab unsignaled", "rnic lab srq", "rnic lab events-vs-polling --drop 1"],
};

fn events_vs_polling(t: &mut Teller) {
    let (a, b) = t.connected();
    for wr_id in 1..=4 {
        t.receive(B, b.qp, wr_id, &[b.mr.sge(64 * wr_id, 64)]);
    }
    t.say("A message to a queue that is not armed:");
    one_message(t, &a, SendFlags::empty());
    t.events(B);
    t.say("B wants to be woken by whatever comes.");
    t.arm(B, b.recv_cq, ArmKind::Any);
    one_message(t, &a, SendFlags::empty());
    t.events(B);
    t.say("Now only by a message that asks for it.");
    t.arm(B, b.recv_cq, ArmKind::Solicited);
    one_message(t, &a, SendFlags::empty());
    t.events(B);
    one_message(t, &a, SendFlags::SOLICITED);
    t.events(B);
    t.say("B polls what has come meanwhile.");
    while t.poll(B, b.recv_cq).is_some() {}
}

fn one_message(t: &mut Teller, a: &End, flags: SendFlags) {
    t.post(A, a.qp, &[SendWr::send(9, &[]).inline(b"ping").flags(flags)]);
    t.wait(A, a.send_cq);
    t.quiet();
}

pub(super) const FENCE: Scenario = Scenario {
    name: "fence",
    line: "Fence: a request that waits for the READ before it",
    about: &[
        "Requests of a queue pair start in order, but a READ is finished only when its answer is \
         back, and the NIC starts the next request meanwhile. A SEND of what the READ fetches would \
         send old bytes. With IBV_SEND_FENCE a request waits until all READs and atomics before it \
         are complete.",
    ],
    world: plain,
    play: fence,
    ask: "Why does a WRITE behind a SEND need no fence?",
    answer: "Both only take bytes from memory when they leave, and the receiver executes them in \
             order. A fence is for what the requester itself still waits for: READs and atomics.",
    next: &["rnic lab read", "rnic lab atomic", "rnic lab fence --delay 2"],
};

fn fence(t: &mut Teller) {
    let (a, b) = t.connected();
    for (round, flags) in [SendFlags::empty(), SendFlags::FENCE].into_iter().enumerate() {
        let fenced = flags.contains(SendFlags::FENCE);
        t.write(A, a.mr.addr, b"old bytes");
        t.write(B, b.mr.addr, b"new bytes");
        t.receive(B, b.qp, 1, &[b.mr.sge(4096, 64)]);
        let read = SendWr::read(2, &[a.mr.sge(0, 9)], b.mr.remote(0));
        let send = SendWr::send(3, &[a.mr.sge(0, 9)]).flags(flags);
        if fenced {
            t.say("The same with a fence.");
            t.when(A, |e| sent(e, "SEND_ONLY"), "Only now, behind the answer of the READ.");
        } else {
            t.say(
                "A fetches B's bytes into its buffer, and sends the buffer back, without a fence.",
            );
            t.when(
                A,
                |e| sent(e, "SEND_ONLY"),
                "It leaves although the answer of the READ is not \
                   there.",
            );
        }
        t.post(A, a.qp, &[read, send]);
        t.wait(B, b.recv_cq);
        let (expected, what): (&[u8], _) = match round {
            0 => (b"old bytes", "what A had before the READ"),
            _ => (b"new bytes", "what the READ fetched"),
        };
        t.look(B, b.mr.addr + 4096, expected, what);
        t.wait(A, a.send_cq);
        t.wait(A, a.send_cq);
    }
}

pub(super) const SQD: Scenario = Scenario {
    name: "sqd",
    line: "SQD: pausing a queue pair without losing anything",
    about: &[
        "A queue pair in RTS can go to SQD (send queue drained): it finishes what it has started, \
         starts nothing new, and goes on receiving. When all that was started is complete, the \
         event SQ_DRAINED comes, if it was asked for. Then the program can change attributes, and go back to RTS.",
    ],
    world: plain,
    play: sqd,
    ask: "A posts a request while the queue pair is in SQD. Is that an error?",
    answer: "No. It waits in the ring and leaves when the queue pair is in RTS again.",
    next: &["rnic lab qp-states", "rnic lab fence", "rnic lab sqd --drop 1"],
};

fn sqd(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(600);
    t.write(A, a.mr.addr, &data);
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 600)], b.mr.remote(0))]);
    t.run(crate::teller::PATIENCE, |t| t.steps.iter().any(|step| step.flight.is_some()));
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    t.say("The WRITE is on its way. The program wants a pause, and an event when all is quiet.");
    t.modify(A, a.qp, mask, attr, None);
    t.say("A request that is posted now is not started.");
    t.post(A, a.qp, &[SendWr::write(2, &[a.mr.sge(0, 8)], b.mr.remote(4096))]);
    t.wait(A, a.send_cq);
    t.quiet();
    t.async_events(A);
    t.look(B, b.mr.addr + 4096, &[0; 8], "untouched: the second WRITE has not left");
    t.say("Back to RTS.");
    t.when(
        A,
        |e| matches!(e, Event::WqeFetched { message: 1, .. }),
        "Now the second request is \
           started.",
    );
    let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    t.modify(A, a.qp, AttrMask::STATE, attr, None);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr + 4096, &data[..8], "what the second WRITE wrote");
}
