//! Isolation: what belongs to one protection domain, or to one domain of XRC, is of no use from
//! another one. Each way to use each kind of object is a row, and works where the object is one's
//! own, so that what refuses it is the domain alone.

use crate::ud::{QKEY, ud};
use crate::xrc::{Place, place, target};
use crate::{ACCESS, INVALID, request, send_only, small_mtu, statuses};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{AccessFlags, WcStatus};
use rnic_core::command::{ClientCommand, CommandError, Errno, WindowType};
use rnic_sim::datagrams::To;
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::pair::End;
use rnic_sim::verbs::{Mr, QpSetup, SendWr, full_access};
use rnic_sim::windows::Mw;
use rnic_sim::xrc::PRIVATE;
use roce_wire::{Ieth, Opcode, RKey, Syndrome};

/// What comes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    /// The work request fails.
    Sent(WcStatus),
    /// The receive fails.
    Received(WcStatus),
    /// The peer's request is refused.
    Answered(Syndrome),
    /// The verb fails.
    Verb(Errno),
}
use Outcome::{Answered, Done, Received, Sent, Verb};

/// Uses an object of a domain that is another one where this is true.
type Use = fn(is_foreign: bool) -> Outcome;

/// Object and use of it, and how the latter fails.
const TABLE: &[(&str, Use, Outcome)] = &[
    ("a region, as what a SEND sends", |f| local(f, send, Opcode::RcAck), PROTECTED),
    ("a region, as what a WRITE sends", |f| local(f, write, Opcode::RcAck), PROTECTED),
    ("a region, as where a READ goes", |f| local(f, read, Opcode::RcReadRespOnly), PROTECTED),
    ("a region, as where a result goes", |f| local(f, add, Opcode::RcAtomicAck), PROTECTED),
    ("a region, as where a SEND goes", receive, Received(WcStatus::LocProtErr)),
    ("a region, of a shared queue's receive", shared, NOT_RECEIVED),
    ("a region, of a domain's queue's receive", named_receive, NOT_RECEIVED),
    ("a region, of a WRITE", |f| remote(f, Opcode::RcWriteOnly), REFUSED),
    ("a region, of a READ", |f| remote(f, Opcode::RcReadRequest), REFUSED),
    ("a region, of a compare and swap", |f| remote(f, Opcode::RcCmpSwap), REFUSED),
    ("a region, of a fetch and add", |f| remote(f, Opcode::RcFetchAdd), REFUSED),
    ("a region, of an ATOMIC_WRITE", |f| remote(f, Opcode::RcAtomicWrite), REFUSED),
    ("a region, of a FLUSH", |f| remote(f, Opcode::RcFlush), REFUSED),
    ("a region, by the name of a queue of XRC", |f| named(f, its_region), REFUSED),
    ("a region, to bind a window of type 1", |f| bind(f, WindowType::One), NOT_BOUND),
    ("a region, to bind a window of type 2", |f| bind(f, WindowType::Two), NOT_BOUND),
    ("a region, to be prefetched", prefetch, Verb(Errno::Fault)),
    ("a window of type 1, to be bound", |f| bind_window(f, WindowType::One), NOT_BOUND),
    ("a window of type 2, to be bound", |f| bind_window(f, WindowType::Two), NOT_BOUND),
    ("a window of type 1, of a WRITE", |f| windowed(f, WindowType::One), REFUSED),
    ("a window of type 2, of a WRITE", |f| windowed(f, WindowType::Two), REFUSED),
    ("a window, by the name of a queue of XRC", |f| named(f, its_window), REFUSED),
    ("a window, to be invalidated here", invalidate, Sent(WcStatus::LocQpOpErr)),
    ("a window, to be invalidated there", invalidated, Received(WcStatus::RemInvReqErr)),
    ("an address handle, of a datagram", datagram, Sent(WcStatus::LocQpOpErr)),
    ("a queue of another domain of XRC, by its name", named_elsewhere, Answered(INVALID)),
    ("a target of another domain of XRC, to be opened", open_target, Verb(Errno::Invalid)),
];

const PROTECTED: Outcome = Sent(WcStatus::LocProtErr);
const NOT_RECEIVED: Outcome = Received(WcStatus::LocProtErr);
const NOT_BOUND: Outcome = Sent(WcStatus::MwBindErr);
const REFUSED: Outcome = Answered(ACCESS);

#[test]
fn nothing_of_a_domain_is_of_use_from_another_one() {
    for (what, attempt, refused) in TABLE {
        assert_eq!(attempt(false), Done, "{what}: one's own");
        assert_eq!(attempt(true), *refused, "{what}: of another domain");
    }
}

/// A dialogue, whose region is one of the objects' domain.
struct Scene {
    d: Dialogue,
    /// The domain of the queue pair, and that of the objects.
    domains: [u32; 2],
}

fn scene(is_foreign: bool) -> Scene {
    let mut d = Dialogue::new(small_mtu());
    let own = d.nic.pd;
    let pd = domain(&mut d, is_foreign);
    d.nic.mr = region(&mut d, pd);
    Scene { d, domains: [own, pd] }
}

fn domain(d: &mut Dialogue, is_foreign: bool) -> u32 {
    if is_foreign { d.world.host(0).alloc_pd() } else { d.nic.pd }
}

fn region(d: &mut Dialogue, pd: u32) -> Mr {
    d.world.host(0).new_mr(pd, 8192, full_access() | AccessFlags::MW_BIND)
}

fn status(completions: &[Cqe], failed: fn(WcStatus) -> Outcome) -> Outcome {
    match statuses(completions)[..] {
        [(_, WcStatus::Success)] => Done,
        [(_, status)] => failed(status),
        _ => panic!("{completions:?}"),
    }
}

fn verb<T>(result: Result<T, CommandError>) -> Outcome {
    result.map_or_else(|error| Verb(error.errno), |_| Done)
}

fn answer(d: &mut Dialogue, say: &Say) -> Outcome {
    d.say(say);
    match d.hear().aeth().0 {
        Syndrome::Ack { .. } => Done,
        refusal => Answered(refusal),
    }
}

/// Posts a request for the dialogue's region, which the peer answers where it leaves.
fn local(is_foreign: bool, wr: fn(&Dialogue) -> SendWr, opcode: Opcode) -> Outcome {
    let mut d = scene(is_foreign).d;
    let wr = wr(&d);
    d.post(&wr);
    d.hear_burst();
    let say = match opcode {
        Opcode::RcAck => Say::ack(d.our_psn(0), 1),
        Opcode::RcAtomicAck => Say::atomic_ack(d.our_psn(0), 1, 7),
        _ => Say::new(opcode, d.our_psn(0)).payload(&[1; 8]),
    };
    d.say(&say);
    status(&d.sent(), Sent)
}

fn send(d: &Dialogue) -> SendWr {
    crate::send(d, 1, 8)
}

fn write(d: &Dialogue) -> SendWr {
    SendWr::write(1, &[d.nic.mr.sge(0, 8)], d.nic.mr.remote(0))
}

fn read(d: &Dialogue) -> SendWr {
    crate::read(d, 1, 0, 8)
}

fn add(d: &Dialogue) -> SendWr {
    crate::fetch_add(d, 1, 0)
}

fn receive(is_foreign: bool) -> Outcome {
    let mut d = scene(is_foreign).d;
    d.recv(1, &[d.nic.mr.sge(0, 64)]);
    d.say(&send_only(&d, 0, &[1; 8]));
    status(&d.received(), Received)
}

fn shared(is_foreign: bool) -> Outcome {
    let Scene { mut d, domains: [pd, _] } = scene(is_foreign);
    let (send_cq, recv_cq, connection) = (d.nic.send_cq, d.nic.recv_cq, d.connection);
    let host = d.world.host(0);
    let srq = host.create_srq(pd, 4, 1).unwrap();
    let setup = QpSetup { recv_cq, srq: Some(srq), ..QpSetup::new(pd, send_cq) };
    let qp = host.create_qp(setup);
    host.connect(qp, &connection, PEER, PEER_QPN);
    host.post_srq_recv(srq, 1, &[d.nic.mr.sge(0, 64)]).unwrap();
    d.nic.qp = qp;
    d.say(&send_only(&d, 0, &[1; 8]));
    status(&d.received(), Received)
}

fn remote(is_foreign: bool, opcode: Opcode) -> Outcome {
    let mut d = scene(is_foreign).d;
    let say = request(&d, opcode, 0, (0, 8)).ack_req();
    let has_payload = matches!(opcode, Opcode::RcWriteOnly | Opcode::RcAtomicWrite);
    let say = if has_payload { say.payload(&[1; 8]) } else { say };
    answer(&mut d, &say)
}

fn bind(is_foreign: bool, kind: WindowType) -> Outcome {
    let Scene { mut d, domains: [own, _] } = scene(is_foreign);
    let mw = d.world.host(0).alloc_mw(own, kind);
    d.post(&bind_wr(&mw, &d.nic.mr));
    status(&d.sent(), Sent)
}

fn bind_window(is_foreign: bool, kind: WindowType) -> Outcome {
    let Scene { mut d, domains: [own, pd] } = scene(is_foreign);
    let mw = d.world.host(0).alloc_mw(pd, kind);
    let mr = region(&mut d, own);
    d.post(&bind_wr(&mw, &mr));
    status(&d.sent(), Sent)
}

fn bind_wr(mw: &Mw, mr: &Mr) -> SendWr {
    SendWr::bind(1, mw.next_key(), (mr, 0, 64), AccessFlags::REMOTE_WRITE)
}

fn prefetch(is_foreign: bool) -> Outcome {
    let Scene { mut d, domains: [pd, _] } = scene(is_foreign);
    let Mr { lkey, addr, .. } = d.nic.mr;
    let access = AccessFlags::LOCAL_WRITE;
    let check = ClientCommand::CheckAccess { pd, lkey, addr, length: 8, access };
    verb(d.world.host(0).command(check))
}

/// Has a queue pair of this domain bind a window; the window's key.
fn bound(d: &mut Dialogue, pd: u32, mr: &Mr, kind: WindowType) -> u32 {
    let (mut qp, mut cq) = (d.nic.qp, d.nic.send_cq);
    if pd != d.nic.pd {
        let end = End::new(&mut d.world, 0, |setup| setup.pd = pd);
        let connection = d.connection;
        d.world.host(0).connect(end.qp, &connection, PEER, PEER_QPN);
        (qp, cq) = (end.qp, end.send_cq);
    }
    let mw = d.world.host(0).alloc_mw(pd, kind);
    d.world.host(0).post_send(qp, &bind_wr(&mw, mr)).unwrap();
    d.world.run_for(50_000);
    assert_eq!(status(&d.world.host(0).drain(cq), Sent), Done);
    mw.next_key()
}

fn windowed(is_foreign: bool, kind: WindowType) -> Outcome {
    let Scene { mut d, domains: [_, pd] } = scene(is_foreign);
    let mr = d.nic.mr;
    let key = bound(&mut d, pd, &mr, kind);
    let say = Say::new(Opcode::RcWriteOnly, d.peer_psn(0)).reth(mr.addr, key, 8);
    answer(&mut d, &say.payload(&[1; 8]).ack_req())
}

fn invalidate(is_foreign: bool) -> Outcome {
    let Scene { mut d, domains: [_, pd] } = scene(is_foreign);
    let mr = d.nic.mr;
    let key = bound(&mut d, pd, &mr, WindowType::Two);
    d.post(&SendWr::local_inv(1, key));
    status(&d.sent(), Sent)
}

fn invalidated(is_foreign: bool) -> Outcome {
    let Scene { mut d, domains: [own, pd] } = scene(is_foreign);
    let mr = d.nic.mr;
    let key = bound(&mut d, pd, &mr, WindowType::Two);
    let buffer = region(&mut d, own);
    d.recv(1, &[buffer.sge(0, 64)]);
    let say = Say::new(Opcode::RcSendOnlyInv, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    d.say(&say.with(|h| h.ieth = Some(Ieth { rkey: RKey(key) })));
    status(&d.received(), Received)
}

fn datagram(is_foreign: bool) -> Outcome {
    let mut d = ud();
    let pd = domain(&mut d, is_foreign);
    let ah = d.world.host(0).create_ah(pd, PEER);
    let wr = send(&d).to(To { ah, qpn: PEER_QPN, qkey: QKEY });
    d.post(&wr);
    status(&d.sent(), Sent)
}

/// What leads to the memory of a queue's domain: address and key.
type Way = fn(&mut Dialogue, &Place) -> (u64, u32);

fn its_region(_: &mut Dialogue, place: &Place) -> (u64, u32) {
    (place.mr.addr, place.mr.rkey)
}

fn its_window(d: &mut Dialogue, place: &Place) -> (u64, u32) {
    let mr = region(d, place.pd);
    (mr.addr, bound(d, place.pd, &mr, WindowType::One))
}

/// A WRITE that names one queue, to memory of its domain or of another queue's.
fn named(is_foreign: bool, way: Way) -> Outcome {
    let (mut d, _, [one, other]) = target();
    let (va, key) = way(&mut d, if is_foreign { &other } else { &one });
    let say = Say::new(Opcode::XrcWriteOnly, d.peer_psn(0)).reth(va, key, 8).payload(&[1; 8]);
    answer(&mut d, &say.srqn(one.srqn).ack_req())
}

fn named_receive(is_foreign: bool) -> Outcome {
    let (mut d, xrcd, [one, other]) = target();
    let host = d.world.host(0);
    let cq = host.create_cq(16);
    let srq = host.create_xrc_srq(one.pd, xrcd, cq, 4);
    let mr = if is_foreign { other.mr } else { one.mr };
    host.post_srq_recv(srq, 1, &[mr.sge(0, 64)]).unwrap();
    let say = Say::new(Opcode::XrcSendOnly, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    let srqn = d.world.hosts()[0].srqn(srq);
    d.say(&say.srqn(srqn));
    d.hear();
    status(&d.world.host(0).drain(cq), Received)
}

fn named_elsewhere(is_foreign: bool) -> Outcome {
    let (mut d, xrcd, _) = target();
    let xrcd = if is_foreign { d.world.host(0).open_xrcd(PRIVATE) } else { xrcd };
    let srqn = place(&mut d, xrcd).srqn;
    let say = Say::new(Opcode::XrcSendOnly, d.peer_psn(0)).payload(&[1; 8]).ack_req();
    answer(&mut d, &say.srqn(srqn))
}

fn open_target(is_foreign: bool) -> Outcome {
    let (mut d, xrcd, _) = target();
    let qpn = d.world.hosts()[0].qpn(d.nic.qp);
    let host = d.world.host(0);
    let xrcd = if is_foreign { host.open_xrcd(PRIVATE) } else { xrcd };
    verb(host.open_qp(xrcd, qpn))
}
