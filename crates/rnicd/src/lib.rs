//! The soft-rnic daemon: everything around the engine that needs an operating system.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | command line and configuration file |
//! | [`daemon`] | start, signals, end |
//! | `server` | control socket: sessions, quotas, ring memory |
//! | `shard` | the engine's thread |
//! | `dma` | the memory of applications |
//! | `wire` | packet I/O |
//! | `net` | interfaces, addresses, routes, neighbours |
//! | `pcapng` | capture files |
//! | [`cli`] | the `rnic` command |
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod daemon;
mod dma;
mod inspect;
mod net;
mod pcapng;
mod refusal;
mod server;
mod shard;
mod system;
mod wire;
