//! Ring memory of one session: few memory files, many rings.
//!
//! A ring is a run of words of an arena, 64-byte aligned and zeroed. Arenas grow with need, so
//! that ten thousand queue pairs take a handful of files. Pages exist from the moment a ring is
//! handed out: a machine without memory refuses the queue instead of killing the daemon later.
//! Those of a ring that came back stay, so what a client takes of the daemon's memory is its
//! arenas.

use super::accounts::{Account, Charge};
use super::reply::{Attached, duplicate};
use crate::quota::Resource;
use crate::refusal::{Refused, refused_by_kernel};
use rnic_abi::control::RingPlace;
use rnic_abi::os::memory;
use rnic_abi::words::{LINE, WORD, Words};
use std::io;
use std::os::fd::OwnedFd;

/// All arenas of one session.
#[derive(Debug)]
pub(super) struct Arenas {
    arenas: Vec<Arena>,
    account: Account,
}

#[derive(Debug)]
struct Arena {
    file: OwnedFd,
    words: Words,
    free: FreeList,
    /// For the client, until it has it. Made with the arena: once a queue exists there is nothing
    /// left that could fail.
    unsent: Option<(OwnedFd, Charge)>,
    _charges: [Charge; 3],
}

/// A ring handed out. Give it back to [`Arenas::free`] once the engine has let go of it.
#[derive(Debug)]
#[must_use = "the memory is lost until the session ends"]
pub(super) struct Ring {
    arena: usize,
    start: usize,
    words: Words,
}

impl Ring {
    /// The memory.
    pub(super) fn words(&self) -> Words {
        self.words.clone()
    }
}

impl Arenas {
    /// None yet.
    pub(super) fn new(account: Account) -> Self {
        Self { arenas: Vec::new(), account }
    }

    /// Hands out `words` zeroed words.
    ///
    /// # Errors
    /// ENOMEM or EMFILE when the user has all that it may have; else what the kernel says.
    pub(super) fn allocate(&mut self, words: usize) -> Result<Ring, Refused> {
        let words = words.next_multiple_of(LINE);
        let found = self
            .arenas
            .iter_mut()
            .enumerate()
            .find_map(|(i, arena)| Some((i, arena.free.take(words)?)));
        let (index, start) = match found {
            Some(place) => place,
            None => (self.arenas.len(), self.grow(words)?),
        };
        let arena = &self.arenas[index];
        let prepared = memory::populate(&arena.file, start..start + words);
        let view = arena.words.slice(start, words);
        let (Ok(()), Some(view)) = (&prepared, view) else {
            self.arenas[index].free.give(start, words);
            let error = prepared.err().unwrap_or_else(|| io::ErrorKind::OutOfMemory.into());
            return Err(no_memory(error));
        };
        for i in 0..words {
            view.set(i, 0);
        }
        Ok(Ring { arena: index, start, words: view })
    }

    /// Adds an arena with room for a ring of `words` and takes the ring out of it. The last one
    /// before the limit is no larger than it must be.
    fn grow(&mut self, words: usize) -> Result<usize, Refused> {
        let needed = words.next_multiple_of(PAGE);
        let doubled = FIRST_ARENA << self.arenas.len().min(GROWTH_STEPS);
        let charge = |words: usize| self.account.take(Resource::RingBytes, (words * WORD) as u64);
        let (len, bytes) = match charge(doubled.max(needed)) {
            Ok(bytes) => (doubled.max(needed), bytes),
            Err(_) => (needed, charge(needed)?),
        };
        let [own, copied, mapping] = self.account.take_all([
            (Resource::Descriptors, 1),
            (Resource::Descriptors, 1),
            (Resource::Mappings, 1),
        ])?;
        let (file, memory) = memory::create("rnic-rings", len).map_err(no_memory)?;
        let unsent = Some((duplicate(&file)?, copied));
        let mut free = FreeList::new(len);
        let start = free.take(words).ok_or_else(|| no_memory(io::ErrorKind::OutOfMemory.into()))?;
        let _charges = [bytes, own, mapping];
        self.arenas.push(Arena { file, words: memory, free, unsent, _charges });
        Ok(start)
    }

    /// Takes a ring back. The engine must not use it any more.
    pub(super) fn free(&mut self, ring: Ring) {
        self.arenas[ring.arena].free.give(ring.start, ring.words.len());
    }

    /// Frees the pages, which the client could keep for itself else: it may have copies of the
    /// files. No ring is used any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn discard(&self) -> io::Result<()> {
        let len = |arena: &Arena| (arena.words.len() * WORD) as u64;
        self.arenas.iter().try_for_each(|arena| memory::discard(&arena.file, len(arena)))
    }

    /// How the client finds `ring`. What `attached` gets must go with the reply: an arena is only
    /// announced once.
    pub(super) fn announce(&mut self, ring: &Ring, attached: &mut Attached) -> RingPlace {
        let arena = &mut self.arenas[ring.arena];
        let file = arena.unsent.take().map(|(file, _)| file);
        let arena_is_new = file.is_some();
        attached.extend(file);
        RingPlace {
            arena: u32::try_from(ring.arena).unwrap_or(u32::MAX),
            arena_len: arena.words.len() as u64 * 8,
            arena_is_new,
            start: ring.start as u64,
            words: ring.words.len() as u64,
        }
    }
}

fn no_memory(error: io::Error) -> Refused {
    refused_by_kernel("no memory for the queue")(error)
}

/// First fit over runs that are sorted and never touch each other.
#[derive(Debug)]
struct FreeList {
    runs: Vec<(usize, usize)>,
}

impl FreeList {
    fn new(len: usize) -> Self {
        Self { runs: vec![(0, len)] }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        let at = self.runs.iter().position(|run| run.1 >= len)?;
        let (start, room) = self.runs[at];
        if room == len {
            self.runs.remove(at);
        } else {
            self.runs[at] = (start + len, room - len);
        }
        Some(start)
    }

    fn give(&mut self, start: usize, len: usize) {
        let at = self.runs.partition_point(|run| run.0 < start);
        let joins_next = self.runs.get(at).is_some_and(|next| start + len == next.0);
        let joins_previous = at > 0 && self.runs[at - 1].0 + self.runs[at - 1].1 == start;
        match (joins_previous, joins_next) {
            (true, true) => {
                let (_, next_len) = self.runs.remove(at);
                self.runs[at - 1].1 += len + next_len;
            }
            (true, false) => self.runs[at - 1].1 += len,
            (false, true) => self.runs[at] = (start, len + self.runs[at].1),
            (false, false) => self.runs.insert(at, (start, len)),
        }
    }
}

const PAGE: usize = 4096 / 8;
/// 256 KiB: one QP of a usual program.
const FIRST_ARENA: usize = 32 * 1024;
/// Arenas double up to 64 MiB.
const GROWTH_STEPS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Accounts;

    #[test]
    fn rings_are_zeroed_disjoint_and_reused() {
        let mut arenas = Arenas::new(Accounts::for_test(1 << 30).of(0));
        let rings: Vec<_> = (0..100).map(|i| arenas.allocate(100 + i).unwrap()).collect();
        for (i, ring) in rings.iter().enumerate() {
            for w in 0..ring.words.len() {
                assert_eq!(ring.words.get(w), 0);
                ring.words.set(w, i as u64 + 1);
            }
        }
        for (i, ring) in rings.iter().enumerate() {
            assert!((0..ring.words.len()).all(|w| ring.words.get(w) == i as u64 + 1));
            assert!(ring.start.is_multiple_of(LINE));
        }
        for ring in rings {
            arenas.free(ring);
        }
        assert_eq!(arenas.arenas[0].free.runs, [(0, arenas.arenas[0].words.len())]);
        let again = arenas.allocate(1000).unwrap();
        assert!((0..1000).all(|w| again.words.get(w) == 0));
        arenas.free(again);
    }

    #[test]
    fn ten_thousand_rings_take_few_files() {
        let mut arenas = Arenas::new(Accounts::for_test(8 << 30).of(0));
        let rings: Vec<_> = (0..10_000).map(|_| arenas.allocate(528).unwrap()).collect();
        assert!(arenas.arenas.len() < 12, "{}", arenas.arenas.len());
        rings.into_iter().for_each(|ring| arenas.free(ring));
    }

    #[test]
    fn an_arena_is_announced_once() {
        let mut arenas = Arenas::new(Accounts::for_test(1 << 30).of(0));
        let (a, b) = (arenas.allocate(64).unwrap(), arenas.allocate(64).unwrap());
        let mut attached = Vec::new();
        assert!(arenas.announce(&a, &mut attached).arena_is_new);
        let second = arenas.announce(&b, &mut attached);
        assert_eq!(attached.len(), 1);
        assert!(!second.arena_is_new);
        assert_eq!((second.arena, second.start), (0, 64));
        arenas.free(a);
        arenas.free(b);
    }

    #[test]
    fn the_limit_is_kept() {
        let accounts = Accounts::for_test(384 * 1024);
        let mut arenas = Arenas::new(accounts.of(0));
        let first = arenas.allocate(1000).unwrap();
        assert_eq!(accounts.taken(0, Resource::RingBytes), 256 * 1024);
        assert_eq!(arenas.allocate(40_000).unwrap_err().errno, libc::ENOMEM);
        // Twice as large is too large; what is needed is not.
        let last = arenas.allocate(16 * 1024 - 64).unwrap();
        let second = arenas.allocate(16 * 1024).unwrap();
        assert_eq!(arenas.allocate(16 * 1024).unwrap_err().errno, libc::ENOMEM);
        assert_eq!(accounts.taken(0, Resource::RingBytes), 384 * 1024);
        for ring in [first, last, second] {
            arenas.free(ring);
        }
        // The pages stay until the arenas go.
        assert_eq!(accounts.taken(0, Resource::RingBytes), 384 * 1024);
        drop(arenas);
        assert_eq!(accounts.taken(0, Resource::RingBytes), 0);
        assert_eq!(accounts.taken(0, Resource::Descriptors), 0);
    }

    #[test]
    fn a_freed_run_joins_its_neighbours() {
        let mut free = FreeList::new(100);
        let places: Vec<_> = (0..5).map(|_| free.take(20).unwrap()).collect();
        for at in [1, 3, 0, 4, 2] {
            free.give(places[at], 20);
        }
        assert_eq!(free.runs, [(0, 100)]);
    }
}
