//! Transports that repair nothing.

use super::{A, B, Scenario, plain, verse};
use crate::setup::connection;
use crate::teller::Teller;
use rnic_abi::cqe::CqeFlags;
use rnic_abi::verbs::QpType;
use rnic_core::event::Event;
use rnic_page::Kind;
use rnic_sim::datagrams::To;
use rnic_sim::link::{Blow, Strike};
use rnic_sim::verbs::SendWr;
use roce_wire::Opcode;

pub(super) const UC_LOSS: Scenario = Scenario {
    name: "uc-loss",
    line: "Unreliable connection: what is lost stays lost",
    about: &[
        "An unreliable connection (UC) has messages and WRITEs like a reliable one, but no ACKs: a \
         request is complete as soon as its last packet has left. The receiver notices a loss by \
         the PSN, and gives up the whole message. The program notices it, if at all, by what is \
         missing.",
    ],
    world: plain,
    play: uc_loss,
    ask: "One packet of the first message was lost, and the second message arrived. Which receive \
          did the second message take?",
    answer: "The first one. The receive that the lost message had begun to fill was given back, \
             and the next message starts at its beginning.",
    next: &["rnic lab ud", "rnic lab loss", "rnic lab uc-loss --drop 1"],
};

fn uc_loss(t: &mut Teller) {
    let (a, b) = t.connected_by(&connection(), QpType::Uc);
    let data = verse(600);
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 1024)]);
    t.receive(B, b.qp, 2, &[b.mr.sge(1024, 1024)]);
    t.write(A, a.mr.addr, &data);
    t.world.strike(A, B, Strike::new(Blow::Drop).opcode(Opcode::UcSendMiddle));
    t.when(
        A,
        |e| matches!(e, Event::Completed { wr_id: 3, .. }),
        "It says that the memory is free again. It does not say that the message arrived.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Dropped { .. }),
        "The LAST packet of a message whose middle is missing is useless.",
    );
    t.post(A, a.qp, &[SendWr::send(3, &[a.mr.sge(0, 600)])]);
    t.wait(A, a.send_cq);
    t.quiet();
    t.say("The second message.");
    t.when(
        B,
        |e| matches!(e, Event::Completed { receive: true, .. }),
        "B's program sees this \
           message only.",
    );
    t.post(A, a.qp, &[SendWr::send(4, &[]).inline(b"next message")]);
    t.wait(A, a.send_cq);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, b"next message", "the second message, in the first buffer");
    t.poll(B, b.recv_cq);
}

pub(super) const UD: Scenario = Scenario {
    name: "ud",
    line: "Datagrams: one queue pair talks to many, like a UDP socket",
    about: &[
        "A queue pair of type UD (unreliable datagram) has no peer. Each send says where it goes: \
         an address handle (AH), the number of the queue pair there, and a Q_Key, which must be \
         that of the receiver. A message is one packet at most.",
        "The receiver does not know beforehand who writes. So each receive buffer begins with 40 \
         bytes in which the NIC puts the IP header, and the completion has the sender's queue pair \
         number.",
    ],
    world: plain,
    play: ud,
    ask: "A program posts a receive of 64 bytes for messages of 64 bytes. What happens?",
    answer: "The message does not fit: 40 bytes of the buffer are for the IP header, so 104 are \
             needed. The datagram is dropped, without a word to either program.",
    next: &["rnic lab uc-loss", "rnic lab cm-connect", "rnic lab ud --drop 1"],
};

fn ud(t: &mut Teller) {
    const QKEY: u32 = 0x1234_5678;
    let (a, b) = t.ends(|setup| setup.qp_type = QpType::Ud);
    for end in [&a, &b] {
        t.world.host(end.host).open_for_datagrams(end.qp, QKEY, 0x10);
        t.say("Its queue pair is in RTS, without a peer.");
        t.told_setup(end.host, end, None);
    }
    t.resync();
    let (ip, qpn) = (t.world.hosts()[B].ip, t.world.host(B).qpn(b.qp));
    let ah = t.world.host(A).create_ah(a.pd, ip);
    t.note(Kind::Call, A, format!("ibv_create_ah({ip}): address handle {ah}"));
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 104)]);
    let to = To { ah, qpn, qkey: QKEY };
    t.say("The request names the handle, the queue pair and the Q_Key.");
    t.when(
        B,
        |e| matches!(e, Event::Completed { receive: true, .. }),
        "Data and IP header are in \
           the buffer.",
    );
    t.post(A, a.qp, &[SendWr::send(2, &[]).inline(b"hello, stranger").to(to)]);
    t.wait(A, a.send_cq);
    if let Some(cqe) = t.wait(B, b.recv_cq) {
        let area = cqe.flags.contains(CqeFlags::GRH);
        let title = format!(
            "byte_len is {}: 40 bytes for the IP header and the message. It came from queue pair \
             {:#08x}; header flag: {area}",
            cqe.byte_len, cqe.src_qp
        );
        t.note(Kind::Completion, B, title);
    }
    t.look(B, b.mr.addr + 40, b"hello, stranger", "what A sent");
    t.say("Now with a wrong Q_Key.");
    t.receive(B, b.qp, 3, &[b.mr.sge(0, 104)]);
    t.when(
        B,
        |e| matches!(e, Event::Dropped { .. }),
        "A Q_Key protects against strays and \
           mistakes.",
    );
    let to = To { qkey: QKEY + 1, ..to };
    t.post(A, a.qp, &[SendWr::send(4, &[]).inline(b"wrong key").to(to)]);
    t.wait(A, a.send_cq);
    t.quiet();
    t.say("A's request succeeded, as it was sent. And at B?");
    t.poll(B, b.recv_cq);
}
