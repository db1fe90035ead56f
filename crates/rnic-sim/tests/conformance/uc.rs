//! The responder of an unreliable connection: a lost message is lost whole, nothing is answered.

use crate::{ok, request, statuses};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpState, QpType, WcOpcode, WcStatus};
use rnic_core::counters::Counters;
use rnic_core::mr::KeyFault;
use rnic_core::{DropReason, Event, NakReason};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::SPACE;
use rnic_sim::memory::PageAccess;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, full_access};
use roce_wire::{Opcode, RKey};

/// An unreliable connection with a path MTU of 256 bytes.
pub(crate) fn uc() -> Dialogue {
    with_access(full_access())
}

fn with_access(access: AccessFlags) -> Dialogue {
    let connection = Connection { path_mtu: 1, access, ..Connection::default() };
    let mut d = Dialogue::with(connection, PortConfig::frames(), |qp| qp.qp_type = QpType::Uc);
    d.world.host(0).trace.keep_all();
    d
}

/// Part of a SEND of the peer, which asks for an acknowledgement, as no honest one does.
fn part(d: &Dialogue, opcode: Opcode, offset: u32, payload: &[u8]) -> Say {
    Say::new(opcode, d.peer_psn(offset)).payload(payload).ack_req()
}

/// Part of a WRITE of `total` bytes to the beginning of the memory.
fn write(d: &Dialogue, opcode: Opcode, offset: u32, total: u32, payload: &[u8]) -> Say {
    request(d, opcode, offset, (0, total)).payload(payload).ack_req()
}

fn counters(d: &Dialogue) -> Counters {
    *d.world.hosts()[0].engine.counters()
}

/// Why packets were dropped.
fn drops(d: &mut Dialogue) -> Vec<DropReason> {
    let events = d.world.host(0).trace.take();
    let reason = |event: &Event| match event {
        Event::Dropped { reason, .. } => Some(*reason),
        _ => None,
    };
    events.iter().filter_map(|(_, event)| reason(event)).collect()
}

/// Whatever happened: the connection is as good as new.
#[track_caller]
fn goes_on(d: &mut Dialogue, offset: u32, wr_id: u64) {
    d.say(&part(d, Opcode::UcSendOnly, offset, &[9; 33]));
    d.expect_silence();
    let received = d.received();
    assert_eq!(statuses(&received), ok([wr_id]));
    assert_eq!(received[0].byte_len, 33);
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn messages_arrive_and_nothing_is_answered() {
    let mut d = uc();
    for wr_id in 0..4 {
        d.recv(wr_id, &[d.nic.mr.sge(4096, 4096)]);
    }
    d.say_all(&[
        part(&d, Opcode::UcSendFirst, 0, &[1; 256]),
        part(&d, Opcode::UcSendMiddle, 1, &[2; 256]),
        part(&d, Opcode::UcSendLastImm, 2, &[3; 4]),
        part(&d, Opcode::UcSendOnly, 3, &[4; 3]),
        write(&d, Opcode::UcWriteFirst, 4, 300, &[5; 256]),
        write(&d, Opcode::UcWriteLastImm, 5, 300, &[6; 44]),
        write(&d, Opcode::UcWriteOnlyImm, 6, 8, &[7; 8]),
    ]);
    d.expect_silence();
    let received = d.received();
    assert_eq!(statuses(&received), ok(0..4));
    assert_eq!(received.iter().map(|cqe| cqe.byte_len).collect::<Vec<_>>(), [516, 3, 300, 8]);
    assert_eq!((received[0].opcode, received[2].opcode), (WcOpcode::Recv, WcOpcode::RecvWriteImm));
    assert_eq!(d.memory(0, 9), [7, 7, 7, 7, 7, 7, 7, 7, 5]);
    assert_eq!(d.memory(299, 2), [6, 0]);
    assert_eq!(d.memory(4096 + 512, 5), [3, 3, 3, 3, 0]);
    assert_eq!(drops(&mut d), []);
}

#[test]
fn a_loss_loses_its_message_and_leaves_the_receive_to_the_next() {
    // What arrives of a SEND of four packets.
    for arriving in [&[0, 1, 3][..], &[0, 2, 3], &[1, 2, 3], &[0, 1, 2], &[0], &[3]] {
        let mut d = uc();
        d.recv(1, &[d.nic.mr.sge(0, 600), d.nic.mr.sge(2048, 424)]);
        d.recv(2, &[d.nic.mr.sge(8192, 100)]);
        let opcodes =
            [Opcode::UcSendFirst, Opcode::UcSendMiddle, Opcode::UcSendMiddle, Opcode::UcSendLast];
        for k in arriving {
            d.say(&part(&d, opcodes[*k as usize], *k, &[7; 256]));
        }
        d.expect_silence();
        assert_eq!(statuses(&d.received()), [], "{arriving:?}");
        // The next one begins at the beginning of the buffer.
        let data: Vec<u8> = (0..=255).collect();
        d.say(&part(&d, Opcode::UcSendOnly, 4, &data));
        d.expect_silence();
        let received = d.received();
        assert_eq!(statuses(&received), ok([1]), "{arriving:?}");
        assert_eq!(received[0].byte_len, 256);
        assert_eq!(d.memory(0, 256), data);
        goes_on(&mut d, 5, 2);
    }
}

#[test]
fn each_gap_is_counted_and_what_is_useless_behind_it_dropped() {
    let mut d = uc();
    d.recv(1, &[d.nic.mr.sge(0, 1024)]);
    d.say(&part(&d, Opcode::UcSendFirst, 0, &[1; 256]));
    d.say(&part(&d, Opcode::UcSendMiddle, 2, &[1; 256]));
    // What was missing comes too late.
    d.say(&part(&d, Opcode::UcSendMiddle, 1, &[1; 256]));
    d.say(&part(&d, Opcode::UcSendOnly, 7, &[1; 8]));
    d.expect_silence();
    assert_eq!(statuses(&d.received()), ok([1]));
    let refused = DropReason::Refused(NakReason::OpcodeSequence);
    assert_eq!(drops(&mut d), [DropReason::OutOfSequence, refused]);
    assert_eq!(counters(&d).out_of_sequence, 2, "before the middle, and before the next message");
    assert_eq!(counters(&d).resp_remote_invalid_request, 1);
}

#[test]
fn a_late_copy_harms_no_message() {
    let mut d = uc();
    d.recv(1, &[d.nic.mr.sge(0, 1024)]);
    d.say(&part(&d, Opcode::UcSendFirst, 0, &[1; 256]));
    d.say(&part(&d, Opcode::UcSendMiddle, 1, &[2; 256]));
    d.say(&part(&d, Opcode::UcSendMiddle, 1, &[9; 256]));
    d.say(&part(&d, Opcode::UcSendLast, 2, &[3; 8]));
    d.say(&part(&d, Opcode::UcSendLast, 2, &[9; 8]));
    d.expect_silence();
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.memory(255, 2), [1, 2]);
    assert_eq!(d.memory(512, 9), [3, 3, 3, 3, 3, 3, 3, 3, 0]);
    assert_eq!(drops(&mut d), [DropReason::Duplicate; 2]);
    assert_eq!(counters(&d).duplicate_request, 2);
}

#[test]
fn a_message_may_begin_anywhere() {
    let mut d = uc();
    for wr_id in 0..4 {
        d.recv(wr_id, &[d.nic.mr.sge(0, 1024)]);
    }
    let far = [0_u32, 1, 0x00ff_ffff, 0x0080_0000, 0x007f_ffff];
    for (wr_id, offset) in (0..4).zip(far) {
        // Each time behind one that does not end.
        d.say(&part(&d, Opcode::UcSendFirst, offset.wrapping_sub(1) & 0xff_ffff, &[7; 256]));
        d.say(&part(&d, Opcode::UcSendOnly, offset, &[1; 8]));
        d.expect_silence();
        assert_eq!(statuses(&d.received()), ok([wr_id]));
    }
    assert_eq!(drops(&mut d), []);
}

/// The packet is dropped without a word, for this reason, and harms nothing that follows.
#[track_caller]
fn refused(mut d: Dialogue, before: &[Say], bad: &Say, reason: DropReason) {
    d.recv(1, &[d.nic.mr.sge(8192, 500)]);
    d.say_all(before);
    d.expect_silence();
    assert_eq!(drops(&mut d), []);
    d.say(bad);
    d.expect_silence();
    assert_eq!(drops(&mut d), [reason]);
    let counters = counters(&d);
    let counted = counters.resp_remote_invalid_request
        + counters.resp_remote_access_errors
        + counters.resp_local_length_error;
    assert_eq!(counted, 1, "{counters:?}");
    assert_eq!(d.events(), []);
    assert_eq!(d.memory(0, 8), [0; 8]);
    goes_on(&mut d, 9, 1);
}

#[test]
fn what_cannot_be_executed_is_dropped_silently_and_harms_nothing() {
    let invalid = DropReason::Refused(NakReason::OpcodeSequence);
    let length = DropReason::Refused(NakReason::Length);
    let d = uc;
    let first = |d: &Dialogue| [part(d, Opcode::UcSendFirst, 0, &[7; 256])];
    for opcode in [Opcode::UcSendMiddle, Opcode::UcSendLast, Opcode::UcWriteLast] {
        let bad = part(&d(), opcode, 0, &[1; 256]);
        refused(d(), &[], &bad, invalid);
    }
    let bad = part(&d(), Opcode::UcWriteMiddle, 1, &[1; 256]);
    refused(d(), &first(&d()), &bad, invalid);
    for (opcode, len) in [(Opcode::UcSendFirst, 255), (Opcode::UcSendOnly, 257)] {
        let bad = part(&d(), opcode, 0, &vec![1; len]);
        refused(d(), &[], &bad, length);
    }
    for (opcode, len) in [(Opcode::UcSendMiddle, 100), (Opcode::UcSendLast, 0)] {
        let bad = part(&d(), opcode, 1, &vec![1; len]);
        refused(d(), &first(&d()), &bad, length);
    }
    let bad = part(&d(), Opcode::UcSendLast, 1, &[1; 245]);
    let reason = DropReason::Refused(NakReason::ReceiveTooShort);
    refused(d(), &first(&d()), &bad, reason);
}

#[test]
fn a_write_that_is_not_allowed_is_dropped_silently() {
    let none = with_access(AccessFlags::LOCAL_WRITE);
    let bad = write(&none, Opcode::UcWriteOnly, 0, 8, &[1; 8]);
    refused(none, &[], &bad, DropReason::Refused(NakReason::NotAllowed));
    let length = DropReason::Refused(NakReason::Length);
    for (opcode, total, len) in [
        (Opcode::UcWriteOnly, 8, 4),
        (Opcode::UcWriteFirst, 256, 256),
        (Opcode::UcWriteOnlyImm, 4, 8),
    ] {
        let d = uc();
        let bad = write(&d, opcode, 0, total, &vec![1; len]);
        refused(d, &[], &bad, length);
    }
    let d = uc();
    let bad = write(&d, Opcode::UcWriteFirst, 0, (1 << 31) + 1, &[1; 256]);
    refused(d, &[], &bad, length);
    let d = uc();
    let bad = write(&d, Opcode::UcWriteOnly, 0, 8, &[1; 8])
        .with(|headers| headers.reth.as_mut().unwrap().rkey = RKey(0x1234));
    refused(d, &[], &bad, DropReason::Refused(NakReason::Key(KeyFault::UnknownKey)));
}

#[test]
fn a_message_without_a_receive_is_dropped() {
    let mut d = uc();
    d.say(&part(&d, Opcode::UcSendFirst, 0, &[1; 256]));
    d.say(&part(&d, Opcode::UcSendLast, 1, &[1; 8]));
    d.say(&write(&d, Opcode::UcWriteOnlyImm, 2, 8, &[7; 8]));
    d.expect_silence();
    assert_eq!(statuses(&d.received()), []);
    let dropped = [DropReason::NoReceive, DropReason::OutOfSequence, DropReason::NoReceive];
    assert_eq!(drops(&mut d), dropped);
    assert_eq!(counters(&d).rx_discarded, 2);
    d.recv(1, &[d.nic.mr.sge(0, 300)]);
    goes_on(&mut d, 3, 1);
}

#[test]
fn a_bad_receive_of_ones_own_ends_the_connection_without_a_word() {
    let mut d = uc();
    d.recv(1, &[d.nic.mr.sge(0, 8)]);
    d.recv(2, &[d.nic.mr.sge(0, 8)]);
    let mr = d.nic.mr;
    d.world.host(0).dereg_mr(&mr);
    d.say(&part(&d, Opcode::UcSendOnly, 0, &[1; 8]));
    d.expect_silence();
    let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(drops(&mut d), [DropReason::Refused(NakReason::Local)]);
    assert_eq!((counters(&d).resp_local_errors, d.events()), (1, vec![]));
}

#[test]
fn memory_that_the_program_took_away_ends_the_connection_without_a_word() {
    let mut d = uc();
    let at = d.nic.mr.addr;
    d.world.host(0).memory.protect(SPACE, at, 1, PageAccess::Hole);
    d.say(&write(&d, Opcode::UcWriteOnly, 0, 8, &[7; 8]));
    d.expect_silence();
    assert_eq!(d.state(), QpState::Err);
    assert_eq!(d.events(), [AsyncEventType::QpFatal]);
    assert_eq!(drops(&mut d), [DropReason::Refused(NakReason::RemoteMemory)]);
}

/// A late copy of a message is a message: its receive is not the one of the packet that failed.
#[test]
fn only_the_first_receive_behind_a_fault_may_be_its_own() {
    let mut d = uc();
    d.recv(1, &[d.nic.mr.sge(8192, 8)]);
    d.recv(2, &[]);
    let at = d.nic.mr.addr;
    d.world.host(0).memory.protect(SPACE, at, 1, PageAccess::Hole);
    d.say_all(&[
        write(&d, Opcode::UcWriteOnly, 0, 8, &[7; 8]),
        part(&d, Opcode::UcSendOnly, 1, &[1; 8]),
        request(&d, Opcode::UcWriteOnlyImm, 0, (8192, 8)).payload(&[7; 8]),
    ]);
    d.expect_silence();
    let expected = [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.received()), expected);
}

#[test]
fn packets_of_other_transports_and_peers_change_nothing() {
    let mut d = uc();
    d.recv(1, &[d.nic.mr.sge(0, 300)]);
    for opcode in [Opcode::RcSendOnly, Opcode::RcAck, Opcode::RcReadRequest, Opcode::RcCmpSwap] {
        d.say(&Say::new(opcode, d.peer_psn(0)));
    }
    d.expect_silence();
    assert_eq!(drops(&mut d), [DropReason::Transport; 4]);
    goes_on(&mut d, 0, 1);
}
