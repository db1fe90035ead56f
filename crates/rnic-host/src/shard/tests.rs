//! An engine's thread, step by step, beside work that never ends.

use super::host::EventSocket;
use super::message::{CommandResult, NewClient};
use super::run::Shard;
use super::{ShardHandle, ShardMessage, ShardPort, channel};
use crate::dma::{Process, Space};
use crate::settings::{Idle, Io, Placement, Settings, XdpMode};
use crate::wire::{self, WireConfig};
use rnic_abi::control::CompletionEvent;
use rnic_abi::cpu_hints::HintWord;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, Poller, RecordIndex};
use rnic_abi::os::{EventFd, memory};
use rnic_core::EngineConfig;
use rnic_core::command::{ChannelId, ClientId};
use rnic_core::ports::{Host, SpaceId};
use rnic_net::{NetConfig, Network};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

pub(super) const CLIENT: ClientId = ClientId(1);
/// What an engine does at once takes much longer where other programs have the CPUs.
const SOON: Duration = Duration::from_secs(20);

/// A shard on a loopback wire, turned by the test.
fn shard(settings: Settings) -> (Shard, ShardHandle) {
    let place = NetConfig { netdev: Some("lo".into()), addresses: Vec::new() };
    let network = Network::start(place, Box::new(|_| ())).unwrap();
    let wires =
        WireConfig { io: Io::Loopback, xdp_mode: XdpMode::Auto, trains: true, users: false };
    let port = ShardPort::Device(Box::new(wire::open(&wires, &network).unwrap()));
    let (handle, inbox) = channel().unwrap();
    (Shard::new(EngineConfig::new([1, 2]), port, inbox, &settings, None).unwrap(), handle)
}

/// A turn, and the sleep behind it.
fn step(shard: &mut Shard) {
    if let Some(mut sleep) = shard.step() {
        let met = sleep.wait();
        shard.woke(met);
    }
}

fn busy(placement: Placement) -> Settings {
    Settings { idle: Idle::Busy, placement, ..Settings::default() }
}

/// The client's side of what it shares with an engine.
pub(super) struct Client {
    pub(super) bell: Bell,
    pub(super) wake: EventFd,
    _events: OwnedFd,
}

impl Client {
    /// Threads of a program that has not rung for some time do not count, however long the test had
    /// no CPU meanwhile.
    fn stay_active(&self) {
        if self.bell.ring(RecordIndex::new(0).unwrap(), 1) {
            self.wake.wake().unwrap();
        }
    }
}

pub(super) fn add_client(shard: &mut Shard, handle: &ShardHandle) -> Client {
    add_client_of(shard, handle, false)
}

fn add_client_of(shard: &mut Shard, handle: &ShardHandle, other_group: bool) -> Client {
    let (_file, area) = memory::create("test", AREA_WORDS).unwrap();
    let wake = EventFd::new().unwrap();
    let (events, theirs) = EventSocket::pair().unwrap();
    let (answer, answered) = crossbeam_channel::bounded::<CommandResult>(1);
    let new = NewClient {
        client: CLIENT,
        space: SpaceId(1),
        memory: Space::Process(Process::own().unwrap()),
        doorbells: Doorbells::new(area.clone()).unwrap(),
        wake: wake.as_fd().try_clone_to_owned().unwrap().into(),
        events,
        other_group,
    };
    handle.tell(ShardMessage::AddClient(Box::new(new), answer));
    step(shard);
    answered.recv().unwrap().unwrap();
    Client { bell: Bell::new(area).unwrap(), wake, _events: theirs }
}

/// Gives the engine something to do in every step, until `done`.
fn step_at_work(
    shard: &mut Shard,
    handle: &ShardHandle,
    mut done: impl FnMut(&mut Shard) -> bool,
) -> bool {
    let began = std::time::Instant::now();
    while began.elapsed() < SOON {
        let (answer, _) = crossbeam_channel::bounded(1);
        handle.tell(ShardMessage::RemoveSpace(SpaceId(77), answer));
        step(shard);
        if done(shard) {
            return true;
        }
    }
    false
}

/// Rings after having been silent for so long that its doorbells are no longer polled.
fn ring_after_silence(shard: &mut Shard, handle: &ShardHandle) -> Client {
    let client = add_client(shard, handle);
    let parked = step_at_work(shard, handle, |shard| shard.nic.engine.any_parked());
    assert!(parked, "a silent client is polled for ever");
    assert!(client.bell.ring(RecordIndex::new(0).unwrap(), 1), "it must write its eventfd");
    client.wake.wake().unwrap();
    client
}

#[test]
fn a_client_that_was_silent_is_heard_by_an_engine_that_has_work() {
    let (mut shard, handle) = shard(Settings::default());
    let _client = ring_after_silence(&mut shard, &handle);
    let heard = step_at_work(&mut shard, &handle, |shard| !shard.nic.engine.any_parked());
    assert!(heard, "its doorbell is not looked at");
}

#[test]
fn a_client_that_was_silent_is_heard_by_an_engine_that_never_sleeps() {
    let (mut shard, handle) = shard(busy(Placement::Auto));
    let _client = ring_after_silence(&mut shard, &handle);
    let began = std::time::Instant::now();
    while shard.nic.engine.any_parked() {
        assert!(began.elapsed() < SOON, "its doorbell is not looked at");
        step(&mut shard);
    }
}

#[test]
fn events_that_a_socket_did_not_take_follow_while_the_engine_has_work() {
    const EVENTS: u32 = 5000;
    let (mut shard, handle) = shard(Settings::default());
    let _client = add_client(&mut shard, &handle);
    let (ours, theirs) = EventSocket::pair().unwrap();
    let channel = ChannelId(2);
    handle.tell(ShardMessage::AddChannel(CLIENT, channel, ours));
    step(&mut shard);
    (0..EVENTS).for_each(|cq| shard.nic.events.completion_event(CLIENT, channel, cq));
    let mut next = 0;
    let all = step_at_work(&mut shard, &handle, |_| {
        let mut event = [0; 8];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        while rustix::net::recv(&theirs, &mut event, flags).is_ok() {
            assert_eq!(CompletionEvent::decode(event).cq, next);
            next += 1;
        }
        next == EVENTS
    });
    assert!(all, "{next} of {EVENTS} events came");
    assert!(!shard.nic.events.any_full());
}

#[test]
fn a_closed_channel_leaves_nothing_to_look_at() {
    let (mut shard, handle) = shard(Settings::default());
    let _client = add_client(&mut shard, &handle);
    let (ours, _theirs) = EventSocket::pair().unwrap();
    let channel = ChannelId(2);
    handle.tell(ShardMessage::AddChannel(CLIENT, channel, ours));
    step(&mut shard);
    (0..5000).for_each(|cq| shard.nic.events.completion_event(CLIENT, channel, cq));
    assert!(shard.nic.events.any_full());
    handle.tell(ShardMessage::RemoveChannel(CLIENT, channel));
    step(&mut shard);
    assert!(!shard.nic.events.any_full());
}

/// Turns a shard in which threads poll for nothing until the program reads what is `expected` of
/// it.
fn step_polled(shard: &mut Shard, client: &Client, pollers: u32, expected: fn(HintWord) -> bool) {
    let began = std::time::Instant::now();
    while !expected(client.bell.cpu_hints()) {
        assert!(began.elapsed() < SOON, "{:?}", client.bell.cpu_hints());
        client.stay_active();
        (0..pollers).for_each(|number| client.bell.publish_poller(Poller::new(number)));
        step(shard);
    }
}

#[test]
fn an_engine_with_cpus_enough_asks_programs_for_nothing() {
    for other_group in [false, true] {
        let (mut shard, handle) = shard(busy(Placement::Free));
        let client = add_client_of(&mut shard, &handle, other_group);
        client.bell.publish_cpu(0);
        step(&mut shard);
        let hints = client.bell.cpu_hints();
        assert!(!hints.reports_cpu() && !hints.sleeps() && !hints.yields_on(0));
        assert!(shard.cpu_sharing.may_spin());
    }
}

#[test]
fn an_engine_that_follows_programs_says_where_they_yield() {
    let (mut shard, handle) = shard(busy(Placement::Program));
    let client = add_client(&mut shard, &handle);
    let hints = client.bell.cpu_hints();
    assert!(hints.reports_cpu() && !hints.sleeps());
    let cpu = u32::try_from(rustix::thread::sched_getcpu()).unwrap();
    client.bell.publish_cpu(cpu);
    let began = std::time::Instant::now();
    while !client.bell.cpu_hints().yields_on(cpu) {
        assert!(began.elapsed() < SOON, "it does not follow the program");
        client.stay_active();
        step(&mut shard);
    }
    assert!(!client.bell.cpu_hints().yields_everywhere() && shard.cpu_sharing.may_spin());
}

#[test]
fn an_engine_and_programs_of_another_group_sleep() {
    let (mut shard, handle) = shard(busy(Placement::Program));
    let client = add_client_of(&mut shard, &handle, true);
    client.bell.publish_cpu(0);
    step(&mut shard);
    let hints = client.bell.cpu_hints();
    assert!(hints.sleeps() && !hints.yields_on(0));
    assert!(!shard.cpu_sharing.may_spin());
}

#[test]
fn more_threads_that_poll_than_cpus_yield_everywhere_for_a_while() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let Some(many) = u32::try_from(cpus + 1).ok().filter(|many| *many <= u64::BITS) else { return };
    for placement in [Placement::Free, Placement::Program] {
        let (mut shard, handle) = shard(busy(placement));
        let client = add_client(&mut shard, &handle);
        step_polled(&mut shard, &client, many, HintWord::yields_everywhere);
        assert!(!client.bell.cpu_hints().sleeps() && !shard.cpu_sharing.may_spin());
        step_polled(&mut shard, &client, 0, |hints| !hints.yields_everywhere());
        assert!(shard.cpu_sharing.may_spin());
    }
}
