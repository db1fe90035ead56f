//! Drop-in librdmacm.so.1 for soft-rnic.
//!
//! `exports.txt` says which C names exist, under which version, and which function of `api` or
//! `stubs` is behind each; the build script turns it into the trampolines included below.

mod address;
mod addrinfo;
mod api;
mod channel;
mod connect;
mod devices;
mod ece;
mod endpoint;
mod error;
mod events;
#[cfg(test)]
mod forked;
mod id;
mod listen;
mod migrate;
mod multicast;
mod options;
mod qp;
mod rsocket;
mod session;
mod srq;
mod strings;
mod stubs;
mod verbs;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
