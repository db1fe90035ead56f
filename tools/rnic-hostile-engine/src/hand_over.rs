//! What a hostile engine process does to the memory that it shares with the daemon, and to what
//! wakes either side.

use crate::messages::send_with;
use crate::random::{bytes, one_of, word};
use crate::report::Report;
use fastrand::Rng;
use rnic_abi::hand_over::CONSUMER_WORDS;
use rnic_abi::os::memory;
use rnic_abi::words::{LINE, WORD, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::write;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A way to misuse the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hand {
    /// Trains that look like an engine's, some of them valid.
    Trains,
    /// Random trains, one behind the other.
    Entries,
    /// Impossible indexes.
    Indexes,
    /// Random values in every word.
    Scribble,
    /// Pages are punched out of the file, which is refused.
    Holes,
    /// Wakes the daemon without pause, and has it wake this side.
    Rings,
    /// Very many waiters on what the daemon writes to.
    Waiters,
}

pub(crate) const HANDS: [Hand; 7] = [
    Hand::Trains,
    Hand::Entries,
    Hand::Indexes,
    Hand::Scribble,
    Hand::Holes,
    Hand::Rings,
    Hand::Waiters,
];

// Where things are in the file that this side writes: capabilities, which it has none of, the words
// of the consumer of datagrams, and the producer's words of the ring of trains.
const CONSUMED: usize = LINE;
const ASLEEP: usize = 2 * LINE;
const PRODUCED: usize = LINE + CONSUMER_WORDS;
const ENTRIES: usize = PRODUCED + LINE;
const SLOTS: u64 = 64;
const ENTRY: usize = 8;

/// The hand-over as the attacker has it.
pub(crate) struct HandOver {
    /// The daemon's file, its own, the socket that wakes it, and what wakes the daemon.
    pub(crate) fds: [OwnedFd; 4],
    theirs: Words,
    own: Words,
    /// Trains written.
    head: u64,
}

impl HandOver {
    /// Mapped as an engine process does before it meets a client.
    pub(crate) fn new(fds: [OwnedFd; 4]) -> io::Result<Self> {
        let words = |fd: &OwnedFd| -> io::Result<usize> {
            Ok(usize::try_from(fstat(fd)?.st_size).unwrap_or(0) / WORD)
        };
        let theirs = memory::map_to_read(&fds[0], words(&fds[0])?)?;
        let own = memory::map_for_good(&fds[1], words(&fds[1])?)?;
        Ok(Self { fds, theirs, own, head: 0 })
    }

    /// Until this process dies.
    pub(crate) fn misuse(&mut self, hand: Hand, random: &mut Rng, report: &Report) {
        report.did(&format!("{hand:?}"));
        loop {
            match hand {
                Hand::Trains => {
                    let entry = plausible(random);
                    self.push(entry);
                    self.rest(random);
                }
                Hand::Entries => {
                    let entry = [(); ENTRY].map(|()| word(random));
                    self.push(entry);
                    self.rest(random);
                }
                Hand::Indexes => {
                    self.rest(random);
                    let index = one_of(random, [CONSUMED, PRODUCED]);
                    self.own.set(index, word(random));
                }
                Hand::Scribble => self.scribble(random),
                Hand::Holes => self.punch(random, report),
                Hand::Rings => {
                    self.own.set(ASLEEP, word(random) | 1);
                    let _ = write(&self.fds[3], &one_of(random, [1, u64::MAX - 1]).to_ne_bytes());
                }
                Hand::Waiters => self.wait_often(random),
            }
        }
    }

    /// Behind the last one, where there is room, and a wake-up.
    fn push(&mut self, entry: [u64; ENTRY]) {
        // Of the daemon, which consumes the trains.
        let consumed = self.theirs.get(CONSUMED);
        if self.head.wrapping_sub(consumed) < SLOTS {
            let slot = (self.head % SLOTS) as usize;
            self.own.copy_in(ENTRIES + slot * ENTRY, &entry);
            self.head += 1;
            self.own.set(PRODUCED, self.head);
        }
        let _ = write(&self.fds[3], &1u64.to_ne_bytes());
    }

    /// Few trains: an engine has a right to as many bytes as any other.
    fn rest(&mut self, random: &mut Rng) {
        if random.u8(..8) == 0 {
            sleep(Duration::from_millis(random.u64(1..6)));
        }
        // What it is given is taken, so that more is.
        self.own.set(CONSUMED, self.theirs.get(PRODUCED));
        self.own.set(ASLEEP, word(random));
    }

    fn scribble(&mut self, random: &mut Rng) {
        let len = self.own.len();
        for _ in 0..200 {
            let bound = one_of(random, [ENTRIES, ENTRIES + 512, len]);
            self.own.set(random.usize(..bound), word(random));
        }
        let start = random.usize(..len - 512);
        for at in start..start + 512 {
            self.own.set(at, word(random));
        }
        sleep(Duration::from_micros(random.u64(..300)));
    }

    fn punch(&mut self, random: &mut Rng, report: &Report) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = (self.own.len() * WORD) as u64;
        let page = random.u64(..len) & !4095;
        // Each would make the daemon map a page again.
        if fallocate(&self.fds[1], flags, page, one_of(random, [4096, len - page])).is_ok() {
            report.breach("a hole");
        }
        sleep(Duration::from_millis(1));
    }

    /// As often on the list of those that wait for each descriptor as the kernel lets a thread be.
    fn wait_often(&mut self, random: &mut Rng) {
        const TIMES: usize = 1000;
        self.own.set(ASLEEP, 1);
        let all = [self.fds[2].as_fd(), self.fds[3].as_fd()];
        let all = all.iter().flat_map(|fd| std::iter::repeat_n(*fd, TIMES));
        let mut all: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::PRI)).collect();
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let _ = poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
            let _ = write(&self.fds[3], &1u64.to_ne_bytes());
        }
        send_with(self.fds[2].as_fd(), &bytes(random, 64), &[self.fds[2].as_fd()]);
    }
}

/// From an address of the loopback device or one like it, to queue pairs that may exist.
fn plausible(random: &mut Rng) -> [u64; ENTRY] {
    let source = Ipv4Addr::new(127, 0, 0, one_of(random, [1, 1, 1, 2]));
    let [source, target] = [source, Ipv4Addr::LOCALHOST].map(|ip| u64::from(ip.to_bits()));
    let sport = random.u64(..1 << 16) << 32;
    let fifth = random.u64(..1 << 32) & !1 | sport | word(random) << 48;
    let hop = word(random) << 32;
    let (many, long) = (word(random), word(random) & u64::from(u32::MAX));
    let segments = one_of(random, [1, 1, 2, 16, many]);
    let len = one_of(random, [16, 60, 1000, 4096, long]);
    [source, 0, target, 0, fifth, hop, len | len << 32, segments]
}
