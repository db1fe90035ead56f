//! Classic BPF for UDP frames to one port. The kernel has taken a VLAN tag out of the frame before
//! the filter sees it.

use crate::udp::SteerBy;
use libc::sock_filter;

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_CONSTANT: u16 = (libc::BPF_LD | libc::BPF_IMM) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
/// The index of the interface that a packet came in by (SKF_AD_OFF + SKF_AD_IFINDEX).
const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
/// That of `lo` in every network namespace.
const LO: u32 = 1;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn load(code: u16, offset: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: offset }
}

/// Accepts UDP to `port`: IPv4 without options and not a fragment, IPv6 without extension headers.
/// With `steer` only what names receiver 0.
pub(super) fn udp_port(port: u16, steer: Option<SteerBy>) -> [sock_filter; 22] {
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let receiver = |payload: u32| match steer {
        Some(by) => load(LOAD_BYTE, payload + u32::from(by.offset)),
        None => load(LOAD_CONSTANT, 0),
    };
    [
        load(LOAD_HALF, 12),
        jump(JUMP_EQUAL, 0x0800, 0, 10),
        // IPv4: version and length, protocol, more-fragments and offset, destination port.
        load(LOAD_BYTE, 14),
        jump(JUMP_EQUAL, 0x45, 0, 17),
        load(LOAD_BYTE, 23),
        jump(JUMP_EQUAL, 17, 0, 15),
        load(LOAD_HALF, 20),
        jump(JUMP_BITS, 0x3fff, 13, 0),
        load(LOAD_HALF, 36),
        jump(JUMP_EQUAL, u32::from(port), 0, 11),
        receiver(42),
        jump(JUMP, 6, 0, 0),
        // IPv6: next header, destination port.
        jump(JUMP_EQUAL, 0x86dd, 0, 8),
        load(LOAD_BYTE, 20),
        jump(JUMP_EQUAL, 17, 0, 6),
        load(LOAD_HALF, 56),
        jump(JUMP_EQUAL, u32::from(port), 0, 4),
        receiver(62),
        jump(SHIFT_RIGHT, steer.map_or(0, |by| by.shift.into()), 0, 0),
        jump(JUMP_EQUAL, 0, 0, 1),
        jump(RETURN, u32::MAX, 0, 0),
        jump(RETURN, 0, 0, 0),
    ]
}

/// Accepts what comes from this host.
pub(crate) fn from_this_host() -> [sock_filter; 4] {
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    [
        load(LOAD_WORD, INTERFACE),
        jump(JUMP_EQUAL, LO, 0, 1),
        jump(RETURN, u32::MAX, 0, 0),
        jump(RETURN, 0, 0, 0),
    ]
}

/// Names the receiver of a UDP payload: one below so many, else the first.
pub(crate) fn receiver_below(by: SteerBy, receivers: u32) -> [sock_filter; 5] {
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    [
        load(LOAD_BYTE, by.offset.into()),
        jump(SHIFT_RIGHT, by.shift.into(), 0, 0),
        jump(JUMP_AT_LEAST, receivers, 1, 0),
        jump(RETURN_ACCUMULATOR, 0, 0, 0),
        jump(RETURN, 0, 0, 0),
    ]
}

/// Accepts nothing.
pub(crate) fn nothing() -> [sock_filter; 1] {
    [load(RETURN, 0)]
}
