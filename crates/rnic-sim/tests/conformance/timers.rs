//! The requester's timer: when it runs, when it fires.

use crate::{dialogue, ok, read, send, small_mtu, statuses};
use rnic_abi::verbs::{QpState, WcStatus};
use rnic_sim::dialogue::{Dialogue, PEER, Say};
use rnic_sim::link::{Blow, Strike};
use rnic_sim::pair::{End, Pair};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::{World, WorldConfig};
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
fn further_timeouts_wait_longer_and_progress_makes_them_short_again() {
    let mut d = Dialogue::new(Connection { timeout: 8, ..small_mtu() });
    d.post_all(&[send(&d, 1, 10), send(&d, 2, 10)]);
    let value = d.connection.ack_timeout();
    let mut times = Vec::new();
    let mut before = d.hear_burst().last().unwrap().at;
    for psn in [0, 0, 0, 0] {
        let again = d.expect(Opcode::RcSendOnly, d.our_psn(psn)).at;
        d.hear_burst();
        times.push(again.since(before).as_nanos() as u64 * 4 / value);
        before = again;
    }
    assert_eq!(times, [6, 12, 15, 15], "quarters of the timeout");
    d.say(&Say::ack(d.our_psn(0), 1));
    let again = d.expect(Opcode::RcSendOnly, d.our_psn(1)).at;
    assert!(again.since(before).as_nanos() as u64 / value < 3);
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

/// A timeout of 65 us and three retries.
fn impatient() -> Connection {
    Connection { timeout: 4, retry_cnt: 3, ..small_mtu() }
}

/// So many times that timeout, at most, until the retries are over.
const OVER: u64 = 4 * 4;

/// A link that takes nothing, or as much as before again.
fn stop(world: &mut World, is_stopped: bool) {
    let usual = PortConfig::frames();
    let tx_burst = if is_stopped { 0 } else { usual.tx_burst };
    world.host(0).port.configure(PortConfig { tx_burst, ..usual });
}

#[test]
fn retries_end_also_while_the_link_takes_nothing() {
    let mut d = Dialogue::new(impatient());
    d.post(&send(&d, 1, 10));
    d.hear();
    stop(&mut d.world, true);
    d.world.run_for(OVER * d.connection.ack_timeout());
    assert_eq!(statuses(&d.world.host(0).drain(d.nic.send_cq)), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn requests_that_the_link_never_took_fail_whosever_turn_it_is() {
    let mut world = World::new(&WorldConfig::pair(0));
    let ends: Vec<End> = (0..100).map(|_| End::new(&mut world, 0, |_| {})).collect();
    for (end, qpn) in ends.iter().zip(0x70..) {
        world.host(0).connect(end.qp, &impatient(), PEER, qpn);
    }
    stop(&mut world, true);
    for end in &ends {
        let sends = [1, 2].map(|wr_id| SendWr::send(wr_id, &[end.mr.sge(0, 10)]));
        world.host(0).post_sends(end.qp, &sends).unwrap();
    }
    world.run_for(OVER * impatient().ack_timeout());
    let expected = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
    for end in &ends {
        assert_eq!(statuses(&world.host(0).drain(end.send_cq)), expected);
    }
}

#[test]
fn a_link_that_goes_on_in_time_costs_nothing() {
    let mut d = Dialogue::new(impatient());
    stop(&mut d.world, true);
    d.post_all(&[send(&d, 1, 10), read(&d, 2, 0, 16)]);
    d.world.run_for(3 * d.connection.ack_timeout());
    stop(&mut d.world, false);
    let left = d.expect(Opcode::RcSendOnly, d.our_psn(0)).at;
    d.expect(Opcode::RcReadRequest, d.our_psn(1));
    // From now on time counts anew, and the retries when something is answered.
    let again = d.expect(Opcode::RcSendOnly, d.our_psn(0)).at;
    let waited = u64::try_from(again.since(left).as_nanos()).unwrap();
    assert!(waited >= d.connection.ack_timeout(), "{waited} ns");
    d.say(&Say::ack(d.our_psn(0), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    assert_eq!(d.state(), QpState::Rts);
}

#[test]
fn a_drained_queue_waits_for_no_link() {
    let mut d = Dialogue::new(impatient());
    stop(&mut d.world, true);
    d.post(&send(&d, 1, 10));
    d.world.run_for(d.connection.ack_timeout() / 2);
    let qp = d.nic.qp;
    d.world.host(0).set_state(qp, QpState::Sqd);
    d.world.run_for(50 * d.connection.ack_timeout());
    assert_eq!(d.state(), QpState::Sqd, "nothing was started");
    stop(&mut d.world, false);
    d.world.host(0).set_state(qp, QpState::Rts);
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
}

/// Two hosts, of which the first sends one packet a turn; its other queue pairs have much to send.
/// Also returns those.
fn busy_link(connection: Connection) -> (Pair, Vec<End>) {
    let slow = PortConfig { tx_burst: 1, ..PortConfig::frames() };
    let config = WorldConfig { ports: vec![slow, PortConfig::frames()], ..WorldConfig::pair(1) };
    let mut pair = Pair::with(&config, connection, |_| {});
    let mut others = Vec::new();
    for _ in 0..8 {
        let ends = [0, 1].map(|host| End::new(&mut pair.world, host, |_| {}));
        let [a, b] = ends;
        pair.world.connect((0, a.qp), (1, b.qp), &Connection { timeout: 14, ..connection });
        for wr_id in 0..8 {
            let long = SendWr::write(wr_id, &[a.mr.sge(0, 512 * 1024)], b.mr.remote(0));
            pair.world.host(0).post_send(a.qp, &long).unwrap();
        }
        others.push(a);
    }
    (pair, others)
}

#[test]
fn to_wait_for_ones_turn_is_no_timeout() {
    // 12 us, which is much less than the others take for a round.
    let impatient = Connection { timeout: 1, retry_cnt: 1, ..Connection::default() };
    let (mut pair, _) = busy_link(impatient);
    let (a, b) = (pair.a, pair.b);
    pair.recv(b, 1, &[b.mr.sge(0, 64)]);
    pair.world.strike(0, 1, Strike::new(Blow::Drop).opcode(Opcode::RcSendOnly));
    pair.post(a, &SendWr::send(7, &[a.mr.sge(0, 64)]));
    assert_eq!(pair.sent(a).status, WcStatus::Success);
    assert_eq!(pair.world.hosts()[0].engine.counters().local_ack_timeout_err, 1);
}

#[test]
fn a_slow_link_serves_all_queue_pairs_in_turn() {
    let (mut pair, others) = busy_link(Connection::default());
    pair.world.run_for(2_000_000);
    let sent: Vec<u64> = others
        .iter()
        .map(|end| {
            let host = &pair.world.hosts()[0];
            host.engine.qp(host.qp_handle(end.qp)).unwrap().counters.tx_bytes
        })
        .collect();
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least > 100_000 && most - least <= 2 * 66_000, "{sent:?}");
}

/// A request whose ACK arrives before its timeout of 12 us, but behind `bursts` of other packets,
/// of which each takes the engine a turn of 1 us. Returns how many timeouts it saw.
fn timeouts_behind(bursts: u32) -> u64 {
    let mut d = Dialogue::new(Connection { timeout: 1, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    let old = Say::ack(d.our_psn(0x40_0000), 0);
    for _ in 0..bursts * PortConfig::frames().rx_burst {
        d.say(&old);
    }
    d.say(&Say::ack(d.our_psn(0), 1));
    d.world.run_for(1_000_000);
    assert_eq!(statuses(&d.sent()), ok([1]));
    d.world.hosts()[0].engine.counters().local_ack_timeout_err
}

#[test]
fn an_ack_that_has_arrived_is_looked_at_before_the_timer() {
    assert_eq!(timeouts_behind(0), 0);
    assert_eq!(timeouts_behind(50), 0);
}

#[test]
fn a_flood_does_not_stop_timers() {
    assert!(timeouts_behind(90) > 0);
}

/// Every RNR wait overtakes the wheel's entry for the ACK timeout, which may be hours ahead.
#[test]
fn a_peer_that_is_never_ready_does_not_fill_the_timer_wheel() {
    let mut d = Dialogue::new(Connection { timeout: 31, ..small_mtu() });
    d.post(&send(&d, 1, 10));
    for _ in 0..1_000 {
        d.expect(Opcode::RcSendOnly, d.our_psn(0));
        d.say(&Say::rnr_nak(1, d.our_psn(0), 0));
        assert!(d.world.hosts()[0].engine.pending_timers() <= 2);
    }
    assert!(d.world.hosts()[0].engine.counters().rcvd_rnr_err > 500);
}
