//! The requester and acknowledgements.

use crate::{dialogue, fetch_add, ok, read, send, small_mtu, statuses};
use rnic_abi::verbs::WcStatus;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::verbs::Connection;
use roce_wire::{Opcode, Syndrome};

#[test]
fn an_ack_coalesces_several_messages() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 600), send(&d, 3, 0)]);
    let burst = d.hear_burst();
    let opcodes: Vec<Opcode> = burst.iter().map(|heard| heard.opcode()).collect();
    assert_eq!(
        opcodes,
        [
            Opcode::RcSendOnly,
            Opcode::RcSendFirst,
            Opcode::RcSendMiddle,
            Opcode::RcSendLast,
            Opcode::RcSendOnly
        ]
    );
    assert!(burst[4].headers.bth.ack_req, "the last packet asks for an ACK");
    assert_eq!(statuses(&d.sent()), []);
    d.say(&Say::ack(d.our_psn(3), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    d.say(&Say::ack(d.our_psn(4), 3));
    assert_eq!(statuses(&d.sent()), ok([3]));
}

#[test]
fn an_ack_in_the_middle_of_a_message_completes_nothing() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 1000));
    assert_eq!(d.hear_burst().len(), 4);
    d.say(&Say::ack(d.our_psn(2), 0));
    assert_eq!(statuses(&d.sent()), []);
    d.say(&Say::ack(d.our_psn(3), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn the_msn_alone_completes_nothing() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 2));
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([2]));
}

#[test]
fn a_ghost_ack_of_the_past_is_ignored() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.post(&send(&d, 2, 10));
    d.hear_burst();
    for _ in 0..3 {
        d.say(&Say::ack(d.our_psn(0), 1));
    }
    assert_eq!(statuses(&d.sent()), []);
    d.expect_silence();
    d.say(&Say::ack(d.our_psn(1), 2));
    assert_eq!(statuses(&d.sent()), ok([2]));
}

#[test]
fn an_ack_of_what_was_never_sent_is_ignored() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    d.say(&Say::ack(d.our_psn(1), 2));
    d.say(&Say::ack(d.our_psn(0x40_0000), 2));
    assert_eq!(statuses(&d.sent()), []);
    assert_eq!(d.world.hosts()[0].engine.counters().rx_ghost_response, 2);
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn an_ack_with_nothing_outstanding_is_ignored() {
    let mut d = dialogue();
    d.say(&Say::ack(d.our_psn(0), 0));
    d.say(&Say::ack(d.our_psn(0xff_ffff), 0));
    assert_eq!(statuses(&d.sent()), []);
    d.expect_silence();
}

#[test]
fn reserved_syndromes_are_ignored() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 10));
    d.hear_burst();
    for byte in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff] {
        let psn = d.our_psn(0);
        d.say(&Say::new(Opcode::RcAck, psn).syndrome(Syndrome::Reserved(byte), 1));
    }
    assert_eq!(statuses(&d.sent()), []);
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

#[test]
fn psns_wrap_with_messages_in_flight() {
    let mut d = Dialogue::new(Connection { sq_psn: 0xff_fffd, ..small_mtu() });
    d.post_all(&[send(&d, 1, 500), send(&d, 2, 500), send(&d, 3, 10)]);
    let psns: Vec<u32> = d.hear_burst().iter().map(|heard| heard.psn()).collect();
    assert_eq!(psns, [0xff_fffd, 0xff_fffe, 0xff_ffff, 0, 1]);
    d.say(&Say::ack(0, 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    d.say(&Say::ack(0xff_ffff, 2));
    d.say(&Say::ack(1, 3));
    assert_eq!(statuses(&d.sent()), ok([3]));
}

#[test]
fn a_read_response_acknowledges_earlier_sends() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10), read(&d, 3, 1000, 16)]);
    d.hear_burst();
    let psn = d.our_psn(2);
    d.say(&Say::new(Opcode::RcReadRespOnly, psn).syndrome(Syndrome::ACK, 3).payload(&[7; 16]));
    assert_eq!(statuses(&d.sent()), ok([1, 2, 3]));
    assert_eq!(d.memory(1000, 16), [7; 16]);
}

#[test]
fn an_atomic_response_acknowledges_earlier_sends() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), fetch_add(&d, 2, 64)]);
    d.hear_burst();
    d.say(&Say::atomic_ack(d.our_psn(1), 2, 0x1234_5678_9abc_def0));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
    assert_eq!(d.memory(64, 8), 0x1234_5678_9abc_def0_u64.to_ne_bytes());
}

#[test]
fn an_atomic_response_for_a_send_is_a_bad_response() {
    let mut d = dialogue();
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    d.hear_burst();
    d.say(&Say::atomic_ack(d.our_psn(0), 1, 5));
    let expected = [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&d.sent()), expected);
}

#[test]
fn long_messages_ask_for_acks_on_the_way() {
    let mut d = dialogue();
    d.post(&send(&d, 1, 900_000));
    let mut asked = 0;
    let mut heard = 0;
    loop {
        let burst = d.hear_burst();
        let Some(last) = burst.last() else { break };
        heard += burst.len();
        asked += burst.iter().filter(|packet| packet.headers.bth.ack_req).count();
        d.say(&Say::ack(last.psn(), 0));
    }
    assert_eq!(heard, 900_000_usize.div_ceil(256));
    assert!(asked > 3, "{asked} packets asked for an ACK");
    assert_eq!(statuses(&d.sent()), ok([1]));
}
