use super::*;
use memmap2::MmapMut;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

const SPACE: SpaceId = SpaceId(3);
const PAGE: usize = 4096;

fn own_process() -> SystemDma {
    let mut dma = SystemDma::new();
    dma.insert(SPACE, Space::Process(Process::own().unwrap()));
    dma
}

/// The same memory, reached both ways.
fn ordinary() -> [SystemDma; 2] {
    let mut own = SystemDma::new();
    own.insert(SPACE, Space::Own(Own::new().unwrap()));
    [own_process(), own]
}

fn mem(addr: usize, len: usize) -> MemRange {
    MemRange { addr: addr as u64, len: len as u32 }
}

fn range(offset: usize, len: usize) -> Range {
    Range { offset: offset as u32, len: len as u32 }
}

/// Three pages, the middle one without any access.
#[allow(unsafe_code)]
fn with_hole() -> usize {
    // SAFETY: a fresh anonymous mapping; its middle page is then protected. It is never unmapped.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE, access, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at.add(PAGE), PAGE, libc::PROT_NONE), 0);
        at as usize
    }
}

fn shared(len: usize) -> (SystemDma, rnic_abi::words::Words) {
    let (file, words) = rnic_abi::os::memory::create("test", len / 8).unwrap();
    let mut dma = SystemDma::new();
    dma.insert(SPACE, Space::Mapped(Arc::new(Mapping::new(&file, 0, len as u64, true).unwrap())));
    (dma, words)
}

#[test]
fn ranges_need_not_be_cut_alike() {
    for mut dma in ordinary() {
        let target = Box::new([0u8; 100]);
        let at = target.as_ptr() as usize;
        let arena: Vec<u8> = (0..=255).collect();
        let to = [mem(at + 50, 3), mem(at, 30), mem(at + 90, 7)];
        dma.write(SPACE, &arena, &[range(10, 20), range(100, 20)], &to, &[5, 20]).unwrap();
        let written: Vec<u8> = (10..30).chain(100..120).collect();
        assert_eq!(target[50..53], written[..3]);
        assert_eq!(target[..30], written[3..33]);
        assert_eq!(target[90..97], written[33..]);

        let mut back = vec![0u8; 64];
        dma.read(SPACE, &to, &mut back, &[range(1, 33), range(40, 7)]).unwrap();
        assert_eq!(back[1..34], written[..33]);
        assert_eq!(back[40..47], written[33..]);
    }
}

/// Long copies go by other instructions than short ones, and a page may end in the middle of each.
#[cfg(target_arch = "x86_64")]
#[test]
fn plain_copies_are_whole_up_to_the_byte_that_is_missing() {
    for narrow in [false, true] {
        own::NARROW.set(narrow);
        let [_, own] = ordinary();
        copy_up_to_a_hole(own);
    }
}

#[cfg(target_arch = "x86_64")]
fn copy_up_to_a_hole(mut dma: SystemDma) {
    let hole = with_hole() + PAGE;
    let pattern: Vec<u8> = (0..1200u32).map(|k| (k % 251) as u8 + 1).collect();
    for before in [0, 1, 9, 100, 127, 128, 129, 255, 256, 300, 700] {
        let at = hole - before;
        for len in [before, before + 9, before + 120, before + 128, before + 400] {
            let (there, whole) = ([mem(at, len)], [range(3, len)]);
            let end = if len == before { Ok(()) } else { Err(DmaFault { done: before as u64 }) };
            let mut arena = pattern.clone();
            assert_eq!(dma.write(SPACE, &arena, &whole, &there, &[]), end, "{before} of {len}");
            arena.fill(0);
            assert_eq!(dma.read(SPACE, &there, &mut arena, &whole), end, "{before} of {len}");
            assert_eq!(arena[3..3 + before], pattern[3..3 + before], "{before} of {len}");
            let outside = arena[..3].iter().chain(&arena[3 + before..]);
            assert_eq!(outside.filter(|byte| **byte != 0).count(), 0, "{before} of {len}");
        }
    }
}

#[test]
fn a_fault_counts_the_bytes_before_it() {
    for mut dma in ordinary() {
        let at = with_hole();
        let mut arena = vec![7u8; 2 * PAGE];
        let all = [range(0, 2 * PAGE)];
        let over_the_edge = [mem(at + 100, 2 * PAGE)];
        let fault = Err(DmaFault { done: PAGE as u64 - 100 });
        assert_eq!(dma.write(SPACE, &arena, &all, &over_the_edge, &[50, 1000]), fault);
        assert_eq!(dma.read(SPACE, &over_the_edge, &mut arena, &all), fault);
        let second = [mem(at, 10), mem(at + PAGE, 10), mem(at + 2 * PAGE, 10)];
        assert_eq!(
            dma.write(SPACE, &arena, &[range(0, 30)], &second, &[]),
            Err(DmaFault { done: 10 })
        );
        assert_eq!(
            dma.write(SPACE, &arena, &[range(0, 8)], &[mem(at + PAGE, 8)], &[]),
            Err(NOTHING)
        );
        assert_eq!(dma.atomic(SPACE, (at + PAGE) as u64, &mut |old| old + 1), Err(NOTHING));
        assert_eq!(
            dma.write(SPACE, &arena, &[range(0, 8)], &[mem(usize::MAX, 8)], &[]),
            Err(NOTHING)
        );
    }
}

#[test]
fn a_space_that_is_gone_is_a_fault() {
    let mut dma = own_process();
    let target = [0u8; 8];
    let to = [mem(target.as_ptr() as usize, 8)];
    dma.remove(SPACE);
    assert_eq!(dma.write(SPACE, &[1; 8], &[range(0, 8)], &to, &[]), Err(NOTHING));
    assert_eq!(dma.write(SpaceId(99), &[1; 8], &[range(0, 8)], &to, &[]), Err(NOTHING));
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    let pidfd = process::pidfd_of(&child);
    child.wait().unwrap();
    dma.insert(SPACE, Space::Process(Process::of_client(pid, pidfd).unwrap()));
    assert_eq!(dma.write(SPACE, &[1; 8], &[range(0, 8)], &to, &[]), Err(NOTHING));
}

/// A payload reference into a space that is gone must not resolve in the space that reuses its
/// slot.
#[test]
fn a_slot_that_is_used_again_is_another_space() {
    let (file, words) = rnic_abi::os::memory::create("test", PAGE / 8).unwrap();
    let space = || Space::Mapped(Arc::new(Mapping::new(&file, 0, PAGE as u64, true).unwrap()));
    words.set(0, 77);
    let (gone, next) = (space_id(3, 1), space_id(3, 2));
    let mut dma = SystemDma::new();
    dma.insert(gone, space());
    assert!(dma.copies_from(gone, mem(0, 8)));
    dma.remove(gone);
    dma.insert(next, space());
    dma.insert(SpaceId(4), space());
    let (from, target) = ([mem(0, 8)], SpaceId(4));
    assert!(!dma.copies_from(gone, mem(0, 8)) && dma.copies_from(next, mem(0, 8)));
    assert_eq!(dma.copy(gone, &from, target, &[mem(8, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.copy(target, &from, gone, &[mem(8, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.copy(gone, &from, gone, &[mem(8, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.read(gone, &from, &mut [0; 8], &[range(0, 8)]), Err(NOTHING));
    assert_eq!(dma.write(gone, &[1; 8], &[range(0, 8)], &[mem(8, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.atomic(gone, 8, &mut |old| old + 1), Err(NOTHING));
    assert_eq!(words.get(1), 0);
    dma.remove(gone);
    assert_eq!(dma.copy(next, &from, target, &[mem(8, 8)], &[]), Ok(()));
    assert_eq!(words.get(1), 77);
}

#[test]
fn ranges_outside_the_arena_are_refused() {
    for mut dma in ordinary() {
        let target = [0u8; 64];
        let to = [mem(target.as_ptr() as usize, 16)];
        assert_eq!(dma.write(SPACE, &[1; 8], &[range(0, 16)], &to, &[]), Err(NOTHING));
        let mut arena = [0; 8];
        assert_eq!(dma.read(SPACE, &to, &mut arena, &[range(u32::MAX as usize, 16)]), Err(NOTHING));
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut word = 40u64;
    let at = &raw mut word as u64;
    for (mut dma, old) in ordinary().into_iter().zip([40, 42]) {
        assert_eq!(dma.atomic(SPACE, at, &mut |old| old + 2), Ok(old));
        assert_eq!(word, old + 2);
    }
    let (mut dma, words) = shared(PAGE);
    words.set(2, 40);
    assert_eq!(dma.atomic(SPACE, 16, &mut |old| old * 2), Ok(40));
    assert_eq!(words.get(2), 80);
    assert_eq!(dma.atomic(SPACE, 17, &mut |old| old), Err(NOTHING));
    assert_eq!(dma.atomic(SPACE, PAGE as u64, &mut |old| old), Err(NOTHING));
}

#[test]
fn mapped_memory_reads_what_was_written_and_faults_at_its_end() {
    let (mut dma, _words) = shared(PAGE);
    let arena: Vec<u8> = (0..200).collect();
    let to = [MemRange { addr: 5, len: 60 }, MemRange { addr: 1000, len: 40 }];
    dma.write(SPACE, &arena, &[range(0, 100)], &to, &[3, 20, 90]).unwrap();
    let mut back = vec![0; 100];
    dma.read(SPACE, &to, &mut back, &[range(0, 30), range(30, 70)]).unwrap();
    assert_eq!(back, arena[..100]);
    let end = [MemRange { addr: PAGE as u64 - 10, len: 20 }];
    let fault = Err(DmaFault { done: 10 });
    assert_eq!(dma.write(SPACE, &arena, &[range(0, 20)], &end, &[]), fault);
    assert_eq!(dma.read(SPACE, &end, &mut back, &[range(0, 20)]), fault);
}

#[test]
fn a_file_that_can_shrink_is_not_mapped() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    assert!(Mapping::new(&file, 0, PAGE as u64, true).is_err());
    let (file, _words) = rnic_abi::os::memory::create("test", PAGE / 8).unwrap();
    assert!(Mapping::new(&file, 0, PAGE as u64 + 1, true).is_err());
    assert!(Mapping::new(&file, u64::MAX, 2, true).is_err());
}

#[test]
fn huge_pages_are_not_mapped() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::HUGETLB;
    // Not every kernel has them.
    let Ok(file) = rustix::fs::memfd_create("test", flags) else { return };
    rustix::fs::ftruncate(&file, 1 << 30).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    let error = Mapping::new(&file, 0, PAGE as u64, true).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn memory_mapped_for_reading_is_not_written() {
    let (file, words) = rnic_abi::os::memory::create("test", PAGE / 8).unwrap();
    let mut dma = SystemDma::new();
    dma.insert(SPACE, Space::Mapped(Arc::new(Mapping::new(&file, 0, PAGE as u64, false).unwrap())));
    assert_eq!([SPACE, SpaceId(99)].map(|space| dma.way_to(space)), ["shared", "process"]);
    words.set(0, 7);
    assert_eq!(dma.write(SPACE, &[1; 8], &[range(0, 8)], &[mem(0, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.atomic(SPACE, 0, &mut |old| old + 1), Err(NOTHING));
    let mut arena = [0; 8];
    dma.read(SPACE, &[mem(0, 8)], &mut arena, &[range(0, 8)]).unwrap();
    assert_eq!((arena, words.get(0)), (7u64.to_ne_bytes(), 7));
}

#[test]
fn the_null_space_is_zeros_and_forgets() {
    let (file, words) = rnic_abi::os::memory::create("test", PAGE / 8).unwrap();
    let mut dma = SystemDma::new();
    let (null, shared) = (SPACE, SpaceId(1));
    dma.insert(null, Space::Null);
    dma.insert(shared, Space::Mapped(Arc::new(Mapping::new(&file, 0, PAGE as u64, true).unwrap())));
    words.set(0, 7);
    let mut arena = [9; 24];
    let anywhere = [mem(usize::MAX - 3, 8), mem(5, 8)];
    dma.read(null, &anywhere, &mut arena, &[range(8, 16)]).unwrap();
    assert_eq!(arena, [[9; 8], [0; 8], [0; 8]].concat()[..]);
    dma.write(null, &arena, &[range(0, 16)], &anywhere, &[]).unwrap();
    assert!(!dma.copies_from(null, mem(0, 8)));
    dma.copy(shared, &[mem(0, 8)], null, &[mem(0, 8)], &[]).unwrap();
    assert_eq!(dma.atomic(null, 0, &mut |old| old + 1), Err(NOTHING));
    assert_eq!((dma.way_to(null), words.get(0)), ("none", 7));
}

#[test]
fn pieces_cut_the_tail_of_every_message() {
    let all = |ends: &[u64], total| pieces(ends, total).collect::<Vec<_>>();
    assert_eq!(all(&[], 100), [(0, 92), (92, 100)]);
    assert_eq!(all(&[], 8), [(0, 8)]);
    assert_eq!(all(&[], 3), [(0, 3)]);
    assert_eq!(all(&[20, 24], 100), [(0, 12), (12, 20), (20, 24), (24, 92), (92, 100)]);
    assert_eq!(all(&[100], 100), [(0, 92), (92, 100)]);
    assert!(all(&[], 0).is_empty());
    // Nonsense stays inside the transfer.
    assert_eq!(all(&[500, 3], 10), [(0, 2), (2, 10)]);
}

/// Another thread polls the last byte and then looks at the others.
fn last_byte_is_last(mut dma: SystemDma, addr: u64, bytes: &[AtomicU8]) {
    let stop = AtomicBool::new(false);
    // What an earlier writer left is not new.
    let seen = AtomicU8::new(bytes[bytes.len() - 1].load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let last = bytes[bytes.len() - 1].load(Ordering::Acquire);
                if last == seen.load(Ordering::Relaxed) {
                    continue;
                }
                let wrong = bytes.iter().filter(|b| b.load(Ordering::Relaxed) != last).count();
                assert_eq!(wrong, 0, "earlier bytes were not there yet");
                seen.store(last, Ordering::Release);
            }
        });
        let mut arena = vec![0u8; bytes.len()];
        for round in 0..2000u32 {
            let value = (round % 255 + 1) as u8;
            arena.fill(value);
            let to = [MemRange { addr, len: bytes.len() as u32 }];
            dma.write(SPACE, &arena, &[range(0, bytes.len())], &to, &[]).unwrap();
            let patience = std::time::Instant::now();
            while seen.load(Ordering::Acquire) != value {
                assert!(patience.elapsed().as_secs() < 20, "the checker failed");
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_last_byte_of_a_message_is_stored_last_in_a_process() {
    let bytes: Vec<AtomicU8> = (0..1027).map(|_| AtomicU8::new(0)).collect();
    for dma in ordinary() {
        last_byte_is_last(dma, bytes.as_ptr() as u64, &bytes);
    }
}

#[test]
fn the_last_byte_of_a_message_is_stored_last_in_mapped_memory() {
    let (dma, words) = shared(PAGE);
    let at = words.at(0).as_ptr().cast::<AtomicU8>();
    // SAFETY: a page of shared memory that is only accessed as atomics, mapped until the end.
    #[allow(unsafe_code)]
    let bytes = unsafe { std::slice::from_raw_parts(at, 1027) };
    last_byte_is_last(dma, 0, bytes);
}

#[test]
fn mapped_memory_is_copied_to_wherever_it_goes() {
    let (mut dma, words) = shared(3 * PAGE);
    (0..PAGE / 8).for_each(|at| words.set(at, at as u64));
    let target = with_hole();
    let own = SpaceId(9);
    dma.insert(own, Space::Process(Process::own().unwrap()));
    let same = SpaceId(10);
    dma.insert(same, Space::Own(Own::new().unwrap()));
    let from = [mem(100, 1000), mem(0, 100)];
    assert!(dma.copies_from(SPACE, from[0]) && !dma.copies_from(own, mem(target, 8)));
    assert!(!dma.copies_from(SPACE, mem(3 * PAGE - 8, 9)));
    assert!(!dma.copies_from(SPACE, mem(usize::MAX, 9)));
    assert!(!dma.copies_from(SpaceId(77), mem(0, 8)));

    let cut_elsewhere = [mem(2 * PAGE, 500), mem(2 * PAGE + 600, 600)];
    dma.copy(SPACE, &from, SPACE, &cut_elsewhere, &[800]).unwrap();
    let (mut whole, mut first) = (vec![0; 1100], vec![0; 1100]);
    dma.read(SPACE, &cut_elsewhere, &mut whole, &[range(0, 1100)]).unwrap();
    dma.read(SPACE, &from, &mut first, &[range(0, 1100)]).unwrap();
    assert_eq!(whole, first);

    let over_the_edge = [mem(target + PAGE - 300, 1100)];
    for own in [own, same] {
        dma.write(own, &[0; 1100], &[range(0, 1100)], &[mem(target, 1100)], &[]).unwrap();
        dma.copy(SPACE, &from, own, &[mem(target, 1100)], &[500]).unwrap();
        dma.read(own, &[mem(target, 1100)], &mut whole, &[range(0, 1100)]).unwrap();
        assert_eq!(whole, first);
        assert_eq!(dma.copy(SPACE, &from, own, &over_the_edge, &[]), Err(DmaFault { done: 300 }));
    }
    let behind_the_end = [mem(3 * PAGE - 300, 1100)];
    assert_eq!(dma.copy(SPACE, &from, SPACE, &behind_the_end, &[]), Err(DmaFault { done: 300 }));
    assert_eq!(dma.copy(SPACE, &[mem(3 * PAGE, 8)], own, &[mem(target, 8)], &[]), Err(NOTHING));
    assert_eq!(dma.copy(own, &[mem(target, 8)], SPACE, &[mem(0, 8)], &[]), Err(NOTHING));
}

/// The longest that another thread of the process waited for the lock of the address space, as one
/// does that allocates, while `act` ran; and how long that took. Both are CPU time of the thread
/// that ran it: what other programs take is in neither.
fn longest_wait(act: impl FnOnce()) -> (Duration, Duration) {
    let (clock, stop) = (CpuClock::of_this_thread(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let began = clock.now();
                drop(MmapMut::map_anon(PAGE).unwrap());
                longest = longest.max(clock.now() - began);
                std::thread::sleep(Duration::from_micros(100));
            }
            longest
        });
        let began = clock.now();
        act();
        let took = clock.now() - began;
        stop.store(true, Ordering::Relaxed);
        (waiter.join().unwrap(), took)
    })
}

/// The CPU time of one thread, which others can read, too.
#[derive(Clone, Copy)]
struct CpuClock(libc::clockid_t);

#[allow(unsafe_code)]
impl CpuClock {
    fn of_this_thread() -> Self {
        let mut clock = 0;
        // SAFETY: the thread is the calling one, and writes to its own variable.
        let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        assert_eq!(error, 0);
        Self(clock)
    }

    fn now(self) -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes to a variable of this thread.
        assert_eq!(unsafe { libc::clock_gettime(self.0, &raw mut now) }, 0);
        Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap())
    }
}

#[test]
fn much_memory_is_mapped_without_keeping_other_threads() {
    const LEN: usize = 512 << 20;
    let map = || {
        let (file, _words) = rnic_abi::os::memory::create("test", LEN / 8).unwrap();
        let mut mapping = None;
        let map = || mapping = Some(Mapping::new(&file, 0, LEN as u64, true).unwrap());
        let (longest, took) = longest_wait(map);
        println!("mapping: {took:?}, of which another thread waited {longest:?} at a time");
        let is_kept = longest >= took / 3;
        let (longest, took) = longest_wait(|| drop(mapping));
        println!("unmapping: {took:?}, of which another thread waited {longest:?} at a time");
        !is_kept
    };
    // A thread that has the lock at last may still wait for a CPU that another program has, but
    // not each time; one that is kept waits each time.
    assert!((0..5).any(|_| map()), "other threads wait while memory is mapped");
}
