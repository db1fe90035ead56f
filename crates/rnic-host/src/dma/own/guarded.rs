//! Copies that a missing page ends, instead of the process.
//!
//! The processor reports such a page with SIGSEGV or SIGBUS, to the thread that copies. The handler
//! that is installed here looks where the thread is: inside the copy it lets the thread go on
//! behind it, with the number of bytes that are left; anywhere else the signal is another one's,
//! and goes to the handler that was there before.
//!
//! The handlers are in a [module of their own](handlers). On another processor there are no plain
//! copies.

/// A copy ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// Bytes that were not copied, at least one.
    pub(super) missing: usize,
}

#[cfg(target_arch = "x86_64")]
mod handlers;

#[cfg(target_arch = "x86_64")]
pub(super) use {
    handlers::is_ready,
    machine::{load, store},
};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use elsewhere::{is_ready, load, store};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::Fault;

    pub(in super::super) fn is_ready() -> bool {
        false
    }

    pub(in super::super) fn load(_: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        Err(Fault { missing: bytes.len() })
    }

    pub(in super::super) fn store(_: *const u8, len: usize, _: usize) -> Result<(), Fault> {
        Err(Fault { missing: len })
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Fault;

    // The number of bytes that are left is in RCX wherever a fault may happen. Eight bytes are one
    // store, and fewer are stored in their order: programs poll the last byte of a message. The
    // stores of a string instruction are in no order, but before those of the next piece (Intel
    // SDM, volume 3, "Memory-Ordering Model for String Operations").
    std::arch::global_asm!(
        ".pushsection .text.rnic_guarded_copy, \"ax\", @progbits",
        ".globl rnic_guarded_copy",
        ".globl rnic_guarded_begin",
        ".globl rnic_guarded_end",
        ".hidden rnic_guarded_copy",
        ".hidden rnic_guarded_begin",
        ".hidden rnic_guarded_end",
        ".type rnic_guarded_copy, @function",
        "rnic_guarded_copy:",
        "mov rcx, rdx",
        "cmp rcx, 8",
        "je 2f",
        "jb 4f",
        "rnic_guarded_begin:",
        "rep movsb",
        "jmp rnic_guarded_end",
        "2: mov rdx, [rsi]",
        "mov [rdi], rdx",
        "xor ecx, ecx",
        "jmp rnic_guarded_end",
        "3: mov dl, [rsi]",
        "mov [rdi], dl",
        "inc rsi",
        "inc rdi",
        "dec rcx",
        "4: test rcx, rcx",
        "jnz 3b",
        "rnic_guarded_end:",
        "mov rax, rcx",
        "ret",
        ".size rnic_guarded_copy, . - rnic_guarded_copy",
        ".popsection",
    );

    unsafe extern "sysv64" {
        /// Copies, and returns how many bytes are left.
        fn rnic_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        static rnic_guarded_begin: u8;
        static rnic_guarded_end: u8;
    }

    /// Copies from an address that may be none.
    #[inline]
    pub(in super::super) fn load(from: usize, to: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the target is a live slice. A page of the source that is not there ends the copy.
        whole(unsafe { rnic_guarded_copy(to.as_mut_ptr(), from as *const u8, to.len()) })
    }

    /// Copies to an address that may be none, from one that the caller has checked.
    #[inline]
    pub(in super::super) fn store(from: *const u8, len: usize, to: usize) -> Result<(), Fault> {
        // SAFETY: every caller names bytes of a live arena, mapping or variable. The target is
        // memory that the program registered for that, in the program's own process: if it names
        // anything else, that is as if the program wrote there itself. A page that is not there
        // ends the copy.
        whole(unsafe { rnic_guarded_copy(to as *mut u8, from, len) })
    }

    #[inline]
    fn whole(missing: usize) -> Result<(), Fault> {
        if missing == 0 { Ok(()) } else { Err(Fault { missing }) }
    }

    /// Where a thread that met a missing page at this instruction goes on; none outside of a copy.
    pub(super) fn way_out(at: i64) -> Option<i64> {
        let (begin, end) =
            (&raw const rnic_guarded_begin as i64, &raw const rnic_guarded_end as i64);
        (begin..end).contains(&at).then_some(end)
    }

    #[cfg(test)]
    pub(super) fn begin_of_copies() -> i64 {
        &raw const rnic_guarded_begin as i64
    }
}
