//! Where a soft-rnic engine runs: everything around it that needs an operating system.
//!
//! | module | what |
//! |---|---|
//! | [`shard`] | the engine's thread: its loop, its messages, when it sleeps |
//! | [`wire`] | packet I/O |
//! | [`discard`] | closing what other users may keep open |
//! | `dma` | the memory of applications |
//! | [`satellite`] | an engine outside of the daemon's process, and what it asks of the daemon |
//! | [`server`] | sessions of clients: what they create, and what it costs them |
//! | [`inspect`], [`report`] | what an engine and its sessions tell about themselves |
//! | [`observe`] | events and frames, told to watchers |
//! | [`counters`] | what each number means |
//! | [`quota`], [`settings`] | what users may have, and what they may choose |
//! | `pcapng` | capture files |
//! | [`memory`] | a reserve for the moment when there is none |
//! | `thread` | threads that clients cause to exist |
//! | [`system`] | what is asked of the operating system and belongs nowhere else |
#![deny(unsafe_code)]

pub mod counters;
pub mod discard;
mod dma;
pub mod inspect;
pub mod memory;
pub mod observe;
pub mod pcapng;
pub mod quota;
pub mod refusal;
pub mod report;
pub mod satellite;
pub mod server;
pub mod settings;
pub mod shard;
pub mod system;
pub mod thread;
pub mod wire;
