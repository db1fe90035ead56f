//! One engine and the thread that turns it.
//!
//! The thread owns engine, wire and DMA; other threads send it [`ShardMessage`]s. It spins while
//! there is work and sleeps in epoll when there is none (see [`idle`]). In a program, threads of
//! that may turn the engine while it sleeps (see [`driving`]).

mod alarm;
mod cpu_sharing;
mod driving;
mod handle;
mod held;
mod host;
mod idle;
mod message;
mod nic;
mod own;
mod port;
mod run;
mod sleep;
mod tokens;

pub use driving::{Driven, ProgramsEngine};
pub use host::EventSocket;
pub use message::{FaultsChanged, Mad, NewClient, ShardHandle, ShardMessage, ShardStopped};
pub use own::{Asked, OwnEngine};
pub use port::ShardPort;

use message::channel;
use rnic_core::Instant;
use run::Shard;
use rustix::time::{ClockId, clock_gettime};

/// What completions are stamped with, in every engine: programs compare it with the clock that
/// `ibv_query_rt_values_ex` reads, which is this one.
pub fn monotonic() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests;
