//! Drop-in libibverbs.so.1 for soft-rnic.
//!
//! `exports.txt` says which C names exist, under which version, and which function of `api` or
//! `stubs` is behind each; the build script turns it into the trampolines included below.

mod api;
mod device;
mod fork;
mod kernel;
mod rates;
mod strings;
mod stubs;
mod sysfs;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
