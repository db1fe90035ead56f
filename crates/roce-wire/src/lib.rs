//! RoCEv2 bytes and what they mean.
//!
//! A packet is seen at two levels. A [`Datagram`] is the UDP payload, base transport header to
//! ICRC; together with a [`Flow`] (the addresses of both ends, and the few IP fields that matter)
//! it is all a transport engine needs. A [`Frame`] is the same thing with its Ethernet, IP and UDP
//! headers around it, which packet I/O adds ([`FrameHeader`]) and strips.
//!
//! # Contract
//!
//! - Nothing here does I/O, keeps state, reads a clock or allocates. There is no `unsafe`.
//! - Bytes come from the network: `parse` accepts any slice and returns a reason when it refuses.
//!   After a successful `parse` no accessor can panic.
//! - Every header has a plain struct that holds *all* of its bits, reserved ones included, so that
//!   `emit(parse(bytes)) == bytes`. Exceptions are the reserved bits inside CM messages, which are
//!   sent as zero.
//! - `emit` writes into a buffer the caller sized with the matching `*_len`; a shorter buffer is a
//!   programming error and panics.
//! - A good ICRC is a separate question: [`icrc::verify`] for datagrams, [`icrc::verify_frame`] for
//!   whole packets.
//!
//! # Reading order
//!
//! [`types`], [`opcode`], [`headers`], [`datagram`]; then [`flow`], [`icrc`], [`net`], [`frame`];
//! then [`mad`] and [`cm`] for connection management, [`grh`] for what datagram receivers see,
//! [`train`] for packets that carry several datagrams, and [`pretty`] to print all of it.

#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod cm;
pub mod datagram;
pub mod flow;
pub mod frame;
pub mod grh;
pub mod headers;
pub mod icrc;
pub mod mad;
pub mod net;
pub mod opcode;
pub mod pretty;
pub mod train;
pub mod types;

pub use datagram::{Datagram, HeaderRepr, ParseError};
pub use flow::Flow;
pub use frame::{Frame, FrameError, FrameHeader};
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpBody, Deth, Feth, Ieth, ImmDt, NakCode, Rdeth, Reth,
    Syndrome, XrcEth,
};
pub use icrc::{IcrcCheck, IpIdHint};
pub use net::{Ecn, MacAddr, VlanTag};
pub use opcode::{
    HeaderSet, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Trailer, Transport,
};
pub use types::{Gid, Msn, PKey, PathMtu, Psn, QKey, Qpn, RKey};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// UDP destination port of every RoCEv2 packet, requests and responses alike.
pub const ROCE_PORT: u16 = 4791;
