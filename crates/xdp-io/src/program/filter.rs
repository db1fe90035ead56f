//! The steering program; the documentation of the parent module has it in C.

use std::os::fd::BorrowedFd;

use super::asm::Condition::{Equal, NotEqual};
use super::asm::Register::{R0, R1, R2, R3, R6, R7, R8, R10};
use super::asm::Width::{U8, U16, U32, U64};
use super::asm::{Assembler, Helper, Label};
use crate::sys::bpf::Instruction;
use crate::udp::SteerBy;

/// The maps the program uses.
pub(super) struct Maps<'a> {
    pub(super) sockets: BorrowedFd<'a>,
    pub(super) v4: BorrowedFd<'a>,
    pub(super) v6: BorrowedFd<'a>,
}

/// XDP_PASS: the kernel keeps the frame.
const PASS: i32 = 2;
/// Offsets in `struct xdp_md`.
const CTX_DATA: i16 = 0;
const CTX_DATA_END: i16 = 4;
const CTX_RX_QUEUE: i16 = 16;
/// The IP header begins here, counted from r7, which steps over a VLAN tag.
const IP: i16 = 14;
const UDP_PROTOCOL: i32 = 17;

/// A 16-bit header field as a program that loads it in host order sees it.
fn network_order(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Builds the program for UDP destination port `port`, and with `steer` only for what names
/// receiver 0.
///
/// Registers: r6 = context, r7 = start of the frame (plus a VLAN tag), r8 = its end, r3 = field
/// under test.
pub(super) fn assemble(port: u16, steer: Option<SteerBy>, maps: &Maps<'_>) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    let [pass, tagged, network, v4, v6, redirect] = std::array::from_fn(|_| asm.label());

    asm.copy(R6, R1);
    asm.load(U32, R7, R6, CTX_DATA);
    asm.load(U32, R8, R6, CTX_DATA_END);
    require(&mut asm, 14, pass);
    asm.load(U16, R3, R7, 12);
    asm.jump_if(Equal, R3, network_order(0x8100), tagged);
    asm.jump_if(NotEqual, R3, network_order(0x88a8), network);
    asm.place(tagged);
    require(&mut asm, 18, pass);
    asm.load(U16, R3, R7, 16);
    asm.add(R7, 4);

    asm.place(network);
    asm.jump_if(Equal, R3, network_order(0x0800), v4);
    asm.jump_if(Equal, R3, network_order(0x86dd), v6);
    asm.jump(pass);

    asm.place(v4);
    match_v4(&mut asm, port, maps.v4, pass);
    name_first(&mut asm, IP + 28, steer, pass);
    asm.jump(redirect);

    asm.place(v6);
    match_v6(&mut asm, port, maps.v6, pass);
    name_first(&mut asm, IP + 48, steer, pass);

    asm.place(redirect);
    asm.map(R1, maps.sockets);
    asm.load(U32, R2, R6, CTX_RX_QUEUE);
    asm.set(R3, PASS);
    asm.call(Helper::RedirectMap);
    asm.exit();

    asm.place(pass);
    asm.set(R0, PASS);
    asm.exit();
    asm.finish()
}

/// Goes to `pass` unless `bytes` bytes from r7 on are in the frame.
fn require(asm: &mut Assembler, bytes: i32, pass: Label) {
    asm.copy(R2, R7);
    asm.add(R2, bytes);
    asm.jump_greater(R2, R8, pass);
}

fn match_v4(asm: &mut Assembler, port: u16, addresses: BorrowedFd<'_>, pass: Label) {
    require(asm, i32::from(IP) + 20 + 8, pass);
    // Version 4 and no options.
    asm.load(U8, R3, R7, IP);
    asm.jump_if(NotEqual, R3, 0x45, pass);
    asm.load(U8, R3, R7, IP + 9);
    asm.jump_if(NotEqual, R3, UDP_PROTOCOL, pass);
    // More-fragments bit and fragment offset.
    asm.load(U16, R3, R7, IP + 6);
    asm.and(R3, network_order(0x3fff));
    asm.jump_if(NotEqual, R3, 0, pass);
    asm.load(U16, R3, R7, IP + 22);
    asm.jump_if(NotEqual, R3, network_order(port), pass);
    asm.load(U32, R3, R7, IP + 16);
    asm.store(U32, R10, -4, R3);
    look_up(asm, addresses, -4, pass);
}

fn match_v6(asm: &mut Assembler, port: u16, addresses: BorrowedFd<'_>, pass: Label) {
    require(asm, i32::from(IP) + 40 + 8, pass);
    asm.load(U8, R3, R7, IP);
    asm.and(R3, 0xf0);
    asm.jump_if(NotEqual, R3, 0x60, pass);
    asm.load(U8, R3, R7, IP + 6);
    asm.jump_if(NotEqual, R3, UDP_PROTOCOL, pass);
    asm.load(U16, R3, R7, IP + 42);
    asm.jump_if(NotEqual, R3, network_order(port), pass);
    // A store fills a slot of the stack: without CAP_PERFMON, Linux before 6.8 takes a second store
    // into the same slot for an attack on a spilled pointer.
    for at in [0, 8] {
        asm.load(U64, R3, R7, IP + 24 + at);
        asm.store(U64, R10, -16 + at, R3);
    }
    look_up(asm, addresses, -16, pass);
}

/// Goes to `pass` unless the datagram names receiver 0.
fn name_first(asm: &mut Assembler, payload: i16, steer: Option<SteerBy>, pass: Label) {
    let Some(SteerBy { offset, shift }) = steer else { return };
    let at = payload + i16::from(offset);
    require(asm, i32::from(at) + 1, pass);
    asm.load(U8, R3, R7, at);
    asm.shift_right(R3, shift.into());
    asm.jump_if(NotEqual, R3, 0, pass);
}

/// Goes to `pass` unless the key on the stack is in `map`.
fn look_up(asm: &mut Assembler, map: BorrowedFd<'_>, key: i16, pass: Label) {
    asm.map(R1, map);
    asm.copy(R2, R10);
    asm.add(R2, i32::from(key));
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Equal, R0, 0, pass);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn every_jump_lands_inside_the_program() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let maps = Maps { sockets: file.as_fd(), v4: file.as_fd(), v6: file.as_fd() };
        let steer = Some(SteerBy { offset: 5, shift: 3 });
        let program = assemble(4791, steer, &maps);
        for (at, instruction) in program.iter().enumerate() {
            // Class JMP, and neither a call nor an exit.
            if instruction.code & 7 == 5 && !matches!(instruction.code, 0x85 | 0x95) {
                let target = at as i64 + 1 + i64::from(instruction.offset);
                assert!(target > at as i64 && target < program.len() as i64, "jump at {at}");
            }
        }
        assert_eq!(program.last().unwrap().code, 0x95);
    }
}
