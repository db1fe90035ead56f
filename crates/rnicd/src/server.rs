//! The control socket.

mod arena;
mod records;
