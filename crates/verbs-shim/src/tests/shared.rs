//! Registered memory that becomes shared memory. It needs a process without further threads: a
//! forked child registers, and the parent looks at what the daemon got.

use std::{
    os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

use verbs_abi::IBV_ACCESS_ON_DEMAND;

use super::*;

const PAGE: usize = 4096;
const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Runs a program that wants shared memory against a daemon, and returns what was registered: the
/// file, if one came along, and the offset in it.
fn registered_by(program: impl FnOnce(*mut ibv_pd)) -> Vec<(Option<OwnedFd>, u64)> {
    let fake = Fake::start();
    run_child(|| {
        // SAFETY: the child has one thread; the interface is used as a program would.
        let pd = unsafe {
            libc::setenv(c"RNIC_SHARED_MEMORY".as_ptr(), c"1".as_ptr(), 1);
            ibv_alloc_pd(ibv_open_device(device_at(fake.path())))
        };
        assert!(!pd.is_null());
        program(pd);
    });
    std::mem::take(&mut fake.state().registered)
}

/// Forks, and waits for the child to end well.
fn run_child(work: impl FnOnce()) {
    // SAFETY: the child does its work and leaves without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process if it hangs.
        unsafe { libc::alarm(30) };
        let result = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child failed");
}

/// Fresh pages, filled with a pattern.
fn fresh(at: *mut u8, pages: usize) -> &'static mut [u8] {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: fresh memory, or in the place of memory that the test gives up.
    let memory = unsafe {
        let map = libc::mmap(at.cast(), pages * PAGE, RW, flags, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(map.cast::<u8>(), pages * PAGE)
    };
    memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    memory
}

fn pattern(i: usize) -> u8 {
    (i % 251) as u8
}

fn register_with(pd: *mut ibv_pd, memory: &[u8], access: u32) -> *mut ibv_mr {
    let (start, access) = (memory.as_ptr().cast_mut().cast(), c_int::try_from(access).unwrap());
    // SAFETY: live memory.
    let mr = unsafe { ibv_reg_mr(pd, start, memory.len(), access) };
    assert!(!mr.is_null());
    mr
}

fn register(pd: *mut ibv_pd, memory: &[u8]) -> *mut ibv_mr {
    register_with(pd, memory, IBV_ACCESS_LOCAL_WRITE)
}

fn content(file: impl AsFd, offset: u64, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn number(file: &OwnedFd) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::File::from(file.try_clone().unwrap()).metadata().unwrap().ino()
}

fn kinds(registered: &[(Option<OwnedFd>, u64)]) -> Vec<bool> {
    registered.iter().map(|(file, _)| file.is_some()).collect()
}

#[test]
fn content_survives_and_the_file_has_what_the_program_writes() {
    let registered = registered_by(|pd| {
        let memory = fresh(ptr::null_mut(), 4);
        let mr = register(pd, &memory[100..2 * PAGE - 100]);
        assert!((0..4 * PAGE).all(|i| memory[i] == pattern(i)));
        memory[200] = 0xee;
        // Inside of what is a file now: the same file.
        register(pd, &memory[PAGE + 7..PAGE + 17]);
        // Partly outside.
        register(pd, &memory[PAGE..3 * PAGE]);
        // Again, after the end of the first.
        // SAFETY: used no more.
        assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
        register(pd, &memory[..2 * PAGE]);
    });
    assert_eq!(kinds(&registered), [true, true, false, true]);
    let files: Vec<_> = registered.into_iter().filter_map(|(f, at)| Some((f?, at))).collect();
    assert!(files.iter().all(|(file, _)| number(file) == number(&files[0].0)));
    assert_eq!(files.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [100, PAGE as u64 + 7, 0]);
    let mut expected: Vec<u8> = (0..2 * PAGE).map(pattern).collect();
    expected[200] = 0xee;
    assert_eq!(content(&files[0].0, 0, 2 * PAGE), expected);
    rnic_abi::os::memory::check_sealed(&files[0].0, 2 * PAGE as u64).unwrap();
}

#[test]
fn new_memory_at_the_same_address_is_not_taken_for_the_old() {
    let registered = registered_by(|pd| {
        let memory = fresh(ptr::null_mut(), 2);
        register(pd, memory);
        memory.fill(1);
        let other = fresh(memory.as_mut_ptr(), 2);
        register(pd, other);
        other[0] = 0xab;
        // Grown in its place or elsewhere, as realloc does it.
        // SAFETY: the old address is not used any more.
        let grown = unsafe {
            let from = other.as_mut_ptr().cast();
            let map = libc::mremap(from, 2 * PAGE, 64 * PAGE, libc::MREMAP_MAYMOVE);
            assert_ne!(map, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(map.cast::<u8>(), 64 * PAGE)
        };
        assert_eq!((grown[0], grown[1]), (0xab, pattern(1)));
        grown[PAGE * 2..].fill(0xcd);
        register(pd, &grown[PAGE..]);
    });
    assert_eq!(kinds(&registered), [true, true, true]);
    let file = |i: usize| registered[i].0.as_ref().unwrap();
    assert_ne!(number(file(0)), number(file(1)));
    assert_eq!(number(file(1)), number(file(2)));
    assert_eq!(registered[2].1, PAGE as u64);
    assert_eq!(content(file(1), 0, 2), [0xab, pattern(1)]);
    assert_eq!(content(file(2), 63 * PAGE as u64, 2), [0xcd, 0xcd]);
}

#[test]
fn memory_that_cannot_be_replaced_is_registered_as_it_is() {
    static CONSTANT: [u8; 64] = [7; 64];
    let registered = registered_by(|pd| {
        let stack = [0u8; 64];
        register(pd, &stack);
        register_with(pd, &CONSTANT, verbs_abi::IBV_ACCESS_REMOTE_READ);
        register_with(pd, fresh(ptr::null_mut(), 1), IBV_ACCESS_ON_DEMAND);
        let locked = fresh(ptr::null_mut(), 1);
        // SAFETY: live memory.
        assert_eq!(unsafe { libc::mlock(locked.as_ptr().cast(), PAGE) }, 0);
        register(pd, locked);
        let memory = fresh(ptr::null_mut(), 3);
        std::thread::scope(|scope| {
            let (stop, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            register(pd, &memory[..PAGE]);
            drop(stop);
        });
        // A thread that was waited for is still listed for a moment.
        while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {}
        // The daemon may be writing to the first page of it: the thread's registration is there.
        let all = register(pd, memory);
        // SAFETY: used no more.
        assert_eq!(unsafe { ibv_dereg_mr(all) }, 0);
        register(pd, &memory[PAGE..]);
    });
    assert_eq!(kinds(&registered), [false, false, false, false, false, false, true]);
}

#[test]
fn pages_of_an_ordinary_registration_are_free_after_its_end() {
    let registered = registered_by(|pd| {
        let memory = fresh(ptr::null_mut(), 2);
        register(pd, &memory[..PAGE]);
        let both = register(pd, memory);
        // SAFETY: used no more.
        assert_eq!(unsafe { ibv_dereg_mr(both) }, 0);
        // Now only the second page belongs to no region.
        register(pd, &memory[PAGE..]);
    });
    assert_eq!(kinds(&registered), [true, false, true]);
}

#[test]
fn a_child_gets_pages_of_its_own() {
    registered_by(|pd| {
        let memory = fresh(ptr::null_mut(), 3);
        register(pd, &memory[..2 * PAGE]);
        run_child(|| {
            assert!((0..3 * PAGE).all(|i| memory[i] == pattern(i)));
            memory.fill(0x55);
            assert!(
                !std::fs::read_to_string("/proc/self/maps").unwrap().contains("rnic-registered")
            );
        });
        assert!((0..3 * PAGE).all(|i| memory[i] == pattern(i)));
        // Nothing stays locked, and the file is still good.
        register(pd, &memory[PAGE..2 * PAGE]);
    });
}

#[test]
fn memory_is_registered_without_a_file_when_the_daemon_refuses_it() {
    let fake = Fake::start();
    fake.state().refuses_files = true;
    run_child(|| {
        // SAFETY: the child has one thread; the interface is used as a program would.
        let pd = unsafe {
            libc::setenv(c"RNIC_SHARED_MEMORY".as_ptr(), c"1".as_ptr(), 1);
            ibv_alloc_pd(ibv_open_device(device_at(fake.path())))
        };
        register(pd, fresh(ptr::null_mut(), 1));
    });
    assert_eq!(kinds(&fake.state().registered), [false]);
}

/// What our librdmacm registers, without the user's wish.
#[test]
fn memory_of_a_file_is_registered_with_the_file_unless_the_daemon_refuses_it() {
    for refuses in [false, true] {
        let fake = Fake::start();
        fake.state().refuses_files = refuses;
        let file = rnic_abi::os::memory::reserve("test", PAGE as u64).unwrap();
        let inode = number(&file);
        // SAFETY: a new mapping, as long as the file; the interface is used as librdmacm does.
        let mr = unsafe {
            let pd = ibv_alloc_pd(ibv_open_device(device_at(fake.path())));
            let fd = file.as_raw_fd();
            let at = libc::mmap(ptr::null_mut(), PAGE, RW, libc::MAP_SHARED, fd, 0);
            let access = c_int::try_from(IBV_ACCESS_LOCAL_WRITE).unwrap();
            (crate::mr::OWN.reg_file_mr)(pd, at, PAGE, access, file.into_raw_fd())
        };
        assert!(!mr.is_null());
        let registered = std::mem::take(&mut fake.state().registered);
        assert_eq!(kinds(&registered), [!refuses]);
        assert!(registered[0].0.as_ref().is_none_or(|file| number(file) == inode));
        // SAFETY: used no more.
        assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    }
}
