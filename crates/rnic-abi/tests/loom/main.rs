//! Models of the shared rings: loom runs each through every interleaving and every value that the
//! memory model lets a load see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rnic-abi --release --test loom`
//!
//! Loom treats SeqCst accesses as AcqRel, so that only SeqCst fences count as such.
#![cfg(loom)]

mod cq;
mod doorbell;
mod hand_over;
mod mutants;
mod work_queue;
