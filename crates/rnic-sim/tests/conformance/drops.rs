//! Packets that a queue pair must not even answer.

use crate::{ACK, dialogue, ok, send, send_only, small_mtu, statuses, write_only};
use rnic_core::counters::Counters;
use rnic_sim::dialogue::{Dialogue, PEER, Say};
use rnic_sim::port::{Packet, PortConfig};
use roce_wire::headers::{Bth, Reth};
use roce_wire::{Flow, HeaderRepr, Opcode, PKey, Psn, Qpn, RKey, icrc};
use std::net::{IpAddr, Ipv4Addr};

/// The packet is dropped without an answer, and counted there and nowhere else.
#[track_caller]
fn dropped(mut d: Dialogue, say: &Say, counter: fn(&Counters) -> u64) {
    d.say(say);
    d.expect_silence();
    let counters = *d.world.hosts()[0].engine.counters();
    assert_eq!((counter(&counters), counters.rx_packets), (1, 1), "{counters:?}");
    assert_eq!(d.memory(0, 8), [0; 8]);
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
}

#[test]
fn packets_for_nobody() {
    let mut d = dialogue();
    let qpn = d.world.hosts()[0].qpn(d.nic.qp);
    for bit in 0..24 {
        let other = Qpn::new(qpn ^ 1 << bit);
        d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.dest_qp = other));
    }
    d.expect_silence();
    assert_eq!(d.memory(0, 8), [0; 8]);
    // A number of another shard is that shard's business.
    let counted = d.world.hosts()[0].engine.counters().rx_no_qp;
    assert!((1..=24).contains(&counted), "{counted}");
}

#[test]
fn a_packet_of_another_transport() {
    let d = dialogue();
    let say = Say::new(Opcode::UcSendOnly, d.peer_psn(0));
    dropped(d, &say, |c| c.rx_bad_transport);
}

#[test]
fn a_packet_of_another_partition() {
    let d = dialogue();
    let say = write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.pkey = PKey(0x8001));
    dropped(d, &say, |c| c.bad_pkey_violations);
}

#[test]
fn a_limited_member_of_the_default_partition_is_welcome() {
    let mut d = dialogue();
    d.say(&write_only(&d, 0, 0, &[1; 8]).with(|h| h.bth.pkey = PKey(0x7fff)));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
}

#[test]
fn reserved_bits_and_the_migration_bit_do_not_matter() {
    let mut d = dialogue();
    let odd = write_only(&d, 0, 0, &[1; 8]).with(|h| {
        h.bth.mig_req = false;
        h.bth.resv6 = 0x10;
        h.bth.resv7 = 0x7f;
        h.bth.fecn = true;
    });
    d.say(&odd);
    d.expect_aeth(d.peer_psn(0), ACK, 1);
}

/// Delivers bytes that the peer never sent so.
fn forge(d: &mut Dialogue, src: IpAddr, change: impl FnOnce(&mut Vec<u8>), seal: bool) {
    let qpn = Qpn::new(d.world.hosts()[0].qpn(d.nic.qp));
    let psn = Psn::new(d.peer_psn(0));
    let mut headers = HeaderRepr::new(Bth::new(Opcode::RcSendOnly, qpn, psn));
    headers.bth.ack_req = true;
    let flow = Flow::new(src, d.world.hosts()[0].ip, 0xc000);
    let mut bytes = vec![0; headers.datagram_len(8)];
    headers.emit(&mut bytes);
    headers.write_pad_and_icrc(&flow, 9, &mut bytes);
    change(&mut bytes);
    if seal && bytes.len() >= 4 {
        icrc::seal(&flow, 9, &mut bytes);
    }
    d.world.inject(0, Packet { flow, ip_id: 9, bytes: bytes.into() });
}

fn forged(
    port: PortConfig,
    src: IpAddr,
    change: impl FnOnce(&mut Vec<u8>),
    seal: bool,
    counter: fn(&Counters) -> u64,
) {
    let mut d = Dialogue::with(small_mtu(), port, |_| {});
    d.recv(1, &[d.nic.mr.sge(0, 8)]);
    forge(&mut d, src, change, seal);
    d.expect_silence();
    let counters = *d.world.hosts()[0].engine.counters();
    assert_eq!(counter(&counters), 1, "{counters:?}");
    assert_eq!(statuses(&d.received()), []);
    d.say(&send_only(&d, 0, &[1; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    assert_eq!(statuses(&d.received()), ok([1]));
}

#[test]
fn a_packet_from_another_address() {
    let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    forged(PortConfig::frames(), other, |_| {}, true, |c| c.rx_bad_address);
}

#[test]
fn a_wrong_bit_in_every_byte_that_the_icrc_covers() {
    for port in [PortConfig::frames(), PortConfig::trains()] {
        for at in (0..24).filter(|at| *at != 4) {
            let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 0x04;
            forged(port, PEER, flip, false, |c| c.rx_icrc_encapsulated + c.rx_malformed);
        }
    }
}

#[test]
fn malformed_packets() {
    let malformed = |change: fn(&mut Vec<u8>)| {
        forged(PortConfig::frames(), PEER, change, true, |c| c.rx_malformed);
    };
    // Transport header version 1.
    malformed(|bytes| bytes[1] |= 1);
    // An opcode that does not exist.
    malformed(|bytes| bytes[0] = 0x1f);
    // Cut in the middle, even down to nothing.
    malformed(|bytes| bytes.truncate(15));
    malformed(|bytes| bytes.truncate(4));
    malformed(Vec::clear);
    // Not a multiple of four.
    malformed(|bytes| bytes.push(0));
    // A READ request without room for its RETH.
    malformed(|bytes| {
        bytes[0] = Opcode::RcReadRequest.code();
        bytes.truncate(20);
    });
}

#[test]
fn a_reserved_operation_of_the_rc_class_is_refused_or_dropped() {
    let mut d = dialogue();
    forge(&mut d, PEER, |bytes| bytes[0] = 0x1f, true);
    let heard = d.hear_burst();
    assert!(heard.len() <= 1, "{heard:?}");
}

#[test]
fn responses_nobody_asked_for() {
    let mut d = dialogue();
    for opcode in [Opcode::RcReadRespOnly, Opcode::RcReadRespMiddle, Opcode::RcAtomicAck] {
        d.say(&Say::new(opcode, d.our_psn(0)));
        d.say(&Say::new(opcode, d.our_psn(0xff_ffff)));
    }
    d.expect_silence();
    d.post(&send(&d, 1, 8));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
}

/// The ICRC covers the flag. Most senders set it, and not all.
#[test]
fn a_packet_that_may_be_fragmented_is_received_as_any_other() {
    for port in [PortConfig::frames(), PortConfig::trains()] {
        let mut d = Dialogue::with(small_mtu(), port, |_| {});
        let qpn = Qpn::new(d.world.hosts()[0].qpn(d.nic.qp));
        let flow = Flow { df: false, ..Flow::new(PEER, d.world.hosts()[0].ip, 0xc000) };
        for k in 0..3 {
            let psn = Psn::new(d.peer_psn(k));
            let mut headers = HeaderRepr::new(Bth::new(Opcode::RcWriteOnly, qpn, psn));
            headers.bth.ack_req = true;
            headers.reth = Some(Reth { va: 0, rkey: RKey(0), dma_len: 0 });
            let mut bytes = vec![0; headers.datagram_len(0)];
            headers.emit(&mut bytes);
            let ip_id = 0xfffe_u16.wrapping_add(k as u16);
            headers.write_pad_and_icrc(&flow, ip_id, &mut bytes);
            d.world.inject(0, Packet { flow, ip_id, bytes: bytes.into() });
        }
        d.expect_aeth(d.peer_psn(2), ACK, 3);
    }
}

#[test]
fn a_congestion_notification_is_counted() {
    let mut d = dialogue();
    let qpn = Qpn::new(d.world.hosts()[0].qpn(d.nic.qp));
    let flow = Flow::new(PEER, d.world.hosts()[0].ip, 0);
    let headers = HeaderRepr::cnp(qpn);
    let mut bytes = vec![0; headers.datagram_len(0)];
    headers.emit(&mut bytes);
    headers.write_pad_and_icrc(&flow, 0, &mut bytes);
    d.world.inject(0, Packet { flow, ip_id: 0, bytes: bytes.into() });
    d.expect_silence();
    assert_eq!(d.world.hosts()[0].engine.counters().rp_cnp_handled, 1);
}
