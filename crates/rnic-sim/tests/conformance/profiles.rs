//! What differs between profiles, and what does not.

use crate::{ok, send, send_only, small_mtu, statuses, write_only};
use rnic_abi::verbs::WcStatus;
use rnic_core::profile::Profile::{self, ConnectX, Spec};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::verbs::Connection;
use roce_wire::{Opcode, Syndrome};

const BOTH: [Profile; 2] = [Spec, ConnectX];

/// A request of the engine, and its answer to one.
fn request_and_ack(profile: Profile) -> [rnic_sim::dialogue::Heard; 2] {
    let mut d = Dialogue::of(profile, small_mtu());
    d.post(&send(&d, 1, 10));
    let request = d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.say(&Say::ack(d.our_psn(0), 1));
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    [request, d.expect(Opcode::RcAck, d.peer_psn(0))]
}

#[test]
fn the_migration_bit_is_one_and_the_source_port_folded_whatever_the_profile() {
    let [spec, connectx] = BOTH.map(request_and_ack);
    for (a, b) in spec.iter().zip(&connectx) {
        assert!(a.headers.bth.mig_req && b.headers.bth.mig_req);
        assert_eq!(a.flow.sport, b.flow.sport);
        assert!(a.flow.sport >= 0xc000);
    }
    assert_eq!(spec[0].flow.sport, spec[1].flow.sport);
}

#[test]
fn connectx_marks_requests_and_acks_as_ecn_capable() {
    assert_eq!(request_and_ack(Spec).map(|heard| heard.flow.tos), [0, 0]);
    assert_eq!(request_and_ack(ConnectX).map(|heard| heard.flow.tos), [2, 2]);
}

/// PSNs, from the first on, of the packets of a message of 1000 that ask for an ACK.
fn asking(profile: Profile) -> Vec<u32> {
    let connection = Connection { sq_psn: 0, ..small_mtu() };
    let mut d = Dialogue::of(profile, connection);
    d.post(&send(&d, 1, 256_000));
    let burst = d.hear_burst();
    assert_eq!(burst.len(), 1000);
    burst.iter().filter(|heard| heard.headers.bth.ack_req).map(|heard| heard.psn()).collect()
}

#[test]
fn acks_are_asked_for_on_the_way() {
    assert_eq!(asking(ConnectX), [0, 256, 512, 768, 999]);
    let every_32: Vec<u32> = (0..1000).step_by(32).chain([999]).collect();
    assert_eq!(asking(Spec), every_32);
}

#[test]
fn connectx_tells_its_credits() {
    let syndromes = |profile| {
        let mut d = Dialogue::of(profile, small_mtu());
        let sge = d.nic.mr.sge(0, 8);
        (0..3).for_each(|k| d.recv(k, &[sge]));
        let heard = |d: &mut Dialogue, k| {
            d.say(&send_only(d, k, &[1; 8]));
            d.expect(Opcode::RcAck, d.peer_psn(k)).aeth().0
        };
        let acks = [0, 1, 2].map(|k| heard(&mut d, k));
        assert_eq!(statuses(&d.received()), ok(0..3));
        acks
    };
    assert_eq!(syndromes(Spec), [Syndrome::ACK; 3]);
    assert_eq!(syndromes(ConnectX), [2, 1, 0].map(|credits| Syndrome::Ack { credits }));
}

/// Times in milliseconds from one transmission of a packet to the next, until the engine gives up.
fn waits(profile: Profile, connection: Connection) -> Vec<u128> {
    let mut d = Dialogue::of(profile, connection);
    d.post(&send(&d, 1, 10));
    let mut at = d.expect(Opcode::RcSendOnly, d.our_psn(0)).at;
    let mut waits = Vec::new();
    loop {
        d.world.run_for(600_000_000);
        let sent = d.hear_burst();
        for heard in &sent {
            waits.push(heard.at.since(at).as_millis());
            at = heard.at;
        }
        let ended = d.sent();
        if !ended.is_empty() {
            assert_eq!(statuses(&ended), [(1, WcStatus::RetryExcErr)]);
            return waits;
        }
    }
}

#[test]
fn connectx_retransmits_early_and_gives_up_by_time() {
    let connection = Connection { timeout: 14, retry_cnt: 3, ..small_mtu() };
    // Until three times 268 ms have passed, in as many attempts as that takes.
    assert_eq!(waits(ConnectX, connection), [4, 8, 16, 33, 67, 134, 268, 268]);
    assert_eq!(waits(Spec, connection), [100, 201, 251]);
}

#[test]
fn a_connectx_timeout_is_268_ms_at_least() {
    let attempts = |timeout| waits(ConnectX, Connection { timeout, retry_cnt: 1, ..small_mtu() });
    assert_eq!(attempts(1), attempts(16));
    assert_eq!(attempts(1), [4, 8, 16, 33, 67, 134]);
    assert_eq!(attempts(17), [4, 8, 16, 33, 67, 134, 268]);
}

#[test]
fn progress_makes_connectx_impatient_again() {
    let mut d = Dialogue::of(ConnectX, Connection { retry_cnt: 1, ..small_mtu() });
    d.post(&send(&d, 1, 1000));
    // Four timeouts; the fifth would come after another 67 ms.
    d.world.run_for(70_000_000);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 0));
    let progress = d.world.now();
    let again = d.expect(Opcode::RcSendMiddle, d.our_psn(1));
    assert_eq!(again.at.since(progress).as_millis(), 4);
    d.say(&Say::ack(d.our_psn(3), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn a_connectx_that_may_not_retry_does_not() {
    let never = Connection { retry_cnt: 0, ..small_mtu() };
    assert_eq!(waits(ConnectX, never), [0_u128; 0]);
}

/// What is lost, and what comes behind it in the same burst and in another.
fn gaps_and_naks(profile: Profile) -> (u64, u64, usize) {
    let mut d = Dialogue::of(profile, small_mtu());
    let mut heard = 0;
    for lost in [0, 6] {
        let behind: Vec<Say> = (1..4).map(|k| write_only(&d, lost + k, 0, &[1; 8])).collect();
        d.say_all(&behind);
        heard += d.hear_burst().len();
        d.say_all(&behind);
        // The repair comes in the burst of another gap: no NAK of that one is sent.
        let repaired: Vec<Say> = (0..4).map(|k| write_only(&d, lost + k, 0, &[1; 8])).collect();
        d.say_all(&repaired);
        d.say_all(&[5, 4, 5].map(|k| write_only(&d, lost + k, 0, &[1; 8])));
        d.hear_burst();
    }
    let counters = d.world.hosts()[0].engine.counters();
    (counters.out_of_sequence, counters.sent_seq_err, heard)
}

#[test]
fn connectx_counts_gaps_and_others_the_packets_behind_them() {
    assert_eq!(gaps_and_naks(ConnectX), (4, 2, 2));
    assert_eq!(gaps_and_naks(Spec), (14, 2, 2));
}
