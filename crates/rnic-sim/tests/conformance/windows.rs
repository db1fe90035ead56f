//! Memory windows: what they give to a peer, to which one, and how that ends.

mod local;
mod regions;

use crate::{ACCESS, ACK, ok, send, small_mtu, statuses};
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AccessFlags, QpState, QpType, WcOpcode, WcStatus};
use rnic_core::command::WindowType;
use rnic_core::command::{ClientCommand, Errno};
use rnic_sim::dialogue::{Dialogue, PEER, PEER_QPN, Say};
use rnic_sim::pair::End;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Mr, SendWr, full_access};
use rnic_sim::windows::Mw;
use roce_wire::{Opcode, Qpn, Syndrome};

const BOTH: [WindowType; 2] = [WindowType::One, WindowType::Two];
/// Where windows of these tests begin in their region, and their bytes.
const AT: u64 = 512;
const LEN: u64 = 1024;

/// A queue pair, a region that only windows open, and a window.
pub(crate) struct Stage {
    pub(crate) d: Dialogue,
    pub(crate) mr: Mr,
    pub(crate) mw: Mw,
    /// PSNs that the peer has used.
    said: u32,
}

fn local() -> AccessFlags {
    AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND
}

fn remote() -> AccessFlags {
    full_access() - AccessFlags::LOCAL_WRITE - AccessFlags::FLUSH_GLOBAL
}

impl Stage {
    fn on(mut d: Dialogue, kind: WindowType) -> Self {
        let pd = d.nic.pd;
        let host = d.world.host(0);
        let mr = host.new_mr(pd, 8192, local());
        let mw = host.alloc_mw(pd, kind);
        Self { d, mr, mw, said: 0 }
    }

    pub(crate) fn new(kind: WindowType) -> Self {
        Self::on(Dialogue::new(small_mtu()), kind)
    }

    /// With the window bound.
    pub(crate) fn bound(kind: WindowType, access: AccessFlags) -> Self {
        let mut stage = Self::new(kind);
        stage.bind(access);
        stage
    }

    fn bind(&mut self, access: AccessFlags) {
        let key = self.mw.next_key();
        self.d.post(&SendWr::bind(99, key, (&self.mr, AT, LEN), access));
        let done = self.d.sent();
        assert_eq!(statuses(&done), ok([99]));
        assert_eq!(done[0].opcode, WcOpcode::BindMw);
        self.mw.rkey = key;
    }

    fn memory(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.d.world.host(0).bytes(self.mr.addr + offset, len).to_vec()
    }

    /// The same when everything on its way has arrived.
    fn memory_after(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.d.expect_silence();
        self.memory(offset, len)
    }

    /// The peer's next request.
    pub(crate) fn request(&mut self, opcode: Opcode, va: u64, len: u32) -> Say {
        let say = Say::new(opcode, self.d.peer_psn(self.said)).ack_req();
        self.said += 1;
        let info = opcode.info();
        let key = self.mw.rkey;
        if info.has(roce_wire::HeaderSet::RETH) {
            let payload = vec![7; len as usize];
            let say = say.reth(va, key, len);
            if info.has(roce_wire::HeaderSet::IMM_DT) || opcode == Opcode::RcWriteOnly {
                return say.payload(&payload);
            }
            return say;
        }
        if info.has(roce_wire::HeaderSet::ATOMIC_ETH) { say.atomic(va, key, 1, 0) } else { say }
    }

    /// The peer's WRITE of eight bytes, and the syndrome of its answer.
    pub(crate) fn write(&mut self, va: u64) -> Syndrome {
        let say = self.request(Opcode::RcWriteOnly, va, 8);
        self.answer(&say)
    }

    /// The same at an offset in the window.
    fn write_at(&mut self, offset: u64) -> Syndrome {
        let va = self.start().wrapping_add(offset);
        self.write(va)
    }

    fn answer(&mut self, say: &Say) -> Syndrome {
        self.d.say(say);
        self.d.hear().aeth().0
    }

    /// The first byte of the window.
    pub(crate) fn start(&self) -> u64 {
        self.mr.addr + AT
    }

    /// The peer's SEND that invalidates a key.
    fn send_inv(&mut self, key: u32) -> Say {
        let say = Say::new(Opcode::RcSendOnlyInv, self.d.peer_psn(self.said)).ack_req();
        self.said += 1;
        say.payload(&[3; 16])
            .with(|h| h.ieth = Some(roce_wire::Ieth { rkey: roce_wire::RKey(key) }))
    }

    fn recv(&mut self, wr_id: u64) {
        self.d.recv(wr_id, &[self.d.nic.mr.sge(0, 64)]);
    }

    fn command(&mut self, command: ClientCommand) -> Option<Errno> {
        self.d.world.host(0).command(command).err().map(|error| error.errno)
    }

    /// Another queue pair of the same host, connected to the same peer.
    fn other_qp(&mut self, same_domain: bool) -> Qpn {
        let pd = self.d.nic.pd;
        let end = End::new(&mut self.d.world, 0, |setup| {
            if same_domain {
                setup.pd = pd;
            }
        });
        let connection = self.d.connection;
        let host = self.d.world.host(0);
        host.connect(end.qp, &connection, PEER, PEER_QPN);
        Qpn::new(host.qpn(end.qp))
    }
}

#[test]
fn a_peer_does_through_a_window_what_its_rights_say() {
    let operations = [
        (Opcode::RcWriteOnly, AccessFlags::REMOTE_WRITE),
        (Opcode::RcWriteOnlyImm, AccessFlags::REMOTE_WRITE),
        (Opcode::RcReadRequest, AccessFlags::REMOTE_READ),
        (Opcode::RcFetchAdd, AccessFlags::REMOTE_ATOMIC),
        (Opcode::RcCmpSwap, AccessFlags::REMOTE_ATOMIC),
    ];
    for kind in BOTH {
        for (opcode, right) in operations {
            for access in [right, remote() - right] {
                let mut stage = Stage::bound(kind, access);
                stage.recv(1);
                let say = stage.request(opcode, stage.start() + 8, 8);
                let expected = if access == right { ACK } else { ACCESS };
                assert_eq!(stage.answer(&say), expected, "{kind:?} {opcode:?} {access:?}");
                let writes =
                    access == right && opcode.info().operation == roce_wire::Operation::Write;
                assert_eq!(stage.memory(AT + 8, 1)[0] == 7, writes);
            }
        }
    }
}

#[test]
fn no_byte_outside_a_window_is_reached_through_it() {
    for kind in BOTH {
        let at = |offset: u64| Stage::bound(kind, remote()).write_at(offset);
        assert_eq!([at(0), at(LEN - 8)], [ACK, ACK]);
        assert_eq!([at(u64::MAX), at(LEN - 7), at(LEN)], [ACCESS; 3], "{kind:?}");
    }
}

#[test]
fn a_zero_based_window_begins_at_zero() {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
    let mut stage = Stage::bound(WindowType::Two, access);
    assert_eq!(stage.write(LEN - 8), ACK);
    assert_eq!(stage.memory(AT + LEN - 8, 8), [7; 8]);
    assert_eq!(stage.write(LEN - 7), ACCESS);
    let mut stage = Stage::bound(WindowType::Two, access);
    assert_eq!(stage.write_at(0), ACCESS);
}

#[test]
fn only_the_whole_key_of_the_last_bind_opens_a_window() {
    for kind in BOTH {
        for wrong in [1, 0x80, 0x100] {
            let mut stage = Stage::bound(kind, remote());
            stage.mw.rkey ^= wrong;
            assert_eq!(stage.write_at(0), ACCESS, "{kind:?} {wrong:#x}");
        }
        let mut unbound = Stage::new(kind);
        assert_eq!(unbound.write_at(0), ACCESS, "{kind:?}");
    }
}

#[test]
fn a_window_is_no_local_key() {
    for kind in BOTH {
        let mut stage = Stage::bound(kind, remote());
        let sge = rnic_abi::wqe::Sge { addr: stage.start(), length: 8, lkey: stage.mw.rkey };
        stage.d.post(&SendWr::send(1, &[sge]));
        assert_eq!(statuses(&stage.d.sent()), [(1, WcStatus::LocProtErr)]);
    }
}

/// What a queue pair other than the one that bound the window answers to a WRITE.
fn through_another(kind: WindowType, same_domain: bool) -> Syndrome {
    let mut stage = Stage::bound(kind, remote());
    let other = stage.other_qp(same_domain);
    let say = stage.request(Opcode::RcWriteOnly, stage.start(), 8);
    stage.answer(&say.with(|h| h.bth.dest_qp = other))
}

#[test]
fn a_window_of_type_one_is_for_its_domain_and_one_of_type_two_for_its_queue_pair() {
    assert_eq!(through_another(WindowType::One, true), ACK);
    assert_eq!(through_another(WindowType::One, false), ACCESS);
    assert_eq!(through_another(WindowType::Two, true), ACCESS);
    assert_eq!(through_another(WindowType::Two, false), ACCESS);
}

/// A bind that fails, and what follows it is flushed.
#[track_caller]
fn refused(stage: &mut Stage, wr: &SendWr) {
    stage.d.post_all(&[wr.clone().unsignaled(), send(&stage.d, 2, 8)]);
    stage.d.expect_silence();
    let expected = [(wr.wr_id, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&stage.d.sent()), expected);
    assert_eq!(stage.d.state(), QpState::Err);
}

#[test]
fn binds_that_the_region_does_not_allow_fail() {
    for kind in BOTH {
        let bind = |change: fn(&mut SendWr, &Mr)| {
            let mut stage = Stage::new(kind);
            let key = stage.mw.next_key();
            let mut wr = SendWr::bind(1, key, (&stage.mr, AT, LEN), remote());
            change(&mut wr, &stage.mr);
            refused(&mut stage, &wr);
        };
        bind(|wr, _| wr.lkey ^= 1);
        bind(|wr, _| wr.lkey = 0);
        bind(|wr, _| wr.lkey = wr.remote.rkey);
        bind(|wr, mr| wr.remote.addr = mr.addr - 1);
        bind(|wr, mr| wr.remote.addr = mr.addr + mr.len - LEN + 1);
        bind(|wr, _| wr.compare_add = u64::MAX);
        bind(|wr, _| wr.swap |= u64::from(AccessFlags::MW_BIND.bits()));
        bind(|wr, _| wr.swap |= 1 << 40);
        for access in [AccessFlags::LOCAL_WRITE, AccessFlags::MW_BIND] {
            let mut stage = Stage::new(kind);
            let pd = stage.d.nic.pd;
            let mr = stage.d.world.host(0).new_mr(pd, 8192, access);
            let wr = SendWr::bind(1, stage.mw.next_key(), (&mr, 0, 8), AccessFlags::REMOTE_WRITE);
            refused(&mut stage, &wr);
        }
        let mut stage = Stage::new(kind);
        let foreign = stage.d.world.host(0).alloc_pd();
        let mr = stage.d.world.host(0).new_mr(foreign, 8192, local());
        let wr = SendWr::bind(1, stage.mw.next_key(), (&mr, 0, 8), remote());
        refused(&mut stage, &wr);
    }
    // A peer that only reads needs no right to write.
    let mut stage = Stage::new(WindowType::Two);
    let pd = stage.d.nic.pd;
    stage.mr = stage.d.world.host(0).new_mr(pd, 8192, AccessFlags::MW_BIND);
    stage.bind(AccessFlags::REMOTE_READ);
}

#[test]
fn windows_that_are_not_the_queue_pairs_to_bind_fail() {
    for kind in BOTH {
        let mut stage = Stage::new(kind);
        let wr = SendWr::bind(1, stage.mw.rkey ^ 0x100, (&stage.mr, AT, LEN), remote());
        refused(&mut stage, &wr);
        let mut stage = Stage::new(kind);
        let wr = SendWr::bind(1, stage.mr.rkey, (&stage.mr, AT, LEN), remote());
        refused(&mut stage, &wr);
        let mut stage = Stage::new(kind);
        let foreign = stage.d.world.host(0).alloc_pd();
        let mw = stage.d.world.host(0).alloc_mw(foreign, kind);
        let wr = SendWr::bind(1, mw.next_key(), (&stage.mr, AT, LEN), remote());
        refused(&mut stage, &wr);
    }
    let mut stage = Stage::new(WindowType::One);
    let zero = remote() | AccessFlags::ZERO_BASED;
    let wr = SendWr::bind(1, stage.mw.next_key(), (&stage.mr, AT, LEN), zero);
    refused(&mut stage, &wr);
}

#[test]
fn a_window_of_type_two_is_bound_once_and_to_something() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    let wr = SendWr::bind(1, stage.mw.next_key(), (&stage.mr, AT, LEN), remote());
    refused(&mut stage, &wr);
    let mut stage = Stage::new(WindowType::Two);
    let wr = SendWr::bind(1, stage.mw.next_key(), (&stage.mr, AT, 0), remote());
    refused(&mut stage, &wr);
}

#[test]
fn each_bind_of_a_window_of_type_one_ends_the_one_before() {
    let mut stage = Stage::bound(WindowType::One, remote());
    let first = stage.mw.rkey;
    stage.bind(remote());
    assert_eq!(stage.write_at(0), ACK);
    stage.mw.rkey = first;
    assert_eq!(stage.write_at(0), ACCESS);
    let mut stage = Stage::bound(WindowType::One, remote());
    let bound = stage.mw.rkey;
    stage.d.post(&SendWr::unbind(1, stage.mw.next_key()));
    assert_eq!(statuses(&stage.d.sent()), ok([1]));
    let mr = stage.mr.handle;
    assert_eq!(stage.command(ClientCommand::DeregMr { mr }), None);
    stage.mw.rkey = bound;
    assert_eq!(stage.write_at(0), ACCESS);
}

#[test]
fn an_invalidated_key_is_dead_and_the_window_can_be_bound_again() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    assert_eq!(stage.write_at(0), ACK);
    stage.d.post(&SendWr::local_inv(1, stage.mw.rkey));
    let done = stage.d.sent();
    assert_eq!((statuses(&done), done[0].opcode), (ok([1]), WcOpcode::LocalInv));
    stage.bind(remote());
    assert_eq!(stage.write_at(64), ACK);
    stage.d.post(&SendWr::local_inv(1, stage.mw.rkey));
    assert_eq!(statuses(&stage.d.sent()), ok([1]));
    assert_eq!(stage.write_at(128), ACCESS);
    assert_eq!(stage.memory(AT + 128, 8), [0; 8]);
}

#[test]
fn only_ones_own_bound_window_of_type_two_can_be_invalidated() {
    let fails = |stage: &mut Stage, key: u32| {
        stage.d.post(&SendWr::local_inv(1, key).unsignaled());
        assert_eq!(statuses(&stage.d.sent()), [(1, WcStatus::LocQpOpErr)]);
        assert_eq!(stage.d.state(), QpState::Err);
    };
    for kind in BOTH {
        let mut stage = Stage::new(kind);
        let key = stage.mw.rkey;
        fails(&mut stage, key);
    }
    for bad in [|s: &Stage| s.mr.rkey, |s: &Stage| s.mw.rkey ^ 1, |s: &Stage| s.d.nic.mr.rkey] {
        let mut stage = Stage::bound(WindowType::Two, remote());
        let key = bad(&stage);
        fails(&mut stage, key);
    }
    let mut stage = Stage::bound(WindowType::One, remote());
    let key = stage.mw.rkey;
    fails(&mut stage, key);
    // The window of another queue pair of the domain.
    let mut stage = Stage::bound(WindowType::Two, remote());
    let pd = stage.d.nic.pd;
    let other = End::new(&mut stage.d.world, 0, |setup| setup.pd = pd);
    let connection = stage.d.connection;
    let host = stage.d.world.host(0);
    host.connect(other.qp, &connection, PEER, PEER_QPN);
    host.post_send(other.qp, &SendWr::local_inv(1, stage.mw.rkey)).unwrap();
    stage.d.expect_silence();
    let failed = stage.d.world.host(0).drain(other.send_cq);
    assert_eq!(statuses(&failed), [(1, WcStatus::LocQpOpErr)]);
    assert_eq!(stage.write_at(0), ACK);
}

/// The receive completion of a SEND that invalidates.
fn invalidated(cqe: &Cqe) -> Option<u32> {
    cqe.flags.contains(CqeFlags::INV).then_some(cqe.imm_or_key)
}

#[test]
fn a_send_that_invalidates_ends_what_comes_behind_it_and_not_what_came_before() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    stage.recv(5);
    let key = stage.mw.rkey;
    let before = stage.request(Opcode::RcWriteOnly, stage.start(), 8);
    let send = stage.send_inv(key);
    let behind = stage.request(Opcode::RcWriteOnly, stage.start() + 8, 8);
    stage.d.say_all(&[before, send, behind]);
    stage.d.expect_aeth(stage.d.peer_psn(2), ACCESS, 2);
    let received = stage.d.received();
    assert_eq!(statuses(&received), ok([5]));
    assert_eq!((invalidated(&received[0]), received[0].byte_len), (Some(key), 16));
    assert_eq!(stage.memory(AT, 16), [[7; 8], [0; 8]].concat());
}

#[test]
fn a_read_that_is_not_answered_when_its_window_ends_is_refused() {
    let slow = PortConfig { tx_burst: 1, ..PortConfig::frames() };
    let mut stage = Stage::on(Dialogue::with(small_mtu(), slow, |_| {}), WindowType::Two);
    stage.bind(remote());
    let read = stage.request(Opcode::RcReadRequest, stage.start(), 1024);
    stage.said += 3;
    stage.recv(5);
    let send = stage.send_inv(stage.mw.rkey);
    stage.d.say_all(&[read, send]);
    let heard = stage.d.hear_burst();
    assert_eq!(heard.last().expect("a refusal").aeth().0, ACCESS);
    assert_eq!(statuses(&stage.d.received()), ok([5]));
}

/// A completion that carried it would leave the memory as it was until the program polls.
#[test]
fn what_arrives_in_a_region_that_windows_open_is_there_at_once() {
    let mut stage = Stage::bound(WindowType::One, AccessFlags::REMOTE_READ);
    stage.d.recv(5, &[stage.mr.sge(AT, 64)]);
    let send = Say::new(Opcode::RcSendOnly, stage.d.peer_psn(0)).payload(&[3; 16]);
    stage.said = 1;
    let read = stage.request(Opcode::RcReadRequest, stage.start(), 16);
    stage.d.say_all(&[send, read]);
    assert_eq!(stage.d.hear().payload, [3; 16]);
}

#[test]
fn a_send_that_must_not_invalidate_ends_the_connection_without_a_word() {
    let keys: [fn(&Stage) -> u32; 4] =
        [|s| s.mw.rkey ^ 1, |s| s.mr.rkey, |s| s.d.nic.mr.rkey, |_| 0];
    for key in keys {
        let mut stage = Stage::bound(WindowType::Two, remote());
        stage.recv(5);
        let key = key(&stage);
        let before = stage.request(Opcode::RcWriteOnly, stage.start(), 8);
        let send = stage.send_inv(key);
        stage.d.say_all(&[before, send]);
        stage.d.expect_aeth(stage.d.peer_psn(0), ACK, 1);
        stage.d.expect_silence();
        assert_eq!(statuses(&stage.d.received()), [(5, WcStatus::RemInvReqErr)]);
        assert_eq!(stage.d.state(), QpState::Err);
    }
    let mut stage = Stage::bound(WindowType::One, remote());
    stage.recv(5);
    let send = stage.send_inv(stage.mw.rkey);
    stage.d.say(&send);
    stage.d.expect_silence();
    assert_eq!(statuses(&stage.d.received()), [(5, WcStatus::RemInvReqErr)]);
}

#[test]
fn the_last_packet_of_a_send_names_the_key_that_it_invalidates() {
    let mut d = Dialogue::new(small_mtu());
    d.post_all(&[send(&d, 1, 300).invalidating(0xabcd_ef01), send(&d, 2, 8).invalidating(5)]);
    assert_eq!(d.expect(Opcode::RcSendFirst, d.our_psn(0)).headers.ieth, None);
    let last = d.expect(Opcode::RcSendLastInv, d.our_psn(1));
    assert_eq!(last.headers.ieth.map(|ieth| ieth.rkey.0), Some(0xabcd_ef01));
    let only = d.expect(Opcode::RcSendOnlyInv, d.our_psn(2));
    assert_eq!(only.headers.ieth.map(|ieth| ieth.rkey.0), Some(5));
    d.say(&Say::ack(d.our_psn(2), 2));
    assert_eq!(statuses(&d.sent()), ok([1, 2]));
}

#[test]
fn an_unreliable_connection_binds_and_invalidates_nothing_of_its_peer() {
    let uc = || Dialogue::with(small_mtu(), PortConfig::frames(), |s| s.qp_type = QpType::Uc);
    let mut stage = Stage::on(uc(), WindowType::Two);
    stage.bind(remote());
    let say = stage.request(Opcode::UcWriteOnly, stage.start(), 8).payload(&[9; 8]);
    stage.d.say(&say);
    assert_eq!(stage.memory_after(AT, 8), [9; 8]);
    stage.d.post(&SendWr::local_inv(1, stage.mw.rkey));
    assert_eq!(statuses(&stage.d.sent()), ok([1]));
    let say = stage.request(Opcode::UcWriteOnly, stage.start(), 8).payload(&[8; 8]);
    stage.d.say(&say);
    assert_eq!(stage.memory_after(AT, 8), [9; 8]);
    let mut d = uc();
    d.post(&send(&d, 1, 8).invalidating(5));
    assert_eq!(statuses(&d.sent()), [(1, WcStatus::LocQpOpErr)]);
}
