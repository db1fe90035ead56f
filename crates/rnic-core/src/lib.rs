//! The RDMA engine: a NIC without an operating system.
//!
//! No clock, no system call, no thread, no `unsafe`: time and randomness are arguments, and the
//! whole outside is the three traits in [`ports`]. See [`engine::Engine`] for how to drive it.
#![forbid(unsafe_code)]

pub mod attr;
pub mod command;
pub mod counters;
pub mod event;
pub mod mr;
pub mod ports;
pub mod qpn;
pub mod slab;
pub mod time;
pub mod wheel;
