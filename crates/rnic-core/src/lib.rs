//! The RDMA engine: a NIC without an operating system.
//!
//! No clock, no system call, no thread, no `unsafe`: time and randomness are arguments, and the
//! whole outside is the three traits in [`ports`]. See [`engine::Engine`] for how to drive it.
//!
//! # Reading order
//!
//! 1. [`ports`] (what the engine needs), [`command`] (what it can be told), [`engine`] (the loop).
//! 2. One message, down: `clients` (doorbells), `qp/requester/sq` (the WQE is copied and checked),
//!    `qp/requester` (may it go?), `segment` (which packet?), `transport` (in which form?),
//!    `egress` (the packet leaves).
//! 3. Up at the peer: `ingress` (whose is it?), `qp/responder` (checks and effect), `delivery`
//!    (data into memory, then completions), and back through `egress` as an acknowledgement.
//! 4. Home again: `ingress`, `qp/requester/completer` (what it means), `cq` (the completion).
//! 5. When things go wrong: `qp/requester/retry`, `qp/responder/replies` (duplicates), [`wheel`]
//!    (timers).
//! 6. The tables behind it: [`mr`], [`modify_qp`], [`qpn`], [`slab`]; domains of XRC: `xrc`; vendor
//!    behaviour: [`profile`]; and observation: [`event`], [`counters`].
#![forbid(unsafe_code)]

#[macro_use]
mod counting;
#[macro_use]
pub mod event;

mod active;
mod ah;
mod batch;
mod by_reference;
mod clients;
pub mod cm;
pub mod command;
mod commands;
pub mod config;
pub mod counters;
mod cq;
mod delivery;
mod egress;
pub mod engine;
mod groups;
mod ids;
mod ingress;
#[cfg(feature = "leap")]
mod leap;
mod management;
pub mod modify_qp;
pub mod mr;
mod outbox;
mod owned;
mod permutation;
pub mod ports;
pub mod profile;
mod qp;
pub mod qpn;
mod recv_queue;
pub mod secret;
mod shared;
pub mod slab;
mod srq;
pub mod time;
mod transport;
mod view;
pub mod wheel;
mod xrc;

pub use command::{
    ChannelId, ClientCommand, ClientId, Command, CommandError, EngineQueue, Errno, NewQp,
    NewReceives, NewSrq, NewXrcSrq, Outcome, OutgoingMad, Path, PortState, XrcFile, XrcOpen,
};
pub use config::EngineConfig;
pub use counters::{Counters, QpCounters};
pub use engine::{Engine, Turn};
pub use event::{DropReason, Event, NakReason, Tap};
pub use ports::{Dma, DmaFault, HopId, Host, Ports, SpaceId, Wire};
pub use profile::Profile;
pub use secret::Secret;
pub use time::Instant;
pub use view::{CqView, QpView, Receives, TimerReason};
