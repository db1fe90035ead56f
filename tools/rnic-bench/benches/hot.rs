//! The engine's hot paths: two engines connected by a wire that swaps buffers, and memory that is
//! not copied.
//!
//! A case is `OPERATION-BYTES`. The operations are `write`, `read`, `send`; `srq`, a SEND to a
//! queue pair that takes its receives from a shared queue, as a few idle queue pairs do; and
//! `crowded-srq`, the same where they are many.
//!
//! `cargo bench -p rnic-bench --bench hot` times each case. `hot CASE MESSAGES` is for counting
//! instructions: it warms up, then runs MESSAGES messages. With the feature `observe` the engine
//! can be watched, as the daemon's can, and is where a third word `watched` follows. The turns that
//! count are `requester_turn` and `responder_turn`; `cargo xtask budget` has callgrind collect in
//! one of them.

mod node;

use std::hint::black_box;
use std::time::Instant as Clock;

use node::{BASE, Node, Receives, START, attrs, send_control};
use rnic_abi::verbs::{QpAttr, WrOpcode};
use rnic_core::Instant;
use rnic_core::ports::{
    ArenaId, Dma, DmaFault, MemRange, Range, RxIpId, RxTrain, SpaceId, TxIpId, TxSlot, TxTrain,
    Wire, WireCaps,
};

/// Trains sent in one turn at most.
const TRAINS: usize = 256;
/// Messages in flight at most.
const DEPTH: usize = 32;
/// Warm-up messages, which are not counted.
const WARM_UP: usize = 2 * DEPTH;

/// Idle queue pairs that share a receive queue with the busy one.
const FEW: u32 = 10;
const MANY: u32 = 10_000;

/// What is timed, and how many messages of it.
const CASES: [(&str, usize); 7] = [
    ("write-65536", 20_000),
    ("read-65536", 20_000),
    ("send-65536", 20_000),
    ("write-4096", 200_000),
    ("send-64", 500_000),
    ("send-2", 500_000),
    ("srq-2", 500_000),
];

struct SwapWire {
    rx: Vec<u8>,
    tx: Vec<u8>,
    incoming: Vec<RxTrain>,
    outgoing: Vec<RxTrain>,
    used: u32,
}

impl SwapWire {
    fn new() -> Self {
        let trains = || Vec::with_capacity(TRAINS);
        let arena = || vec![0; 1 << 20];
        Self { rx: arena(), tx: arena(), incoming: trains(), outgoing: trains(), used: 0 }
    }

    /// What one side sent becomes what its peer receives.
    fn pass_to(&mut self, peer: &mut Self) {
        if peer.incoming.is_empty() && !self.outgoing.is_empty() {
            std::mem::swap(&mut self.tx, &mut peer.rx);
            std::mem::swap(&mut self.outgoing, &mut peer.incoming);
            self.used = 0;
        }
    }
}

impl Wire for SwapWire {
    fn caps(&self) -> WireCaps {
        let tx_ip_id = TxIpId::Ours;
        WireCaps { max_datagram: 4200, max_segments: 64, max_train: 65_000, tx_ip_id }
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let count = (trains.capacity() - trains.len()).min(self.incoming.len());
        trains.extend(self.incoming.drain(..count));
    }

    fn rx(&self, _arena: ArenaId) -> &[u8] {
        &self.rx
    }

    fn release(&mut self) {}

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = (train.segments - 1) * train.segment_len + train.last_len;
        if (self.used + len) as usize > self.tx.len() || self.outgoing.len() == TRAINS {
            return None;
        }
        let (arena, offset) = (ArenaId(0), self.used);
        self.used += len;
        let range = Range { offset, len };
        let ip_id = RxIpId::Seen(train.ip_id);
        let (flow, segment_len) = (train.flow, train.segment_len);
        self.outgoing.push(RxTrain { flow, arena, range, segment_len, ip_id, is_internal: false });
        Some(TxSlot { arena, offset, stride: segment_len, is_internal: false })
    }

    fn cancel_from(&mut self, _slot: &TxSlot) {}

    fn tx(&mut self, _arena: ArenaId) -> &mut [u8] {
        &mut self.tx
    }

    fn submit(&mut self) {}
}

/// Memory without bytes.
struct NoDma;

impl Dma for NoDma {
    fn read(
        &mut self,
        _space: SpaceId,
        _from: &[MemRange],
        _arena: &mut [u8],
        _to: &[Range],
    ) -> Result<(), DmaFault> {
        Ok(())
    }

    fn write(
        &mut self,
        _space: SpaceId,
        _arena: &[u8],
        _from: &[Range],
        _to: &[MemRange],
        _tails: &[u64],
    ) -> Result<(), DmaFault> {
        Ok(())
    }

    fn atomic(
        &mut self,
        _space: SpaceId,
        _addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        Ok(update(0))
    }
}

type Side = Node<SwapWire, NoDma>;

/// Two connected sides and one message that is sent again and again.
struct Stage {
    requester: Side,
    responder: Side,
    opcode: WrOpcode,
    len: u32,
    now: Instant,
}

impl Stage {
    fn new(opcode: WrOpcode, len: u32, receives: Receives) -> Self {
        let mut requester = Node::new(1, SwapWire::new(), NoDma, Receives::Own);
        let mut responder = Node::new(2, SwapWire::new(), NoDma, receives);
        let attr = QpAttr { path_mtu: 5, ..attrs() };
        let (ips, qpns) = ((requester.ip, responder.ip), (requester.qpn, responder.qpn));
        requester.connect(ips.1, qpns.1, attr);
        responder.connect(ips.0, qpns.0, attr);
        Self { requester, responder, opcode, len, now: START }
    }

    fn run(&mut self, messages: usize, counted: bool) {
        let (mut posted, mut completed) = (0, 0);
        while completed < messages {
            while posted < messages && posted - completed < DEPTH {
                self.post();
                posted += 1;
            }
            self.now = self.now.after_nanos(1000);
            if counted {
                requester_turn(&mut self.requester, self.now);
            } else {
                self.requester.turn(self.now);
            }
            self.requester.wire.pass_to(&mut self.responder.wire);
            if counted {
                responder_turn(&mut self.responder, self.now);
            } else {
                self.responder.turn(self.now);
            }
            self.responder.wire.pass_to(&mut self.requester.wire);
            completed += self.requester.poll().len();
            self.responder.poll();
        }
    }

    /// Has both sides watched, if that is said.
    fn watch(&mut self, words: &[&str]) {
        #[cfg(feature = "observe")]
        if words == ["watched"] {
            self.requester.observed = Some(Vec::new());
            self.responder.observed = Some(Vec::new());
            return;
        }
        assert!(words.is_empty(), "{words:?} is not understood, or needs the feature observe");
    }

    fn post(&mut self) {
        if self.opcode == WrOpcode::Send {
            let sge = self.responder.sge(0, self.len);
            self.responder.post_recv(1, &[sge]);
        }
        let control = send_control(self.opcode, 1);
        let control =
            rnic_abi::wqe::SendControl { remote_addr: BASE, rkey: self.responder.key, ..control };
        let sge = self.requester.sge(0, self.len);
        self.requester.post_send(control, &[sge]);
    }
}

// Two different functions, so that the compiler does not merge them.
#[inline(never)]
fn requester_turn(side: &mut Side, now: Instant) {
    black_box(1);
    side.turn(now);
}

#[inline(never)]
fn responder_turn(side: &mut Side, now: Instant) {
    black_box(2);
    side.turn(now);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` and `cargo test` pass flags of the test harness.
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
    match words[..] {
        [case, messages, ref watched @ ..] => {
            let mut stage = stage(case);
            stage.watch(watched);
            stage.run(WARM_UP, false);
            stage.run(messages.parse().expect("a number of messages"), true);
        }
        _ => CASES.into_iter().for_each(time),
    }
}

/// How long messages take on both sides together, without copies of the payload.
fn time((case, messages): (&str, usize)) {
    let mut stage = stage(case);
    stage.run(WARM_UP, false);
    let began = Clock::now();
    stage.run(messages, false);
    let nanos = began.elapsed().as_nanos() as f64 / messages as f64;
    println!("{case:<16} {nanos:>8.0} ns/message {:>8.2} GB/s", f64::from(stage.len) / nanos);
}

fn stage(case: &str) -> Stage {
    let (operation, len) = case.rsplit_once('-').expect("OPERATION-BYTES");
    let (opcode, receives) = match operation {
        "write" => (WrOpcode::Write, Receives::Own),
        "read" => (WrOpcode::Read, Receives::Own),
        "send" => (WrOpcode::Send, Receives::Own),
        "srq" => (WrOpcode::Send, Receives::Shared { idle: FEW }),
        "crowded-srq" => (WrOpcode::Send, Receives::Shared { idle: MANY }),
        other => panic!("there is no operation {other}"),
    };
    Stage::new(opcode, len.parse().expect("a number of bytes"), receives)
}
