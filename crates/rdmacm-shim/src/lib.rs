//! Drop-in librdmacm.so.1 for soft-rnic.
//!
//! `exports.txt` says which C names exist, under which version, and which function of `api` or
//! `stubs` is behind each; the build script turns it into the trampolines included below.

mod address;
mod api;
mod devices;
mod strings;
mod stubs;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
