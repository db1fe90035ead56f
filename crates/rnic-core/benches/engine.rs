//! What the engine itself costs: two engines back to back, a wire that swaps buffers, and memory
//! that is not copied. Prints nanoseconds per packet of both sides together, and per message.
//!
//! `cargo bench -p rnic-core`

#[path = "../tests/common/mod.rs"]
mod common;

use common::{BASE, Node, Options, START, attrs, send_control};
use rnic_abi::verbs::{QpAttr, QpState, WrOpcode};
use rnic_core::ports::{
    ArenaId, Dma, DmaFault, MemRange, Range, RxIpId, RxTrain, SpaceId, TxIpId, TxSlot, TxTrain,
    Wire, WireCaps,
};
use std::time::Instant as Clock;

/// What one side sends becomes what the other receives by exchanging the arenas.
struct SwapWire {
    rx: Vec<u8>,
    tx: Vec<u8>,
    incoming: Vec<RxTrain>,
    outgoing: Vec<RxTrain>,
    used: u32,
}

impl SwapWire {
    fn new() -> Self {
        let arena = || vec![0; 1 << 20];
        let (incoming, outgoing) = (Vec::with_capacity(256), Vec::with_capacity(256));
        Self { rx: arena(), tx: arena(), incoming, outgoing, used: 0 }
    }

    /// True when something moved.
    fn pass_to(&mut self, peer: &mut Self) -> bool {
        if self.outgoing.is_empty() || !peer.incoming.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.tx, &mut peer.rx);
        std::mem::swap(&mut self.outgoing, &mut peer.incoming);
        self.used = 0;
        true
    }
}

impl Wire for SwapWire {
    fn caps(&self) -> WireCaps {
        let tx_ip_id = TxIpId::Ours;
        WireCaps { max_datagram: 4200, max_segments: 64, max_train: 65_000, tx_ip_id }
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let room = trains.capacity() - trains.len();
        let count = room.min(self.incoming.len());
        trains.extend(self.incoming.drain(..count));
    }

    fn rx(&self, _arena: ArenaId) -> &[u8] {
        &self.rx
    }

    fn release(&mut self) {}

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let bytes = (train.segments - 1) * train.segment_len + train.last_len;
        if (self.used + bytes) as usize > self.tx.len() || self.outgoing.len() == 256 {
            return None;
        }
        let (arena, offset) = (ArenaId(0), self.used);
        self.used += bytes;
        self.outgoing.push(RxTrain {
            flow: train.flow,
            arena,
            range: Range { offset, len: bytes },
            segment_len: train.segment_len,
            ip_id: RxIpId::Seen(train.ip_id),
            inside: false,
        });
        Some(TxSlot { arena, offset, stride: train.segment_len, inside: false })
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

fn pair() -> (Side, Side) {
    let options = Options::default();
    let mut a = Node::over(1, &options, SwapWire::new(), NoDma);
    let mut b = Node::over(2, &options, SwapWire::new(), NoDma);
    let attr = QpAttr { path_mtu: 5, ..attrs() };
    let (ip_a, ip_b, qpn_a, qpn_b) = (a.ip, b.ip, a.qpn, b.qpn);
    a.connect(ip_b, qpn_b, attr, QpState::Rts);
    b.connect(ip_a, qpn_a, attr, QpState::Rts);
    (a, b)
}

/// Keeps `depth` messages in flight until `messages` are complete.
fn stream(name: &str, opcode: WrOpcode, len: u32, messages: u32) {
    let (mut a, mut b) = pair();
    let (mut posted, mut completed, mut received) = (0, 0, 0);
    let control =
        rnic_abi::wqe::SendControl { remote_addr: BASE, rkey: b.key, ..send_control(opcode, 1) };
    let (from, into) = (a.sge(0, len), b.sge(0, len));
    let mut now = START;
    let start = Clock::now();
    while completed < messages {
        while posted < messages && posted - completed < 32 {
            if opcode == WrOpcode::Send {
                b.post_recv(1, &[into]);
            }
            a.post_send(control, &[from]);
            posted += 1;
        }
        now = now.after_nanos(1000);
        a.quiet_turn(now);
        a.wire.pass_to(&mut b.wire);
        b.quiet_turn(now);
        b.wire.pass_to(&mut a.wire);
        completed += u32::try_from(a.poll().len()).unwrap();
        received += u32::try_from(b.poll().len()).unwrap();
    }
    let nanos = start.elapsed().as_nanos() as f64;
    let packets = (a.engine.counters().tx_packets + b.engine.counters().tx_packets) as f64;
    assert!(opcode != WrOpcode::Send || received == messages);
    println!(
        "{name:<18} {:>8.0} ns/message  {:>6.0} ns/packet (both sides)  {:>6.2} GB/s",
        nanos / f64::from(messages),
        nanos / packets,
        f64::from(len) * f64::from(messages) / nanos,
    );
}

fn main() {
    let scale: u32 = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(10);
    stream("WRITE 64 KiB", WrOpcode::Write, 65_536, 2_000 * scale);
    stream("READ 64 KiB", WrOpcode::Read, 65_536, 2_000 * scale);
    stream("SEND 64 KiB", WrOpcode::Send, 65_536, 2_000 * scale);
    stream("WRITE 4 KiB", WrOpcode::Write, 4096, 20_000 * scale);
    stream("SEND 64 B", WrOpcode::Send, 64, 50_000 * scale);
    stream("SEND 2 B", WrOpcode::Send, 2, 50_000 * scale);
}
