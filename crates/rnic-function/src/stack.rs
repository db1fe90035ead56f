//! A stack for the engine's turns in threads of the program, whose own may be small.

#![allow(unsafe_code, reason = "no library is small enough for a few instructions")]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::{io, thread};

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

    /// Runs `work` on it.
    ///
    /// # Errors
    /// When it panics, which has printed its message: behind this stack there are none of our
    /// frames, but those of the program.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> thread::Result<T> {
        struct Call<F, T> {
            work: Option<F>,
            result: Option<thread::Result<T>>,
        }
        extern "C" fn call<F: FnOnce() -> T, T>(data: *mut c_void) {
            // SAFETY: the `Call` below, which is alive and used by nothing else meanwhile.
            let call = unsafe { &mut *data.cast::<Call<F, T>>() };
            call.result = call.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
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

// RBP, which a function keeps, has the caller's stack meanwhile. The frame says so: what walks the
// stack, as a panic does for its backtrace, finds the caller, and not what happens to be behind the
// end of this one.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.rnic_call_on, \"ax\", @progbits",
    ".globl rnic_call_on",
    ".hidden rnic_call_on",
    ".type rnic_call_on, @function",
    "rnic_call_on:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size rnic_call_on, . - rnic_call_on",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "sysv64" {
    /// Calls a function on another stack, whose end `top` is, aligned to 16 bytes.
    #[link_name = "rnic_call_on"]
    fn call_on(top: *mut c_void, entry: extern "C" fn(*mut c_void), data: *mut c_void);
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
        let result = stack.run(move || {
            let local = 0u8;
            (&raw const local as usize, depth(100), text + " back")
        });
        let (there, sum, text) = result.unwrap();
        assert!(here.abs_diff(there) > LEN / 2, "it ran on the old stack");
        assert_eq!((sum, text.as_str()), (101 * 4096, "moved back"));
        let base = stack.base as usize;
        assert!((base + GUARD..base + LEN).contains(&there));
    }

    #[test]
    fn a_panic_ends_the_work_and_no_more() {
        let mut stack = Stack::new().unwrap();
        assert!(stack.run(|| panic!("a defect")).is_err());
        assert_eq!(stack.run(|| 7).unwrap(), 7);
    }
}
