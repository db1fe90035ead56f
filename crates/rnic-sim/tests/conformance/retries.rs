//! The requester going back: sequence NAKs, timeouts, RNR NAKs, and when it gives up.

use crate::{dialogue, ok, read, send, small_mtu, statuses};
use rnic_abi::verbs::{QpState, WcStatus};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::link::{Blow, Strike};
use rnic_sim::pair::Pair;
use rnic_sim::verbs::Connection;
use rnic_sim::verbs::SendWr;
use roce_wire::headers::rnr_timer_ns;
use roce_wire::{NakCode, Opcode};

fn psns(d: &mut Dialogue) -> Vec<u32> {
    let base = d.connection.sq_psn;
    d.hear_burst().iter().map(|heard| heard.psn().wrapping_sub(base) & 0xff_ffff).collect()
}

#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_rewinds() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 600), send(&d, 3, 10)]);
    assert_eq!(psns(&mut d), [0, 1, 2, 3, 4]);
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(2), 1));
    assert_eq!(psns(&mut d), [2, 3, 4]);
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.say(&Say::ack(d.our_psn(4), 3));
    assert_eq!(statuses(&d.sent()), ok([2, 3]));
}

#[test]
fn a_retransmission_is_identical_to_the_first_transmission() {
    let mut d = dialogue();
    d.fill(0, 5000, 1);
    let remote = rnic_sim::verbs::Remote { addr: 0x1234, rkey: 0x5678 };
    let sges = [d.nic.mr.sge(0, 100), d.nic.mr.sge(1000, 1000)];
    let write = rnic_sim::verbs::SendWr::write(1, &sges, remote).with_imm(9);
    d.post_all(&[send(&d, 0, 300), write]);
    let first = d.hear_burst();
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    let second = d.hear_burst();
    assert_eq!(first.len(), second.len());
    for (first, second) in first.iter().zip(&second) {
        assert_eq!((first.opcode(), first.psn()), (second.opcode(), second.psn()));
        assert_eq!(
            (first.headers.reth, first.headers.imm),
            (second.headers.reth, second.headers.imm)
        );
        assert_eq!(first.payload, second.payload);
    }
}

#[test]
fn the_last_packet_of_a_retransmission_asks_for_an_ack() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 600));
    d.hear_burst();
    let again = d.hear();
    assert_eq!(again.psn(), d.our_psn(0), "after a timeout everything is sent again");
    let rest = d.hear_burst();
    assert!(rest.last().unwrap().headers.bth.ack_req);
}

#[test]
fn a_lost_ack_of_the_last_message_is_recovered_by_a_timeout() {
    let mut d = dialogue();
    let started = d.world.now();
    d.post(&send(&d, 1, 10));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    let again = d.expect(Opcode::RcSendOnly, d.our_psn(0));
    let waited = u64::try_from(again.at.since(started).as_nanos()).unwrap();
    let timeout = d.connection.ack_timeout();
    assert!((timeout..=4 * timeout + 50_000).contains(&waited), "{waited} of {timeout} ns");
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.expect_silence_for(20 * timeout);
}

#[test]
fn a_nak_then_a_timeout_both_rewind() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(1), 1));
    assert_eq!(psns(&mut d), [1]);
    // That one is lost as well.
    d.expect(Opcode::RcSendOnly, d.our_psn(1));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn a_timeout_of_zero_never_fires() {
    let mut d = Dialogue::new(Connection { timeout: 0, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    d.hear();
    d.expect_silence_for(10_000_000_000);
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

/// Transmissions of one message that is never answered.
fn transmissions(retry_cnt: u8) -> usize {
    let mut d = Dialogue::new(Connection { retry_cnt, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    let timeout = d.connection.ack_timeout();
    d.world.run_for(timeout * 4 * (u64::from(retry_cnt) + 3));
    let count = d.hear_burst().iter().filter(|heard| heard.psn() == d.our_psn(0)).count();
    let expected = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
    assert_eq!(d.state(), QpState::Err);
    count
}

#[test]
fn timeouts_retry_exactly_as_often_as_allowed_and_seven_is_seven() {
    for retry_cnt in [0, 1, 3, 7] {
        assert_eq!(transmissions(retry_cnt), usize::from(retry_cnt) + 1);
    }
}

#[test]
fn sequence_naks_retry_exactly_as_often_as_allowed() {
    let mut d = Dialogue::new(Connection { retry_cnt: 2, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    assert_eq!(psns(&mut d), [0]);
    for _ in 0..2 {
        d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
        assert_eq!(psns(&mut d), [0]);
    }
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn progress_reloads_the_retries() {
    let mut d = Dialogue::new(Connection { retry_cnt: 1, ..small_mtu() });
    let sends: Vec<_> = (0..5).map(|k| send(&d, k, 10)).collect();
    d.post_all(&sends);
    assert_eq!(psns(&mut d), [0, 1, 2, 3, 4]);
    for k in 1..5 {
        d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(k), k));
        assert_eq!(psns(&mut d).first(), Some(&k));
    }
    d.say(&Say::ack(d.our_psn(4), 5));
    assert_eq!(statuses(&d.sent()), ok(0..5));
}

#[test]
fn an_rnr_nak_is_waited_for_and_then_sent_again_from_there() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10), send(&d, 3, 10)]);
    assert_eq!(psns(&mut d), [0, 1, 2]);
    let code = 18;
    d.say(&Say::rnr_nak(code, d.our_psn(1), 1));
    let refused = d.world.now();
    assert_eq!(statuses(&d.sent()), ok([1]), "what is before it is acknowledged");
    // New requests wait as well.
    d.post(&send(&d, 4, 10));
    let again = d.expect(Opcode::RcSendOnly, d.our_psn(1));
    let waited = u64::try_from(again.at.since(refused).as_nanos()).unwrap();
    assert!(waited >= rnr_timer_ns(code), "{waited} ns");
    assert_eq!(psns(&mut d), [2, 3]);
    d.say(&Say::ack(d.our_psn(3), 4));
    assert_eq!(statuses(&d.sent()), ok([2, 3, 4]));
}

#[test]
fn a_sequence_nak_behind_an_rnr_nak_neither_ends_the_wait_nor_costs_a_retry() {
    let mut d = Dialogue::new(Connection { retry_cnt: 0, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    let code = 20;
    d.say(&Say::rnr_nak(code, d.our_psn(0), 0));
    let refused = d.world.now();
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    let again = d.expect(Opcode::RcSendOnly, d.our_psn(0));
    let waited = u64::try_from(again.at.since(refused).as_nanos()).unwrap();
    assert!(waited >= rnr_timer_ns(code), "{waited} ns");
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn an_ack_during_an_rnr_wait_is_processed() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::rnr_nak(25, d.our_psn(0), 0));
    d.expect_silence();
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    d.expect_silence_for(10_000_000_000);
}

/// An answer to another transmission says that the peer has a receive by now.
#[test]
fn a_wait_ends_when_what_was_waited_for_is_received() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    // 655.36 ms.
    d.say_all(&[Say::rnr_nak(0, d.our_psn(0), 0), Say::ack(d.our_psn(0), 1)]);
    assert_eq!(psns(&mut d), [1]);
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn rnr_retries_are_exactly_as_many_as_allowed() {
    for rnr_retry in [0, 1, 6] {
        let mut d = Dialogue::new(Connection { rnr_retry, ..small_mtu() });
        d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
        d.hear_burst();
        for _ in 0..rnr_retry {
            d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
            d.expect(Opcode::RcSendOnly, d.our_psn(0));
            d.hear_burst();
        }
        d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
        let expected = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.sent()), expected);
        d.expect_silence_for(1_000_000_000);
    }
}

#[test]
fn an_rnr_retry_of_seven_is_infinite() {
    let mut d = Dialogue::new(Connection { rnr_retry: 7, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    for _ in 0..50 {
        d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
        d.expect(Opcode::RcSendOnly, d.our_psn(0));
    }
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn a_stale_nak_is_ignored() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 1));
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
    d.say(&Say::nak(NakCode::RemoteAccess, d.our_psn(0), 0));
    d.expect_silence();
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([2]));
}

#[test]
fn refusals_complete_the_request_that_owns_the_psn() {
    let cases = [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
    ];
    for (code, status) in cases {
        let mut d = dialogue();
        d.post_all(&[send(&d, 1, 10), send(&d, 2, 600).unsignaled(), send(&d, 3, 10)]);
        d.hear_burst();
        d.say(&Say::nak(code, d.our_psn(2), 1));
        let expected = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&d.sent()), expected);
        assert_eq!(d.state(), QpState::Err);
        assert_eq!(d.events(), [], "a completion tells it all");
        d.expect_silence_for(1_000_000_000);
    }
}

#[test]
fn a_refusal_behind_an_unanswered_read_is_an_implied_nak_first() {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 0, 16), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::nak(NakCode::RemoteAccess, d.our_psn(1), 1));
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    assert_eq!(statuses(&d.sent()), []);
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn a_sequence_nak_that_is_delivered_twice_costs_one_retry() {
    let mut d = Dialogue::new(Connection { retry_cnt: 1, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    let nak = Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
    d.say_all(&[nak.clone(), nak]);
    assert_eq!(psns(&mut d), [0, 1]);
    assert_eq!(statuses(&d.sent()), []);
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

/// A network that delivers packets several times brings several NAKs of one loss.
#[test]
fn many_naks_of_one_transmission_cost_two_retries() {
    let mut d = Dialogue::new(Connection { retry_cnt: 2, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    let nak = Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
    d.say(&nak);
    assert_eq!(psns(&mut d), [0, 1]);
    for _ in 0..8 {
        d.say(&nak);
        d.expect_silence_for(1_000);
    }
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

/// After an RNR wait the first of two packets is lost, and nothing but a NAK tells of it.
fn lose_after_an_rnr_wait(retry_cnt: u8) -> Dialogue {
    let mut d = Dialogue::new(Connection { timeout: 0, retry_cnt, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    d
}

#[test]
fn a_packet_lost_after_an_rnr_wait_is_sent_again_for_its_nak() {
    let mut d = lose_after_an_rnr_wait(7);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn a_sequence_nak_that_may_still_be_about_an_rnr_nak_costs_no_retry() {
    let mut d = lose_after_an_rnr_wait(0);
    assert_eq!(psns(&mut d), [0, 1]);
    assert_eq!(statuses(&d.sent()), []);
    // Only one may be.
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(0), 0));
    let expected = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

/// Linux's rxe answers each transmission to a queue without a receive with an RNR NAK and, for the
/// packets that it dropped behind it, a sequence NAK. Where the way takes longer than the RNR wait,
/// several transmissions are answered while the last is on its way.
#[test]
fn echoes_of_rnr_naks_that_come_late_neither_multiply_packets_nor_cost_retries() {
    let mut d = Dialogue::new(Connection { retry_cnt: 0, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    let rnr = Say::rnr_nak(1, d.our_psn(0), 0);
    let echo = Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
    let hear_both = |d: &mut Dialogue| {
        for offset in 0..2 {
            d.expect(Opcode::RcSendOnly, d.our_psn(offset));
        }
    };
    hear_both(&mut d);
    for round in 0..30 {
        d.say_all(&[rnr.clone(), echo.clone(), rnr.clone()]);
        hear_both(&mut d);
        d.say_all(&[echo.clone(), rnr.clone(), echo.clone()]);
        d.expect_silence_for(9_000 << round.min(10));
        hear_both(&mut d);
    }
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn each_of_several_rnr_naks_may_have_an_echo() {
    let mut d = Dialogue::new(Connection { retry_cnt: 0, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    let rnr = Say::rnr_nak(1, d.our_psn(0), 0);
    let echo = Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
    assert_eq!(psns(&mut d), [0, 1]);
    // Two transmissions are answered at once; the echo of the second comes after the wait.
    d.say_all(&[rnr.clone(), rnr, echo.clone()]);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&echo);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

/// A peer that answers each transmission with an RNR NAK and, later, a sequence NAK does not hold
/// the requester for ever.
#[test]
fn an_rnr_nak_within_a_pause_costs_a_retry() {
    let mut d = Dialogue::new(Connection { rnr_retry: 2, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    let rnr = Say::rnr_nak(1, d.our_psn(0), 0);
    let echo = Say::nak(NakCode::PsnSequence, d.our_psn(0), 0);
    assert_eq!(psns(&mut d), [0, 1]);
    d.say(&rnr);
    for _ in 0..2 {
        assert_eq!(psns(&mut d), [0, 1]);
        d.say_all(&[echo.clone(), rnr.clone()]);
    }
    let expected = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn a_lost_last_packet_repeats_little_of_a_long_message() {
    let mut pair = Pair::new(1, small_mtu());
    let (a, b) = (pair.a, pair.b);
    pair.world.strike(0, 1, Strike::new(Blow::Drop).opcode(Opcode::RcWriteLast));
    pair.run(a, &SendWr::write(1, &[a.mr.sge(0, 1000 * 256)], b.mr.remote(0)));
    let counters = pair.world.hosts()[0].engine.counters();
    assert_eq!(counters.local_ack_timeout_err, 1);
    let repeated = counters.retransmitted_packets;
    assert!(repeated <= 32, "{repeated} packets were sent again");
}

#[test]
fn few_packets_are_repeated_until_something_is_answered() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 256 * 500));
    assert_eq!(d.hear_burst().len(), 500);
    for _ in 0..3 {
        d.expect(Opcode::RcSendFirst, d.our_psn(0));
        let repeated = d.hear_burst();
        assert_eq!(repeated.len(), 2 * 32 - 1);
        assert!(
            repeated.iter().any(|packet| packet.headers.bth.ack_req),
            "nothing asks for an ACK"
        );
    }
    d.say(&Say::ack(d.our_psn(31), 0));
    assert_eq!(d.hear_burst().len(), 500 - 64, "all that is left");
}
