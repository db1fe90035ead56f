//! An engine's thread, step by step, beside work that never ends.

use super::host::EventSocket;
use super::message::{CommandResult, NewClient};
use super::run::Shard;
use super::{Message, Port, ShardHandle, channel};
use crate::config::{Args, Config, Io, XdpMode};
use crate::dma::Process;
use crate::net::{NetConfig, Network};
use crate::wire::{self, WireConfig};
use clap::Parser;
use rnic_abi::control::CompletionEvent;
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::os::{EventFd, memory};
use rnic_core::EngineConfig;
use rnic_core::command::{ChannelId, ClientId};
use rnic_core::ports::{Host, SpaceId};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const CLIENT: ClientId = ClientId(1);

/// A shard on a loopback wire, turned by the test.
fn shard(options: &[&str]) -> (Shard, ShardHandle) {
    let words = ["rnicd", "--socket", "/unused", "--io", "loopback"];
    let args = Args::parse_from(words.iter().chain(options));
    let config = Config::resolve(args).unwrap();
    let place = NetConfig { netdev: Some("lo".into()), addresses: Vec::new() };
    let network = Network::start(place, Box::new(|_| ())).unwrap();
    let wires = WireConfig { io: Io::Loopback, xdp_mode: XdpMode::Auto, trains: true };
    let port = Port::Device(Box::new(wire::open(&wires, &network).unwrap()));
    let (handle, inbox) = channel().unwrap();
    (Shard::new(EngineConfig::new([1, 2]), port, inbox, &config).unwrap(), handle)
}

/// The client's side of what it shares with an engine.
struct Client {
    bell: Bell,
    wake: EventFd,
    _events: OwnedFd,
}

fn add_client(shard: &mut Shard, handle: &ShardHandle) -> Client {
    let (_file, area) = memory::create("test", AREA_WORDS).unwrap();
    let wake = EventFd::new().unwrap();
    let (events, theirs) = EventSocket::pair().unwrap();
    let (answer, answered) = crossbeam_channel::bounded::<CommandResult>(1);
    let new = NewClient {
        client: CLIENT,
        space: SpaceId(1),
        process: Process::new(std::process::id()).unwrap(),
        doorbells: Doorbells::new(area.clone()).unwrap(),
        wake: wake.as_fd().try_clone_to_owned().unwrap().into(),
        events,
        other_group: false,
    };
    handle.tell(Message::AddClient(Box::new(new), answer));
    shard.step();
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
    while began.elapsed() < Duration::from_secs(2) {
        let (answer, _) = crossbeam_channel::bounded(1);
        handle.tell(Message::RemoveSpace(SpaceId(77), answer));
        shard.step();
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
    let (mut shard, handle) = shard(&[]);
    let _client = ring_after_silence(&mut shard, &handle);
    let heard = step_at_work(&mut shard, &handle, |shard| !shard.nic.engine.any_parked());
    assert!(heard, "its doorbell is not looked at");
}

#[test]
fn a_client_that_was_silent_is_heard_by_an_engine_that_never_sleeps() {
    let (mut shard, handle) = shard(&["--busy-poll"]);
    let _client = ring_after_silence(&mut shard, &handle);
    let began = std::time::Instant::now();
    while shard.nic.engine.any_parked() {
        assert!(began.elapsed() < Duration::from_secs(2), "its doorbell is not looked at");
        shard.step();
    }
}

#[test]
fn events_that_a_socket_did_not_take_follow_while_the_engine_has_work() {
    const EVENTS: u32 = 5000;
    let (mut shard, handle) = shard(&[]);
    let _client = add_client(&mut shard, &handle);
    let (ours, theirs) = EventSocket::pair().unwrap();
    let channel = ChannelId(2);
    handle.tell(Message::AddChannel(CLIENT, channel, ours));
    shard.step();
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
    let (mut shard, handle) = shard(&[]);
    let _client = add_client(&mut shard, &handle);
    let (ours, _theirs) = EventSocket::pair().unwrap();
    let channel = ChannelId(2);
    handle.tell(Message::AddChannel(CLIENT, channel, ours));
    shard.step();
    (0..5000).for_each(|cq| shard.nic.events.completion_event(CLIENT, channel, cq));
    assert!(shard.nic.events.any_full());
    handle.tell(Message::RemoveChannel(CLIENT, channel));
    shard.step();
    assert!(!shard.nic.events.any_full());
}
