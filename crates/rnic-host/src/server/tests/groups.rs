//! Multicast groups over the control socket.

use super::{Client, Daemon, WireGroups, queue_pair};
use crate::quota::Resource;
use crate::settings::{Io, Settings, XdpMode};
use crate::shard::{OwnEngine, ShardPort};
use crate::wire::{self, WireConfig};
use rnic_abi::control::{CreateQp, Reply, Request};
use rnic_abi::verbs::QpType;
use rnic_core::EngineConfig;
use rnic_net::{Incarnation, NetConfig, Network};
use roce_wire::Gid;

fn group(last: u8) -> [u8; 16] {
    Gid::from_ip([239, 1, 2, last].into()).0
}

fn change(qp: u32, gid: [u8; 16], attach: bool) -> Request {
    Request::Multicast { qp, gid, attach }
}

fn new_qp(client: &Client, qp_type: QpType) -> u32 {
    let (pd, cq) = (client.handle(&Request::AllocPd), client.cq());
    let wanted = CreateQp { qp_type, ..queue_pair(pd, cq) };
    match client.call(&Request::CreateQp(wanted)) {
        Ok(Reply::Qp { qp, .. }) => qp,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_queue_pair_is_attached_until_it_is_detached() {
    let daemon = Daemon::start("groups", &[]);
    let client = daemon.open();
    let qp = new_qp(&client, QpType::Ud);
    assert_eq!(client.errno(&change(qp, group(1), false)), libc::EINVAL, "it is not attached");
    // The second time changes nothing, as with the kernel's devices.
    for _ in 0..2 {
        client.call(&change(qp, group(1), true)).unwrap();
    }
    client.call(&change(qp, group(2), true)).unwrap();
    assert_eq!(client.errno(&Request::DestroyQp { qp }), libc::EBUSY);
    for last in [1, 2] {
        client.call(&change(qp, group(last), false)).unwrap();
        assert_eq!(client.errno(&change(qp, group(last), false)), libc::EINVAL);
    }
    client.call(&Request::DestroyQp { qp }).unwrap();
    assert_eq!(client.errno(&change(qp, group(1), true)), libc::ENOENT);
}

#[test]
fn what_cannot_be_a_member_is_refused() {
    let daemon = Daemon::start("groups-bad", &[]);
    let (client, other) = (daemon.open(), daemon.open());
    let (ud, rc) = (new_qp(&client, QpType::Ud), new_qp(&client, QpType::Rc));
    let unicast = Gid::from_ip([10, 0, 0, 1].into()).0;
    for (qp, gid) in [(ud, unicast), (ud, [0; 16]), (rc, group(1))] {
        for attach in [true, false] {
            assert_eq!(client.errno(&change(qp, gid, attach)), libc::EINVAL, "{gid:?}");
        }
    }
    assert_eq!(other.errno(&change(ud, group(1), true)), libc::ENOENT, "of another client");
    client.call(&Request::DestroyQp { qp: ud }).unwrap();
}

/// What a program is told that it may have is what it gets.
#[test]
fn attachments_are_charged_and_given_back() {
    let daemon = Daemon::start("groups-quota", &[(Resource::Ahs, 3)]);
    let client = daemon.open();
    let Ok(Reply::Devices(devices)) = client.call(&Request::ListDevices) else {
        panic!("no devices")
    };
    let limits = devices[0].limits;
    assert_eq!((limits.max_groups, limits.max_members), (3, 3));
    let qp = new_qp(&client, QpType::Ud);
    for last in 1..=3 {
        client.call(&change(qp, group(last), true)).unwrap();
    }
    assert_eq!(client.errno(&change(qp, group(4), true)), libc::ENOMEM);
    client.call(&change(qp, group(1), false)).unwrap();
    client.call(&change(qp, group(4), true)).unwrap();
    // A client that goes away leaves nothing behind.
    drop(client);
    daemon.settle();
    let client = daemon.open();
    let qp = new_qp(&client, QpType::Ud);
    for last in 1..=3 {
        client.call(&change(qp, group(last), true)).unwrap();
    }
}

#[test]
fn an_engine_has_as_many_groups_and_members_as_it_says() {
    let daemon = Daemon::start("groups-full", &[]);
    let client = daemon.open();
    let Ok(Reply::Devices(devices)) = client.call(&Request::ListDevices) else {
        panic!("no devices")
    };
    let limits = devices[0].limits;
    let (groups, members) = (limits.max_groups, limits.max_members);
    let qps: Vec<u32> = (0..=members).map(|_| new_qp(&client, QpType::Ud)).collect();
    for (nth, qp) in (0..).zip(&qps) {
        let answer = client.call(&change(*qp, group(1), true));
        assert_eq!(answer.is_ok(), nth < members, "{nth}: {answer:?}");
    }
    let address = |nth: u32| Gid::from_ip(std::net::Ipv4Addr::from(0xef02_0000 + nth).into()).0;
    for nth in 1..=groups {
        let answer = client.call(&change(qps[0], address(nth), true));
        assert_eq!(answer.is_ok(), nth < groups, "{nth}: {answer:?}");
    }
}

#[test]
fn groups_are_joined_on_an_interface_that_is_made_anew() {
    if !testbed::is_root("groups_are_joined_on_an_interface_that_is_made_anew") {
        return;
    }
    let pair = testbed::Pair::new(4200);
    let interface = |generation| {
        let index = pair.a.run(|| xdp_io::netdev::index("eth0").unwrap());
        Incarnation { index, generation }
    };
    let (engine, groups) = pair.a.run(|| {
        let place = NetConfig { netdev: Some("eth0".into()), addresses: Vec::new() };
        let network = Network::start(place, Box::new(|_| ())).unwrap();
        let xdp_mode = XdpMode::Auto;
        let config = WireConfig { io: Io::AfPacket, xdp_mode, trains: true, users: false };
        let wire = wire::open(&config, &network).unwrap();
        let joiner = wire.joiner();
        let port = ShardPort::Device(Box::new(wire));
        let engine = EngineConfig::new([1, 2]);
        let engine = OwnEngine::start(Settings::default(), engine, port).unwrap();
        let groups = WireGroups::new(engine.handle().clone(), joiner);
        (engine, groups)
    });
    let is_member = || pair.a.ip("maddress show dev eth0").contains("239.1.2.3");
    pair.a.run(|| groups.join_for(0, "239.1.2.3".parse().unwrap()).unwrap());
    assert!(is_member());
    pair.make_anew(4200);
    assert!(!is_member());
    pair.a.run(|| groups.move_to(interface(1)));
    testbed::wait_for("the membership", || is_member().then_some(()));
    // The same when it was away and is back.
    pair.lend();
    assert!(!is_member());
    pair.a.run(|| groups.move_to(interface(2)));
    testbed::wait_for("the membership", || is_member().then_some(()));
    // It lasts until the last one leaves.
    pair.a.run(|| groups.move_to(interface(2)));
    groups.leave_for(0, "239.1.2.3".parse().unwrap());
    testbed::wait_for("the end of the membership", || (!is_member()).then_some(()));
    engine.stop();
}
