//! What a hostile engine process does with its UDP sockets. All that it sends is for the device
//! itself, on this host, and not more than would be a flood from any program.

use crate::random::{bytes, one_of};
use crate::report::Report;
use fastrand::Rng;
use rnic_abi::control::{MAX_MESSAGE, decode};
use rnic_abi::os::Connection;
use rnic_host::satellite::protocol::ToEngine;
use rustix::net::{SendFlags, sendto};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Sockets for one address of the device: to receive, and to send.
pub(crate) struct Sockets {
    address: IpAddr,
    pub(crate) both: [OwnedFd; 2],
}

/// Those that the daemon sends in the first moment.
pub(crate) fn sockets(from: &Connection) -> Vec<Sockets> {
    let (mut found, mut buffer) = (Vec::new(), vec![0; MAX_MESSAGE]);
    let until = Instant::now() + Duration::from_millis(20);
    while found.is_empty() && Instant::now() < until {
        while let Ok((len @ 1.., mut fds)) = from.try_recv(&mut buffer) {
            if let Ok(ToEngine::Sockets(address)) = decode(&buffer[..len])
                && let (Some(receives), Some(sends)) = (fds.next(), fds.next())
            {
                found.push(Sockets { address, both: [receives, sends] });
            }
        }
        sleep(Duration::from_millis(1));
    }
    found
}

/// Garbage in datagrams and trains, until this process dies.
pub(crate) fn send_garbage(sockets: &[Sockets], random: &mut Rng, report: &Report) {
    report.did("Datagrams");
    loop {
        for Sockets { address, both } in sockets {
            for _ in 0..random.u8(..20) {
                let longest = one_of(random, [1, 12, 60, 1500, 9000, 60_000]);
                let mut datagram = bytes(random, longest);
                // An opcode that exists, in most cases.
                datagram[0] &= one_of(random, [0x1f, 0x1f, 0x7f, 0xff]);
                let from = &both[usize::from(random.u8(..4) != 0)];
                // Where sockets of this port differ by user, the kernel looks into the datagram.
                let to = SocketAddr::new(*address, one_of(random, [PORT, PORT, PORT, 4792]));
                match random.u8(..3) {
                    0 => send_train(from, to, &datagram, random.u16(1..1500)),
                    _ => drop(sendto(from, &datagram, SendFlags::DONTWAIT, &to)),
                }
            }
        }
        sleep(Duration::from_millis(random.u64(1..8)));
    }
}

/// One call for several datagrams.
fn send_train(from: &OwnedFd, to: SocketAddr, bytes: &[u8], segment: u16) {
    let SocketAddr::V4(to) = to else { return };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 4];
    // SAFETY: all pointers are to live values, whose lengths are given; the header of the control
    // message fits into `control`, which is aligned for it.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = (&raw const name).cast_mut().cast();
        message.msg_namelen = size_of_val(&name) as u32;
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(2) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(2) as usize;
        libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
        libc::sendmsg(from.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT);
    }
}

/// Of RoCEv2.
const PORT: u16 = 4791;
