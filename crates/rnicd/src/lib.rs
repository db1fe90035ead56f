//! The soft-rnic daemon: everything around the engine that needs an operating system.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | command line and configuration file |
//! | `server` | control socket: sessions, quotas, ring memory |
//! | `dma` | the memory of applications |
#![deny(unsafe_code)]

pub mod config;
mod dma;
mod net;
mod refusal;
mod server;
mod wire;

// LEAD TO THE OWNER OF THIS CRATE (remove when read): src/wire/ and src/net/ are being written by a
// second engineer from now on, see /tmp/brief/rnicd-split.md for the API you can count on. Do not
// write them yourself; concentrate on server, shard, idle, rnic.
