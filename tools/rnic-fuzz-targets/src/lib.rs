//! Hostile input: what each fuzz target does with its bytes.
//!
//! The targets are ordinary functions, so that three things can run them: the fuzzers in `fuzz/`
//! (nightly toolchain, `cargo xtask fuzz`), the corpus test of this crate (every toolchain), and a
//! debugger. They panic when the code under test breaks a promise, and return otherwise.
//!
//! | target | input is | promises |
//! |---|---|---|
//! | [`frame`] | a frame or a datagram | no panic; what parses is emitted unchanged |
//! | [`engine_rx`] | a script of datagrams, work requests and waiting | see [`world`] |
//! | [`wqe`] | a script of an application that writes nonsense into its rings | see [`world`]; the other tenant is served |
//! | [`capture`] | a capture file | no panic; the counts of a report fit together |
//! | [`mad`] | a management datagram, and what was before it | no panic; what parses is emitted unchanged; those of [`cm`] |
//! | [`cm`] | a script of messages to the connection manager and commands of programs | nothing half open, nothing left |
//! | [`observe`] | what an engine process of another user shows root's observers | it concerns that engine; can be printed; makes a capture |
//! | [`rsocket`] | what a peer of rsockets says, and a script of its stream | nothing sent or read beyond what is lent; bounded requests under way |
//! | [`control`] | a control message, a descriptor or a completion | no panic; what decodes survives a round trip |

#![forbid(unsafe_code)]

pub mod capture;
pub mod cm;
pub mod control;
mod domains;
pub mod engine_rx;
pub mod frame;
mod honest;
mod ledger;
pub mod mad;
pub mod observe;
mod packet;
pub mod rsocket;
mod script;
mod shared_receives;
mod tenant;
pub mod world;
pub mod wqe;

/// A target: panics when a promise is broken.
pub type Target = fn(&[u8]);

/// Every target with its name, which is also that of its fuzzer and of its seeds.
pub const TARGETS: [(&str, Target); 9] = [
    ("frame", frame::run),
    ("engine_rx", engine_rx::run),
    ("wqe", wqe::run),
    ("control", control::run),
    ("capture", capture::run),
    ("mad", mad::run),
    ("cm", cm::run),
    ("observe", observe::run),
    ("rsocket", rsocket::run),
];
