//! The control socket: one session per connection, one thread per session.
//!
//! Sessions are rare and may wait (for a neighbour, for a client's memory), so each has a thread
//! of its own. Its process carries the rights of its client's user: what the client could not do to
//! a process, its session cannot do either. Engines are only told, never touched.

mod accounts;
mod arena;
mod context;
mod device_memory;
mod door;
mod groups;
mod inspect;
mod link;
mod maps;
mod memory;
mod plane;
mod queues;
mod records;
mod registry;
mod reply;
mod service;
mod session;
mod turned_away;
mod watching;
mod xrc;

pub use accounts::Accounts;
pub use door::Door;
pub use groups::{Groups, WireGroups};
pub use plane::{
    ConnectionSession, Connections, Engines, Functions, Ledger, MoreEngines, Overview, Paths,
};
pub use registry::{NUMBERS, Registry, SESSIONS};
pub use service::{ClientMemory, Service};
pub use session::serve;
pub use turned_away::{Admitted, TurnedAway};

#[cfg(test)]
mod tests;
