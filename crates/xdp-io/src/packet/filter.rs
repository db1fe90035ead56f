//! Classic BPF for UDP frames to one port. The kernel has taken a VLAN tag out of the frame before
//! the filter sees it.

use libc::sock_filter;

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn load(code: u16, offset: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: offset }
}

/// Accepts UDP to `port`: IPv4 without options and not a fragment, IPv6 without extension headers.
pub(super) fn udp_port(port: u16) -> [sock_filter; 17] {
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    [
        load(LOAD_HALF, 12),
        jump(JUMP_EQUAL, 0x0800, 0, 8),
        // IPv4: version and length, protocol, more-fragments and offset, destination port.
        load(LOAD_BYTE, 14),
        jump(JUMP_EQUAL, 0x45, 0, 12),
        load(LOAD_BYTE, 23),
        jump(JUMP_EQUAL, 17, 0, 10),
        load(LOAD_HALF, 20),
        jump(JUMP_BITS, 0x3fff, 8, 0),
        load(LOAD_HALF, 36),
        jump(JUMP_EQUAL, u32::from(port), 5, 6),
        // IPv6: next header, destination port.
        jump(JUMP_EQUAL, 0x86dd, 0, 5),
        load(LOAD_BYTE, 20),
        jump(JUMP_EQUAL, 17, 0, 3),
        load(LOAD_HALF, 56),
        jump(JUMP_EQUAL, u32::from(port), 0, 1),
        jump(RETURN, u32::MAX, 0, 0),
        jump(RETURN, 0, 0, 0),
    ]
}

/// Accepts nothing.
pub(super) fn nothing() -> [sock_filter; 1] {
    [load(RETURN, 0)]
}
