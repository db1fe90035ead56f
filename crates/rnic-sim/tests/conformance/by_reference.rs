//! A queue pair that is connected to itself, over internal trains: no ICRC, and payload that stays
//! where it is until it is placed.

use rnic_abi::verbs::{AccessFlags, WcStatus, WrOpcode};
use rnic_core::command::WindowType;
use rnic_core::config::EngineConfig;
use rnic_sim::host::Host;
use rnic_sim::memory::DmaCounts;
use rnic_sim::pair::{End, PATIENCE, pattern};
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, Remote, SendWr};
use rnic_sim::world::{World, WorldConfig};

const SIZES: [u32; 7] = [0, 1, 1023, 1024, 1025, 5000, LONGEST];
const LONGEST: u32 = 1 << 20;
/// Where data goes to.
const REMOTE: u64 = 4 << 20;
const MEMORY: u64 = 8 << 20;

/// A queue pair that is its own peer.
struct Loop {
    world: World,
    end: End,
}

impl Loop {
    fn new(keeps_internal: bool, is_copied_from: bool) -> Self {
        let (max_segments, burst) = (16, 256);
        let port = PortConfig { max_segments, keeps_internal, ..PortConfig::frames() };
        let port = PortConfig { tx_burst: burst, rx_burst: burst, ..port };
        let mut world = World::new(&WorldConfig { ports: vec![port], ..WorldConfig::pair(0) });
        let end = End::with_memory(&mut world, 0, MEMORY, |_| {});
        let host = world.host(0);
        host.memory.is_copied_from = is_copied_from;
        let (ip, qpn) = (host.ip, host.qpn(end.qp));
        let connection = Connection { sq_psn: 0, rq_psn: 0, ..Connection::default() };
        host.connect(end.qp, &connection, ip, qpn);
        Self { world, end }
    }

    fn host(&mut self) -> &mut Host {
        self.world.host(0)
    }

    fn dma(&self) -> DmaCounts {
        self.world.hosts()[0].memory.counts
    }

    /// Posts a message, and what must have arrived where when it is complete.
    fn post(&mut self, opcode: WrOpcode, len: u32) -> Arrival {
        let End { qp, mr, .. } = self.end;
        let (source, target) = if opcode == WrOpcode::Read { (REMOTE, 0) } else { (0, REMOTE) };
        let data = pattern(len.into(), len.into());
        let nothing = vec![0; data.len()];
        self.host().write_bytes(mr.addr + source, &data);
        self.host().write_bytes(mr.addr + target, &nothing);
        // Two pieces, so that a packet is made of both.
        let cut = len / 3;
        let sges = [mr.sge(0, cut), mr.sge(cut.into(), len - cut)];
        let wr = match opcode {
            WrOpcode::Read => SendWr::read(77, &sges, mr.remote(REMOTE)),
            WrOpcode::Write => SendWr::write(77, &sges, mr.remote(REMOTE)),
            _ => SendWr::send(77, &sges),
        };
        if opcode == WrOpcode::Send {
            self.host().post_recv(qp, 5, &[mr.sge(REMOTE, LONGEST)]).expect("room");
        }
        self.host().post_send(qp, &wr).expect("room");
        Arrival { opcode, at: mr.addr + target, data }
    }

    fn assert_done(&mut self, arrival: &Arrival) {
        let Arrival { opcode, at, data } = arrival;
        self.world.run_to_silence(PATIENCE);
        self.world.check();
        let End { send_cq, recv_cq, .. } = self.end;
        let mut completions = self.host().drain(send_cq);
        completions.extend(self.host().drain(recv_cq));
        let expected = if *opcode == WrOpcode::Send { 2 } else { 1 };
        assert_eq!(completions.len(), expected, "{opcode:?} {}: {completions:?}", data.len());
        assert!(completions.iter().all(|cqe| cqe.status == WcStatus::Success), "{completions:?}");
        let arrived = self.host().bytes(*at, data.len() as u64);
        assert!(arrived == data, "{opcode:?} of {} differs", data.len());
    }
}

/// What a message brings.
struct Arrival {
    opcode: WrOpcode,
    at: u64,
    data: Vec<u8>,
}

#[test]
fn data_arrives_however_it_travels() {
    for (keeps_internal, is_copied_from) in [(false, true), (true, false), (true, true)] {
        let mut own = Loop::new(keeps_internal, is_copied_from);
        for opcode in [WrOpcode::Write, WrOpcode::Send, WrOpcode::Read] {
            for len in SIZES {
                let arrival = own.post(opcode, len);
                own.assert_done(&arrival);
            }
        }
        assert_eq!(own.dma().copies > 0, keeps_internal && is_copied_from);
        let counters = own.host().engine.counters();
        assert_eq!((counters.retransmitted_packets, counters.rx_icrc_encapsulated), (0, 0));
    }
}

#[test]
fn whole_packets_of_one_piece_are_copied_once() {
    const LEN: u32 = 65_536;
    let mut own = Loop::new(true, true);
    let End { qp, mr, .. } = own.end;
    let data = pattern(LEN.into(), 1);
    own.host().write_bytes(mr.addr, &data);
    let write = SendWr::write(1, &[mr.sge(0, LEN)], mr.remote(REMOTE));
    own.host().post_send(qp, &write).expect("room");
    own.assert_done(&Arrival { opcode: WrOpcode::Write, at: mr.addr + REMOTE, data });
    assert_eq!((own.dma().reads, own.dma().writes), (0, 0));
}

/// What the peer reads through a window is taken before the program can take the window away.
#[test]
fn the_answer_through_a_window_is_copied_when_it_is_sent() {
    const LEN: u32 = 65_536;
    let mut own = Loop::new(true, true);
    let End { qp, pd, send_cq, mr, .. } = own.end;
    let host = own.host();
    let lent = host.new_mr(pd, LEN.into(), AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND);
    let data = pattern(LEN.into(), 1);
    host.write_bytes(lent.addr, &data);
    let key = host.alloc_mw(pd, WindowType::One).next_key();
    let bind = SendWr::bind(1, key, (&lent, 0, LEN.into()), AccessFlags::REMOTE_READ);
    let read = SendWr::read(2, &[mr.sge(0, LEN)], Remote { addr: lent.addr, rkey: key });
    host.post_sends(qp, &[bind, read]).expect("room");
    own.world.run_to_silence(PATIENCE);
    own.world.check();
    let done = own.host().drain(send_cq);
    assert!(done.len() == 2 && done.iter().all(|cqe| cqe.status == WcStatus::Success), "{done:?}");
    assert!(own.host().bytes(mr.addr, LEN.into()) == data);
    assert_eq!(own.dma().copies, 0);
}

#[test]
fn a_message_to_oneself_is_read_at_once() {
    const LEN: u32 = 96 << 10;
    let mut own = Loop::new(true, false);
    let End { qp, mr, .. } = own.end;
    let write = SendWr::write(1, &[mr.sge(0, LEN)], mr.remote(REMOTE));
    own.host().post_send(qp, &write).expect("room");
    assert!(own.world.step(), "a turn");
    assert!(LEN > EngineConfig::new([0, 0]).visit_bytes, "more than another one may send");
    assert_eq!(own.dma().reads, 1);
}

#[test]
fn what_the_sender_took_away_is_sent_again() {
    let mut own = Loop::new(true, true);
    let arrival = own.post(WrOpcode::Write, 8192);
    assert!(own.world.step(), "a turn");
    // The registration goes, and comes back in memory that is copied.
    own.host().memory.is_copied_from = false;
    own.assert_done(&arrival);
    assert!(own.host().engine.counters().rx_lent_gone > 0);
}
