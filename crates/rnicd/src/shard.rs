//! One engine and the thread that turns it.
//!
//! The thread owns engine, wire and DMA; everybody else sends it [`Message`]s. It spins while
//! there is work and sleeps in epoll when there is none (see [`idle`]).

mod host;
mod idle;
mod message;
mod placement;
mod run;
mod tokens;

pub(crate) use host::EventSocket;
pub(crate) use message::{Inbox, Message, NewClient, ShardHandle, channel};
pub(crate) use run::Shard;
