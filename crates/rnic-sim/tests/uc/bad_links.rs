//! Whatever links do, a message arrives whole or not at all, and what is told of it is true.

use crate::pair;
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{WcOpcode, WcStatus};
use rnic_sim::link::{Blow, Faults, Strike};
use rnic_sim::pair::{Pair, pattern};
use rnic_sim::rng::Rng;
use rnic_sim::sweep;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::WorldConfig;

/// Messages of one world.
const MESSAGES: u32 = 150;
/// Bytes of a message at most.
const LONGEST: u64 = 2000;
/// Messages on their way at a time, and receives posted.
const AT_ONCE: u32 = 8;

/// One message of a world.
#[derive(Clone, Copy, Debug)]
struct Message {
    id: u32,
    len: u32,
    is_write: bool,
}

impl Message {
    fn data(self) -> Vec<u8> {
        pattern(self.len.into(), u64::from(self.id) + 1)
    }

    /// Where its source and, for a WRITE, its target is.
    fn place(self) -> u64 {
        u64::from(self.id) * LONGEST
    }

    /// Its target for a SEND, by the number of the receive.
    fn buffer(wr_id: u64) -> u64 {
        (u64::from(MESSAGES) + wr_id) * LONGEST
    }
}

/// How the messages of a world fared.
#[derive(Default)]
struct Outcome {
    /// Identities of the messages that the receiver was told of, in that order.
    told: Vec<u32>,
    posted: u64,
}

fn post_receives(pair: &mut Pair, outcome: &mut Outcome) {
    let b = pair.b;
    while pair.world.host(b.host).receives_posted(b.qp) < AT_ONCE as usize {
        let at = Message::buffer(outcome.posted % u64::from(2 * AT_ONCE));
        let longest = u32::try_from(LONGEST).unwrap();
        pair.recv(b, outcome.posted, &[b.mr.sge(at, longest)]);
        outcome.posted += 1;
    }
}

/// Looks at what the receiver was told.
fn judge(pair: &mut Pair, messages: &[Message], outcome: &mut Outcome, cqe: &Cqe) {
    assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    let message = messages[cqe.imm_or_key as usize];
    let at = match cqe.opcode {
        WcOpcode::RecvWriteImm => message.place(),
        _ => Message::buffer(cqe.wr_id % u64::from(2 * AT_ONCE)),
    };
    assert_eq!(cqe.opcode == WcOpcode::RecvWriteImm, message.is_write, "{message:?}");
    assert_eq!(cqe.byte_len, message.len, "{message:?}");
    assert!(pair.memory(pair.b, at, message.len.into()) == message.data(), "{message:?}");
    outcome.told.push(message.id);
}

/// Sends the messages, some at a time, and judges what arrives.
fn run(pair: &mut Pair, messages: &[Message]) -> Outcome {
    let (a, b) = (pair.a, pair.b);
    let mut outcome = Outcome::default();
    for some in messages.chunks(AT_ONCE as usize) {
        post_receives(pair, &mut outcome);
        for message in some {
            pair.world.host(a.host).write_bytes(a.mr.addr + message.place(), &message.data());
            let sges = [a.mr.sge(message.place(), message.len)];
            let wr = if message.is_write {
                SendWr::write(message.id.into(), &sges, b.mr.remote(message.place()))
            } else {
                SendWr::send(message.id.into(), &sges)
            };
            pair.post(a, &wr.with_imm(message.id));
        }
        for message in some {
            let cqe = pair.sent(a);
            assert_eq!((cqe.wr_id, cqe.status), (message.id.into(), WcStatus::Success));
        }
        pair.world.run_to_silence(rnic_sim::pair::PATIENCE);
        for cqe in pair.world.host(b.host).drain(b.recv_cq) {
            judge(pair, messages, &mut outcome, &cqe);
        }
        pair.world.check();
    }
    outcome
}

fn messages(rng: &mut Rng) -> Vec<Message> {
    let message = |id| {
        let len = rng.below(LONGEST + 1);
        Message { id, len: u32::try_from(len).unwrap(), is_write: rng.chance(400_000) }
    };
    (0..MESSAGES).map(message).collect()
}

#[test]
fn a_message_arrives_whole_or_not_at_all() {
    let mut lost = 0;
    for seed in sweep::seeds(300) {
        let mut rng = Rng::new(seed ^ 0x7563);
        let faults = Faults::rough(&mut rng, &[0, 10_000, 100_000]);
        let config = WorldConfig { faults, ..WorldConfig::random_pair(seed) };
        let mut pair = pair(&config, 1);
        let messages = messages(&mut rng);
        let outcome = run(&mut pair, &messages);
        let counts = pair.world.fault_counts();
        let unrepeated = counts.duplicated == 0;
        // A copy of the beginning of a message begins it anew.
        let harmless = counts.harmed() + counts.reordered == 0 && unrepeated;
        let mut told = outcome.told.clone();
        told.sort_unstable();
        told.dedup();
        if unrepeated {
            assert_eq!(told.len(), outcome.told.len(), "seed {seed}: something came twice");
        }
        if counts.reordered == 0 && unrepeated {
            assert!(outcome.told.is_sorted(), "seed {seed}: {:?}", outcome.told);
        }
        if harmless {
            assert_eq!(told.len(), messages.len(), "seed {seed}: something is lost");
        }
        lost += messages.len() - told.len();
    }
    assert!(lost > 0 || sweep::is_replay());
}

/// Each packet of a few messages is lost once: exactly its message does not arrive.
#[test]
fn a_lost_packet_takes_its_message_and_no_other() {
    for mtu_packets in 0..7 {
        let mut pair = pair(&WorldConfig::pair(1), 1);
        let id = |id, len, is_write| Message { id, len, is_write };
        // One, three, one and two packets.
        let messages = [id(0, 10, false), id(1, 700, false), id(2, 256, true), id(3, 257, true)];
        pair.world.strike(0, 1, Strike::new(Blow::Drop).after(mtu_packets));
        let victim = [0, 1, 1, 1, 2, 3, 3][mtu_packets as usize];
        let outcome = run(&mut pair, &messages);
        let expected: Vec<u32> = (0..4).filter(|id| *id != victim).collect();
        assert_eq!(outcome.told, expected, "packet {mtu_packets}");
    }
}
