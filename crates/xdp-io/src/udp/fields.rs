//! What the kernel says about received messages, and is told about those to send.

use std::net::IpAddr;

use super::socket::Socket;
use super::{RxTrain, TxTrain};
use crate::address;
use crate::control::{self, Control};
use crate::sys::mmsg::Message;

/// What the kernel said about a received message.
pub(super) fn describe(message: Message<'_>, bound: IpAddr) -> Option<RxTrain> {
    let mut train = RxTrain {
        len: message.len,
        segment_len: message.len,
        src: address::decode(message.name)?,
        dst: bound,
        ..RxTrain::default()
    };
    for (level, kind, data) in message.control {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let segment = usize::try_from(control::as_int(data)?).ok()?;
                train.segment_len = segment.clamp(1, message.len.max(1));
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                train.tos = control::as_int(data)? as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                train.hop_limit = control::as_int(data)? as u8;
            }
            // struct in_pktinfo: interface, local address, header destination address.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                train.dst = IpAddr::from(*data.get(8..12)?.first_chunk::<4>()?);
            }
            // struct in6_pktinfo: destination address, interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                train.dst = IpAddr::from(*data.first_chunk::<16>()?);
            }
            _ => {}
        }
    }
    (!train.dst.is_unspecified()).then_some(train)
}

/// The control messages for those IP fields of `train` that differ from the socket's.
pub(super) fn describe_to_kernel(train: &TxTrain, segmented: bool, socket: &Socket) -> Control {
    let mut control = Control::EMPTY;
    let (level, tos, hops, source) = if train.src.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL, libc::IP_PKTINFO)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT, libc::IPV6_PKTINFO)
    };
    if train.tos != socket.fields.tos {
        control.push(level, tos, &i32::from(train.tos).to_ne_bytes());
    }
    // Multicast datagrams have a TTL of their own.
    if train.hop_limit != socket.fields.hops || train.dst.ip().is_multicast() {
        control.push(level, hops, &i32::from(train.hop_limit).to_ne_bytes());
    }
    if socket.address.is_unspecified() && !train.src.is_unspecified() {
        let mut info = [0; 20];
        match train.src {
            IpAddr::V4(address) => {
                info[4..8].copy_from_slice(&address.octets());
                control.push(level, source, &info[..12]);
            }
            IpAddr::V6(address) => {
                info[..16].copy_from_slice(&address.octets());
                control.push(level, source, &info);
            }
        }
    }
    if segmented {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &train.segment_len.to_ne_bytes());
    }
    control
}
