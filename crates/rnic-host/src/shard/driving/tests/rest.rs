//! A program that waits for completion events.

use super::super::super::host::EventSocket;
use super::super::super::tests::{CLIENT, Client, add_client};
use super::*;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::os::Inode;
use rnic_abi::os::driving::{NO_LIMIT, Resting};
use rnic_core::command::ChannelId;
use rnic_core::ports::{Host, SpaceId};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsRawFd, RawFd};

const SLEEP: Turned = Turned::SLEEP;

impl Stage {
    /// The calling thread waits again and again; the engine makes a turn.
    fn wish_to_rest(&self) -> State {
        self.driving.wish_to_rest(this_thread());
        self.with(|shard| drop(shard.step()));
        self.driving.state()
    }

    /// Until a thread that waits has the engine. It has the copies then.
    fn begin_to_rest(&self) {
        let until = std::time::Instant::now() + SOON;
        while self.wish_to_rest() != State::Driven {
            assert!(std::time::Instant::now() < until, "it does not get the engine");
            if self.driving.state() == State::Offered {
                assert!(self.take());
            }
        }
    }

    /// Until it is told to sleep.
    fn falls_asleep(&self, resting: &mut Resting) {
        let until = std::time::Instant::now() + SOON;
        while !self.program.rest(resting).contains(SLEEP) {
            assert!(std::time::Instant::now() < until, "it is not told to sleep");
        }
    }

    /// A client, before the program drives, and the program's end of a channel.
    fn add_client(&self) -> (Client, OwnedFd) {
        let (ours, theirs) = EventSocket::pair().unwrap();
        let client = self.with(|shard| {
            let client = add_client(shard, &self.handle);
            shard.nic.events.add_channel(CLIENT, ChannelId(1), ours);
            client
        });
        (client, theirs)
    }

    /// A turn of the program has brought an event.
    fn keep_event(&self, channel: u32) {
        self.with(|shard| {
            shard.nic.events.keep(true);
            shard.nic.events.completion_event(CLIENT, ChannelId(channel), 7);
            shard.nic.events.keep(false);
        });
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

fn waits_at(end: &OwnedFd) -> Resting {
    Resting { channel: Inode::of(end.as_raw_fd()).unwrap().number, ..Resting::default() }
}

fn is_readable(number: RawFd) -> bool {
    #[allow(unsafe_code, reason = "a number that the program was told")]
    // SAFETY: the tests leak their copies, which stay open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&none)).unwrap() > 0
}

/// It must not be asleep when it gets the engine.
#[test]
fn one_that_waits_is_told_first_and_gets_the_engine_with_its_next_wish() {
    let stage = Stage::new();
    stage.drive();
    stage.sleep(|| {});
    let until = std::time::Instant::now() + SOON;
    // The second wish may come too late.
    loop {
        assert!(std::time::Instant::now() < until, "it does not get the engine");
        let was_ready = stage.driving.is_ready(this_thread());
        let state = stage.wish_to_rest();
        if !was_ready {
            assert_eq!(state, State::Off);
        } else if state == State::Driven {
            break;
        }
    }
    assert!(!stage.driving.is_ready(this_thread()));
}

#[test]
fn it_sleeps_on_its_copy_of_the_socket_that_receives() {
    let stage = Stage::new();
    stage.begin_to_rest();
    let mut resting = Resting { channel: 1, ..Resting::default() };
    stage.falls_asleep(&mut resting);
    assert_eq!((resting.count, resting.nanos), (1, NO_LIMIT));
    assert!(!is_readable(resting.fds[0]));
    stage.peer.send(b"no RoCE").unwrap();
    assert!(is_readable(resting.fds[0]));
    stage.program.rest(&mut resting);
    assert_eq!(stage.refused(), 1);
    assert!(!is_readable(resting.fds[0]));
}

#[test]
fn a_command_while_it_sleeps_takes_the_engine_back_for_some_time() {
    let stage = Stage::new();
    stage.begin_to_rest();
    let mut resting = Resting { channel: 1, ..Resting::default() };
    let (answer, answered) = bounded(1);
    stage.sleep(|| {
        stage.falls_asleep(&mut resting);
        stage.handle.tell(ShardMessage::RemoveSpace(SpaceId(77), answer));
    });
    assert!(answered.try_recv().is_ok());
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, PAUSE.0));
}

#[test]
fn a_look_while_it_sleeps_does_not() {
    let stage = Stage::new();
    let mut resting = Resting { channel: 1, ..Resting::default() };
    let until = std::time::Instant::now() + SOON;
    loop {
        assert!(std::time::Instant::now() < until, "the alarm always rings first");
        stage.begin_to_rest();
        let mut answered = None;
        let before = stage.refused();
        stage.sleep(|| {
            stage.falls_asleep(&mut resting);
            answered = Some(stage.ask());
            stage.peer.send(b"no RoCE").unwrap();
        });
        assert!(answered.unwrap().try_recv().is_ok(), "there is no answer");
        if stage.driving.state() == State::Driven {
            assert_eq!(stage.refused(), before, "it takes packets from the program");
            stage.program.rest(&mut resting);
            assert_eq!(stage.refused(), before + 1);
            break;
        }
    }
}

#[test]
fn a_doorbell_while_it_sleeps_takes_the_engine_back_and_one_before_does_not_wake_it() {
    let stage = Stage::new();
    let (client, end) = stage.add_client();
    let (record, mut resting) = (RecordIndex::new(0).unwrap(), waits_at(&end));
    stage.begin_to_rest();
    stage.sleep(|| {
        stage.falls_asleep(&mut resting);
        stage.program.turn();
        assert!(!client.bell.ring(record, 1), "its turns look for doorbells");
        stage.falls_asleep(&mut resting);
        assert!(client.bell.ring(record, 2), "no thread looks for doorbells");
        client.wake.wake().unwrap();
    });
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, PAUSE.0));
}

/// One that was silent for long rings by its eventfd alone.
#[test]
fn a_client_that_rings_beside_a_question_gets_a_turn() {
    let stage = Stage::new();
    let (client, _end) = stage.add_client();
    let refused = stage.sleep_until_driven(|| {
        stage.peer.send(b"no RoCE").unwrap();
        drop(stage.ask());
        client.wake.wake().unwrap();
    });
    assert_eq!(refused, 1);
}

#[test]
fn the_alarm_takes_the_engine_back_and_leaves_it_to_the_next_wishes() {
    let stage = Stage::new();
    stage.begin_to_rest();
    let mut resting = Resting { channel: 1, ..Resting::default() };
    let began = std::time::Instant::now();
    stage.sleep(|| stage.falls_asleep(&mut resting));
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, Duration::ZERO));
    assert!(began.elapsed() < SOON);
    stage.begin_to_rest();
    // Packets that have waited are a reason to wait longer.
    stage.sleep(|| {
        stage.falls_asleep(&mut resting);
        stage.peer.send(b"no RoCE").unwrap();
    });
    assert_eq!((stage.driving.state(), stage.pause()), (State::Off, PAUSE.0));
}

#[test]
fn it_gets_the_events_of_its_channel_and_those_of_others_are_sent() {
    let stage = Stage::new();
    let (_client, end) = stage.add_client();
    let (ours, other_end) = EventSocket::pair().unwrap();
    stage.with(|shard| shard.nic.events.add_channel(CLIENT, ChannelId(2), ours));
    let mut resting = waits_at(&end);
    stage.begin_to_rest();
    stage.keep_event(1);
    let turned = stage.program.rest(&mut resting);
    assert!(turned.contains(Turned::EVENT) && !turned.contains(Turned::WAKE));
    assert!(!stage.program.rest(&mut resting).contains(Turned::EVENT), "there was one");
    stage.keep_event(1);
    stage.keep_event(2);
    let turned = stage.program.rest(&mut resting);
    assert!(turned.contains(Turned::EVENT) && turned.contains(Turned::WAKE));
    // The engine's thread has not come yet: the program is of no use to the other one.
    let turned = stage.program.rest(&mut resting);
    assert!(turned.contains(Turned::BUSY) && turned.contains(Turned::WAKE));
    stage.with(|shard| {
        shard.woke(Ok(super::super::super::sleep::Met { epoll: false, wire: false }));
        drop(shard.step());
    });
    assert_eq!(stage.driving.state(), State::Off);
    assert!(is_readable(other_end.as_raw_fd()) && !is_readable(end.as_raw_fd()));
}

/// It polls instead, or another thread waits for them.
#[test]
fn the_events_of_a_channel_that_it_left_are_sent() {
    let stage = Stage::new();
    let (_client, end) = stage.add_client();
    let mut resting = waits_at(&end);
    stage.begin_to_rest();
    stage.program.rest(&mut resting);
    stage.keep_event(1);
    let until = std::time::Instant::now() + SOON;
    while !stage.program.turn().contains(Turned::WAKE) {
        assert!(std::time::Instant::now() < until, "the event is kept for ever");
    }
    assert_eq!(stage.driving.state(), State::Driven);
}

#[test]
fn a_program_that_polls_sleeps_where_something_else_computes() {
    let stage = Stage::new();
    stage.drive();
    stage.program.turn();
    assert!(!stage.driving.is_crowded());
    stage.with(|shard| shard.driving.as_mut().unwrap().crowd = Crowd::new(monotonic()));
    stage.program.turn();
    assert!(stage.driving.is_crowded());
    let mut resting = Resting::default();
    stage.falls_asleep(&mut resting);
    assert_eq!(resting.count, 1);
    stage.peer.send(b"no RoCE").unwrap();
    assert!(is_readable(resting.fds[0]));
    stage.program.turn();
    assert_eq!(stage.refused(), 1);
}

/// The polls turn the engine all the same.
#[test]
fn a_poll_that_can_be_told_no_sockets_does_not_sleep() {
    let mut stage = Stage::new();
    (2..10).for_each(|last| stage.add(Ipv4Addr::new(127, 0, 0, last)));
    stage.drive();
    let until = std::time::Instant::now() + Duration::from_millis(2);
    let mut resting = Resting::default();
    while std::time::Instant::now() < until {
        assert_eq!(stage.program.rest(&mut resting), Turned::default());
    }
    assert_eq!(stage.driving.state(), State::Driven);
    resting.channel = 1;
    while !stage.program.rest(&mut resting).contains(Turned::WAKE) {}
    assert!(stage.driving.is_withdrawn());
}
