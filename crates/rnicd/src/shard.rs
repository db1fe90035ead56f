//! One engine and the thread that turns it.
//!
//! The thread owns engine, wire and DMA; other threads send it [`Message`]s. It spins while
//! there is work and sleeps in epoll when there is none (see [`idle`]).

mod crew;
mod host;
mod idle;
mod message;
mod placement;
mod port;
mod run;
mod tokens;

pub(crate) use crew::{Crew, Seat};
pub(crate) use host::EventSocket;
pub(crate) use message::{Message, NewClient, ShardHandle};
pub(crate) use port::Port;

use message::channel;
use run::Shard;

#[cfg(test)]
mod tests;
