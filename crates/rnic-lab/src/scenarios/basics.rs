//! First steps.

use super::{A, B, Scenario, plain, verse};
use crate::setup::connection;
use crate::teller::Teller;
use rnic_abi::verbs::{AccessFlags, QpState, WcStatus};
use rnic_core::event::{Event, NakReason};
use rnic_core::mr::KeyFault;
use rnic_page::Kind;
use rnic_sim::verbs::SendWr;

pub(super) const VERBS_VS_SOCKETS: Scenario = Scenario {
    name: "verbs-vs-sockets",
    line: "One message, and how it differs from send() and recv()",
    about: &[
        "With sockets a program calls send(), the kernel copies the bytes into its own buffers, and \
         the kernel of the other host keeps what arrives until a program calls recv(). Each call \
         enters the kernel, and each byte is copied twice at least.",
        "With RDMA (remote direct memory access) the card (NIC) does that work. A program and its \
         NIC share queues in memory. The program writes a work request (WQE, work queue entry) into \
         a queue and goes on; the NIC reads the bytes from the program's memory, sends them, and \
         later writes a completion (CQE, completion queue entry) into another queue, where the \
         program finds it. The calls with which programs do this are called verbs: libibverbs.",
        "A queue pair (QP) is the RDMA word for a socket: a queue of sends and a queue of receives. \
         This is the life of one message from host A to host B.",
    ],
    world: plain,
    play: verbs_vs_sockets,
    ask: "A socket's receiver may call recv() after the bytes have arrived. What would happen here \
          if B posted its receive late?",
    answer: "Then B's NIC would have no place for the message: no kernel buffers it. It answers \
             \"receiver not ready\", and A's NIC sends it again later. The story rnr shows that.",
    next: &["rnic lab send", "rnic lab rnr", "rnic lab verbs-vs-sockets --drop 1"],
};

fn verbs_vs_sockets(t: &mut Teller) {
    let (a, b) = t.connected();
    t.say(
        "Unlike recv() this does not wait, and must come before the message: it lends the NIC a \
           buffer for a message to come.",
    );
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.write(A, a.mr.addr, b"hello, world");
    t.say(
        "Unlike send() this copies no payload and does not enter the kernel. It returns at once, \
           before anything has left.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Doorbell { .. }),
        "From here on the NIC works; the program \
           could compute something meanwhile.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Placed { .. }),
        "The bytes go straight into the buffer that B \
           lent.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Completed { receive: true, .. }),
        "This is how B learns of the \
           message: where recv() would return, a completion appears.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Acked { .. }),
        "As TCP does, a reliable queue pair \
           acknowledges, and sends again what was lost.",
    );
    t.post(A, a.qp, &[SendWr::send(2, &[a.mr.sge(0, 12)])]);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, b"hello, world", "what A sent");
    t.wait(A, a.send_cq);
}

pub(super) const MEMORY_REGISTRATION: Scenario = Scenario {
    name: "memory-registration",
    line: "Why memory has keys, and what they protect",
    about: &[
        "A NIC that reads and writes a program's memory needs to know which memory it may touch. So \
         a program registers a range (ibv_reg_mr) and gets two keys: the lkey, for its own work \
         requests, and the rkey, which it may give to a peer. A peer that has the rkey and the \
         address may do what the registration allows, and nothing else.",
        "Memory regions, queue pairs and address handles belong to a protection domain (PD): a key \
         opens memory only to queue pairs of the same PD.",
        "In this story B registers two ranges. A may write into one, and only read the other.",
    ],
    world: plain,
    play: memory_registration,
    ask: "A knows B's address and rkey of the second range. Why can it still not write there?",
    answer: "The right REMOTE_WRITE was not given when B registered it. The rkey names the region, \
             and B's NIC looks up what the region allows. Addresses and keys are not secret \
             enough to be the only protection, so rights, range and PD are checked for every \
             request.",
    next: &["rnic lab bad-rkey", "rnic lab write", "rnic mr"],
};

fn memory_registration(t: &mut Teller) {
    let (a, b) = t.connected();
    t.say("B lets its peer write here. LOCAL_WRITE is needed too: what a peer writes, the NIC writes.");
    let open = t.register(B, b.pd, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    t.say("The peer may only read here.");
    let shut = t.register(B, b.pd, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
    t.write(A, a.mr.addr, b"may I?");
    t.say("A names B's memory by address and rkey, which B has told it by other means.");
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 6)], open.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, open.addr, b"may I?", "what A wrote");
    t.say("The same into the other range.");
    t.when(
        B,
        |e| matches!(e, Event::Nak { reason: NakReason::Key(KeyFault::Access), .. }),
        "The region lacks the right. B's program is not asked, and its memory not touched.",
    );
    t.when(
        A,
        |e| matches!(e, Event::State { to: QpState::Err, .. }),
        "A program that uses a wrong \
           key once may do so again: after such an error the connection is over.",
    );
    t.post(A, a.qp, &[SendWr::write(2, &[a.mr.sge(0, 6)], shut.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(B, shut.addr, &[0; 6], "still untouched");
    t.quiet();
    t.async_events(B);
}

pub(super) const QP_STATES: Scenario = Scenario {
    name: "qp-states",
    line: "RESET, INIT, RTR, RTS: what connect() and accept() are here",
    about: &[
        "A new queue pair is in the state RESET. The program moves it with ibv_modify_qp: to INIT, \
         then to RTR (ready to receive), then to RTS (ready to send). Each step takes the \
         attributes that the NIC needs from there on.",
        "Both ends need three numbers of each other: the address, the queue pair number (QPN), and \
         the first packet sequence number (PSN). How programs exchange them is their own business: \
         over a socket, or by the connection manager (see cm-connect).",
    ],
    world: plain,
    play: qp_states,
    ask: "B goes to RTR before A goes to RTS. Why is the order RTR first, RTS second, and not one \
          step?",
    answer: "The end that sends first must not send before the other can receive. When both ends \
             are in RTR, both can go to RTS at any time: whatever comes first is received. With \
             one step the first packet could meet a queue pair that is not ready, and would be \
             dropped.",
    next: &["rnic lab cm-connect", "rnic lab sqd", "rnic qp"],
};

fn qp_states(t: &mut Teller) {
    let how = connection();
    let (a, b) = t.ends(|_| ());
    t.told_setup(A, &a, None);
    t.told_setup(B, &b, None);
    let qpns = (t.world.host(A).qpn(a.qp), t.world.host(B).qpn(b.qp));
    t.init(&a, &how);
    t.init(&b, &how.reversed());
    t.say("From INIT on receives can be posted; nothing is received yet.");
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.rtr(&b, &how.reversed(), (A, qpns.0));
    t.rtr(&a, &how, (B, qpns.1));
    t.rts(&a, &how);
    t.note(Kind::State, A, "A may send now. B is still in RTR: it receives and answers".into());
    t.when(B, |e| matches!(e, Event::Received { .. }), "A queue pair in RTR receives.");
    t.post(A, a.qp, &[SendWr::send(2, &[]).inline(b"first")]);
    t.wait(A, a.send_cq);
    t.wait(B, b.recv_cq);
    t.async_events(B);
    t.rts(&b, &how.reversed());
    t.say(
        "A program that is done, or that has had enough, moves its queue pair to ERR. What is \
           posted comes back as flushed, so that the program gets all its buffers back.",
    );
    t.receive(B, b.qp, 3, &[b.mr.sge(0, 64)]);
    let attr = rnic_abi::verbs::QpAttr { state: QpState::Err, ..Default::default() };
    t.modify(B, b.qp, rnic_abi::verbs::AttrMask::STATE, attr, None);
    t.when(
        B,
        |e| matches!(e, Event::Completed { status: WcStatus::WrFlushErr, .. }),
        "Every request that was posted gets a completion, also in ERR.",
    );
    t.wait(B, b.recv_cq);
}

pub(super) const SEND: Scenario = Scenario {
    name: "send",
    line: "SEND: a message of several packets into the buffer of a receive",
    about: &[
        "SEND is the two-sided operation: the receiver decides where the message goes, by a receive \
         request that it has posted before. Each message takes one receive request, as a whole: \
         unlike in a TCP stream, messages are never joined or cut apart.",
        "Packets carry at most the path MTU, 256 bytes in this story (up to 4096 in real life). A \
         longer message becomes a FIRST packet, MIDDLE packets and a LAST one; a short one is a \
         single packet, ONLY. Almost all queue pairs of these stories are reliable \
         connections (RC): packets are acknowledged, and sent again when they were lost.",
    ],
    world: plain,
    play: send,
    ask: "Three packets left, and one ACK came back. How does A know that all three arrived?",
    answer: "An ACK names one PSN and acknowledges everything up to it, like TCP's ACK. The \
             receiver accepts packets only in order, so the last one cannot have been accepted \
             without those before it.",
    next: &["rnic lab write", "rnic lab loss", "rnic lab send --drop 2"],
};

fn send(t: &mut Teller) {
    let (a, b) = t.connected();
    let message = verse(600);
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 1024)]);
    t.write(A, a.mr.addr, &message);
    t.when(
        A,
        |e| matches!(e, Event::WqeFetched { .. }),
        "600 bytes are three packets, so the \
           request owns three PSNs.",
    );
    t.when(A, |e| sent(e, "SEND_FIRST") && !asks(e), "It does not ask for an ACK.");
    t.when(A, |e| sent(e, "SEND_LAST") && asks(e), "The LAST packet does.");
    t.when(
        B,
        |e| matches!(e, Event::Completed { receive: true, .. }),
        "The completion comes after \
           the data: a program that sees it can read the buffer.",
    );
    t.when(B, |e| sent(e, "ACKNOWLEDGE"), "One ACK for all three packets.");
    t.post(A, a.qp, &[SendWr::send(2, &[a.mr.sge(0, 600)])]);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, &message, "what A sent");
    t.wait(A, a.send_cq);
}

/// A packet leaves whose opcode has this name.
pub(super) fn sent(event: &Event, name: &str) -> bool {
    match event {
        Event::Sent { packet, .. } => packet.opcode.to_string().ends_with(name),
        _ => false,
    }
}

/// A packet that asks for an ACK.
fn asks(event: &Event) -> bool {
    matches!(event, Event::Sent { packet, .. } if packet.ack_req)
}
