//! The responder and requests that it must refuse: NAK, completion, async event, ERR.

use crate::{
    ACCESS, ACK, INVALID, OPERATIONAL, dialogue, ok, request, send_only, small_mtu, statuses,
    write_only,
};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpState, WcStatus};
use rnic_core::mr::KeyFault;
use rnic_core::{Event, NakReason};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::verbs::{Connection, full_access};
use roce_wire::{HeaderSet, Opcode, Position, RKey, Syndrome};

/// The request is refused with this syndrome, reported by this async event, and ends the
/// connection.
#[track_caller]
fn refused(d: &mut Dialogue, say: &Say, offset: u32, nak: Syndrome, event: AsyncEventType) {
    let psn = d.peer_psn(offset);
    d.say(say);
    let heard = d.expect(Opcode::RcAck, psn);
    assert_eq!(heard.aeth().0, nak);
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(d.events(), [event]);
    // In ERR it is dead.
    d.say(&write_only(d, offset, 0, &[1; 8]));
    d.say(&write_only(d, offset + 1, 0, &[1; 8]));
    d.expect_silence();
}

/// Every request opcode of the RC transport that this responder may be asked.
fn requests() -> impl Iterator<Item = Opcode> {
    Opcode::ALL.iter().copied().filter(|opcode| {
        let info = opcode.info();
        info.transport == roce_wire::Transport::Rc && info.is_request
    })
}

/// A well-formed packet of any opcode.
fn well_formed(d: &Dialogue, opcode: Opcode, offset: u32) -> Say {
    let len = match opcode.info().position {
        Position::First | Position::Middle => 256,
        _ => 8,
    };
    let info = opcode.info();
    let dma_len = if info.position == Position::First { 264 } else { 8 };
    let say = request(d, opcode, offset, (0, dma_len)).ack_req();
    let carries = !matches!(info.payload, roce_wire::PayloadRule::Zero);
    if carries { say.payload(&vec![5; len]) } else { say }
}

fn is_supported(opcode: Opcode) -> bool {
    let info = opcode.info();
    !info.has(HeaderSet::IETH)
}

#[test]
fn every_opcode_is_accepted_or_refused_by_the_one_before_it() {
    for (before, inside) in [
        (None, None),
        (Some(Opcode::RcSendFirst), Some(roce_wire::Operation::Send)),
        (Some(Opcode::RcWriteFirst), Some(roce_wire::Operation::Write)),
    ] {
        for opcode in requests().filter(|opcode| is_supported(*opcode)) {
            let mut d = dialogue();
            for wr_id in 0..2 {
                d.recv(wr_id, &[d.nic.mr.sge(4096, 4096)]);
            }
            let offset = u32::from(before.is_some());
            if let Some(before) = before {
                d.say(&well_formed(&d, before, 0));
                d.expect_aeth(d.peer_psn(0), ACK, 0);
            }
            let info = opcode.info();
            let allowed = match inside {
                Some(operation) => info.operation == operation && !info.position.is_start(),
                None => info.position.is_start(),
            };
            // The second packet of a WRITE of 264 bytes is its last.
            if allowed && opcode == Opcode::RcWriteMiddle {
                continue;
            }
            d.say(&well_formed(&d, opcode, offset));
            let heard = d.hear();
            let refusal = heard.opcode() == Opcode::RcAck && heard.aeth().0 == INVALID;
            assert_eq!(refusal, !allowed, "{opcode} after {before:?}: {heard:?}");
            let expected = if allowed { QpState::Rts } else { QpState::Err };
            assert_eq!(d.state(), expected);
        }
    }
}

#[test]
fn a_wrong_opcode_inside_a_send_fails_its_receive() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 1000)]);
    d.recv(2, &[d.nic.mr.sge(0, 1000)]);
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
    d.say(&send_only(&d, 1, &[1; 8]));
    d.expect_aeth(d.peer_psn(1), INVALID, 0);
    let expected = [(1, WcStatus::RemInvReqErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(d.events(), [], "the completion tells it");
}

#[test]
fn a_payload_of_the_wrong_length_is_refused_at_every_position() {
    let cases: [(Opcode, usize); 9] = [
        (Opcode::RcSendFirst, 255),
        (Opcode::RcSendFirst, 257),
        (Opcode::RcSendFirst, 0),
        (Opcode::RcSendOnly, 257),
        (Opcode::RcSendOnlyImm, 300),
        (Opcode::RcWriteFirst, 100),
        (Opcode::RcWriteFirst, 260),
        (Opcode::RcReadRequest, 4),
        (Opcode::RcFetchAdd, 8),
    ];
    for (opcode, len) in cases {
        let mut d = dialogue();
        d.recv(1, &[d.nic.mr.sge(0, 4096)]);
        let dma_len = if opcode == Opcode::RcWriteFirst { 1000 } else { 8 };
        d.say(&request(&d, opcode, 0, (0, dma_len)).payload(&vec![0; len]));
        let heard = d.expect(Opcode::RcAck, d.peer_psn(0));
        assert_eq!(heard.aeth(), (INVALID, 0), "{opcode} with {len} bytes");
        assert_eq!(d.state(), QpState::Err);
    }
}

#[test]
fn middle_and_last_packets_of_the_wrong_length_are_refused() {
    let cases: [(Opcode, Opcode, usize); 6] = [
        (Opcode::RcSendFirst, Opcode::RcSendMiddle, 200),
        (Opcode::RcSendFirst, Opcode::RcSendLast, 0),
        (Opcode::RcSendFirst, Opcode::RcSendLast, 257),
        (Opcode::RcWriteFirst, Opcode::RcWriteMiddle, 252),
        (Opcode::RcWriteFirst, Opcode::RcWriteLast, 0),
        (Opcode::RcWriteFirst, Opcode::RcWriteLastImm, 400),
    ];
    for (first, second, len) in cases {
        let mut d = dialogue();
        d.recv(1, &[d.nic.mr.sge(0, 4096)]);
        d.recv(2, &[d.nic.mr.sge(0, 4096)]);
        d.say(&request(&d, first, 0, (0, 1000)).payload(&[0; 256]));
        d.say(&Say::new(second, d.peer_psn(1)).payload(&vec![0; len]));
        let heard = d.expect(Opcode::RcAck, d.peer_psn(1));
        assert_eq!(heard.aeth(), (INVALID, 0), "{second} with {len} bytes");
    }
}

#[test]
fn the_payloads_of_a_write_must_add_up_to_its_dma_length() {
    // Too long, in the only packet.
    let mut d = dialogue();
    let say = request(&d, Opcode::RcWriteOnly, 0, (0, 7)).payload(&[1; 8]);
    refused(&mut d, &say, 0, INVALID, AsyncEventType::QpReqErr);
    assert_eq!(d.memory(0, 8), [0; 8]);
    // Too short.
    let mut d = dialogue();
    let say = request(&d, Opcode::RcWriteOnly, 0, (0, 9)).payload(&[1; 8]);
    refused(&mut d, &say, 0, INVALID, AsyncEventType::QpReqErr);
    // The last packet ends too early, and too late.
    for last in [43, 45] {
        let mut d = dialogue();
        d.say(&request(&d, Opcode::RcWriteFirst, 0, (0, 300)).payload(&[1; 256]));
        let say = Say::new(Opcode::RcWriteLast, d.peer_psn(1)).payload(&vec![2; last]);
        refused(&mut d, &say, 1, INVALID, AsyncEventType::QpReqErr);
    }
    // A middle packet beyond the length.
    let mut d = dialogue();
    d.say(&request(&d, Opcode::RcWriteFirst, 0, (0, 300)).payload(&[1; 256]));
    let say = Say::new(Opcode::RcWriteMiddle, d.peer_psn(1)).payload(&[2; 256]);
    refused(&mut d, &say, 1, INVALID, AsyncEventType::QpReqErr);
    assert_eq!(d.memory(256, 44), [0; 44]);
    // More than 2^31 bytes.
    let mut d = dialogue();
    let say = request(&d, Opcode::RcReadRequest, 0, (0, (1 << 31) + 1));
    refused(&mut d, &say, 0, INVALID, AsyncEventType::QpReqErr);
}

#[test]
fn a_send_longer_than_its_receive_is_refused_at_the_packet_that_does_not_fit() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(0, 300)]);
    d.recv(2, &[]);
    d.say(&Say::new(Opcode::RcSendFirst, d.peer_psn(0)).payload(&[1; 256]));
    d.say(&Say::new(Opcode::RcSendLast, d.peer_psn(1)).payload(&[1; 45]).ack_req());
    d.expect_aeth(d.peer_psn(1), INVALID, 0);
    let expected = [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(d.memory(300, 8), [0; 8]);
}

#[test]
fn operations_that_the_qp_does_not_allow_are_invalid_requests() {
    let cases = [
        (Opcode::RcWriteOnly, AccessFlags::REMOTE_WRITE),
        (Opcode::RcReadRequest, AccessFlags::REMOTE_READ),
        (Opcode::RcFetchAdd, AccessFlags::REMOTE_ATOMIC),
        (Opcode::RcCmpSwap, AccessFlags::REMOTE_ATOMIC),
    ];
    for (opcode, right) in cases {
        let access = full_access() - right;
        let mut d = Dialogue::new(Connection { access, ..small_mtu() });
        let say = well_formed(&d, opcode, 0);
        refused(&mut d, &say, 0, INVALID, AsyncEventType::QpReqErr);
    }
}

#[test]
fn memory_regions_without_the_right_are_not_accessed() {
    let cases = [
        (Opcode::RcWriteOnly, AccessFlags::REMOTE_WRITE),
        (Opcode::RcReadRequest, AccessFlags::REMOTE_READ),
        (Opcode::RcFetchAdd, AccessFlags::REMOTE_ATOMIC),
        (Opcode::RcFlush, AccessFlags::FLUSH_GLOBAL),
        (Opcode::RcAtomicWrite, AccessFlags::REMOTE_WRITE),
    ];
    for (opcode, right) in cases {
        let mut d = dialogue();
        let pd = d.nic.pd;
        let mr = d.world.host(0).new_mr(pd, 4096, full_access() - right);
        d.nic.mr = mr;
        let say = well_formed(&d, opcode, 0);
        refused(&mut d, &say, 0, ACCESS, AsyncEventType::QpAccessErr);
        assert_eq!(d.memory(0, 8), [0; 8]);
    }
}

#[test]
fn keys_are_good_only_in_their_pd_and_for_their_range() {
    let change = |change: fn(&mut Dialogue, &mut u64, &mut u32, &mut u32)| {
        let mut d = dialogue();
        let (mut va, mut rkey, mut len) = (d.nic.mr.addr, d.nic.mr.rkey, 8);
        change(&mut d, &mut va, &mut rkey, &mut len);
        let say = Say::new(Opcode::RcReadRequest, d.peer_psn(0)).reth(va, rkey, len);
        refused(&mut d, &say, 0, ACCESS, AsyncEventType::QpAccessErr);
    };
    change(|_, _, rkey, _| *rkey ^= 1);
    change(|_, _, rkey, _| *rkey = 0);
    change(|_, va, _, _| *va -= 1);
    change(|d, va, _, _| *va += d.nic.mr.len - 7);
    change(|_, va, _, _| *va = u64::MAX - 3);
    change(|d, _, _, len| *len = u32::try_from(d.nic.mr.len).unwrap() + 1);
    change(|d, va, rkey, _| {
        let host = d.world.host(0);
        let pd = host.alloc_pd();
        let other = host.new_mr(pd, 4096, full_access());
        (*va, *rkey) = (other.addr, other.rkey);
    });
}

/// The cause of a refusal is found in the events.
#[test]
fn every_refusal_tells_its_reason() {
    type Put = fn(&mut Dialogue);
    let cases: [(Put, NakReason); 9] = [
        (|d| d.say(&Say::new(Opcode::RcSendLast, d.peer_psn(0))), NakReason::OpcodeSequence),
        (
            |d| d.say(&request(d, Opcode::RcWriteOnly, 0, (0, 9)).payload(&[1; 8])),
            NakReason::Length,
        ),
        (|d| d.say(&request(d, Opcode::RcReadRequest, 0, (1 << 40, 8))), BOUNDS),
        (|d| d.say(&Say::new(Opcode::RcReadRequest, d.peer_psn(0)).reth(0, 1, 8)), UNKNOWN_KEY),
        (|d| d.say(&request(d, Opcode::RcFetchAdd, 0, (4, 8))), NakReason::Alignment),
        (
            |d| {
                let reads = (0..9).map(|k| request(d, Opcode::RcReadRequest, k, (0, 8)));
                let reads: Vec<Say> = reads.collect();
                d.say_all(&reads);
            },
            NakReason::Resources,
        ),
        (
            |d| {
                let addr = d.nic.mr.addr;
                d.world.host(0).memory.protect(SPACE, addr, 1, PageAccess::Hole);
                d.say(&write_only(d, 0, 0, &[1; 8]));
            },
            NakReason::RemoteMemory,
        ),
        (
            |d| {
                let access = full_access() - AccessFlags::REMOTE_READ;
                *d = Dialogue::new(Connection { access, ..small_mtu() });
                d.say(&request(d, Opcode::RcReadRequest, 0, (0, 8)));
            },
            NakReason::NotAllowed,
        ),
        (|d| d.say(&write_only(d, 1, 0, &[1; 8])), NakReason::Sequence),
    ];
    for (put, reason) in cases {
        let mut d = dialogue();
        put(&mut d);
        d.hear_burst();
        let told = d.world.hosts()[0].trace.kept().filter_map(|(_, event)| match event {
            Event::Nak { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), [reason]);
    }
}

const BOUNDS: NakReason = NakReason::Key(KeyFault::Bounds);
const UNKNOWN_KEY: NakReason = NakReason::Key(KeyFault::UnknownKey);

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut d = dialogue();
    let say = request(&d, Opcode::RcFetchAdd, 0, (4, 8));
    refused(&mut d, &say, 0, INVALID, AsyncEventType::QpReqErr);
}

#[test]
fn a_refused_write_with_immediate_fails_the_receive_it_took() {
    let mut d = dialogue();
    d.recv(1, &[]);
    let say = request(&d, Opcode::RcWriteOnlyImm, 0, (0, 8)).payload(&[1; 8]).with(|h| {
        if let Some(reth) = &mut h.reth {
            reth.rkey = RKey(0);
        }
    });
    d.say(&say);
    d.expect_aeth(d.peer_psn(0), ACCESS, 0);
    assert_eq!(statuses(&d.received()), [(1, WcStatus::LocAccessErr)]);
}

#[test]
fn a_receive_with_a_bad_lkey_is_the_responders_fault() {
    let mut d = dialogue();
    let mut sge = d.nic.mr.sge(0, 100);
    sge.lkey ^= 0x100;
    d.recv(1, &[sge]);
    d.recv(2, &[]);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), OPERATIONAL, 0);
    let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
}

#[test]
fn a_receive_that_is_invalid_is_the_responders_fault() {
    let mut d = dialogue();
    let qp = d.nic.qp;
    d.world.host(0).post_invalid_recv(qp, 1);
    d.recv(2, &[]);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), OPERATIONAL, 0);
    let expected = [(1, WcStatus::LocQpOpErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
}

#[test]
fn what_precedes_a_refused_request_is_acknowledged_by_its_nak() {
    let mut d = dialogue();
    d.recv(1, &[d.nic.mr.sge(64, 8)]);
    let bad = write_only(&d, 2, 0, &[1; 8]).with(|h| {
        if let Some(reth) = &mut h.reth {
            reth.rkey = RKey(0);
        }
    });
    d.say_all(&[write_only(&d, 0, 0, &[7; 8]), send_only(&d, 1, &[8; 8]), bad]);
    d.expect_aeth(d.peer_psn(2), ACCESS, 2);
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!((d.memory(0, 8), d.memory(64, 8)), (vec![7; 8], vec![8; 8]));
}

#[test]
fn responses_of_earlier_reads_precede_a_refusal() {
    let mut d = dialogue();
    let data = d.fill(0, 600, 4);
    let bad = Say::new(Opcode::RcReadRequest, d.peer_psn(3)).reth(0, 0, 8);
    d.say_all(&[request(&d, Opcode::RcReadRequest, 0, (0, 600)), bad]);
    let burst = d.hear_burst();
    assert_eq!(burst.len(), 4);
    assert_eq!(burst[..3].iter().flat_map(|h| h.payload.clone()).collect::<Vec<u8>>(), data);
    assert_eq!((burst[3].psn(), burst[3].aeth()), (d.peer_psn(3), (ACCESS, 1)));
}
