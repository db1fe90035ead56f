//! A deterministic world of engines and faulty links.
//!
//! * [`world`]: the clock, the hosts, the links; how a failure is reported.
//! * [`host`] and [`app`]: an application that uses verbs over real rings; [`verbs`] are its words,
//!   and [`windows`] those about memory windows.
//! * [`port`], [`link`], [`memory`]: the outside of an engine, imitated and watched.
//! * [`cm`]: connection managers that talk over faulty links, without engines.
//! * [`oracle`], [`witness`]: what must be true whatever the links do.
//!
//! One seed is one world: no clock but the world's, no thread, no chance but [`rng`].
#![forbid(unsafe_code)]

pub mod app;
mod arrivals;
pub mod cm;
pub mod datagrams;
pub mod dialogue;
mod gaps;
pub mod host;
pub mod link;
pub mod memory;
pub mod oracle;
pub mod pair;
pub mod pcap;
pub mod port;
pub mod rng;
pub mod srq;
mod states;
pub mod sweep;
pub mod trace;
pub mod verbs;
pub mod windows;
pub mod witness;
pub mod world;
pub mod xrc;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
