//! What an application and the daemon share.
//!
//! Everything here is one of three things:
//!
//! * **shared memory**: the doorbell area ([`doorbell`]), work queues ([`work_queue`]) and
//!   completion queues ([`cq`]), all of them views over [`words::Words`], an array of atomic
//!   64-bit words that both processes map;
//! * **descriptors**: the layouts of send and receive WQEs ([`wqe`]) and CQEs ([`cqe`]);
//! * **control messages**: what travels on the control socket ([`control`]).
//!
//! The other side of every one of them is hostile. Words are only ever copied out, one atomic
//! load each; the copy is validated and the original is never read again. No Rust reference to
//! shared memory other than `&AtomicU64` exists, so a peer that scribbles can produce nonsense
//! values but no undefined behaviour.
//!
//! The crate makes no system call unless the `os` feature is on.

pub mod control;
pub mod cpu_hints;
pub mod cq;
pub mod cqe;
pub mod doorbell;
pub mod hand_over;
#[cfg(loom)]
pub mod mutant;
#[cfg(not(loom))]
mod mutant;
#[cfg(all(feature = "os", not(loom)))]
pub mod os;
pub mod verbs;
pub mod words;
pub mod work_queue;
pub mod wqe;

/// Version of every layout and message in this crate. Client and daemon must agree exactly.
pub const ABI_VERSION: u32 = 9;
