//! A queue pair that is connected to itself, over a wire inside the engine's memory: no ICRC, and
//! payload that stays where it is until it is placed.

mod common;

use common::wire::HeapDma;
use common::{BASE, MEMORY, Node, Options, SPACE, START, attrs, pattern, send_control};
use rnic_abi::verbs::{QpState, WcStatus, WrOpcode};
use rnic_abi::wqe::SendControl;
use rnic_core::ports::{ArenaId, Range, RxIpId, RxTrain, TxIpId, TxSlot, TxTrain, WireCaps};
use rnic_core::{EngineConfig, Wire};

const SIZES: [usize; 7] = [0, 1, 1023, 1024, 1025, 5000, 1 << 20];
/// Where data goes to.
const REMOTE: usize = 4 << 20;
const ARENA: usize = 1 << 20;

/// What is sent is what arrives.
struct Mirror {
    tx: Vec<u8>,
    used: usize,
    sent: Vec<RxTrain>,
    rx: Vec<u8>,
    arrived: Vec<RxTrain>,
    /// Only this engine sees the trains: payload may be sent by reference.
    is_closed: bool,
}

impl Mirror {
    fn new(is_closed: bool) -> Self {
        let (tx, rx) = (vec![1; ARENA], vec![1; ARENA]);
        Self { tx, used: 0, sent: Vec::new(), rx, arrived: Vec::new(), is_closed }
    }
}

impl Wire for Mirror {
    fn caps(&self) -> WireCaps {
        let tx_ip_id = TxIpId::Ours;
        WireCaps { max_datagram: 4192, max_segments: 16, max_train: 65_536, tx_ip_id }
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        if self.arrived.is_empty() {
            std::mem::swap(&mut self.tx, &mut self.rx);
            std::mem::swap(&mut self.sent, &mut self.arrived);
            self.used = 0;
        }
        let count = self.arrived.len().min(trains.capacity() - trains.len());
        trains.extend(self.arrived.drain(..count));
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        &self.rx
    }

    fn release(&mut self) {}

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = (train.segments - 1) * train.segment_len + train.last_len;
        if self.used + len as usize > ARENA {
            return None;
        }
        let (arena, offset) = (ArenaId(0), self.used as u32);
        self.used += len as usize;
        let is_internal = train.to_self && self.is_closed;
        self.sent.push(RxTrain {
            flow: train.flow,
            arena,
            range: Range { offset, len },
            segment_len: if train.segments == 1 { train.last_len } else { train.segment_len },
            ip_id: RxIpId::Seen(train.ip_id),
            is_internal,
        });
        Some(TxSlot { arena, offset, stride: train.segment_len, is_internal })
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let first = self.sent.iter().position(|train| train.range.offset == slot.offset);
        self.sent.truncate(first.expect("no such train"));
        self.used = slot.offset as usize;
    }

    fn tx(&mut self, _: ArenaId) -> &mut [u8] {
        &mut self.tx
    }

    fn submit(&mut self) {}
}

fn node(is_closed: bool, lends: bool) -> Node<Mirror> {
    let mut dma = HeapDma::new(SPACE, BASE, MEMORY);
    dma.lends = lends;
    let mut node = Node::over(1, &Options::default(), Mirror::new(is_closed), dma);
    let (ip, qpn) = (node.ip, node.qpn);
    node.connect(ip, qpn, attrs(), QpState::Rts);
    node
}

fn post(node: &mut Node<Mirror>, opcode: WrOpcode, len: usize) -> Vec<u8> {
    let data = pattern(len as u64, len);
    let (source, target) = if opcode == WrOpcode::Read { (REMOTE, 0) } else { (0, REMOTE) };
    node.dma.bytes[source..source + len].copy_from_slice(&data);
    node.dma.bytes[target..target + len].fill(0);
    if opcode == WrOpcode::Send {
        let sge = node.sge(REMOTE as u64, 1 << 20);
        node.post_recv(5, &[sge]);
    }
    let remote_addr = BASE + REMOTE as u64;
    let control = SendControl { remote_addr, rkey: node.key, ..send_control(opcode, 77) };
    // Two pieces, so that a packet is made of both.
    let cut = len as u32 / 3;
    let sges = [node.sge(0, cut), node.sge(cut.into(), len as u32 - cut)];
    node.post_send(control, &sges);
    data
}

fn assert_done(node: &mut Node<Mirror>, opcode: WrOpcode, data: &[u8]) {
    let cqes = node.poll();
    let expected = if opcode == WrOpcode::Send { 2 } else { 1 };
    assert_eq!(cqes.len(), expected, "{opcode:?} {}: {cqes:?}", data.len());
    assert!(cqes.iter().all(|cqe| cqe.status == WcStatus::Success), "{cqes:?}");
    let carried = cqes.iter().find(|cqe| cqe.carried_len() > 0);
    if let Some(cqe) = carried {
        assert_eq!(&cqe.carried()[..cqe.carried_len()], data);
        return;
    }
    let at = if opcode == WrOpcode::Read { 0 } else { REMOTE };
    assert!(node.dma.bytes[at..at + data.len()] == *data, "{opcode:?} of {} differs", data.len());
}

#[test]
fn data_arrives_however_it_travels() {
    for (is_closed, lends) in [(false, true), (true, false), (true, true)] {
        let mut node = node(is_closed, lends);
        for opcode in [WrOpcode::Write, WrOpcode::Send, WrOpcode::Read] {
            for len in SIZES {
                let data = post(&mut node, opcode, len);
                node.settle(START);
                assert_done(&mut node, opcode, &data);
            }
        }
        assert_eq!(node.dma.copies > 0, is_closed && lends);
        let counters = node.engine.counters();
        assert_eq!((counters.retransmitted_packets, counters.rx_icrc_encapsulated), (0, 0));
    }
}

#[test]
fn whole_packets_of_one_piece_are_copied_once() {
    let mut node = node(true, true);
    node.dma.bytes[..65_536].copy_from_slice(&pattern(1, 65_536));
    let remote_addr = BASE + REMOTE as u64;
    let control = SendControl { remote_addr, rkey: node.key, ..send_control(WrOpcode::Write, 1) };
    let sges = [node.sge(0, 65_536)];
    node.post_send(control, &sges);
    node.settle(START);
    assert_eq!((node.dma.reads, node.dma.writes), (0, 0));
    assert!(node.dma.bytes[REMOTE..REMOTE + 65_536] == pattern(1, 65_536));
}

#[test]
fn a_message_to_oneself_is_read_at_once() {
    const LEN: u32 = 96 << 10;
    let mut node = node(true, false);
    let remote_addr = BASE + REMOTE as u64;
    let control = SendControl { remote_addr, rkey: node.key, ..send_control(WrOpcode::Write, 1) };
    let sges = [node.sge(0, LEN)];
    node.post_send(control, &sges);
    node.turn(START);
    assert!(LEN > EngineConfig::new([0, 0]).visit_bytes, "more than another one may send");
    assert_eq!(node.dma.reads, 1);
}

#[test]
fn what_the_sender_took_away_is_sent_again() {
    let mut node = node(true, true);
    let data = post(&mut node, WrOpcode::Write, 8192);
    node.turn(START);
    // The registration goes, and comes back in memory that is copied.
    node.dma.lends = false;
    node.settle(START);
    assert!(node.engine.counters().rx_lent_gone > 0);
    assert_done(&mut node, WrOpcode::Write, &data);
}
