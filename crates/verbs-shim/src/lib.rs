//! Drop-in libibverbs.so.1 for soft-rnic.
//!
//! `exports.txt` says which C names exist, under which version, and which function of `api` or
//! `stubs` is behind each; the build script turns it into the trampolines included below.

mod advise;
mod ah;
mod api;
mod async_events;
mod channel;
mod context;
mod cpu_sharing;
mod cq;
mod cq_ex;
mod device;
mod device_memory;
mod driving;
mod ece;
mod error;
mod fork;
mod gid;
mod import;
mod kernel;
mod lkey_table;
mod lock;
mod mr;
mod mw;
mod objects;
mod ops;
mod pd;
mod poll;
mod post;
mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod queue;
mod rates;
mod records;
mod report;
mod session;
mod shared_memory;
mod srq;
mod strings;
mod stubs;
mod sysfs;
mod wqe_builder;
mod xrc;

#[cfg(test)]
mod tests;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
