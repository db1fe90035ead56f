//! FLUSH and ATOMIC_WRITE, as responder and as requester.

use crate::{
    ACCESS, ACK, INVALID, OPERATIONAL, dialogue, ok, read_request, request, send, small_mtu,
    statuses, write_only,
};
use rnic_abi::verbs::{AccessFlags, SendFlags, WcOpcode, WcStatus};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::verbs::{Connection, Remote, SendWr, full_access};
use roce_wire::{Feth, Opcode};

const PEER: Remote = Remote { addr: 0x5000, rkey: 0x99 };

/// The peer's FLUSH of a range, or of something else.
fn flush(d: &Dialogue, offset: u32, range: (u64, u32)) -> Say {
    request(d, Opcode::RcFlush, offset, range)
}

fn flush_as(d: &Dialogue, offset: u32, placement: u8, level: u8) -> Say {
    flush(d, offset, (0, 8)).with(|h| h.feth = Some(Feth::new(placement, level)))
}

/// The peer's ATOMIC_WRITE.
fn atomic_write(d: &Dialogue, offset: u32, at: u64, word: [u8; 8]) -> Say {
    request(d, Opcode::RcAtomicWrite, offset, (at, 8)).payload(&word)
}

/// The answer to a FLUSH or ATOMIC_WRITE.
fn expect_done(d: &mut Dialogue, offset: u32, msn: u32) {
    let heard = d.expect(Opcode::RcReadRespOnly, d.peer_psn(offset));
    assert_eq!((heard.aeth(), heard.payload.len()), ((ACK, msn), 0));
}

fn refused(d: &mut Dialogue, say: &Say, syndrome: roce_wire::Syndrome) {
    d.say(say);
    assert_eq!(d.hear().aeth().0, syndrome);
}

#[test]
fn a_flush_and_an_atomic_write_are_answered_by_read_responses_without_data() {
    let mut d = dialogue();
    d.say_all(&[
        write_only(&d, 0, 0, &[1; 16]),
        flush(&d, 1, (0, 16)),
        atomic_write(&d, 2, 8, *b"in order"),
        flush(&d, 3, (8, 8)),
    ]);
    for (offset, msn) in [(1, 4), (2, 4), (3, 4)] {
        let heard = d.hear();
        assert_eq!((heard.opcode(), heard.psn()), (Opcode::RcReadRespOnly, d.peer_psn(offset)));
        assert_eq!((heard.aeth(), heard.payload.len()), ((ACK, msn), 0));
    }
    assert_eq!(d.memory(0, 8), [1; 8]);
    assert_eq!(d.memory(8, 8), b"in order");
}

/// The WRITE before it is not in memory: the FLUSH is not answered.
#[test]
fn a_flush_behind_a_write_that_faults_is_not_answered() {
    let mut d = dialogue();
    let addr = d.nic.mr.addr;
    d.world.host(0).memory.protect(SPACE, addr, 4096, PageAccess::Hole);
    d.say_all(&[write_only(&d, 0, 0, &[1; 16]), flush(&d, 1, (0, 16))]);
    d.expect_aeth(d.peer_psn(0), OPERATIONAL, 0);
    d.expect_silence();
}

#[test]
fn duplicates_are_answered_again_and_not_executed_again() {
    let mut d = dialogue();
    d.say(&atomic_write(&d, 0, 0, [1; 8]));
    expect_done(&mut d, 0, 1);
    d.say(&flush(&d, 1, (0, 8)));
    expect_done(&mut d, 1, 2);
    d.say(&write_only(&d, 2, 0, &[2; 8]));
    d.expect_aeth(d.peer_psn(2), ACK, 3);
    for offset in [0, 1, 0] {
        let again = match offset {
            0 => atomic_write(&d, 0, 0, [1; 8]),
            _ => flush(&d, 1, (0, 8)),
        };
        d.say(&again);
        expect_done(&mut d, offset, 3);
    }
    assert_eq!(d.memory(0, 8), [2; 8]);
}

#[test]
fn they_use_the_resources_of_reads() {
    let mut d = Dialogue::new(Connection { max_dest_rd_atomic: 1, ..small_mtu() });
    d.say_all(&[flush(&d, 0, (0, 8)), atomic_write(&d, 1, 0, [1; 8])]);
    expect_done(&mut d, 0, 1);
    d.expect_aeth(d.peer_psn(1), INVALID, 1);
    assert_eq!(d.memory(0, 8), [0; 8]);
}

#[test]
fn a_flush_of_no_kind_is_an_invalid_request() {
    for (placement, level) in [(0, 0), (4, 0), (1 | 8, 0), (1, 2), (1, 3)] {
        let mut d = dialogue();
        let say = flush_as(&d, 0, placement, level);
        refused(&mut d, &say, INVALID);
    }
}

#[test]
fn a_flush_needs_its_right_of_queue_pair_and_region() {
    let without = |right| Connection { access: full_access() - right, ..small_mtu() };
    let mut d = Dialogue::new(without(AccessFlags::FLUSH_GLOBAL));
    let say = flush(&d, 0, (0, 8));
    refused(&mut d, &say, INVALID);
    let mut d = Dialogue::new(without(AccessFlags::REMOTE_WRITE));
    let say = atomic_write(&d, 0, 0, [1; 8]);
    refused(&mut d, &say, INVALID);
    // No region has that right.
    let access = full_access() | AccessFlags::FLUSH_PERSISTENT;
    let mut d = Dialogue::new(Connection { access, ..small_mtu() });
    let say = flush_as(&d, 0, Feth::PERSISTENCE, Feth::RANGE);
    refused(&mut d, &say, ACCESS);
    for level in [Feth::RANGE, Feth::WHOLE_REGION] {
        let mut d = dialogue();
        let pd = d.nic.pd;
        let access = full_access() - AccessFlags::FLUSH_GLOBAL;
        d.nic.mr = d.world.host(0).new_mr(pd, 4096, access);
        let say = flush_as(&d, 0, Feth::GLOBAL_VISIBILITY, level);
        refused(&mut d, &say, ACCESS);
    }
}

#[test]
fn of_a_whole_region_neither_address_nor_length_is_looked_at() {
    let whole = |d: &Dialogue, offset| {
        let (rkey, len) = (d.nic.mr.rkey, u32::MAX >> 1);
        let feth = Feth::new(Feth::GLOBAL_VISIBILITY, Feth::WHOLE_REGION);
        Say::new(Opcode::RcFlush, d.peer_psn(offset))
            .reth(7, rkey, len)
            .with(|h| h.feth = Some(feth))
    };
    let mut d = dialogue();
    d.say(&whole(&d, 0));
    expect_done(&mut d, 0, 1);
    // Of a range both are, even if it is empty.
    for range in [(0, u32::MAX >> 1), (1 << 40, 0)] {
        let mut d = dialogue();
        let say = flush(&d, 0, range);
        refused(&mut d, &say, ACCESS);
    }
}

#[test]
fn an_atomic_write_has_eight_aligned_bytes() {
    for at in [1, 4] {
        let mut d = dialogue();
        let say = atomic_write(&d, 0, at, [1; 8]);
        refused(&mut d, &say, INVALID);
    }
    for len in [0, 7, 16] {
        let mut d = dialogue();
        let say = request(&d, Opcode::RcAtomicWrite, 0, (0, len)).payload(&[1; 8]);
        refused(&mut d, &say, INVALID);
        assert_eq!(d.memory(0, 8), [0; 8]);
    }
}

#[test]
fn they_wait_for_their_responses_and_complete_as_themselves() {
    let mut d = Dialogue::new(Connection { max_rd_atomic: 2, ..small_mtu() });
    let word = d.fill(0, 8, 3);
    let mr = d.nic.mr;
    d.post_all(&[
        SendWr::write(1, &[mr.sge(0, 8)], PEER),
        SendWr::flush(2, PEER, 100),
        SendWr::atomic_write(3, mr.sge(0, 8), PEER),
        SendWr::flush(4, PEER, 1),
    ]);
    d.expect(Opcode::RcWriteOnly, d.our_psn(0));
    let asked = d.expect(Opcode::RcFlush, d.our_psn(1)).headers;
    assert_eq!(asked.feth, Some(Feth::new(Feth::GLOBAL_VISIBILITY, Feth::RANGE)));
    let reth = asked.reth.unwrap();
    assert_eq!((reth.va, reth.rkey.0, reth.dma_len), (PEER.addr, PEER.rkey, 100));
    let heard = d.expect(Opcode::RcAtomicWrite, d.our_psn(2));
    assert_eq!((heard.headers.reth.unwrap().dma_len, heard.payload), (8, word));
    // The depth is used up.
    d.expect_silence_for(1000);
    let done = |d: &Dialogue, offset: u32| {
        Say::new(Opcode::RcReadRespOnly, d.our_psn(offset)).syndrome(ACK, offset + 1)
    };
    d.say(&done(&d, 1));
    d.expect(Opcode::RcFlush, d.our_psn(3));
    d.say_all(&[done(&d, 2), done(&d, 3)]);
    let sent = d.sent();
    assert_eq!(statuses(&sent), ok([1, 2, 3, 4]));
    let opcodes = [WcOpcode::Write, WcOpcode::Flush, WcOpcode::AtomicWrite, WcOpcode::Flush];
    assert_eq!(sent.iter().map(|cqe| cqe.opcode).collect::<Vec<_>>(), opcodes);
}

/// An ACK does not complete them: their answer was lost.
#[test]
fn an_ack_beyond_an_unanswered_flush_is_an_implied_nak() {
    let mut d = dialogue();
    d.post_all(&[SendWr::flush(1, PEER, 8), send(&d, 2, 8)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    d.expect(Opcode::RcFlush, d.our_psn(0));
    assert_eq!(d.sent(), []);
}

#[test]
fn a_response_with_data_is_none_of_a_flush() {
    for wr in [
        |_: &Dialogue| SendWr::flush(1, PEER, 8),
        |d: &Dialogue| SendWr::atomic_write(1, d.nic.mr.sge(0, 8), PEER),
    ] {
        let mut d = dialogue();
        let wr = wr(&d);
        d.post(&wr);
        d.hear_burst();
        let with_data = Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1);
        d.say(&with_data.payload(&[1; 8]));
        assert_eq!(statuses(&d.sent()), [(1, WcStatus::BadRespErr)]);
    }
}

#[test]
fn requests_that_make_no_sense_fail() {
    let bad_flush = |change: fn(&mut SendWr)| {
        let mut wr = SendWr::flush(1, PEER, 8);
        change(&mut wr);
        wr
    };
    let d = dialogue();
    let cases = [
        (bad_flush(|wr| wr.swap = 0), WcStatus::LocQpOpErr),
        (bad_flush(|wr| wr.swap = 4), WcStatus::LocQpOpErr),
        (bad_flush(|wr| wr.swap = 1 | 2 << 8), WcStatus::LocQpOpErr),
        (bad_flush(|wr| wr.swap = 1 | 1 << 16), WcStatus::LocQpOpErr),
        (bad_flush(|wr| wr.compare_add = (1 << 31) + 1), WcStatus::LocLenErr),
        (SendWr { sges: vec![d.nic.mr.sge(0, 8)], ..SendWr::flush(1, PEER, 8) }, {
            WcStatus::LocQpOpErr
        }),
        (SendWr::atomic_write(1, d.nic.mr.sge(0, 4), PEER), WcStatus::LocLenErr),
        (SendWr::atomic_write(1, d.nic.mr.sge(0, 16), PEER), WcStatus::LocLenErr),
    ];
    for (wr, status) in cases {
        let mut d = dialogue();
        d.post(&wr);
        assert_eq!(statuses(&d.sent()), [(1, status)], "{wr:?}");
    }
}

#[test]
fn an_atomic_write_may_be_inline_and_fenced() {
    let mut d = dialogue();
    let wr = SendWr::atomic_write(2, d.nic.mr.sge(0, 8), PEER).inline(&[9; 8]);
    d.post_all(&[crate::read(&d, 1, 64, 8), wr.flags(SendFlags::FENCE)]);
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    d.expect_silence_for(1000);
    let answer = Say::new(Opcode::RcReadRespOnly, d.our_psn(0)).syndrome(ACK, 1).payload(&[1; 8]);
    d.say(&answer);
    assert_eq!(d.expect(Opcode::RcAtomicWrite, d.our_psn(1)).payload, [9; 8]);
    // It does not answer READs behind it either.
    d.say(&read_request(&d, 0, 64, 8));
    assert_eq!(d.expect(Opcode::RcReadRespOnly, d.peer_psn(0)).payload, [1; 8]);
}
