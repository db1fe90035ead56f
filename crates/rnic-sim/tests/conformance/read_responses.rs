//! The requester and READ responses: lost, wrong, late.

use crate::{ACK, dialogue, fetch_add, ok, read, send, small_mtu, statuses};
use rnic_abi::verbs::WcStatus;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::pair::pattern;
use rnic_sim::verbs::Connection;
use roce_wire::{NakCode, Opcode, Position, Psn};

const MTU: usize = 256;

/// The responses to a READ of `data` whose first PSN is `psn`, with the given opcodes' rules.
fn responses(psn: u32, data: &[u8], msn: u32) -> Vec<Say> {
    let count = data.len().div_ceil(MTU).max(1);
    (0..count)
        .map(|k| {
            let position = Position::new(k == 0, k + 1 == count);
            let opcode = Opcode::rc_read_response(position);
            let offset = u32::try_from(k).unwrap();
            let say = Say::new(opcode, Psn::new(psn).wrapping_add(offset).value());
            let say = say.payload(&data[k * MTU..data.len().min((k + 1) * MTU)]);
            if position == Position::Middle { say } else { say.syndrome(ACK, msn) }
        })
        .collect()
}

/// A READ of four packets, whose responses are all on their way.
fn four_packets() -> (Dialogue, Vec<u8>, Vec<Say>) {
    let mut d = dialogue();
    d.post(&read(&d, 1, 1000, 1000));
    let request = d.expect(Opcode::RcReadRequest, d.our_psn(0));
    let reth = request.headers.reth.unwrap();
    assert_eq!((reth.va, reth.rkey.0, reth.dma_len), (0x5000, 0x99, 1000));
    let data = pattern(1000, 7);
    let responses = responses(d.our_psn(0), &data, 1);
    (d, data, responses)
}

#[test]
fn a_read_uses_one_psn_per_response_packet() {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 0, 1000), send(&d, 2, 10)]);
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    d.expect(Opcode::RcSendOnly, d.our_psn(4));
}

#[test]
fn responses_in_order_complete_a_read() {
    let (mut d, data, responses) = four_packets();
    d.say_all(&responses);
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.memory(1000, 1000), data);
}

/// Loses response `lost`, expects the rest of the READ to be requested again from there when a
/// later response shows the loss (or the timer fires), and answers that.
fn lose(lost: usize) {
    let (mut d, data, mut responses_of_first) = four_packets();
    responses_of_first.remove(lost);
    d.say_all(&responses_of_first);
    let psn = d.our_psn(u32::try_from(lost).unwrap());
    let request = d.expect(Opcode::RcReadRequest, psn);
    let reth = request.headers.reth.unwrap();
    let skipped = lost * MTU;
    assert_eq!(reth.va, 0x5000 + skipped as u64);
    assert_eq!(reth.dma_len as usize, 1000 - skipped);
    assert_eq!(statuses(&d.sent()), []);
    d.say_all(&responses(psn, &data[skipped..], 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.memory(1000, 1000), data);
    d.expect_silence_for(1_000_000_000);
}

#[test]
fn a_lost_first_response_restarts_the_read() {
    lose(0);
}

#[test]
fn a_lost_middle_response_restarts_the_read_there() {
    lose(1);
    lose(2);
}

#[test]
fn a_lost_last_response_is_requested_after_a_timeout() {
    lose(3);
}

#[test]
fn partial_responses_restart_the_timer() {
    let (mut d, data, responses) = four_packets();
    let timeout = d.connection.ack_timeout();
    for response in &responses {
        d.expect_silence_for(timeout * 3 / 4);
        d.say(response);
    }
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.memory(1000, 1000), data);
}

#[test]
fn a_late_duplicate_response_is_ignored() {
    let (mut d, data, responses) = four_packets();
    d.say_all(&responses[..2]);
    d.say_all(&responses[..2]);
    d.say_all(&responses[2..]);
    d.say_all(&responses);
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.memory(1000, 1000), data);
    d.expect_silence();
}

#[test]
fn an_ack_beyond_an_unanswered_read_is_an_implied_nak() {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    d.expect(Opcode::RcSendOnly, d.our_psn(1));
    assert_eq!(statuses(&d.sent()), []);
    d.say_all(&responses(d.our_psn(0), &[3; 16], 1));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn an_ack_beyond_an_unanswered_atomic_is_an_implied_nak() {
    let mut d = dialogue();
    d.post_all(&[fetch_add(&d, 1, 0), send(&d, 2, 10)]);
    let first = d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    let again = d.expect(Opcode::RcFetchAdd, d.our_psn(0));
    assert_eq!(again.headers.atomic, first[0].headers.atomic, "the same request");
    d.hear_burst();
    d.say(&Say::atomic_ack(d.our_psn(0), 1, 4));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn the_next_read_answered_first_is_an_implied_nak() {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 1000, 16), read(&d, 2, 2000, 16)]);
    d.hear_burst();
    d.say_all(&responses(d.our_psn(1), &[2; 16], 2));
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    d.expect(Opcode::RcReadRequest, d.our_psn(1));
    d.say_all(&responses(d.our_psn(0), &[1; 16], 1));
    d.say_all(&responses(d.our_psn(1), &[2; 16], 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    assert_eq!((d.memory(1000, 1), d.memory(2000, 1)), (vec![1], vec![2]));
}

#[test]
fn one_implied_nak_per_loss_costs_a_retry_and_the_timer_does_the_rest() {
    let mut d = Dialogue::new(Connection { retry_cnt: 1, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    d.hear_burst();
    for _ in 0..3 {
        // The rest of a burst of responses says the same again.
        d.say(&Say::ack(d.our_psn(1), 2));
    }
    assert_eq!(d.hear_burst().len(), 2);
    assert_eq!(statuses(&d.sent()), []);
    d.expect_silence_for(4 * d.connection.ack_timeout());
    let expected = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn an_answer_lost_twice_is_asked_for_twice_without_any_timer() {
    let mut d = Dialogue::new(Connection { timeout: 0, retry_cnt: 2, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    assert_eq!(d.hear_burst().len(), 2);
    for _ in 0..2 {
        d.say(&Say::ack(d.our_psn(1), 2));
        d.expect(Opcode::RcReadRequest, d.our_psn(0));
        d.expect(Opcode::RcSendOnly, d.our_psn(1));
    }
    d.say(&Say::ack(d.our_psn(1), 2));
    let expected = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

/// A peer that acknowledges each duplicate answers one repetition with many ACKs.
#[test]
fn many_answers_to_one_transmission_cost_two_retries() {
    let mut d = Dialogue::new(Connection { timeout: 0, retry_cnt: 2, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(d.hear_burst().len(), 2);
    for _ in 0..10 {
        d.say(&Say::ack(d.our_psn(1), 2));
    }
    d.expect_silence_for(9_000);
    assert_eq!(d.hear_burst().len(), 2);
    d.say_all(&responses(d.our_psn(0), &[3; 16], 1));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn a_new_request_answered_before_a_repeated_one_tells_of_another_loss() {
    let mut d = Dialogue::new(Connection { timeout: 0, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(d.hear_burst().len(), 2);
    d.post(&send(&d, 3, 10));
    d.expect(Opcode::RcSendOnly, d.our_psn(2));
    d.say(&Say::ack(d.our_psn(2), 3));
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
}

#[test]
fn what_looks_like_another_loss_is_not_the_end_while_a_timer_runs() {
    let mut d = Dialogue::new(Connection { retry_cnt: 1, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    d.hear_burst();
    for heard in [2, 0, 0] {
        d.say(&Say::ack(d.our_psn(1), 2));
        assert_eq!(d.hear_burst().len(), heard);
    }
    d.say_all(&responses(d.our_psn(0), &[3; 16], 1));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

/// A path that loses only long packets tells of a loss with every round trip, but it may recover
/// within the time of the timer.
#[test]
fn answers_that_tell_of_a_loss_each_time_leave_half_of_the_retries_to_the_timer() {
    let mut d = Dialogue::new(Connection { timeout: 14, ..small_mtu() });
    d.post_all(&[read(&d, 1, 1000, 16), send(&d, 2, 10)]);
    let mut transmissions = 0;
    while d.hear_burst().len() == 2 {
        transmissions += 1;
        d.say(&Say::ack(d.our_psn(1), 2));
        // Longer than a pause, and shorter than the timeout.
        d.world.run_for(1_000_000);
    }
    let Connection { retry_cnt, .. } = d.connection;
    assert_eq!(transmissions, 1 + retry_cnt.div_ceil(2));
    for _ in 0..retry_cnt / 2 {
        d.expect(Opcode::RcReadRequest, d.our_psn(0));
        d.expect(Opcode::RcSendOnly, d.our_psn(1));
    }
    d.say_all(&responses(d.our_psn(0), &[3; 16], 1));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

/// A READ of a hundred packets, and the responses to it.
fn hundred_packets(timeout: u8) -> (Dialogue, Vec<u8>, Vec<Say>) {
    let mut d = Dialogue::new(Connection { timeout, ..small_mtu() });
    d.post(&read(&d, 1, 0, 100 * 256));
    d.expect(Opcode::RcReadRequest, d.our_psn(0));
    let data = pattern(100 * 256, 7);
    let responses = responses(d.our_psn(0), &data, 1);
    (d, data, responses)
}

/// PSNs of everything that is asked for while these arrive, each in a burst of its own.
fn asked_for(d: &mut Dialogue, responses: &[Say]) -> Vec<u32> {
    let mut asked = Vec::new();
    for response in responses {
        d.say(response);
        asked.extend(d.hear_burst().iter().map(|heard| heard.psn()));
    }
    asked
}

#[test]
fn a_response_overtaken_by_others_makes_one_repeated_request() {
    for overtaken in [0, 40] {
        let (mut d, data, mut first) = hundred_packets(0);
        let late = first.remove(overtaken);
        first.insert(overtaken + 3, late);
        let psn = u32::try_from(overtaken).unwrap();
        assert_eq!(asked_for(&mut d, &first), [d.our_psn(psn)]);
        let repeated = responses(d.our_psn(psn), &data[overtaken * MTU..], 1);
        assert_eq!(asked_for(&mut d, &repeated), []);
        assert_eq!(statuses(&d.sent()), ok([1]));
        assert_eq!(d.memory(0, 100 * 256), data);
    }
}

#[test]
fn a_loss_among_repeated_responses_is_asked_for_at_once() {
    for (first_lost, lost) in [(0, 7), (40, 41), (40, 60), (40, 90)] {
        let (mut d, data, mut first) = hundred_packets(0);
        first.remove(first_lost);
        let psn = |k: usize| u32::try_from(k).unwrap();
        // The answer to the request is on its way when the last twenty are still to come.
        first.truncate(80);
        assert_eq!(asked_for(&mut d, &first), [d.our_psn(psn(first_lost))]);
        let mut repeated = responses(d.our_psn(psn(first_lost)), &data[first_lost * MTU..], 1);
        repeated.remove(lost - first_lost);
        assert_eq!(asked_for(&mut d, &repeated), [d.our_psn(psn(lost))]);
        let again = responses(d.our_psn(psn(lost)), &data[lost * MTU..], 1);
        assert_eq!(asked_for(&mut d, &again), []);
        assert_eq!(statuses(&d.sent()), ok([1]));
        assert_eq!(d.memory(0, 100 * 256), data);
    }
}

#[test]
fn a_sequence_nak_within_a_read_requests_the_rest() {
    let (mut d, data, first) = four_packets();
    d.say_all(&first[..2]);
    d.say(&Say::nak(NakCode::PsnSequence, d.our_psn(2), 0));
    let request = d.expect(Opcode::RcReadRequest, d.our_psn(2));
    assert_eq!(request.headers.reth.unwrap().dma_len as usize, 1000 - 2 * MTU);
    d.say_all(&responses(d.our_psn(2), &data[2 * MTU..], 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.memory(1000, 1000), data);
}

/// The one READ outstanding is answered by this and completes with that status.
fn answered_wrongly(say: impl Fn(&Dialogue) -> Say, status: WcStatus) {
    let mut d = dialogue();
    d.post_all(&[read(&d, 1, 1000, 1000), send(&d, 2, 10)]);
    d.hear_burst();
    let say = say(&d);
    d.say(&say);
    assert_eq!(statuses(&d.sent()), [(1, status), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn responses_of_the_wrong_length_are_refused() {
    let first = |len: usize| {
        move |d: &Dialogue| {
            Say::new(Opcode::RcReadRespFirst, d.our_psn(0)).syndrome(ACK, 1).payload(&vec![0; len])
        }
    };
    answered_wrongly(first(255), WcStatus::LocLenErr);
    answered_wrongly(first(0), WcStatus::LocLenErr);
    answered_wrongly(first(257), WcStatus::LocLenErr);
}

#[test]
fn responses_of_the_wrong_kind_are_refused() {
    let kind = |opcode: Opcode, len: usize| {
        move |d: &Dialogue| Say::new(opcode, d.our_psn(0)).payload(&vec![0; len])
    };
    answered_wrongly(kind(Opcode::RcReadRespMiddle, 256), WcStatus::BadRespErr);
    answered_wrongly(|d| Say::atomic_ack(d.our_psn(0), 1, 1), WcStatus::BadRespErr);
}

#[test]
fn a_last_response_too_early_is_refused() {
    let (mut d, _, responses) = four_packets();
    d.say(&responses[0]);
    d.say(&Say::new(Opcode::RcReadRespLast, d.our_psn(1)).syndrome(ACK, 1).payload(&[0; 256]));
    let status = d.sent()[0].status;
    assert!(matches!(status, WcStatus::BadRespErr | WcStatus::LocLenErr), "{status:?}");
}

#[test]
fn a_read_response_for_a_send_is_a_bad_response() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 16));
    d.hear_burst();
    d.say_all(&responses(d.our_psn(0), &[0; 16], 1));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::BadRespErr)]);
}

#[test]
fn a_zero_length_read_is_answered_by_a_response_without_payload() {
    let mut d = dialogue();
    d.post(&read(&d, 1, 1000, 0));
    let request = d.expect(Opcode::RcReadRequest, d.our_psn(0));
    assert_eq!(request.headers.reth.unwrap().dma_len, 0);
    d.say_all(&responses(d.our_psn(0), &[], 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}
