//! Whatever links do, a datagram arrives whole or not at all, and what is told of it is true.

use crate::{AREA, Party};
use rnic_abi::verbs::WcStatus;
use rnic_sim::link::Faults;
use rnic_sim::pair::{End, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::rng::Rng;
use rnic_sim::sweep;
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::WorldConfig;

/// Datagrams of one world.
const DATAGRAMS: u64 = 200;
/// Datagrams on their way at a time, and receives posted for each of them: copies take some.
const AT_ONCE: u64 = 8;
const RECEIVES: u64 = 4;
/// Bytes of a receive, and so the distance between two.
const BUFFER: u32 = 1024 + AREA;

fn length(id: u64) -> u32 {
    u32::try_from(id * id * 7 % 1025).unwrap()
}

#[test]
fn a_datagram_arrives_whole_or_not_at_all() {
    let mut lost = 0;
    for seed in sweep::seeds(300) {
        let mut rng = Rng::new(seed ^ 0x7564);
        let faults = Faults::rough(&mut rng, &[0, 10_000, 100_000]);
        let config = WorldConfig { faults, ..WorldConfig::random_pair(seed) };
        let mut party = Party::new(&config, &[0, 1]);
        let (a, b, to) = (party.ends[0], party.ends[1], party.way(0, 1));
        let mut told = Vec::new();
        let (mut posted, mut polled) = (0, 0);
        for first in (0..DATAGRAMS).step_by(AT_ONCE as usize) {
            while posted < polled + AT_ONCE * RECEIVES {
                let at = posted % (AT_ONCE * RECEIVES) * u64::from(BUFFER);
                party.recv(1, posted, b.mr, at, BUFFER);
                posted += 1;
            }
            for id in first..first + AT_ONCE {
                let (len, at) = (length(id), id % AT_ONCE * 2048);
                party.world.host(0).write_bytes(a.mr.addr + at, &pattern(len.into(), id + 1));
                let wr = SendWr::send(id, &[a.mr.sge(at, len)]);
                party.post(0, &wr.with_imm(u32::try_from(id).unwrap()).to(to));
            }
            let (sent, _) = party.completions(0);
            let expected = (first..first + AT_ONCE).map(|id| (id, WcStatus::Success));
            assert!(sent.iter().map(|cqe| (cqe.wr_id, cqe.status)).eq(expected));
            for cqe in party.completions(1).1 {
                assert_eq!(cqe.status, WcStatus::Success);
                let (id, at) = (u64::from(cqe.imm_or_key), cqe.wr_id % (AT_ONCE * RECEIVES));
                assert_eq!(cqe.byte_len, length(id) + AREA, "seed {seed}");
                let at = b.mr.addr + at * u64::from(BUFFER) + u64::from(AREA);
                let data = party.world.host(1).bytes(at, length(id).into());
                assert!(data == pattern(length(id).into(), id + 1), "seed {seed}, datagram {id}");
                told.push(id);
                polled += 1;
            }
        }
        let counts = party.world.fault_counts();
        let arrived = told.len();
        if counts.reordered == 0 && counts.duplicated == 0 {
            assert!(told.is_sorted(), "seed {seed}: {told:?}");
        }
        told.sort_unstable();
        told.dedup();
        if counts.duplicated == 0 {
            assert_eq!(told.len(), arrived, "seed {seed}: something came twice");
            // Each datagram that is harmed is lost, and no other.
            assert_eq!(DATAGRAMS - told.len() as u64, counts.harmed(), "seed {seed}");
        }
        lost += DATAGRAMS - told.len() as u64;
        let again = party.world.hosts()[0].engine.counters().retransmitted_packets;
        assert_eq!(again, 0, "seed {seed}: a datagram was repeated");
    }
    assert!(lost > 0 || sweep::is_replay());
}

/// A ring that one datagram leaves per turn never has room for a train while datagrams take that
/// room: those go the same way, and must wait for the train.
#[test]
fn short_datagrams_do_not_take_the_room_that_a_train_waits_for() {
    const LEN: u32 = 64 << 10;
    let port = PortConfig { tx_burst: 16, leaving: 1, ..PortConfig::trains() };
    let mut party =
        Party::new(&WorldConfig { ports: vec![port; 2], ..WorldConfig::pair(0) }, &[0, 1]);
    // By two handles in turn: no two of them are a train.
    let ways = [party.way(0, 1), party.way(0, 1)];
    let (a, b) = (End::new(&mut party.world, 0, |_| {}), End::new(&mut party.world, 1, |_| {}));
    party.world.connect((0, a.qp), (1, b.qp), &Connection::default());
    let datagrams = party.ends[0];
    let datagram = |nth: usize| SendWr::send(1, &[datagrams.mr.sge(0, 1024)]).to(ways[nth % 2]);
    for nth in 0..40 {
        party.post(0, &datagram(nth));
    }
    let write = SendWr::write(7, &[a.mr.sge(0, LEN)], b.mr.remote(0));
    party.world.host(0).post_send(a.qp, &write).expect("room in the queue");
    let mut sent = 0;
    while party.world.host(0).poll(a.send_cq).is_none() {
        for _ in party.world.host(0).drain(datagrams.send_cq) {
            party.post(0, &datagram(sent));
            sent += 1;
        }
        assert!(sent < 1000, "the trains never leave");
        assert!(party.world.step(), "the write completes");
    }
    assert!(sent > 40, "the datagrams leave, too: {sent}");
}
