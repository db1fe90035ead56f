//! The requester's timer: when it runs, when it fires.

use crate::{dialogue, ok, send, small_mtu, statuses};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::verbs::Connection;
use roce_wire::Opcode;

#[test]
fn a_timeout_fires_between_once_and_four_times_its_value() {
    for timeout in [1, 8, 12] {
        let mut d = Dialogue::new(Connection { timeout, ..small_mtu() });
        d.post(&send(&d, 1, 10));
        let first = d.expect(Opcode::RcSendOnly, d.our_psn(0)).at;
        let again = d.expect(Opcode::RcSendOnly, d.our_psn(0)).at;
        let waited = u64::try_from(again.since(first).as_nanos()).unwrap();
        let value = d.connection.ack_timeout();
        assert!((value..=4 * value).contains(&waited), "{waited} ns with a timeout of {value} ns");
    }
}

#[test]
fn a_timeout_of_zero_never_fires() {
    let mut d = Dialogue::new(Connection { timeout: 0, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    d.expect_silence_for(1_000_000_000_000);
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn nothing_outstanding_never_times_out() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.expect_silence_for(100 * d.connection.ack_timeout());
    assert_eq!(d.world.hosts()[0].engine.counters().local_ack_timeout_err, 0);
}

#[test]
fn a_lost_packet_is_sent_again_after_a_timeout() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
}

#[test]
fn progress_reloads_the_rnr_retries() {
    let mut d = Dialogue::new(Connection { rnr_retry: 1, ..small_mtu() });
    let sends: Vec<_> = (0..4).map(|k| send(&d, k, 10)).collect();
    d.post_all(&sends);
    d.hear_burst();
    for k in 0..4 {
        d.say(&Say::rnr_nak(1, d.our_psn(k), k));
        d.expect(Opcode::RcSendOnly, d.our_psn(k));
        d.hear_burst();
    }
    d.say(&Say::ack(d.our_psn(3), 4));
    assert_eq!(statuses(&d.sent()), ok(0..4));
}
