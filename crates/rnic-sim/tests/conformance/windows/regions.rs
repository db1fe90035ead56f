//! Windows and what they depend on: regions, protection domains and queue pairs.

use super::{AT, BOTH, LEN, Stage, remote};
use crate::{ACCESS, ACK};
use rnic_abi::verbs::{AccessFlags, QpState};
use rnic_core::command::{ClientCommand, Errno, MrPlace, WindowType};
use rnic_sim::dialogue::{PEER, PEER_QPN};
use rnic_sim::host::SPACE;
use rnic_sim::verbs::Mr;

#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    for kind in BOTH {
        let mut stage = Stage::bound(kind, remote());
        let mr = stage.mr.handle;
        let rereg = || {
            let access = Some(AccessFlags::empty());
            ClientCommand::ReregMr { mr, pd: None, place: None, access }
        };
        assert_eq!(stage.command(ClientCommand::DeregMr { mr }), Some(Errno::Busy));
        assert_eq!(stage.command(rereg()), Some(Errno::Busy));
        let pd = stage.d.nic.pd;
        assert_eq!(stage.command(ClientCommand::DeallocPd { pd }), Some(Errno::Busy));
        let mw = stage.mw;
        stage.d.world.host(0).dealloc_mw(&mw).expect("a window may go while it is bound");
        assert_eq!(stage.command(rereg()), None);
        assert_eq!(stage.write_at(0), ACCESS, "{kind:?}");
        assert_eq!(stage.command(ClientCommand::DeregMr { mr }), None);
    }
}

#[test]
fn a_window_keeps_its_domain() {
    let mut stage = Stage::new(WindowType::One);
    let pd = stage.d.world.host(0).alloc_pd();
    let mw = stage.d.world.host(0).alloc_mw(pd, WindowType::Two);
    assert_eq!(stage.command(ClientCommand::DeallocPd { pd }), Some(Errno::Busy));
    stage.d.world.host(0).dealloc_mw(&mw).expect("it exists");
    assert_eq!(stage.command(ClientCommand::DeallocPd { pd }), None);
}

#[test]
fn a_window_of_type_two_ends_with_its_queue_pair_and_with_its_connection() {
    let mut stage = Stage::bound(WindowType::Two, remote());
    let qp = stage.d.nic.qp;
    stage.d.world.host(0).set_state(qp, QpState::Reset);
    let connection = stage.d.connection;
    stage.d.world.host(0).connect(qp, &connection, PEER, PEER_QPN);
    assert_eq!(stage.write_at(0), ACCESS);
    let mut stage = Stage::bound(WindowType::Two, remote());
    let qp = stage.d.nic.qp;
    stage.d.world.host(0).destroy_qp(qp);
    let mr = stage.mr.handle;
    assert_eq!(stage.command(ClientCommand::DeregMr { mr }), None);
}

#[test]
fn a_region_that_is_registered_again_is_what_it_is_now() {
    let mut stage = Stage::new(WindowType::One);
    let mr = stage.d.nic.mr;
    stage.mw.rkey = mr.rkey;
    assert_eq!(stage.write(mr.addr), ACK);
    let read_only = Some(AccessFlags::REMOTE_READ);
    let rereg = |access| ClientCommand::ReregMr { mr: mr.handle, pd: None, place: None, access };
    let nonsense = Some(AccessFlags::REMOTE_WRITE);
    assert_eq!(stage.command(rereg(nonsense)), Some(Errno::Invalid));
    assert_eq!(stage.write(mr.addr + 8), ACK, "a change that is refused changes nothing");
    assert_eq!(stage.command(rereg(read_only)), None);
    assert_eq!(stage.write(mr.addr + 16), ACCESS);
    let mut stage = Stage::new(WindowType::One);
    let pd = Some(stage.d.world.host(0).alloc_pd());
    let mr = stage.d.nic.mr;
    stage.mw.rkey = mr.rkey;
    let rereg = ClientCommand::ReregMr { mr: mr.handle, pd, place: None, access: None };
    assert_eq!(stage.command(rereg), None);
    assert_eq!(stage.write(mr.addr), ACCESS);
}

/// As of device memory, and of zero-based registrations.
#[test]
fn a_window_of_a_region_that_begins_elsewhere_leads_to_its_memory() {
    for (kind, access, va) in [
        (WindowType::One, remote(), AT),
        (WindowType::Two, remote(), AT),
        (WindowType::Two, remote() | AccessFlags::ZERO_BASED, 0),
    ] {
        let mut stage = Stage::new(kind);
        let Mr { handle: mr, addr, len: length, .. } = stage.mr;
        let place = Some(MrPlace { space: SPACE, addr, length, iova: 0 });
        let rereg = ClientCommand::ReregMr { mr, pd: None, place, access: None };
        assert_eq!(stage.command(rereg), None);
        stage.mr.addr = 0;
        stage.bind(access);
        stage.mr.addr = addr;
        assert_eq!(stage.write(va), ACK);
        assert_eq!(stage.write(va + 1), ACK);
        assert_eq!(stage.memory(AT - 1, 11), [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(stage.write(va + LEN - 7), ACCESS);
    }
}

#[test]
fn a_domain_stays_while_a_region_is_in_it() {
    let mut stage = Stage::new(WindowType::One);
    let [one, other] = [(); 2].map(|()| stage.d.world.host(0).alloc_pd());
    let mr = stage.d.world.host(0).new_mr(one, 4096, AccessFlags::empty()).handle;
    let end = |stage: &mut Stage, pd| stage.command(ClientCommand::DeallocPd { pd });
    let rereg = |pd| ClientCommand::ReregMr { mr, pd: Some(pd), place: None, access: None };
    assert_eq!(end(&mut stage, one), Some(Errno::Busy));
    assert_eq!(stage.command(rereg(one)), None);
    assert_eq!(end(&mut stage, one), Some(Errno::Busy));
    assert_eq!(stage.command(rereg(other)), None);
    assert_eq!(end(&mut stage, one), None);
    assert_eq!(end(&mut stage, other), Some(Errno::Busy));
    assert_eq!(stage.command(ClientCommand::DeregMr { mr }), None);
    assert_eq!(end(&mut stage, other), None);
}
