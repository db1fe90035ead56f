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
mod server;
