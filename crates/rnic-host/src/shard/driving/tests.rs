//! An engine and a program that has a wish, step by step.

mod rest;

use super::super::held::Held;
use super::super::sleep::Sleep;
use super::super::{ShardHandle, ShardMessage, ShardPort, channel};
use super::*;
use crate::inspect::{Question, Seen};
use crate::settings::Settings;
use crate::wire::{DeviceWire, tests::change};
use crossbeam_channel::{Receiver, bounded};
use rnic_core::EngineConfig;
use std::cell::Cell;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use xdp_io::udp::ReceiverSockets;

/// What is expected at once takes longer where other programs have the CPUs.
const SOON: Duration = Duration::from_secs(20);

thread_local! {
    /// The program of a test handles signals.
    static HANDLES: Cell<bool> = const { Cell::new(true) };
}

struct Stage {
    held: Held,
    program: ProgramsEngine,
    driving: &'static Driving,
    offers: Connection,
    handle: ShardHandle,
    /// Sends to the engine's socket.
    peer: UdpSocket,
    addresses: usize,
}

impl Stage {
    fn new() -> Self {
        let driving: &'static Driving = Box::leak(Box::default());
        let (offers, theirs) = Connection::pair().unwrap();
        let mut wire = DeviceWire::of_shard(0, 1500).unwrap();
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (receives, sends, peer) = (bind(), bind(), bind());
        receives.set_nonblocking(true).unwrap();
        peer.connect(receives.local_addr().unwrap()).unwrap();
        let sockets =
            ReceiverSockets { receives: receives.into(), sends: sends.into(), arrivals: None };
        wire.add_sockets(Ipv4Addr::LOCALHOST.into(), sockets);
        let (handle, inbox) = channel().unwrap();
        let driven = Some(Driven { driving, offers: theirs, has_handlers: || HANDLES.get() });
        let (config, port) = (EngineConfig::new([1, 2]), ShardPort::Device(Box::new(wire)));
        let settings = Settings { spin: Duration::ZERO, ..Settings::default() };
        let shard = Shard::new(config, port, inbox, &settings, driven).unwrap();
        let held = Held::new(shard);
        let program = ProgramsEngine::new(held.clone(), driving);
        Self { held, program, driving, offers, handle, peer, addresses: 1 }
    }

    /// One more address.
    fn add(&mut self, address: Ipv4Addr) {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().into();
        let sockets = ReceiverSockets { receives: bind(), sends: bind(), arrivals: None };
        self.with(|shard| shard.nic.wire.add_sockets(address.into(), sockets));
        self.addresses += 1;
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shard) -> T) -> T {
        work(self.held.try_lock().unwrap().as_mut().unwrap())
    }

    /// The calling thread polls again and again; the engine makes a turn.
    fn wish(&self) -> State {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.driving.wish(thread.cast_unsigned());
        self.with(|shard| drop(shard.step()));
        self.driving.state()
    }

    /// The program takes what it was offered.
    fn take(&self) -> bool {
        let mut offer = [0; Offer::LEN];
        let mut copies: Vec<OwnedFd> = Vec::new();
        let changes = loop {
            copies.extend(self.offers.try_recv(&mut offer).unwrap().1);
            if let Offer { changes, left: 0 } = Offer::decode(offer) {
                break changes;
            }
        };
        assert_eq!(copies.len(), 2 * self.addresses);
        self.driving.leave(State::Offered);
        let taken = self.program.take_copies(changes, &copies);
        std::mem::forget(copies);
        taken
    }

    /// Until the program drives.
    fn drive(&self) {
        let until = std::time::Instant::now() + SOON;
        while self.wish() != State::Driven {
            assert!(std::time::Instant::now() < until, "it does not get the engine");
            if self.driving.state() == State::Offered {
                assert!(self.take());
            }
        }
    }

    /// The engine's thread sleeps while this happens, and looks what became of the program.
    fn sleep(&self, meanwhile: impl FnOnce()) {
        let sleep = self.with(Shard::step);
        meanwhile();
        if sleep.is_some() {
            self.sleeps(sleep);
        }
    }

    /// Sleeps, if so, and makes the next step.
    fn sleeps(&self, sleep: Option<Sleep>) -> Option<Sleep> {
        let Some(mut sleep) = sleep else { return self.with(Shard::step) };
        let met = sleep.wait();
        self.with(|shard| {
            let was_called = met.is_ok_and(|met| met.epoll);
            sleep.into_watch().into_iter().for_each(|watch| shard.watched(watch, was_called));
            shard.woke(met);
            shard.step()
        })
    }

    /// The program drives, and the engine's thread [sleeps](Self::sleep) while this happens: again,
    /// until the program is not taken for one that has stopped. How many datagrams the engine has
    /// refused in the last sleep.
    fn sleep_until_driven(&self, mut meanwhile: impl FnMut()) -> u64 {
        let until = std::time::Instant::now() + SOON;
        loop {
            self.drive();
            let before = self.refused();
            self.sleep(&mut meanwhile);
            if self.driving.state() == State::Driven {
                return self.refused() - before;
            }
            assert!(std::time::Instant::now() < until, "it is taken for one that has stopped");
        }
    }

    /// Asks the engine something. What it answers.
    fn ask(&self) -> Receiver<Seen> {
        let (answer, answered) = bounded(1);
        self.handle.tell(ShardMessage::Inspect(Question::Totals, answer));
        answered
    }

    /// How many datagrams the engine has refused.
    fn refused(&self) -> u64 {
        self.with(|shard| shard.nic.engine.counters().rx_malformed)
    }

    /// A turn of the program leaves something to the next one.
    fn owe(&self) {
        self.with(|shard| shard.driving.as_mut().unwrap().owes = Some(monotonic()));
    }

    fn owes(&self) -> bool {
        self.with(|shard| shard.driving.as_ref().unwrap().owes.is_some())
    }

    fn pause(&self) -> Duration {
        self.with(|shard| shard.driving.as_ref().unwrap().pause)
    }
}

#[test]
fn a_program_gets_copies_of_the_sockets_and_then_the_engine() {
    let stage = Stage::new();
    assert_eq!(stage.program.turn(), Turned::default());
    assert_eq!(stage.wish(), State::Offered);
    assert!(stage.take());
    stage.drive();
    let before = stage.driving.turns();
    stage.peer.send(b"no RoCE").unwrap();
    assert_eq!(stage.program.turn(), Turned::default());
    assert_eq!(stage.driving.turns(), before + 1);
    assert_eq!(stage.refused(), 1, "the turn received nothing");
}

#[test]
fn only_the_admitted_thread_calls() {
    let stage = Stage::new();
    stage.drive();
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let called_by = [thread, thread + 1, 0].map(|thread| stage.driving.calls(thread));
    assert_eq!(called_by, [true, false, false]);
    // Nor does one without a number where none was ever admitted.
    let ended = Driving::default();
    ended.set_state(State::Stale);
    assert!(!ended.calls(0));
}

#[test]
fn one_that_stops_to_poll_gives_the_engine_back() {
    let stage = Stage::new();
    stage.drive();
    stage.sleep(|| {});
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, Duration::ZERO));
    // For some milliseconds.
    assert_eq!(stage.wish(), State::Off);
    stage.drive();
}

/// A turn of the engine's thread would take packets from the program, and acknowledge them ahead of
/// its answers.
#[test]
fn questions_to_the_engine_take_nothing_from_one_that_drives() {
    let stage = Stage::new();
    stage.drive();
    let mut answered = None;
    stage.sleep(|| {
        assert_eq!(stage.program.turn(), Turned::default());
        answered = Some(stage.ask());
        stage.peer.send(b"no RoCE").unwrap();
    });
    assert!(answered.unwrap().try_recv().is_ok(), "there is no answer");
    assert_eq!((stage.driving.state(), stage.refused()), (State::Driven, 0));
    assert_eq!(stage.program.turn(), Turned::default());
    assert_eq!(stage.refused(), 1);
}

/// The threads that ask may have kept the CPU from the program.
#[test]
fn questions_take_nothing_from_one_that_has_made_no_turn() {
    let stage = Stage::new();
    let mut answers = Vec::new();
    let refused = stage.sleep_until_driven(|| {
        stage.owe();
        stage.peer.send(b"no RoCE").unwrap();
        answers.push(stage.ask());
    });
    assert!(answers.iter().all(|answer| answer.try_recv().is_ok()), "there is no answer");
    assert_eq!((refused, stage.owes()), (0, true));
}

#[test]
fn nor_do_two_questions_at_once() {
    let stage = Stage::new();
    stage.drive();
    let mut answers = Vec::new();
    stage.sleep(|| {
        assert_eq!(stage.program.turn(), Turned::default());
        stage.owe();
        stage.peer.send(b"no RoCE").unwrap();
        answers = vec![stage.ask(), stage.ask()];
    });
    assert!(answers.iter().all(|answer| answer.try_recv().is_ok()), "there is no answer");
    let found = (stage.driving.state(), stage.refused(), stage.owes());
    assert_eq!(found, (State::Driven, 0, true));
}

#[test]
fn what_a_program_owes_that_ends_is_sent() {
    let stage = Stage::new();
    stage.drive();
    stage.sleep(|| {
        assert_eq!(stage.program.turn(), Turned::default());
        stage.owe();
        stage.handle.tell(ShardMessage::SendOwed);
    });
    assert_eq!((stage.driving.state(), stage.owes()), (State::Driven, false));
}

/// They may block different signals: what one has found of itself says nothing of the other.
#[test]
fn turns_of_the_engines_thread_while_the_program_drives_are_those_of_another_thread() {
    let stage = Stage::new();
    // It makes no turn, but has not stopped yet: the engine's thread makes one.
    let refused = stage.sleep_until_driven(|| {
        stage.peer.send(b"no RoCE").unwrap();
        stage.handle.tell(ShardMessage::SendOwed);
    });
    assert_eq!(refused, 1);
    assert!(stage.with(|shard| shard.nic.dma.has_changed_thread()));
    assert_eq!(stage.program.turn(), Turned::default());
    assert!(!stage.with(|shard| shard.nic.dma.has_changed_thread()));
    stage.sleep(|| {});
    assert_eq!(stage.driving.state(), State::Off);
}

/// A program that asks and asks does not poll.
#[test]
fn questions_do_not_keep_the_engine_from_one_that_has_stopped() {
    let stage = Stage::new();
    stage.drive();
    let until = std::time::Instant::now() + SOON;
    stage.peer.send(b"no RoCE").unwrap();
    while stage.driving.state() != State::Off {
        assert!(std::time::Instant::now() < until, "it is still taken for one that drives");
        stage.sleep(|| drop(stage.ask()));
    }
    assert_eq!(stage.refused(), 1);
}

/// Where no timer tells of it, packets do not wait for the end of the questions.
#[test]
fn nor_where_there_is_no_alarm() {
    let stage = Stage::new();
    stage.with(|shard| shard.driving.as_mut().unwrap().alarm = OnceCell::from(None));
    stage.drive();
    let until = std::time::Instant::now() + SOON;
    let mut sleep = stage.with(Shard::step);
    stage.peer.send(b"no RoCE").unwrap();
    while stage.refused() == 0 {
        assert!(std::time::Instant::now() < until, "a packet waits");
        drop(stage.ask());
        sleep = stage.sleeps(sleep);
    }
}

#[test]
fn a_program_that_works_between_its_polls_gives_the_engine_back() {
    let stage = Stage::new();
    stage.drive();
    let until = std::time::Instant::now() + SOON;
    while !stage.program.turn().contains(Turned::WAKE) {
        assert!(std::time::Instant::now() < until, "packets wait for it for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    stage.with(|shard| drop(shard.step()));
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, PAUSE.0));
}

#[test]
fn a_program_that_does_nothing_between_its_polls_gets_several_turns_in_each() {
    let stage = Stage::new();
    stage.drive();
    let turns = || {
        let before = stage.driving.turns();
        stage.program.turn();
        stage.driving.turns() - before
    };
    let until = std::time::Instant::now() + SOON;
    // One that is interrupted often gives the engine back.
    while !(0..1000).any(|_| turns() == u64::from(TURNS)) {
        assert!(std::time::Instant::now() < until, "each poll makes one turn");
        stage.drive();
    }
    std::thread::sleep(Duration::from_micros(50));
    assert_eq!(turns(), 1);
}

#[test]
fn one_that_makes_others_wait_gets_it_less_and_less_often() {
    let stage = Stage::new();
    for pause in [PAUSE.0, PAUSE.0 * 2, PAUSE.0 * 4] {
        stage.drive();
        stage.sleep(|| _ = stage.peer.send(b"no RoCE").unwrap());
        assert_eq!((stage.driving.state(), stage.pause()), (State::Off, pause));
    }
}

#[test]
fn one_that_waits_for_an_event_gives_the_engine_back() {
    let stage = Stage::new();
    assert!(!stage.driving.withdraw(), "it does not drive");
    stage.drive();
    assert!(stage.driving.withdraw(), "the engine's thread must be woken");
    assert!(!stage.driving.withdraw(), "once");
    stage.with(|shard| drop(shard.step()));
    assert_eq!(stage.driving.state(), State::Off);
}

/// More sockets than a message has room for.
#[test]
fn a_program_gets_copies_of_many_sockets() {
    let mut stage = Stage::new();
    for address in 1..4u8 {
        stage.add(Ipv4Addr::new(127, 0, 1, address));
    }
    stage.drive();
    assert_eq!(stage.addresses, 4);
}

#[test]
fn copies_of_sockets_that_are_gone_are_recalled() {
    let mut stage = Stage::new();
    stage.drive();
    stage.with(|shard| shard.nic.wire.follow(&change(&[])));
    stage.with(|shard| drop(shard.step()));
    assert_eq!(stage.driving.state(), State::Stale);
    stage.driving.leave(State::Stale);
    stage.addresses = 0;
    stage.add(Ipv4Addr::LOCALHOST);
    assert_eq!(stage.wish(), State::Off, "not at once");
    stage.drive();
    // Also while the program does not drive.
    stage.sleep(|| {});
    assert_eq!(stage.driving.state(), State::Off);
    stage.add(Ipv4Addr::new(127, 0, 1, 1));
    stage.with(|shard| drop(shard.step()));
    assert_eq!(stage.driving.state(), State::Stale);
}

#[test]
fn a_program_that_has_closed_its_copies_does_not_drive() {
    let stage = Stage::new();
    stage.drive();
    assert!(stage.program.forget_copies());
    assert!(stage.program.turn().contains(Turned::WAKE), "the engine's thread must be woken");
    stage.with(|shard| drop(shard.step()));
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, Duration::ZERO));
    stage.drive();
}

#[test]
fn an_engine_that_has_ended_is_turned_no_more() {
    let stage = Stage::new();
    stage.drive();
    assert!(!stage.program.has_ended());
    drop(stage.held.try_lock().unwrap().take());
    assert!(stage.program.has_ended());
    assert_eq!(stage.program.turn(), Turned::default());
    let other = stage.held.try_lock();
    assert_eq!(stage.program.turn(), Turned::default().with(Turned::BUSY, true));
    drop(other);
}

#[test]
fn a_program_that_drives_is_told_when_it_handles_signals() {
    HANDLES.set(false);
    let stage = Stage::new();
    assert!(!stage.driving.is_calm(), "nothing has looked yet");
    stage.drive();
    assert!(stage.driving.is_calm());
    HANDLES.set(true);
    let until = std::time::Instant::now() + SOON;
    while stage.driving.is_calm() {
        assert!(std::time::Instant::now() < until, "nothing looks again");
        stage.sleep(|| {
            stage.program.turn();
            drop(stage.ask());
        });
        // One that is interrupted may have given the engine back.
        if stage.driving.state() != State::Driven {
            stage.drive();
        }
    }
}

/// The engine is gone then, and nothing else.
#[test]
fn a_panic_in_a_turn_of_the_program_ends_the_engine() {
    let stage = Stage::new();
    stage.drive();
    let turn = || stage.with(|_| panic!("a defect"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(turn)).is_err());
    assert!(!stage.program.has_ended());
    stage.held.run();
    assert!(stage.program.has_ended());
    assert_eq!(stage.program.turn(), Turned::default());
}
