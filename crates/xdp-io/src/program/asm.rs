//! A two-pass assembler for the few eBPF instructions that our programs need.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::bpf::Instruction;

/// eBPF registers: r0 result, r1..r5 arguments (lost in calls), r6..r9 kept, r10 frame pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R10 = 10,
}

/// Width of a load or store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Width {
    U8 = 0x10,
    U16 = 0x08,
    U32 = 0x00,
    U64 = 0x18,
}

/// Condition of a jump that compares a register with an immediate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    Equal = 0x10,
    NotEqual = 0x50,
}

/// Helper functions of the kernel, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Helper {
    MapLookupElem = 1,
    SkbLoadBytes = 26,
    RedirectMap = 51,
    SkSelectReuseport = 82,
}

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Instruction classes and modes of `linux/bpf_common.h` and `linux/bpf.h`.
const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const LD_IMM64: u8 = 0x18;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
/// Its operation is the immediate, where 0 is an addition.
const STX_ATOMIC_64: u8 = 0xdb;
const ALU64_MOV_IMM: u8 = 0xb7;
const ALU64_MOV_REG: u8 = 0xbf;
const ALU64_ADD_IMM: u8 = 0x07;
const ALU64_ADD_REG: u8 = 0x0f;
const ALU64_LSH_IMM: u8 = 0x67;
const ALU64_AND_IMM: u8 = 0x57;
const ALU64_RSH_IMM: u8 = 0x77;
const JMP_ALWAYS: u8 = 0x05;
const JMP_GREATER_REG: u8 = 0x2d;
const JMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Collects instructions; the first pass. [`Assembler::finish`] is the second: it fills in the
/// jump distances.
#[derive(Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Jumps to fill in.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label to be placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn emit(&mut self, code: u8, dst: Register, src: u8, offset: i16, immediate: i32) {
        let registers = dst as u8 | src << 4;
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    /// `dst = *(width *)(src + offset)`
    pub(crate) fn load(&mut self, width: Width, dst: Register, src: Register, offset: i16) {
        self.emit(LDX_MEM | width as u8, dst, src as u8, offset, 0);
    }

    /// `*(width *)(dst + offset) = src`
    pub(crate) fn store(&mut self, width: Width, dst: Register, offset: i16, src: Register) {
        self.emit(STX_MEM | width as u8, dst, src as u8, offset, 0);
    }

    /// `dst = src`
    pub(crate) fn copy(&mut self, dst: Register, src: Register) {
        self.emit(ALU64_MOV_REG, dst, src as u8, 0, 0);
    }

    /// `dst = value`
    pub(crate) fn set(&mut self, dst: Register, value: i32) {
        self.emit(ALU64_MOV_IMM, dst, 0, 0, value);
    }

    /// `dst += value`
    pub(crate) fn add(&mut self, dst: Register, value: i32) {
        self.emit(ALU64_ADD_IMM, dst, 0, 0, value);
    }

    /// `dst += src`
    pub(crate) fn add_register(&mut self, dst: Register, src: Register) {
        self.emit(ALU64_ADD_REG, dst, src as u8, 0, 0);
    }

    /// `*(u64 *)dst += src`, at once
    pub(crate) fn add_atomically(&mut self, dst: Register, src: Register) {
        self.emit(STX_ATOMIC_64, dst, src as u8, 0, 0);
    }

    /// `dst <<= bits`
    pub(crate) fn shift_left(&mut self, dst: Register, bits: i32) {
        self.emit(ALU64_LSH_IMM, dst, 0, 0, bits);
    }

    /// `dst &= mask`
    pub(crate) fn and(&mut self, dst: Register, mask: i32) {
        self.emit(ALU64_AND_IMM, dst, 0, 0, mask);
    }

    /// `dst >>= bits`
    pub(crate) fn shift_right(&mut self, dst: Register, bits: i32) {
        self.emit(ALU64_RSH_IMM, dst, 0, 0, bits);
    }

    /// `dst = map`
    pub(crate) fn map(&mut self, dst: Register, map: BorrowedFd<'_>) {
        self.wide(dst, PSEUDO_MAP_FD, map);
    }

    /// `dst = &map[0]`, of an array
    pub(crate) fn map_value(&mut self, dst: Register, map: BorrowedFd<'_>) {
        self.wide(dst, PSEUDO_MAP_VALUE, map);
    }

    fn wide(&mut self, dst: Register, what: u8, map: BorrowedFd<'_>) {
        self.emit(LD_IMM64, dst, what, 0, map.as_raw_fd());
        self.code.push(Instruction { code: 0, registers: 0, offset: 0, immediate: 0 });
    }

    /// `goto target`
    pub(crate) fn jump(&mut self, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(JMP_ALWAYS, Register::R0, 0, 0, 0);
    }

    /// `if (register <condition> value) goto target`
    pub(crate) fn jump_if(
        &mut self,
        condition: Condition,
        register: Register,
        value: i32,
        target: Label,
    ) {
        self.jumps.push((self.code.len(), target));
        self.emit(JMP | condition as u8, register, 0, 0, value);
    }

    /// `if (left > right) goto target`
    pub(crate) fn jump_greater(&mut self, left: Register, right: Register, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(JMP_GREATER_REG, left, right as u8, 0, 0);
    }

    /// `r0 = helper(r1, r2, r3, ..)`
    pub(crate) fn call(&mut self, helper: Helper) {
        self.emit(CALL, Register::R0, 0, 0, helper as i32);
    }

    /// `return r0`
    pub(crate) fn exit(&mut self) {
        self.emit(EXIT, Register::R0, 0, 0, 0);
    }

    /// The program. Jump distances count from the instruction after the jump.
    ///
    /// # Panics
    /// When a label used was not placed: an error in the program text, found by its unit test.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label is placed");
            self.code[at].offset = (target as i64 - at as i64 - 1) as i16;
        }
        self.code
    }
}
