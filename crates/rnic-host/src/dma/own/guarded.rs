//! Copies that a missing page ends, instead of the process.
//!
//! The processor reports such a page with SIGSEGV or SIGBUS, to the thread that copies. The handler
//! that is installed here looks where the thread is: inside the copy it lets the thread go on
//! further behind, at the end with the number of bytes that are left; anywhere else the signal is
//! another one's, and goes to the handler that was there before.
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

#[cfg(all(test, target_arch = "x86_64"))]
mod speed;

#[cfg(all(test, target_arch = "x86_64"))]
pub(in super::super) use machine::NARROW;
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
    //
    // Long copies are wide loads and stores where the processor has them. A string instruction
    // takes longer, on AMD's Zen 3 more than twice as long where the target is a few bytes further
    // in its page than the source, as payloads behind their headers are (`speed` measures it).
    // After a fault the string instruction tries what is left: it knows the byte.
    std::arch::global_asm!(
        ".pushsection .text.rnic_guarded_copy, \"ax\", @progbits",
        ".globl rnic_guarded_copy",
        ".globl rnic_guarded_wide",
        ".globl rnic_guarded_rest",
        ".globl rnic_guarded_end",
        ".hidden rnic_guarded_copy",
        ".hidden rnic_guarded_wide",
        ".hidden rnic_guarded_rest",
        ".hidden rnic_guarded_end",
        ".type rnic_guarded_copy, @function",
        "rnic_guarded_copy:",
        "mov eax, ecx",
        "mov rcx, rdx",
        "cmp rcx, 8",
        "je 2f",
        "jb 4f",
        "cmp rcx, 128",
        "jb 5f",
        "test al, al",
        "jz 5f",
        "rnic_guarded_wide:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovdqu ymm2, [rsi + 64]",
        "vmovdqu ymm3, [rsi + 96]",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + 32], ymm1",
        "vmovdqu [rdi + 64], ymm2",
        "vmovdqu [rdi + 96], ymm3",
        "add rsi, 128",
        "add rdi, 128",
        "sub rcx, 128",
        "cmp rcx, 128",
        "jae rnic_guarded_wide",
        "rnic_guarded_rest:",
        "vzeroupper",
        "test rcx, rcx",
        "jz rnic_guarded_end",
        "5: rep movsb",
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
        /// Copies, and returns how many bytes are left. Only a processor with AVX may be `wide`.
        fn rnic_guarded_copy(to: *mut u8, from: *const u8, len: usize, wide: bool) -> usize;
        static rnic_guarded_wide: u8;
        static rnic_guarded_rest: u8;
        static rnic_guarded_end: u8;
    }

    /// Copies from an address that may be none.
    #[inline]
    pub(in super::super) fn load(from: usize, to: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the target is a live slice. A page of the source that is not there ends the copy.
        whole(unsafe { rnic_guarded_copy(to.as_mut_ptr(), from as *const u8, to.len(), is_wide()) })
    }

    /// Copies to an address that may be none, from one that the caller has checked.
    #[inline]
    pub(in super::super) fn store(from: *const u8, len: usize, to: usize) -> Result<(), Fault> {
        // SAFETY: every caller names bytes of a live arena, mapping or variable. The target is
        // memory that the program registered for that, in the program's own process: if it names
        // anything else, that is as if the program wrote there itself. A page that is not there
        // ends the copy.
        whole(unsafe { rnic_guarded_copy(to as *mut u8, from, len, is_wide()) })
    }

    #[inline]
    fn is_wide() -> bool {
        #[cfg(test)]
        if NARROW.get() {
            return false;
        }
        std::arch::is_x86_feature_detected!("avx")
    }

    #[cfg(test)]
    thread_local! {
        /// This thread copies as on a processor without AVX.
        pub(in super::super::super) static NARROW: std::cell::Cell<bool> =
            const { std::cell::Cell::new(false) };
    }

    #[inline]
    fn whole(missing: usize) -> Result<(), Fault> {
        if missing == 0 { Ok(()) } else { Err(Fault { missing }) }
    }

    /// Where a thread that met a missing page at this instruction goes on; none outside of a copy.
    pub(super) fn way_out(at: i64) -> Option<i64> {
        let [wide, rest, end] = [
            &raw const rnic_guarded_wide,
            &raw const rnic_guarded_rest,
            &raw const rnic_guarded_end,
        ]
        .map(|place| place as i64);
        if (wide..rest).contains(&at) {
            Some(rest)
        } else {
            (rest..end).contains(&at).then_some(end)
        }
    }

    #[cfg(test)]
    pub(super) fn begin_of_copies() -> i64 {
        &raw const rnic_guarded_wide as i64
    }
}
