//! Operations on the memory of the peer.

use super::basics::sent;
use super::{A, B, Scenario, plain, verse};
use crate::teller::Teller;
use rnic_core::event::Event;
use rnic_page::Kind;
use rnic_sim::verbs::SendWr;

pub(super) const WRITE: Scenario = Scenario {
    name: "write",
    line: "RDMA WRITE: bytes appear in the peer's memory, and its program does nothing",
    about: &[
        "RDMA WRITE is one-sided: the request names an address of the peer's memory and the rkey \
         that opens it. The peer posts nothing, gets no completion, and its CPU does not run. It \
         sees the data when it looks at its memory.",
    ],
    world: plain,
    play: write,
    ask: "How can B find out that a WRITE has arrived, without a completion?",
    answer: "By looking at the memory: many programs poll the last byte of the buffer. soft-rnic \
             writes the last bytes of a message last, so that a program which sees them sees all \
             others too. Or A sends something after the WRITE that does complete at B: a SEND, or \
             WRITE with immediate data.",
    next: &["rnic lab write-imm", "rnic lab read", "rnic lab write --corrupt 2"],
};

fn write(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(600);
    t.write(A, a.mr.addr, &data);
    t.say("The request has B's address and rkey, where a SEND has nothing.");
    t.when(
        A,
        |e| sent(e, "WRITE_FIRST"),
        "The FIRST packet has a header more, the RETH: address, \
           key and length of the whole message. The others only continue it.",
    );
    t.when(
        B,
        |e| matches!(e, Event::Placed { .. }),
        "B's NIC checked the key, the right, the range \
           and the protection domain before it wrote.",
    );
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 600)], b.mr.remote(4096))]);
    t.wait(A, a.send_cq);
    t.look(B, b.mr.addr + 4096, &data, "what A wrote");
    t.say("B's program asks whether it has a completion.");
    t.poll(B, b.recv_cq);
}

pub(super) const WRITE_IMM: Scenario = Scenario {
    name: "write-imm",
    line: "WRITE with immediate: a WRITE that tells the peer",
    about: &[
        "A WRITE with immediate data is a WRITE whose last packet also carries four bytes for the \
         peer's program, and takes a receive request there. The receive's buffer is not used: the \
         data goes where the WRITE says, and the four bytes come in the completion.",
        "Programs use the four bytes as a message number or an offset: \"your data is in slot 17\".",
    ],
    world: plain,
    play: write_imm,
    ask: "The receive that B posted has no buffer at all. Why is that enough?",
    answer: "The data goes to the address in the WRITE, and the immediate data comes inside the \
             completion. The receive request only pays for the completion.",
    next: &["rnic lab rnr", "rnic lab write", "rnic lab write-imm --drop 2"],
};

fn write_imm(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(300);
    t.write(A, a.mr.addr, &data);
    t.receive(B, b.qp, 1, &[]);
    t.when(A, |e| sent(e, "WRITE_LAST_IMM"), "The immediate data travels in the last packet only.");
    t.when(B, |e| matches!(e, Event::Completed { receive: true, .. }), "Now B's program knows.");
    let wr = SendWr::write(2, &[a.mr.sge(0, 300)], b.mr.remote(0)).with_imm(17u32.to_be());
    t.post(A, a.qp, &[wr]);
    t.wait(B, b.recv_cq);
    t.look(B, b.mr.addr, &data, "what A wrote");
    t.wait(A, a.send_cq);
}

pub(super) const READ: Scenario = Scenario {
    name: "read",
    line: "RDMA READ: fetching from the peer's memory",
    about: &[
        "RDMA READ is the other one-sided operation: one small request goes out, and the peer's NIC \
         answers with the bytes, without its program. The answer may be many packets.",
        "PSNs of the answer are those of the request: a READ whose answer has three packets uses \
         three PSNs, although the request is one packet.",
    ],
    world: plain,
    play: read,
    ask: "A lost READ answer costs no data at the responder. Why not, and what does A do?",
    answer: "Reading changes nothing, so the responder can simply read again. A asks again, \
             beginning at the PSN, and so at the address, of the first answer it is missing.",
    next: &["rnic lab read --drop 3", "rnic lab atomic", "rnic lab fence"],
};

fn read(t: &mut Teller) {
    let (a, b) = t.connected();
    let data = verse(600);
    t.write(B, b.mr.addr, &data);
    t.when(A, |e| sent(e, "READ_REQUEST"), "One packet without payload asks for 600 bytes.");
    t.when(
        B,
        |e| sent(e, "READ_RESP_FIRST"),
        "The answer's first packet has the PSN of the \
           request. It acknowledges the request too.",
    );
    t.when(
        A,
        |e| matches!(e, Event::Placed { .. }),
        "The bytes go to the memory that A's request \
           named.",
    );
    t.post(A, a.qp, &[SendWr::read(1, &[a.mr.sge(0, 600)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.look(A, a.mr.addr, &data, "what B has");
}

pub(super) const ATOMIC: Scenario = Scenario {
    name: "atomic",
    line: "FETCH_ADD and CMP_SWAP: counters and locks in the peer's memory",
    about: &[
        "An atomic operation changes eight bytes of the peer's memory and returns what was there \
         before, in one indivisible step as far as all NICs are concerned. FETCH_ADD adds; CMP_SWAP \
         stores a new value only if the old one is what the requester expects.",
    ],
    world: plain,
    play: atomic,
    ask: "The ACK of an atomic is lost, and A sends the request again. Why does the counter not \
          count twice?",
    answer: "The responder remembers the results of the last atomics by PSN. A request that it has \
             executed already gets the saved result, and is not executed again. Try: rnic lab \
             atomic --drop 2",
    next: &["rnic lab atomic --drop 2", "rnic lab duplicate", "rnic lab fence"],
};

fn atomic(t: &mut Teller) {
    let (a, b) = t.connected();
    t.write(B, b.mr.addr, &7u64.to_le_bytes());
    t.say("Add 5 to B's word, and put what was there into A's memory.");
    t.when(B, |e| sent(e, "ATOMIC_ACK"), "The answer carries the value from before.");
    t.post(A, a.qp, &[SendWr::fetch_add(1, a.mr.sge(0, 8), b.mr.remote(0), 5)]);
    t.wait(A, a.send_cq);
    t.look(A, a.mr.addr, &7u64.to_le_bytes(), "the old value");
    t.look(B, b.mr.addr, &12u64.to_le_bytes(), "the sum");
    t.say("A lock: if the word is 12, make it 99.");
    t.post(A, a.qp, &[SendWr::cmp_swap(2, a.mr.sge(8, 8), b.mr.remote(0), 12, 99)]);
    t.wait(A, a.send_cq);
    t.look(A, a.mr.addr + 8, &12u64.to_le_bytes(), "what A expected: it has the lock");
    t.say("A second attempt, which expects 12 again.");
    t.post(A, a.qp, &[SendWr::cmp_swap(3, a.mr.sge(16, 8), b.mr.remote(0), 12, 55)]);
    t.wait(A, a.send_cq);
    let same = t.look(A, a.mr.addr + 16, &99u64.to_le_bytes(), "not what A expected");
    if same {
        t.note(Kind::Memory, A, "So nothing was stored: the lock is taken".into());
    }
    t.look(B, b.mr.addr, &99u64.to_le_bytes(), "what the first attempt stored");
}
