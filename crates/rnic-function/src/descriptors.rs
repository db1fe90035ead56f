//! Descriptors of a function, which are none of the program's.
//!
//! The function's threads have a table of descriptors of their own. So a program that closes all
//! that it does not know, as those do that become services, closes none of them, and its forked
//! children have no copies, which would keep sockets open that are to hang up. Where a sandbox
//! allows no table of their own, there is no function: it would write into files of the program
//! that have got the numbers of descriptors which the program has closed.

use rnic_abi::os::Connection;
use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::{fs, io};

/// Gives the calling thread, and those that it starts from now on, a table with nothing but these.
///
/// # Safety
/// All are open, and stay so in the table of this thread's starter until this returns.
pub(crate) unsafe fn alone_with<const N: usize>(
    numbers: [RawFd; N],
) -> io::Result<[Connection; N]> {
    let mut order = numbers;
    order.sort_unstable();
    own_table(order[N - 1])?;
    for between in order.windows(2) {
        close(between[0] + 1, between[1] - 1)?;
    }
    close(0, order[0] - 1)?;
    occupy_standard(order[0]);
    // SAFETY: they are this thread's now: those of the starter are in another table.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }.into()))
}

/// Has a preloaded library told of the function's threads that takes numbers of descriptors for
/// those of the program, as the one for rsockets does: it would close a socket of the program where
/// such a thread closes what has the same number in its own table.
pub(crate) fn announce_threads() {
    static TELL: OnceLock<Option<extern "C" fn()>> = OnceLock::new();
    // Here, and not in the threads: the program's thread may wait for them with the loader's lock.
    TELL.get_or_init(|| {
        // SAFETY: asks for a symbol, which only that library has, and only as this function.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"rnic_preload_thread_is_apart".as_ptr());
            std::mem::transmute::<*mut c_void, Option<extern "C" fn()>>(found)
        }
    });
    rnic_host::thread::begin_with(|| {
        if let Some(tell) = TELL.get().copied().flatten() {
            tell();
        }
    });
}

/// A table of its own for this thread, without those above a number.
fn own_table(number: RawFd) -> io::Result<()> {
    let next = number.unsigned_abs() + 1;
    // SAFETY: what is closed is closed in the new table only, in which this thread uses none of it.
    let closed = unsafe {
        let (end, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
        libc::syscall(libc::SYS_close_range, next, end, flags)
    };
    if closed == 0 {
        return Ok(());
    }
    // Before Linux 5.9, and in sandboxes that are as old.
    // SAFETY: this thread has used no descriptor that it does not get.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        let error = io::Error::last_os_error();
        let text = format!(
            "its threads cannot have descriptors of their own (close_range, unshare): {error}"
        );
        return Err(io::Error::new(error.kind(), text));
    }
    close(number + 1, RawFd::MAX)
}

/// Closes a range, which may be empty, in the table of this thread alone.
fn close(from: RawFd, to: RawFd) -> io::Result<()> {
    if from > to {
        return Ok(());
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } != 0 {
        for number in open_ones()?.into_iter().filter(|number| (from..=to).contains(number)) {
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// The descriptors of this thread, one of which is closed again.
fn open_ones() -> io::Result<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/thread-self/fd")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// What goes to standard error, such as the message of a panic, must not get into a socket that
/// has its number: there is a file that takes nothing instead.
fn occupy_standard(lowest_used: RawFd) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    // The lowest numbers are free, and each file gets the lowest that is.
    for _ in 0..lowest_used.min(3) {
        let Ok(nothing) = rustix::fs::memfd_create("rnic-nothing", flags) else { return };
        let _ = rustix::fs::fcntl_add_seals(&nothing, rustix::fs::SealFlags::WRITE);
        std::mem::forget(nothing);
    }
}
