//! A stack for the engine's turns in threads of the program, whose own may be small.

#![allow(unsafe_code, reason = "no library is small enough for a few instructions")]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

/// See the [module](self). Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Stack {
    base: *mut c_void,
}

// SAFETY: memory that belongs to this value alone.
unsafe impl Send for Stack {}

/// Bytes; pages that are not touched cost nothing.
const LEN: usize = 1 << 20;
/// At its lower end, where an overflow is a fault.
const GUARD: usize = 64 << 10;

impl Stack {
    /// One that nothing runs on.
    ///
    /// # Errors
    /// When there is no memory, or no code for this processor.
    pub(crate) fn new() -> io::Result<Self> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: new memory, which nothing else knows.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
            let base = mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            let stack = Self { base };
            mprotect(base, GUARD, MprotectFlags::empty())?;
            Ok(stack)
        }
    }

    /// Runs `work` on it. A panic ends the process.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        struct Call<F, T> {
            work: Option<F>,
            result: Option<T>,
        }
        extern "C" fn call<F: FnOnce() -> T, T>(data: *mut c_void) {
            // SAFETY: the `Call` below, which is alive and used by nothing else meanwhile.
            let call = unsafe { &mut *data.cast::<Call<F, T>>() };
            call.result = call.work.take().map(|work| work());
        }
        fn entry<F: FnOnce() -> T, T>(_: &Call<F, T>) -> extern "C" fn(*mut c_void) {
            call::<F, T>
        }
        let mut data = Call { work: Some(work), result: None };
        let entry = entry(&data);
        // SAFETY: the memory is this value's own, and borrowed; its end is aligned as a page is.
        unsafe { call_on(self.base.byte_add(LEN), entry, (&raw mut data).cast()) };
        data.result.expect("it was called")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing runs on it.
        let _ = unsafe { munmap(self.base, LEN) };
    }
}

/// Where there is no [`Stack`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn call_on(_: *mut c_void, entry: extern "C" fn(*mut c_void), data: *mut c_void) {
    entry(data);
}

/// Calls a function on another stack.
///
/// # Safety
/// `top` is the end of one, aligned to 16 bytes, and `entry` may be called with `data`.
#[cfg(target_arch = "x86_64")]
unsafe fn call_on(top: *mut c_void, entry: extern "C" fn(*mut c_void), data: *mut c_void) {
    // SAFETY: a function keeps r12, in which the caller's stack pointer is meanwhile.
    unsafe {
        std::arch::asm!(
            "xchg rsp, r12",
            "call {entry}",
            "mov rsp, r12",
            entry = in(reg) entry,
            inout("r12") top => _,
            in("rdi") data,
            clobber_abi("C"),
        );
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn what_runs_has_the_whole_stack_and_its_result_returns() {
        fn depth(left: u32) -> usize {
            let room = [left as u8; 4096];
            let below = if left == 0 { 0 } else { depth(left - 1) };
            below + std::hint::black_box(&room).iter().filter(|byte| **byte == left as u8).count()
        }
        let mut stack = Stack::new().unwrap();
        let here = &raw const stack as usize;
        let text = String::from("moved");
        let (there, sum, text) = stack.run(move || {
            let local = 0u8;
            (&raw const local as usize, depth(100), text + " back")
        });
        assert!(here.abs_diff(there) > LEN / 2, "it ran on the old stack");
        assert_eq!((sum, text.as_str()), (101 * 4096, "moved back"));
        let base = stack.base as usize;
        assert!((base + GUARD..base + LEN).contains(&there));
    }
}
