//! Verbs objects: what may be made, whose they are, what keeps them; and events of the port.

use crate::{ACCESS, ACK, dialogue, ok, send_only, statuses, write_only};
use rnic_abi::verbs::{AccessFlags, AsyncEventType, QpType, WcStatus};
use rnic_abi::wqe::Sge;
use rnic_core::command::{
    ClientCommand, ClientId, Command, CommandError, Errno, Outcome, PortState, WindowType,
};
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::host::SPACE;
use rnic_sim::verbs::{QpSetup, SendWr, full_access};
use roce_wire::headers::Reth;
use roce_wire::{Opcode, RKey};

fn errno<T>(result: Result<T, CommandError>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

fn command(d: &mut Dialogue, command: ClientCommand) -> Option<Errno> {
    errno(d.world.host(0).command(command))
}

#[test]
fn what_is_in_use_stays() {
    let mut d = dialogue();
    let cq = d.world.hosts()[0].cq_handle(d.nic.recv_cq);
    let pd = d.nic.pd;
    assert_eq!(command(&mut d, ClientCommand::DestroyCq { cq }), Some(Errno::Busy));
    assert_eq!(command(&mut d, ClientCommand::DeallocPd { pd }), Some(Errno::Busy));
    // A memory region alone keeps its domain as well.
    let qp = d.nic.qp;
    d.world.host(0).destroy_qp(qp);
    assert_eq!(command(&mut d, ClientCommand::DestroyCq { cq }), None);
    assert_eq!(command(&mut d, ClientCommand::DeallocPd { pd }), Some(Errno::Busy));
    let mr = d.nic.mr.handle;
    assert_eq!(command(&mut d, ClientCommand::DeregMr { mr }), None);
    assert_eq!(command(&mut d, ClientCommand::DeallocPd { pd }), None);
}

/// An XRC target belongs to a domain, and is made by a command of its own.
#[test]
fn a_target_is_not_made_like_other_queue_pairs() {
    let mut d = dialogue();
    let setup = QpSetup { qp_type: QpType::XrcRecv, ..QpSetup::new(d.nic.pd, d.nic.send_cq) };
    let created = d.world.host(0).try_create_qp(setup);
    assert_eq!(errno(created), Some(Errno::Invalid));
}

#[test]
fn objects_of_another_client_do_not_exist() {
    let mut d = dialogue();
    let qp = d.world.hosts()[0].qp_handle(d.nic.qp);
    let (pd, mr) = (d.nic.pd, d.nic.mr.handle);
    let mw = d.world.host(0).alloc_mw(pd, WindowType::Two).handle;
    let rereg = ClientCommand::ReregMr { mr, pd: None, place: None, access: None };
    let now = d.world.now();
    for foreign in [
        ClientCommand::QueryQp { qp },
        ClientCommand::DestroyQp { qp },
        ClientCommand::DeregMr { mr },
        ClientCommand::DeallocMw { mw },
        ClientCommand::AllocMw { pd, kind: WindowType::One },
        rereg,
    ] {
        let command = Command::Client(ClientId(2), foreign);
        let refused = d.world.host(0).engine.execute(now, command);
        assert_eq!(errno(refused), Some(Errno::NoEntry));
    }
    for own in [ClientCommand::DeallocMw { mw }, ClientCommand::DeregMr { mr }] {
        assert_eq!(command(&mut d, own), None, "it is still there");
    }
}

#[test]
fn a_handle_that_names_nothing_is_told_from_a_bad_value() {
    let mut d = dialogue();
    let (pd, mr) = (d.nic.pd, d.nic.mr.handle);
    let (access, iova) = (AccessFlags::empty(), 0);
    let register = |pd| ClientCommand::RegMr { pd, space: SPACE, addr: 0, length: 1, iova, access };
    for unknown in [
        ClientCommand::DeallocPd { pd: pd ^ 0x100 },
        ClientCommand::DeregMr { mr: mr ^ 0x100 },
        ClientCommand::DestroyCq { cq: 0x100 },
        ClientCommand::DestroyQp { qp: 0x100 },
        ClientCommand::QueryQp { qp: 0x100 },
        register(pd ^ 0x100),
    ] {
        assert_eq!(command(&mut d, unknown), Some(Errno::NoEntry));
    }
    assert_eq!(command(&mut d, register(pd)), None);
}

#[test]
fn no_byte_is_reached_through_an_empty_region() {
    let mut d = dialogue();
    let (pd, addr) = (d.nic.pd, d.nic.mr.addr);
    let empty = d.world.host(0).reg_mr(pd, addr, 0, full_access());
    d.recv(1, &[empty.sge(0, 0)]);
    let write = |d: &Dialogue, offset, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap();
        write_only(d, offset, 0, payload).with(|h| {
            h.reth = Some(Reth { va: addr, rkey: RKey(empty.rkey), dma_len: len });
        })
    };
    d.say_all(&[write(&d, 0, &[]), send_only(&d, 1, &[])]);
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(statuses(&d.received()), ok([1]));
    d.post(&SendWr::send(2, &[empty.sge(0, 0)]));
    d.expect(Opcode::RcSendOnly, d.our_psn(0));
    d.say(&Say::ack(d.our_psn(0), 1));
    d.say(&write(&d, 2, &[1]));
    d.expect_aeth(d.peer_psn(2), ACCESS, 2);
    assert_eq!(statuses(&d.sent()), ok([2]));
    let mut d = dialogue();
    let empty = d.world.host(0).reg_mr(pd, d.nic.mr.addr, 0, full_access());
    d.post(&SendWr::send(3, &[empty.sge(0, 1)]));
    assert_eq!(statuses(&d.sent()), [(3, WcStatus::LocProtErr)]);
}

#[test]
fn memory_regions_that_make_no_sense_are_refused() {
    let local = AccessFlags::LOCAL_WRITE;
    for (addr, length, access) in [
        (0x10_0000, 4096, AccessFlags::REMOTE_WRITE),
        (0x10_0000, 4096, AccessFlags::REMOTE_ATOMIC),
        (0x10_0000, u64::MAX / 2, local),
        (u64::MAX - 100, 200, local),
    ] {
        let mut d = dialogue();
        let (pd, iova) = (d.nic.pd, addr);
        let new = ClientCommand::RegMr { pd, space: SPACE, addr, length, iova, access };
        assert_eq!(command(&mut d, new), Some(Errno::Invalid), "{addr:x} {length:x} {access:?}");
    }
}

#[test]
fn rights_of_missing_operations_are_not_supported() {
    for access in
        [AccessFlags::FLUSH_PERSISTENT, AccessFlags::FLUSH_PERSISTENT | AccessFlags::FLUSH_GLOBAL]
    {
        let mut d = dialogue();
        let (pd, addr, length) = (d.nic.pd, 0x10_0000, 4096);
        let new = ClientCommand::RegMr { pd, space: SPACE, addr, length, iova: addr, access };
        assert_eq!(command(&mut d, new), Some(Errno::NotSupported));
    }
}

#[test]
fn a_whole_address_space_is_a_region_only_on_demand() {
    let mut d = dialogue();
    let (pd, length, iova) = (d.nic.pd, u64::MAX, 0);
    let whole = |access| ClientCommand::RegMr { pd, space: SPACE, addr: 0, length, iova, access };
    let access = full_access();
    assert_eq!(command(&mut d, whole(access)), Some(Errno::Invalid));
    let access = access | AccessFlags::ON_DEMAND;
    let keys = d.world.host(0).command(whole(access)).unwrap();
    let Outcome::Mr { lkey, rkey, .. } = keys else { panic!("{keys:?}") };
    let addr = d.nic.mr.addr;
    d.recv(1, &[Sge { addr, length: 8, lkey }]);
    d.say(&send_only(&d, 0, &[5; 8]));
    d.expect_aeth(d.peer_psn(0), ACK, 1);
    let write = |d: &Dialogue, offset, va| {
        write_only(d, offset, 0, &[6; 8]).with(|h| {
            h.reth = Some(Reth { va, rkey: RKey(rkey), dma_len: 8 });
        })
    };
    d.say(&write(&d, 1, addr + 8));
    d.expect_aeth(d.peer_psn(1), ACK, 2);
    assert_eq!(statuses(&d.received()), ok([1]));
    assert_eq!(d.world.host(0).bytes(addr, 16), [[5; 8], [6; 8]].concat());
}

/// Async events of the port after it changed so.
fn port_events(states: &[(bool, bool)]) -> Vec<AsyncEventType> {
    let mut d = dialogue();
    let now = d.world.now();
    for (active, gids_changed) in states.iter().copied() {
        let port = PortState { active, active_mtu: 5, gids_changed };
        d.world.host(0).engine.execute(now, Command::SetPort(port)).unwrap();
    }
    // The engine tells when it runs next.
    d.say(&write_only(&d, 0, 0, &[1; 8]));
    d.hear_burst();
    let events = d.world.host(0).take_async_events();
    assert!(events.iter().all(|event| event.element == 1), "{events:?}");
    events.iter().map(|event| event.event).collect()
}

#[test]
fn a_port_that_goes_and_comes_is_an_event_each() {
    let expected = [AsyncEventType::PortErr, AsyncEventType::PortActive];
    assert_eq!(port_events(&[(false, false), (true, false)]), expected);
    assert_eq!(port_events(&[(true, false)]), []);
}

#[test]
fn a_changed_gid_table_is_an_event() {
    assert_eq!(port_events(&[(true, true)]), [AsyncEventType::GidChange]);
}
