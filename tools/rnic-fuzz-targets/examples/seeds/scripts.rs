//! Scripts for the engine targets, which reach rare states, for the fuzzer to mutate. The bytes are
//! what `engine_rx::Scene::step` and `wqe::Scene::step` read.

use crate::Seed;
use rnic_fuzz_targets::cm::steps;

/// A flag: more steps follow before the engine's turn.
const NO_TURN: u8 = 0x40;
/// The second of the two QPs.
const OTHER_QP: u8 = 0x80;
/// A byte that leaves a PSN as it is.
const EXACT: u8 = 0xff;
/// Setup bytes: frames one by one, PSNs that wrap; trains with hidden headers.
const FRAMES: u8 = 0;
const TRAINS: u8 = 0x51;
/// XRC: the second QP of `engine_rx` is a target; two of `wqe` are its initiator and itself.
const NAMED: u8 = 2;
const NAMES: u8 = 16;

const SIGNALED: u8 = 2;
const FENCE: u8 = 1;
const INLINE: u8 = 8;

const SEND: u8 = 0;
const WRITE: u8 = 2;
const READ: u8 = 4;
const CMP_SWAP: u8 = 5;

/// Three receives of 256 bytes of remotely accessible memory.
fn receives() -> Vec<u8> {
    [vec![10, 2], [1, 0, 2, 1].repeat(3)].concat()
}

/// A SEND or WRITE of so many packets, in sequence, to the accessible region.
fn message(packets: u8, is_write: bool, imm: bool, lost: u8) -> Vec<u8> {
    let bits = (packets - 1) | u8::from(imm) << 3 | u8::from(is_write) << 4;
    vec![4, bits, 100, EXACT, 0, 0, lost, lost, 0, 0]
}

/// One packet by its index in the opcode table, with a RETH or AtomicETH for the accessible region.
fn packet(opcode: u8, expected: u8, rest: &[u8]) -> Vec<u8> {
    [&[0, EXACT, opcode, 0, expected, EXACT, 1], rest, &[0, 0]].concat()
}

fn post(opcode: u8, flags: u8, len_kind: u8) -> Vec<u8> {
    let sges: &[u8] = if flags & INLINE != 0 { &[0, 24] } else { &[1, 0, len_kind, 0, 0, 1] };
    [&[8, opcode, flags], sges, &[0; 3]].concat()
}

/// A response to the request that was sent `nth`, with a syndrome as `packet::any_syndrome`
/// chooses.
fn answer(nth: u8, syndrome: &[u8]) -> Vec<u8> {
    [&[6, nth, EXACT], syndrome, &[0, 0]].concat()
}

fn on_other_qp(mut step: Vec<u8>) -> Vec<u8> {
    step[0] |= OTHER_QP;
    step
}

fn together(mut step: Vec<u8>) -> Vec<u8> {
    step[0] |= NO_TURN;
    step
}

fn story(name: &str, setup: u8, steps: &[Vec<u8>]) -> Seed {
    (name.into(), [vec![setup], steps.concat()].concat())
}

const POLL: [u8; 1] = [15];

/// A SEND to a target: each packet names the queue that is there.
fn named(packets: u8) -> Vec<u8> {
    let send = on_other_qp(message(packets, false, true, 0));
    [send, vec![1; packets.into()]].concat()
}

pub(crate) fn engine_rx() -> Vec<Seed> {
    let (ack, rnr, gap, refused) = (&[0][..], &[4, 1][..], &[5][..], &[6, 1][..]);
    let wait = |exponent| vec![11, exponent];
    let state = |kind| vec![12, kind];
    let memory = |region, kind| vec![13, region, kind];
    let read_request = packet(12, 0, &[0, 0, 2, 0, 2]);
    let atomic = packet(19, 0, &[0, 0, 1, 1]);
    let poll = POLL.to_vec();
    vec![
        story("sends", FRAMES, &[receives(), message(1, false, true, 0), poll.clone()]),
        story("long_send", TRAINS, &[receives(), message(3, false, false, 0), poll.clone()]),
        story("writes", FRAMES, &[message(8, true, false, 0), message(2, true, true, 0)]),
        story("gap", TRAINS, &[message(8, true, false, 4), message(8, true, false, 0)]),
        story("no_receive", FRAMES, &[message(1, false, false, 0), wait(20), receives()]),
        story("reads", FRAMES, &[read_request.clone(), read_request.clone(), atomic.clone()]),
        story("atomics", TRAINS, &[together(atomic.clone()), atomic, read_request]),
        story("send_ack", FRAMES, &[post(SEND, SIGNALED, 2), answer(0, ack), poll.clone()]),
        story("write_rnr", FRAMES, &[post(WRITE, SIGNALED, 3), answer(0, rnr), wait(20)]),
        story("write_gap", TRAINS, &[post(WRITE, 0, 2), answer(0, gap), answer(0, ack)]),
        story("refused", FRAMES, &[post(WRITE, SIGNALED, 2), answer(0, refused), poll.clone()]),
        story("read", TRAINS, &[post(READ, SIGNALED, 2), answer(0, ack), poll.clone()]),
        story("fence", FRAMES, &[post(READ, 0, 2), post(SEND, FENCE, 2), answer(0, ack)]),
        story("swap", FRAMES, &[post(CMP_SWAP, SIGNALED, 1), answer(0, ack), poll.clone()]),
        story("inline", TRAINS, &[post(SEND, SIGNALED | INLINE, 0), answer(0, ack)]),
        story("timeouts", FRAMES, &[post(SEND, SIGNALED, 2), [wait(30), wait(30)].concat(), poll]),
        story("states", FRAMES, &[post(SEND, 0, 2), state(1), state(2), state(0), state(5)]),
        story(
            "holes",
            FRAMES,
            &[memory(0, 0), message(2, true, false, 0), on_other_qp(message(1, true, false, 0))],
        ),
        story("deregister", TRAINS, &[post(WRITE, 2, 4), memory(0, 3), answer(0, gap)]),
        story("named", NAMED, &[on_other_qp(receives()), named(1), named(3), POLL.to_vec()]),
        story("raw", FRAMES, &[[vec![14, 40], vec![4; 40]].concat(), [vec![14, 0]].concat()]),
    ]
}

pub(crate) fn wqe() -> Vec<Seed> {
    let honest = vec![15];
    let works = |qp: u8| vec![14 | qp << 4];
    let ring = |qp: u8, producer: u8| vec![4 | qp << 4, 1, producer, 1];
    // Opcode, SIGNALED, one SGE of 256 bytes of the first region, in the first slot.
    let wqe = |opcode: u8| vec![0, 2, opcode, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0];
    // The same without an SGE: the second window, and its key 1.
    let invalidate = |opcode: u8, slot: u8| vec![0, 2, opcode, 0, 1, 0, 0, 0, 0, 1, 1, 1, slot];
    // The first page of the first region, for the peer's WRITEs and READs.
    let bind = vec![0, 2, 8, 0, 1, 0, 0, 0, 0, 1, 1, 0, 3, 0x16, 1, 0];
    let scribble = |queue: u8, at: u8| vec![7, queue, at, 0, 0];
    let bits = |area: u8, at: u8| vec![9, area, at, 0];
    vec![
        story("named", NAMES, &[works(0), wqe(0), ring(0, 1), works(1), honest.clone()]),
        story("honest", FRAMES, &[honest.clone(), honest.clone()]),
        story("works", TRAINS, &[works(0), works(1), works(2), honest.clone()]),
        story("send", FRAMES, &[wqe(2), ring(0, 1), wqe(0), ring(0, 2)]),
        story("read", TRAINS, &[wqe(4), ring(0, 1), honest.clone()]),
        story("receive", FRAMES, &[vec![3, 1, 0, 1, 1, 1, 0], ring(1, 1), works(0)]),
        story("window", FRAMES, &[bind.clone(), invalidate(7, 1), ring(0, 2), honest.clone()]),
        story("send_inv", TRAINS, &[bind, ring(1, 1), invalidate(9, 0), ring(0, 1)]),
        story("overrun", FRAMES, &[ring(0, 31), works(0), ring(1, 9)]),
        story("scribble", TRAINS, &[scribble(0, 16), works(0), scribble(1, 16), scribble(2, 0)]),
        story("doorbells", FRAMES, &[bits(0, 8), bits(0, 16), bits(1, 0), bits(3, 0), honest]),
        story("commands", FRAMES, &(0..13).map(|kind| vec![11, kind, 0, 0]).collect::<Vec<_>>()),
        story("modify", FRAMES, &[[vec![12, 6], vec![0; 30]].concat(), vec![13], works(0)]),
        story("wait", TRAINS, &[works(2), vec![10, 30], vec![10, 30], vec![10, 36]]),
    ]
}

/// Lives of connections, as `cm::run` reads them.
pub(crate) fn cm() -> Vec<Seed> {
    let listen = steps::LISTEN.to_vec();
    let listen_udp = steps::LISTEN_UDP.to_vec();
    let req = steps::REQ.to_vec();
    let accept = steps::ACCEPT.to_vec();
    let rtu = steps::RTU.to_vec();
    let dreq = steps::DREQ.to_vec();
    let wait = [4, 0xff, 0xff].to_vec();
    let bound = steps::BOUND.to_vec();
    let connect = steps::CONNECT.to_vec();
    let mra = steps::MRA_OF_REQ.to_vec();
    let rep = steps::REP.to_vec();
    let rej = steps::REJ.to_vec();
    let establish = steps::ESTABLISH.to_vec();
    let disconnect = steps::DISCONNECT.to_vec();
    let release = [3, 0, 1].to_vec();
    let sidr = steps::SIDR_REQ.to_vec();
    let answer = steps::ANSWER.to_vec();
    let look_up = steps::LOOK_UP.to_vec();
    let lives = [
        ("accepted", vec![&listen, &req, &accept, &rtu, &dreq, &wait]),
        ("asked_twice", vec![&listen, &req, &req, &accept, &req, &rtu, &rtu]),
        ("left_undecided", vec![&listen, &req, &wait, &wait, &wait]),
        ("unheard", vec![&listen, &req, &accept, &wait, &wait]),
        ("connected", vec![&bound, &connect, &mra, &rep, &establish, &rep, &disconnect, &wait]),
        ("refused", vec![&bound, &connect, &rej, &connect, &release]),
        ("given_up", vec![&bound, &connect, &wait, &wait]),
        ("found", vec![&listen_udp, &sidr, &sidr, &answer, &sidr, &wait]),
        ("looked_for", vec![&bound, &look_up, &wait, &wait]),
        ("let_go", vec![&listen, &req, &accept, &rtu, &release, &release]),
    ];
    lives.into_iter().map(flat).collect()
}

fn flat((name, steps): (&str, Vec<&Vec<u8>>)) -> Seed {
    (name.to_owned(), steps.into_iter().flatten().copied().collect())
}

/// Streams, as `rsocket::run` reads them, and what peers say before.
pub(crate) fn rsocket() -> Vec<Seed> {
    // Sizes of this end; then of the peer: credits, mappings, its table and its data.
    let mut met = vec![8, 8, 0, 0, 4, 30, 0, 2];
    met.extend([[1, 0, 0, 0, 0, 0, 0, 0, 2].as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    let large = [&[8, 8, 7, 7][..], &met[4..], &[0, 0, 16, 0]].concat();
    met.extend([0, 16, 0, 0]);
    // A place, then what comes: so many bytes of data; credits with memory; a control message.
    let place = [1, 0, 0, 0, 0, 0, 0, 0, 0, 8];
    let data = [&[0][..], &place, &[1, 0, 2]].concat();
    let credits = [&[0][..], &place, &[2, 60, 0]].concat();
    let control = |value| [&[0][..], &place, &[3, 0, 0xe0, value]].concat();
    let (goodbye, shutdown) = (control(0), control(2));
    let [read, send, grant, done] = [vec![2, 0, 8], vec![3, 0, 1], vec![4], vec![5]];
    let small = vec![3, 9, 0];
    // As much as a message should have.
    let [bulk, filled] = [vec![3, 7, 0], [&[0][..], &place, &[1, 7, 0]].concat()];
    let say = |what| vec![6, what];
    let (close, ends) = (say(0), say(2));
    let mapping = [1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0];
    let write = [&[7][..], &mapping, &[1, 0, 0, 0, 0, 0, 0, 0, 200, 0]].concat();
    let announce = vec![8, 1, 0];
    let mut streams = vec![
        ("read", vec![&met, &data, &data, &read, &grant, &data, &data, &read, &grant, &done]),
        ("sent", vec![&met, &send, &small, &send, &done, &done, &credits, &send, &done]),
        ("lent", vec![&met, &credits, &send, &send, &credits, &credits, &send]),
        ("closed", vec![&met, &send, &close, &done, &goodbye, &done]),
        ("half_closed", vec![&met, &ends, &data, &shutdown, &read, &done, &close]),
        ("mapped", vec![&met, &write, &announce, &write, &done, &done]),
        ("left_open", vec![&met, &data, &send, &read, &grant]),
        ("bulk", vec![&large, &bulk, &bulk, &done, &filled, &filled, &bulk, &done]),
    ];
    // As they lie in private data and in datagrams.
    let connect = [vec![1, 2, 1, 128, 0, 0, 0, 4], vec![1; 32]].concat();
    let introduction = [&[0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 10, 0, 0, 1][..], b"x"];
    let introduction = introduction.concat();
    let datagram = [&[4, 8, 1, 2, 192, 0, 2, 7][..], b"data"].concat();
    streams.push(("connect", vec![&connect]));
    streams.push(("introduction", vec![&introduction]));
    streams.push(("datagram", vec![&datagram]));
    streams.into_iter().map(flat).collect()
}
