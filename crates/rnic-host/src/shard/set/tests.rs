//! Users who come and go, and engines that do not answer.

use super::*;
use crate::dma::Process;
use crate::settings::{Io, XdpMode};
use crate::shard::host::EventSocket;
use crate::shard::message::NewClient;
use crate::wire::{self, WireConfig};
use rnic_abi::doorbell::{AREA_WORDS, Doorbells};
use rnic_abi::os::{EventFd, memory};
use rnic_abi::verbs::AccessFlags;
use rnic_core::{ClientCommand, ClientId, Command, Outcome, SpaceId};
use rnic_net::testbed::is_root;
use rnic_net::{NetConfig, Network};

fn shards() -> Arc<ShardSet> {
    let place = NetConfig { netdev: Some("lo".into()), addresses: Vec::new() };
    let network = Network::start(place, Box::new(|_| ())).unwrap();
    let wires = WireConfig { io: Io::Loopback, xdp_mode: XdpMode::Auto, trains: true };
    let wire = wire::open(&wires, &network).unwrap();
    Arc::new(ShardSet::start(Settings::default(), 4, EngineConfig::new([1, 2]), wire).unwrap())
}

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { pid: std::process::id(), uid, gid }
}

/// The engine behind a handle works.
fn answers(shard: &ShardHandle) -> bool {
    shard.ask(|answer| Message::Inspect(Question::Totals, answer)).is_ok()
}

/// Keeps an engine until the receiver is asked or dropped.
fn block(shard: &ShardHandle) -> Receiver<Found> {
    let (answer, answered) = bounded(0);
    shard.tell(Message::Inspect(Question::Totals, answer));
    answered
}

#[test]
fn users_who_left_make_room_for_others() {
    if !is_root("users_who_left_make_room_for_others") {
        return;
    }
    let shards = shards();
    for uid in 1000..1000 + 3 * u32::from(MAX_SHARDS) {
        assert!(answers(&shards.lease(&user(uid, uid)).unwrap()));
    }
    // All at once, each with an engine.
    let mut leases: Vec<ShardLease> = (0..u32::from(MAX_SHARDS))
        .map(|k| shards.lease(&user(2000 + k, 100)).unwrap_or_else(|error| panic!("{k}: {error}")))
        .collect();
    assert!(leases.iter().all(|lease| answers(lease)));
    let refusal = shards.lease(&user(3000, 100)).map(drop).unwrap_err();
    assert_eq!(refusal.errno, libc::EUSERS);
    let again = shards.lease(&user(2003, 100)).unwrap();
    drop(leases.swap_remove(3));
    assert!(shards.lease(&user(3000, 100)).is_err(), "that user still has a client");
    drop(again);
    assert!(answers(&shards.lease(&user(3000, 100)).unwrap()));
    drop(leases);
    shards.stop();
}

/// The key of the first memory region that an engine registers.
fn first_key(shard: &ShardHandle) -> u32 {
    let (_file, area) = memory::create("test", AREA_WORDS).unwrap();
    let (client, space) = (ClientId(1), SpaceId(1));
    let new = NewClient {
        client,
        space,
        process: Process::new(std::process::id()).unwrap(),
        doorbells: Doorbells::new(area).unwrap(),
        wake: EventFd::new().unwrap(),
        events: EventSocket::pair().unwrap().0,
        other_group: false,
    };
    shard.ask(|answer| Message::AddClient(Box::new(new), answer)).unwrap().unwrap();
    let execute = |command| {
        let command = Command::Client(client, command);
        shard.ask(|answer| Message::Execute(command, answer)).unwrap().unwrap()
    };
    let Outcome::Handle(pd) = execute(ClientCommand::AllocPd) else { panic!() };
    let access = AccessFlags::empty();
    let new = ClientCommand::RegMr { pd, space, addr: 0, length: 64, iova: 0, access };
    let Outcome::Mr { rkey, .. } = execute(new) else { panic!() };
    rkey
}

/// Nor do they tell those of the engine that has the same number later.
#[test]
fn keys_of_one_user_do_not_tell_those_of_another() {
    if !is_root("keys_of_one_user_do_not_tell_those_of_another") {
        return;
    }
    let shards = shards();
    let stays = shards.lease(&user(999, 100)).unwrap();
    let mut keys = vec![first_key(&stays)];
    for uid in 1000..1000 + 3 * u32::from(MAX_SHARDS) {
        keys.push(first_key(&shards.lease(&user(uid, 100)).unwrap()));
    }
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all);
    drop(stays);
    shards.stop();
}

#[test]
fn one_user_with_many_groups_leaves_room_for_others() {
    if !is_root("one_user_with_many_groups_leaves_room_for_others") {
        return;
    }
    let shards = shards();
    for gid in 0..3 * u32::from(MAX_SHARDS) {
        assert!(shards.lease(&user(1000, gid)).is_ok(), "group {gid}");
    }
    let leases: Vec<ShardLease> =
        (0..shards.groups).map(|gid| shards.lease(&user(1000, gid)).unwrap()).collect();
    let refusal = shards.lease(&user(1000, 99)).map(drop).unwrap_err();
    assert!(refusal.message.contains("quota.groups"), "{refusal}");
    assert!(answers(&shards.lease(&user(1001, 99)).unwrap()));
    drop(leases);
    shards.stop();
}

#[test]
fn an_engine_that_is_kept_keeps_nobody_else() {
    let shards = shards();
    let lease = shards.lease(&user(1000, 1000)).unwrap();
    let kept = block(&shards.first);
    let began = Instant::now();
    if shards.privileged {
        let other = shards.lease(&user(1001, 1001)).unwrap();
        assert!(answers(&other));
        assert!(shards.counters().contains_key("tx_packets"), "no engine was asked");
        assert!(shards.lease(&user(1000, 1000)).is_ok());
    }
    shards.counters();
    shards.stop();
    drop(lease);
    assert!(began.elapsed() < Duration::from_millis(3500), "{:?}", began.elapsed());
    drop(kept);
}

#[test]
fn the_counters_of_an_engine_outlive_it() {
    if !is_root("the_counters_of_an_engine_outlive_it") {
        return;
    }
    let shards = shards();
    let leases = [1000, 1001].map(|uid| shards.lease(&user(uid, uid)).unwrap());
    let counters = shards.counters();
    assert!(counters.len() > 20, "{counters:?}");
    drop(leases);
    shards.stop();
    let past = shards.past.lock().unwrap();
    assert_eq!(past.len(), counters.len());
}
