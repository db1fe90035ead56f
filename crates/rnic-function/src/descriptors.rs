//! Descriptors of a function, which are none of the program's.
//!
//! The function's threads have a table of descriptors of their own. So a program that closes all
//! that it does not know, as those do that become services, closes none of them, and its forked
//! children have no copies, which would keep sockets open that are to hang up. With a kernel or a
//! sandbox that has no such call, all are in one table.

use rnic_abi::os::Connection;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Gives the calling thread, and those that it starts from now on, a table with nothing but these.
///
/// # Safety
/// All are open, and stay so in the table of this thread's starter until this returns.
pub(crate) unsafe fn alone_with<const N: usize>(
    numbers: [RawFd; N],
) -> io::Result<[Connection; N]> {
    let mut order = numbers;
    order.sort_unstable();
    if !unshare_above(order.last().copied().unwrap_or(-1)) {
        // SAFETY: by contract.
        let copy = |number| unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        let copies = numbers.iter().map(|number| Ok(copy(*number)?.into()));
        let copies: Vec<Connection> = copies.collect::<io::Result<_>>()?;
        return copies.try_into().map_err(|_| io::ErrorKind::InvalidInput.into());
    }
    for between in order.windows(2) {
        close(between[0] + 1, between[1] - 1);
    }
    close(0, order[0] - 1);
    occupy_standard(order[0]);
    // SAFETY: they are this thread's now: those of the starter are in another table.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }.into()))
}

/// A table of its own for this thread, without those above a number. False when there is none.
fn unshare_above(number: RawFd) -> bool {
    let (next, end) = (number.unsigned_abs() + 1, libc::c_uint::MAX);
    // SAFETY: what is closed is closed in the new table only, in which this thread uses none of it.
    unsafe { libc::syscall(libc::SYS_close_range, next, end, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

/// Closes a range, which may be empty, in the table of this thread alone.
fn close(from: RawFd, to: RawFd) {
    if from <= to {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    }
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
