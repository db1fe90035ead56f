//! A second name for a context, and for objects of it.

use verbs_abi::{
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_WR_SEND, ibv_alloc_dm_attr, ibv_dm, ibv_mr, ibv_pd,
};

use super::*;
use crate::device_memory::{alloc_dm, free_dm, reg_dm_mr};
use crate::mr::ibv_rereg_mr;
use rnic_abi::os::Inode;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn duplicate(context: *mut ibv_context) -> c_int {
    // SAFETY: an open context, and a plain system call.
    unsafe { libc::dup((*context).cmd_fd) }
}

fn import_mr(pd: *mut ibv_pd, handle: u32) -> Result<*mut ibv_mr, i32> {
    // SAFETY: a live protection domain.
    let mr = unsafe { ibv_import_mr(pd, handle) };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

/// Handles of a domain, a region and device memory.
fn handles(pd: *mut ibv_pd, mr: *mut ibv_mr, dm: *mut ibv_dm) -> (u32, u32, u32) {
    // SAFETY: live objects.
    unsafe { ((*pd).handle, (*mr).handle, (*dm).handle) }
}

#[test]
fn objects_of_an_imported_context_are_those_of_the_first() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
    // SAFETY: the interface is used as a program would.
    unsafe {
        let dm = alloc_dm(world.context, &raw mut attr);
        let (pd_handle, mr_handle, dm_handle) = handles(world.pd, mr, dm);
        let context = ibv_import_device(duplicate(world.context));
        assert!(!context.is_null());
        let pd = ibv_import_pd(context, pd_handle);
        assert_eq!(((*pd).handle, (*pd).context), (pd_handle, context));
        let same = import_mr(pd, mr_handle).unwrap();
        assert_eq!(((*same).lkey, (*same).rkey), ((*mr).lkey, (*mr).rkey));
        assert_eq!(((*same).length, (*same).addr.is_null()), (64, true));
        let memory = ibv_import_dm(context, dm_handle);
        assert_eq!((*dm).memcpy_to_dm.unwrap()(dm, 8, [5u8; 4].as_ptr().cast(), 4), 0);
        let mut seen = [0u8; 4];
        let copy = (*memory).memcpy_from_dm.unwrap();
        assert_eq!(copy(seen.as_mut_ptr().cast(), memory, 8, 4), 0);
        assert_eq!(seen, [5; 4]);
        let region = reg_dm_mr(pd, memory, 0, 64, IBV_ACCESS_LOCAL_WRITE);
        assert!(!region.is_null());
        assert_eq!(ibv_dereg_mr(region), 0);
        ibv_unimport_dm(memory);
        ibv_unimport_mr(same);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(context), 0);
        // What had two names is still there.
        assert_eq!(world.send(&mut request(IBV_WR_SEND, 0, &mut [])), 0);
        assert_eq!((ibv_dereg_mr(mr), free_dm(dm)), (0, 0));
    }
}

#[test]
fn a_context_goes_with_the_last_that_closes_it() {
    let world = World::new();
    let taken = duplicate(world.context);
    // SAFETY: the interface is used as a program would.
    unsafe {
        let context = ibv_import_device(taken);
        let cmd_fd = (*context).cmd_fd;
        let socket = Inode::of(cmd_fd).unwrap();
        // Another test may have a file of the same number by now.
        let is_open = |fd| Inode::of(fd).is_ok_and(|found| found == socket);
        assert_eq!(ibv_close_device(world.context), 0);
        assert!(is_open(cmd_fd) && !is_open(taken), "the duplicate is closed");
        let pd = ibv_alloc_pd(context);
        assert!(!pd.is_null());
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(context), 0);
        assert!(!is_open(cmd_fd));
    }
}

#[test]
fn what_cannot_be_imported_is_refused() {
    let world = World::new();
    let mut memory = vec![0; 64];
    let mr = world.register(&mut memory);
    let other = World::new();
    // SAFETY: the interface is used as a program would.
    unsafe {
        let refused = |cmd_fd| ibv_import_device(cmd_fd).is_null().then(errno);
        assert_eq!(refused(-1), Some(libc::EBADF));
        assert_eq!(refused((*world.context).cmd_fd), Some(libc::EINVAL));
        let file = libc::dup(2);
        assert_eq!(refused(file), Some(libc::EOPNOTSUPP));
        assert_eq!(libc::close(file), 0, "a refusal takes nothing");
        assert!(ibv_import_pd(world.context, 1).is_null());
        assert_eq!(errno(), libc::ENOENT);
        assert!(ibv_import_dm(world.context, (*mr).handle).is_null());
        assert_eq!(errno(), libc::ENOENT);
        let second = ibv_alloc_pd(world.context);
        assert_eq!(import_mr(second, (*mr).handle), Err(libc::EINVAL));
        assert_eq!(import_mr(other.pd, (*mr).handle), Err(libc::ENOENT));
        let (mr_handle, pd_handle) = ((*mr).handle, (*second).handle);
        assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(second)), (0, 0));
        assert_eq!(import_mr(world.pd, mr_handle), Err(libc::ENOENT), "it is gone");
        assert!(ibv_import_pd(world.context, pd_handle).is_null());
    }
}

#[test]
fn a_region_that_changed_is_imported_as_it_is() {
    let world = World::new();
    let (mut memory, mut longer) = (vec![0; 64], vec![0u8; 128]);
    let mr = world.register(&mut memory);
    // SAFETY: the interface is used as a program would.
    unsafe {
        let start = longer.as_mut_ptr().cast();
        let change = IBV_REREG_MR_CHANGE_TRANSLATION;
        assert_eq!(ibv_rereg_mr(mr, change, ptr::null_mut(), start, 128, 0), 0);
        let same = import_mr(world.pd, (*mr).handle).unwrap();
        assert_eq!(((*same).length, (*same).lkey), (128, (*mr).lkey));
        ibv_unimport_mr(same);
    }
}

/// A call may take long, and holds a lock of its context until it is answered.
#[test]
fn importing_waits_for_no_call_of_another_thread() {
    let world = World::new();
    let silent = world.fake.state();
    std::thread::scope(|scope| {
        let context = world.context.expose_provenance();
        // SAFETY: the interface is used as a program would.
        let call = scope.spawn(move || unsafe {
            let pd = ibv_alloc_pd(ptr::with_exposed_provenance_mut(context));
            ibv_dealloc_pd(pd)
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!call.is_finished());
        // SAFETY: the interface is used as a program would.
        unsafe {
            assert_eq!(ibv_import_device(duplicate(world.context)), world.context);
            assert_eq!(ibv_close_device(world.context), 0);
        }
        drop(silent);
        assert_eq!(call.join().unwrap(), 0);
    });
}
