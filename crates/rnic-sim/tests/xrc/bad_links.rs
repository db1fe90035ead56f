//! Whatever links do, each message arrives once and whole, at the queue that it names and in the
//! memory of that queue's protection domain.

use crate::{Domain, QUEUES, Queue, connection};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{WcOpcode, WcStatus};
use rnic_sim::link::Faults;
use rnic_sim::pair::pattern;
use rnic_sim::rng::Rng;
use rnic_sim::sweep;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::WorldConfig;
use std::collections::BTreeSet;

const CONNECTIONS: usize = 3;
/// Messages of one world, and how many are on their way at a time.
const MESSAGES: u32 = 90;
const AT_ONCE: u32 = 9;
/// Bytes of a message at most.
const LONGEST: u64 = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Send,
    Write,
    Read,
    Add,
}

/// One message of a world.
#[derive(Clone, Copy, Debug)]
struct Message {
    id: u32,
    verb: Verb,
    len: u32,
    queue: usize,
    /// Its connection.
    over: usize,
}

impl Message {
    fn any(rng: &mut Rng, id: u32) -> Self {
        let verb = rng.pick(&[Verb::Send, Verb::Send, Verb::Write, Verb::Read, Verb::Add]);
        let len = match verb {
            Verb::Add => 8,
            _ => u32::try_from(rng.below(LONGEST + 1)).unwrap(),
        };
        let some = |rng: &mut Rng, of: usize| usize::try_from(rng.below(of as u64)).unwrap();
        Self { id, verb, len, queue: some(rng, QUEUES), over: some(rng, CONNECTIONS) }
    }

    fn data(self) -> Vec<u8> {
        pattern(self.len.into(), u64::from(self.id) + 1)
    }

    /// Where it is at the sender, and for RDMA at the receiver. The first bytes are counted in.
    fn place(self) -> u64 {
        64 + u64::from(self.id) * LONGEST
    }

    fn is_told(self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Write)
    }
}

fn post(domain: &mut Domain, message: Message) {
    let Message { id, verb, len, queue, over } = message;
    let Queue { srqn, mr, .. } = domain.queues[queue];
    let sge = domain.sender.mr.sge(message.place(), len);
    let remote = mr.remote(message.place());
    match verb {
        Verb::Read => {
            domain.world.host(crate::RECEIVER).write_bytes(remote.addr, &message.data());
        }
        _ => drop(domain.fill(message.place(), len.into(), u64::from(id) + 1)),
    }
    let id = u64::from(id);
    let wr = match verb {
        Verb::Send => SendWr::send(id, &[sge]).with_imm(message.id),
        Verb::Write => SendWr::write(id, &[sge], remote).with_imm(message.id),
        Verb::Read => SendWr::read(id, &[sge], remote),
        Verb::Add => SendWr::fetch_add(id, sge, mr.remote(0), 1),
    };
    domain.post(over, &wr.named(srqn));
}

/// Receives of a queue have places of their own, which are used again.
fn place_of(wr_id: u64) -> u64 {
    wr_id % 64 * LONGEST
}

fn judge(domain: &Domain, message: Message, queue: usize, cqe: &Cqe) {
    assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    assert_eq!((message.queue, message.len), (queue, cqe.byte_len), "{message:?}");
    let (_, target) = domain.connections[message.over];
    assert_eq!(cqe.qpn, domain.world.hosts()[crate::RECEIVER].qpn(target));
    let at = match cqe.opcode {
        WcOpcode::RecvWriteImm => message.place(),
        _ => crate::RECEIVES + place_of(cqe.wr_id),
    };
    assert_eq!(cqe.opcode == WcOpcode::RecvWriteImm, message.verb == Verb::Write);
    assert!(domain.memory(queue, at, message.len.into()) == message.data(), "{message:?}");
}

/// Keeps receives posted at each queue, but not always enough.
fn post_receives(domain: &mut Domain, rng: &mut Rng, posted: &mut [u64; QUEUES]) {
    for (queue, posted) in posted.iter_mut().enumerate() {
        let srq = domain.queues[queue].srq;
        let wanted = usize::try_from(rng.below(12)).unwrap();
        while domain.world.hosts()[crate::RECEIVER].srq_posted(srq) < wanted {
            let wr_id = *posted;
            domain.recv(queue, wr_id, place_of(wr_id), u32::try_from(LONGEST).unwrap());
            *posted += 1;
        }
    }
}

fn run(domain: &mut Domain, rng: &mut Rng, seed: u64) {
    let messages: Vec<Message> = (0..MESSAGES).map(|id| Message::any(rng, id)).collect();
    let mut posted = [0; QUEUES];
    let mut told = BTreeSet::new();
    let mut complete = BTreeSet::new();
    for some in messages.chunks(AT_ONCE as usize) {
        post_receives(domain, rng, &mut posted);
        some.iter().for_each(|message| post(domain, *message));
        let last = some.last().map_or(0, |message| message.id);
        for _ in 0..200 {
            domain.world.run_for(2_000_000);
            for queue in 0..QUEUES {
                for cqe in domain.received(queue) {
                    judge(domain, messages[cqe.imm_or_key as usize], queue, &cqe);
                    assert!(told.insert(cqe.imm_or_key), "seed {seed}: something came twice");
                }
            }
            for cqe in domain.sent() {
                assert_eq!(cqe.status, WcStatus::Success, "seed {seed}: {cqe:?}");
                assert!(complete.insert(cqe.wr_id), "seed {seed}: {cqe:?} came twice");
            }
            if complete.len() > last as usize {
                break;
            }
            // What found no receive is sent again until there is one.
            post_receives(domain, rng, &mut posted);
        }
        assert!(complete.len() > last as usize, "seed {seed}: a message is not complete");
    }
    domain.settle();
    let expected: BTreeSet<u32> =
        messages.iter().filter(|message| message.is_told()).map(|message| message.id).collect();
    assert_eq!(told, expected, "seed {seed}");
    for message in messages.iter().filter(|message| message.verb == Verb::Read) {
        let at = domain.sender.mr.addr + message.place();
        let read = domain.world.hosts()[crate::SENDER].bytes(at, message.len.into());
        assert!(read == message.data(), "seed {seed}: {message:?}");
    }
    for queue in 0..QUEUES {
        let adds = |message: &&Message| message.verb == Verb::Add && message.queue == queue;
        let sum = messages.iter().filter(adds).count() as u64;
        assert_eq!(domain.memory(queue, 0, 8), sum.to_le_bytes(), "seed {seed}: atomics");
    }
}

#[test]
fn each_message_arrives_once_at_the_queue_that_it_names() {
    for seed in sweep::seeds(60) {
        let mut rng = Rng::new(seed ^ 0x7872_6300);
        let faults = Faults::rough(&mut rng, &[0, 5_000, 30_000]);
        let config = WorldConfig { faults, ..WorldConfig::random_pair(seed) };
        let mut domain = Domain::new(&config, CONNECTIONS, connection(1));
        run(&mut domain, &mut rng, seed);
    }
}
