//! Attacks through the control socket.

use crate::Attack;
use crate::client::{Client, greet};
use rnic_abi::control::{CreateQp, Inspect, MAX_MESSAGE, Request, encode};
use rnic_abi::os::{Connection, EventFd, candidate_socket_paths};
use rnic_abi::verbs::{AccessFlags, AhAttr, QpCaps, QpType};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Messages malformed, truncated, too long, too many, with too many descriptors.
pub(crate) fn control(attack: &mut Attack) -> io::Result<()> {
    while attack.goes_on() {
        let way = attack.random.below(6);
        // The daemon may disconnect such a client.
        let _ = match way {
            0 => nonsense(attack),
            1 => mutated(attack),
            2 => flood(attack),
            3 => descriptors(attack),
            4 => crowd(attack),
            _ => wrong_handles(attack),
        };
    }
    Ok(())
}

/// Any bytes, of any length up to twice what is allowed.
fn nonsense(attack: &mut Attack) -> io::Result<()> {
    let connection = greet()?;
    for _ in 0..20 {
        let longest = if attack.random.one_in(8) { 2 * MAX_MESSAGE } else { 64 };
        let len = 1 + attack.random.below(longest);
        attack.done += 1;
        connection.try_send(&attack.random.bytes(len), &[])?;
    }
    Ok(())
}

fn any_request(attack: &mut Attack) -> Request {
    let number = attack.random.word() as u32;
    let caps = QpCaps {
        max_send_wr: attack.random.word() as u32,
        max_recv_wr: attack.random.word() as u32,
        max_send_sge: attack.random.word() as u32,
        max_recv_sge: attack.random.word() as u32,
        max_inline_data: attack.random.word() as u32,
    };
    match attack.random.below(31) {
        0 => Request::CreateCq { cqe: number, channel: Some(number), comp_vector: number },
        1 => Request::CreateQp(CreateQp {
            pd: number & 3,
            qp_type: [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv]
                [attack.random.below(5)],
            send_cq: Some(number & 7),
            recv_cq: None,
            srq: Some(number),
            xrcd: Some(number & 3).filter(|_| number & 8 == 0),
            caps,
            sq_sig_all: true,
        }),
        2 => Request::RegMr {
            pd: number & 3,
            addr: attack.random.word(),
            length: attack.random.word(),
            iova: attack.random.word(),
            access: AccessFlags::from_bits_truncate(number),
            fd_offset: attack.random.word(),
        },
        3 => Request::QueryGids { start: number },
        4 => Request::DestroyQp { qp: number },
        5 => Request::DeregMr { mr: number },
        6 => Request::DestroyCq { cq: number },
        7 => Request::DeallocPd { pd: number },
        8 => Request::OpenDevice { name: "x".repeat(attack.random.below(5000)) },
        9 => Request::ResizeCq { cq: number, cqe: attack.random.word() as u32 },
        10 => Request::DestroySrq { srq: number & 3 },
        11 => Request::SetSrqLimit { srq: number & 3, limit: attack.random.word() as u32 },
        12 => Request::CreateSrq {
            pd: number & 3,
            max_wr: attack.random.word() as u32,
            max_sge: attack.random.word() as u32,
            limit: attack.random.word() as u32,
            xrc: Some((number & 3, number & 7)).filter(|_| number & 8 == 0),
        },
        13 => Request::Inspect { what: Inspect::Qps, from: number },
        14 | 15 => Request::CreateAh { pd: number & 3, attr: any_address(attack) },
        16 => Request::DestroyAh { ah: number & 7 },
        17..=20 => any_memory(attack, number),
        21 => any_window(attack, number),
        22 | 23 => Request::OpenXrcd { create: number & 1 != 0, exclusive: number & 2 != 0 },
        24 => Request::CloseXrcd { xrcd: number & 3 },
        25 => Request::OpenQp { xrcd: number & 3, qpn: attack.random.word() as u32 },
        26..=29 => any_group(attack, number),
        _ => Request::QueryQp { qp: number },
    }
}

/// A request about device memory, or what a key allows.
fn any_memory(attack: &mut Attack, number: u32) -> Request {
    let short = |attack: &mut Attack| attack.random.word() >> attack.random.below(64);
    match number % 4 {
        0 => Request::AllocDm { length: short(attack) },
        1 => Request::FreeDm { dm: number >> 2 & 3 },
        2 => Request::RegDmMr {
            pd: number >> 2 & 3,
            dm: number >> 4 & 3,
            offset: short(attack),
            length: short(attack),
            access: AccessFlags::from_bits_truncate(number) | AccessFlags::ZERO_BASED,
        },
        _ => Request::CheckAccess {
            pd: number >> 2 & 3,
            lkey: attack.random.word() as u32,
            addr: attack.random.word(),
            length: attack.random.word(),
            access: AccessFlags::from_bits_truncate(number),
        },
    }
}

/// A request about windows, or to change a region.
fn any_window(attack: &mut Attack, number: u32) -> Request {
    match number % 4 {
        0 => Request::AllocMw { pd: number >> 2 & 3, kind: (number >> 4 & 3) as u8 },
        1 => Request::DeallocMw { mw: number >> 2 & 7 },
        2 => Request::RegNullMr { pd: number >> 2 & 3 },
        _ => any_change(attack, number >> 2),
    }
}

/// A change of a region.
fn any_change(attack: &mut Attack, number: u32) -> Request {
    let words = [(); 3].map(|()| attack.random.word());
    let [changes_pd, moves, changes_access] = [(); 3].map(|()| attack.random.one_in(2));
    Request::ReregMr {
        mr: number & 7,
        pd: changes_pd.then_some(number & 3),
        range: moves.then(|| words.into()),
        access: changes_access.then(|| AccessFlags::from_bits_truncate(number)),
    }
}

/// A guessed queue pair, and a group: one of few, any of very many, or none.
fn any_group(attack: &mut Attack, number: u32) -> Request {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, attack.random.word() as u8 & 7]);
    match attack.random.below(4) {
        0 => gid[12..].copy_from_slice(&(attack.random.word() as u32).to_be_bytes()),
        1 => gid[0] = 0xff,
        _ => {}
    }
    Request::Multicast { qp: number & 7, gid, attach: attack.random.below(4) > 0 }
}

/// An address vector whose destination is this host, a group, or nothing.
fn any_address(attack: &mut Attack) -> AhAttr {
    let here = 0x7f00_0000 | attack.random.word() as u32 & 0xffff;
    let octets = [0x7f00_0001, here, 0xe000_0001, 0];
    let address = Ipv4Addr::from(octets[attack.random.below(4)]);
    AhAttr {
        dgid: address.to_ipv6_mapped().octets(),
        flow_label: attack.random.word() as u32,
        sgid_index: attack.random.below(3) as u8,
        hop_limit: attack.random.word() as u8,
        traffic_class: attack.random.word() as u8,
        sl: attack.random.word() as u8,
        port_num: attack.random.below(3) as u8,
        is_global: !attack.random.one_in(4),
    }
}

/// Valid messages with flipped bits, cut short or with a tail.
fn mutated(attack: &mut Attack) -> io::Result<()> {
    let client = Client::open()?;
    for _ in 0..50 {
        let request = any_request(attack);
        let Ok(mut bytes) = encode(&request) else { continue };
        match attack.random.below(3) {
            0 => bytes.truncate(1 + attack.random.below(bytes.len())),
            1 => bytes.extend(attack.random.bytes(5)),
            _ => {
                let at = attack.random.below(bytes.len());
                bytes[at] ^= 1 << attack.random.below(8);
            }
        }
        attack.done += 1;
        client.connection.try_send(&bytes, &[])?;
    }
    Ok(())
}

/// Requests without a pause whose replies are never read.
fn flood(attack: &mut Attack) -> io::Result<()> {
    let client = Client::open()?;
    for _ in 0..5000 {
        let request = any_request(attack);
        attack.done += 1;
        if let Ok(bytes) = encode(&request) {
            client.connection.try_send(&bytes, &[])?;
        }
    }
    Ok(())
}

/// Descriptors where none belong, and more than a message may carry.
fn descriptors(attack: &mut Attack) -> io::Result<()> {
    let client = Client::open()?;
    let fd = EventFd::new()?;
    let many = [fd.as_fd(); 4];
    for _ in 0..50 {
        let request = any_request(attack);
        attack.done += 1;
        if let Ok(bytes) = encode(&request) {
            client.connection.try_send(&bytes, &many[..attack.random.below(5)])?;
        }
    }
    too_many_descriptors(&client.connection, fd.as_fd())
}

/// 200 copies of one descriptor: what our own `send` refuses, built by hand.
fn too_many_descriptors(connection: &Connection, fd: BorrowedFd<'_>) -> io::Result<()> {
    const COUNT: usize = 200;
    let bytes = encode(&Request::AllocPd).unwrap_or_default();
    let mut control = [0u64; 256];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    let len = u32::try_from(COUNT * size_of::<i32>()).unwrap_or(0);
    // SAFETY: the control buffer is aligned and has room for COUNT descriptors; the kernel only
    // reads what the header points at, all of it alive.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(len) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(len) as _;
        let data = libc::CMSG_DATA(header).cast::<i32>();
        for i in 0..COUNT {
            data.add(i).write_unaligned(fd.as_raw_fd());
        }
        libc::sendmsg(
            connection.as_fd().as_raw_fd(),
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Connections that send nothing, and connections that send only the first message.
fn crowd(attack: &mut Attack) -> io::Result<()> {
    let path = candidate_socket_paths().into_iter().next().unwrap_or_default();
    let mut silent = Vec::new();
    for _ in 0..100 {
        attack.done += 1;
        match Connection::connect(&path) {
            Ok(connection) => silent.push(connection),
            Err(_) => break,
        }
    }
    drop(silent);
    let greeted: io::Result<Vec<_>> = (0..20).map(|_| greet()).collect();
    greeted.map(drop)
}

/// Requests about objects that do not exist, or belong to another session.
fn wrong_handles(attack: &mut Attack) -> io::Result<()> {
    let client = Client::open()?;
    for _ in 0..200 {
        let request = any_request(attack);
        attack.done += 1;
        // A refusal is a reply too; only a broken connection ends this.
        let _refused = client.connection.call(&request, &[])?;
    }
    Ok(())
}
