//! The control socket: one session per connection, one thread per session.
//!
//! Sessions are rare and may wait (for a neighbour, for a client's memory), so each has a thread
//! of its own, which carries the rights of its client: what the client could not do to a process,
//! its session cannot do either. Engines are only told, never touched.

mod accounts;
mod arena;
mod capture;
mod context;
mod door;
mod maps;
mod memory;
mod queues;
mod records;
mod registry;
mod reply;
mod service;
mod session;

pub use accounts::Accounts;
pub use door::Door;
pub use registry::Registry;
pub use service::Service;

#[cfg(test)]
mod tests;
