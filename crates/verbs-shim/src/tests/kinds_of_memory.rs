//! Device memory and on-demand memory.

use rnic_abi::wqe::SendControl;
use verbs_abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_ZERO_BASED, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_ODP_SUPPORT,
    IBV_ODP_SUPPORT_IMPLICIT, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, IBV_WR_SEND,
    ibv_alloc_dm_attr, ibv_device_attr_ex, ibv_dm,
};

use super::*;
use crate::advise::advise_mr;
use crate::device_memory::{alloc_dm, free_dm, reg_dm_mr};
use crate::mr::ibv_rereg_mr;
use crate::query::query_device_ex;

const PAGE: usize = 4096;
const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE;

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

fn alloc(world: &World, length: usize) -> *mut ibv_dm {
    let mut attr = ibv_alloc_dm_attr { length, log_align_req: 3, comp_mask: 0 };
    // SAFETY: an open context.
    unsafe { alloc_dm(world.context, &raw mut attr) }
}

/// Through the functions in the object, as programs do.
fn copy_to(dm: *mut ibv_dm, offset: u64, bytes: &[u8]) -> c_int {
    // SAFETY: live objects.
    unsafe { (*dm).memcpy_to_dm.unwrap()(dm, offset, bytes.as_ptr().cast(), bytes.len()) }
}

fn copy_from(dm: *mut ibv_dm, offset: u64, bytes: &mut [u8]) -> c_int {
    // SAFETY: live objects.
    unsafe { (*dm).memcpy_from_dm.unwrap()(bytes.as_mut_ptr().cast(), dm, offset, bytes.len()) }
}

#[test]
fn device_memory_is_copied_within_its_bounds_and_seen_by_the_daemon() {
    let world = World::new();
    let dm = alloc(&world, 100);
    assert!(!dm.is_null());
    assert_eq!(copy_to(dm, 8, &[7; 8]), 0);
    let seen = world.fake.state().device_memory.as_ref().map(|words| (words.get(0), words.get(1)));
    assert_eq!(seen, Some((0, 0x0707_0707_0707_0707)));
    let mut back = [0; 16];
    assert_eq!(copy_from(dm, 0, &mut back), 0);
    assert_eq!(back, [0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
    for (offset, length) in
        [(0, 104), (100, 4), (96, 8), (u64::MAX - 3, 4), (104, 0), (2, 4), (0, 6)]
    {
        let mut bytes = vec![0; length];
        assert_eq!(copy_to(dm, offset, &bytes), libc::EINVAL, "{offset}+{length}");
        assert_eq!(copy_from(dm, offset, &mut bytes), libc::EINVAL, "{offset}+{length}");
    }
    assert_eq!(copy_to(dm, 100, &[]), 0);
    // SAFETY: made above, and not used again.
    assert_eq!(unsafe { free_dm(dm) }, 0);
    assert!(alloc(&world, 0).is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
}

#[test]
fn a_region_of_device_memory_begins_at_zero() {
    let world = World::new();
    let dm = alloc(&world, 256);
    assert_eq!(copy_to(dm, 64, b"device memory..."), 0);
    let access = LOCAL | IBV_ACCESS_ZERO_BASED;
    // SAFETY: live objects.
    let mr = unsafe { reg_dm_mr(world.pd, dm, 64, 128, access) };
    // SAFETY: a live region.
    let (addr, lkey) = unsafe { ((*mr).addr, (*mr).lkey) };
    assert!(addr.is_null());
    let mut sges = [ibv_sge { addr: 0, length: 13, lkey }];
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut sges)), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = SendControl::decode(words[..8].try_into().unwrap(), words.len()).unwrap();
    assert!(control.carried && control.data_len == 13);
    assert_eq!(&words[control.data_at()].to_le_bytes(), b"device m");
    // It cannot be changed, and stays where it is.
    let rights = (access | IBV_ACCESS_REMOTE_READ).cast_signed();
    let change = IBV_REREG_MR_CHANGE_ACCESS;
    // SAFETY: live objects; without its flag the domain does not count.
    let changed = unsafe { ibv_rereg_mr(mr, change, ptr::null_mut(), ptr::null_mut(), 0, rights) };
    assert_eq!((changed, errno()), (IBV_REREG_MR_ERR_CMD, Some(libc::EINVAL)));
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut sges)), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    assert_eq!(&words[control.data_at()].to_le_bytes(), b"device m");
    // SAFETY: live objects.
    let too_long = unsafe { reg_dm_mr(world.pd, dm, 200, 57, access) };
    assert!(too_long.is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
    // SAFETY: live objects.
    unsafe {
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(free_dm(dm), 0);
    }
}

fn register(world: &World, memory: &mut [u8], access: u32) -> *mut ibv_mr {
    let (start, access) = (memory.as_mut_ptr().cast(), access.cast_signed());
    // SAFETY: live memory.
    unsafe { ibv_reg_mr(world.pd, start, memory.len(), access) }
}

/// A page may be gone: then the engine tells so in a completion, and the program lives.
#[test]
fn the_library_does_not_touch_on_demand_memory() {
    let world = World::new();
    // SAFETY: no memory is touched by registering it.
    let whole = unsafe {
        let access = (LOCAL | IBV_ACCESS_ON_DEMAND).cast_signed();
        ibv_reg_mr(world.pd, ptr::null_mut(), usize::MAX, access)
    };
    assert!(!whole.is_null());
    // SAFETY: a live region.
    let mut sges = [ibv_sge { addr: 8, length: 8, lkey: unsafe { (*whole).lkey } }];
    assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut sges)), 0);
    let (_, words) = world.fake.state().fetch_send(world.qp_handle()).unwrap();
    let control = SendControl::decode(words[..8].try_into().unwrap(), words.len()).unwrap();
    assert!(!control.carried);
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(whole) }, 0);
}

#[test]
fn optional_rights_are_hints_and_unknown_ones_are_refused() {
    let world = World::new();
    let mut memory = vec![0; 64];
    for hint in [IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND, IBV_ACCESS_RELAXED_ORDERING, 1 << 29] {
        assert!(!register(&world, &mut memory, LOCAL | hint).is_null(), "{hint:#x}");
    }
    for unknown in [1 << 10, 1 << 19, 1 << 30] {
        assert!(register(&world, &mut memory, LOCAL | unknown).is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
    }
}

/// As rdma-core has it: rights count only where they are to change.
#[test]
fn a_change_of_a_region_that_makes_no_sense_is_refused() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = register(&world, &mut memory, LOCAL);
    let start = memory.as_mut_ptr().cast();
    let change = |flags, addr, length, rights: u32| {
        // SAFETY: live objects; without its flag the domain does not count.
        unsafe { ibv_rereg_mr(mr, flags, ptr::null_mut(), addr, length, rights.cast_signed()) }
    };
    for (flags, addr, length, rights) in [
        (0, start, 64, 0),
        (1 << 5, start, 64, 0),
        (IBV_REREG_MR_CHANGE_PD, start, 64, 0),
        (IBV_REREG_MR_CHANGE_TRANSLATION, start, 0, 0),
        (IBV_REREG_MR_CHANGE_TRANSLATION, ptr::null_mut(), 64, 0),
        (IBV_REREG_MR_CHANGE_TRANSLATION, start, 64, LOCAL),
    ] {
        let refused = (change(flags, addr, length, rights), errno());
        assert_eq!(refused, (IBV_REREG_MR_ERR_INPUT, Some(libc::EINVAL)), "{flags} {rights}");
    }
    assert_eq!(change(IBV_REREG_MR_CHANGE_TRANSLATION, start, 64, 0), 0);
}

/// Fresh pages with these rights.
fn pages(count: usize, rights: c_int) -> &'static mut [u8] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh memory, which stays until the test ends.
    unsafe {
        let map = libc::mmap(ptr::null_mut(), count * PAGE, rights, flags, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(map.cast(), count * PAGE)
    }
}

/// Which pages are present.
fn present(memory: &[u8]) -> Vec<u8> {
    let mut found = vec![0; memory.len() / PAGE];
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: pages of our own, and a byte for each.
    assert_eq!(unsafe { libc::mincore(start, memory.len(), found.as_mut_ptr()) }, 0);
    found
}

/// A page that can never be there. An unmapped one might become another test's.
fn take_page(page: &mut [u8]) {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: a new file without a byte, in place of a page of our own.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let map = libc::mmap(page.as_mut_ptr().cast(), PAGE, rights, flags, file, 0);
        assert_eq!(map, page.as_mut_ptr().cast());
        libc::close(file);
    }
}

#[test]
fn advice_brings_pages_in_and_errors_are_those_of_the_manual() {
    let world = World::new();
    let memory = pages(4, libc::PROT_READ | libc::PROT_WRITE);
    let mr = register(&world, memory, LOCAL | IBV_ACCESS_ON_DEMAND);
    let advise = |advice, flags, mut sge: ibv_sge| {
        // SAFETY: live objects.
        unsafe { advise_mr(world.pd, advice, flags, &raw mut sge, 1) }
    };
    let (read, write) = (IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
    let (hint, now) = (0, IBV_ADVISE_MR_FLAG_FLUSH);
    let middle = sge_of(&memory[PAGE + 10..PAGE + 20], mr);
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, now, middle), 0);
    assert_eq!(present(memory), [0, 0, 0, 0]);
    assert_eq!(advise(write, now, middle), 0);
    assert_eq!(present(memory), [0, 1, 0, 0]);
    assert_eq!(advise(write, hint, sge_of(&memory[PAGE..3 * PAGE], mr)), 0);
    assert_eq!(present(memory), [0, 1, 1, 0]);

    assert_eq!(advise(3, now, middle), libc::ENOTSUP);
    assert_eq!(advise(read, 2, middle), libc::EINVAL);
    // What the daemon says of keys, rights and bounds.
    let beyond = ibv_sge { length: 2 << 20, ..middle };
    assert_eq!(advise(read, hint, beyond), libc::EFAULT);
    take_page(&mut memory[PAGE..2 * PAGE]);
    assert_eq!(advise(read, now, middle), libc::EFAULT);
    assert_eq!(advise(read, hint, middle), 0);
    let ordinary = world.register(&mut [0; 64]);
    let of_ordinary = ibv_sge { addr: memory.as_ptr() as u64, ..sge_of(&[0; 8], ordinary) };
    assert_eq!(advise(read, now, of_ordinary), libc::EFAULT);
    // SAFETY: an empty list needs no entries.
    assert_eq!(unsafe { advise_mr(world.pd, read, now, ptr::null_mut(), 0) }, 0);
}

#[test]
fn the_device_says_what_memory_it_has() {
    let world = World::new();
    let mut attr = ibv_device_attr_ex::zeroed();
    let size = size_of::<ibv_device_attr_ex>();
    // SAFETY: an open context, and a structure of that size.
    assert_eq!(unsafe { query_device_ex(world.context, ptr::null(), &raw mut attr, size) }, 0);
    assert_eq!(attr.max_dm_size, 1 << 20);
    assert_eq!(attr.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    let per = attr.odp_caps.per_transport_caps;
    // The daemon of this test has no shared receive queues, and no XRC.
    let caps = (per.rc_odp_caps, per.uc_odp_caps, per.ud_odp_caps, attr.xrc_odp_caps);
    assert_eq!(caps, (0b1101_1111, 0b111, 0b11, 0));
    assert_eq!(
        attr.device_cap_flags_ex >> 38,
        0b101,
        "FLUSH_GLOBAL, not to persistence, and ATOMIC_WRITE"
    );
}
