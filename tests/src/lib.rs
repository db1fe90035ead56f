//! The environment of the whole-system tests and of `cargo xtask`.
//!
//! What is here makes a machine into a small RDMA laboratory and leaves nothing behind:
//!
//! | module | what it owns |
//! |---|---|
//! | [`paths`] | the folders of a checkout: target, cache, dist |
//! | [`packages`] | Debian packages that are missing, installed (root) or unpacked (other users) |
//! | [`process`] | one command: where it runs, its user, its time limit, what it printed |
//! | [`netns`] | network namespaces and the veth pair between two of them |
//! | [`dist`] | release binaries and the drop-in libraries as a user would install them |
//! | [`daemon`] | one `rnicd`, from its readiness to its orderly end |
//! | [`place`] | where an RDMA program runs: beside our daemon, or in a Linux guest with rxe |
//! | [`programs`] | dialogues of two programs, and readers of what they print |
//! | [`record`] | which programs the tests of a run started |
//! | [`pyverbs`] | rdma-core's own tests, and the table of those that are skipped |
//! | [`inspect`] | what a daemon and the kernel say about the daemon |
//! | [`native`] | helper programs in C |
//! | [`foreign`] | programs over crates of others |
//! | [`browser`] | a real browser without a window |
//! | [`terminal`] | a terminal with a program in it |
//! | [`checker`] | a C program that verifies every byte and completion |
//! | [`emulator`] | a faulty link in user space between two hosts |
//! | [`frame`] | RoCEv2 frames as bytes, to judge and to forge |
//! | [`rxe`] | a Linux guest whose kernel has rxe, built from Debian packages, run by QEMU |
//! | [`remote_node`] | daemons and programs by shell scripts, on this machine or in a guest |
//! | [`ssh`] | a host that is reached with `ssh` |
//! | [`interop`] | the suite that is run against another implementation |
//! | [`lab`] | what a test starts from: prerequisites or a reported skip, two nodes, teardown |
//! | [`commons`] | the same for tests of several users: programs where each of them finds them |
//! | [`cpus`] | which CPU a daemon's threads have where rates are compared |
//! | [`measure`] | how a test judges a measurement on a busy machine |
//! | [`mad_flood`] | a host that floods the connection manager |
//! | [`sender_core`] | a peer that is no host, and connects by no connection manager |
//! | [`rounds`] | what part of a rate is left under disturbance |
//!
//! Everything that changes the machine is a value whose `Drop` changes it back, also when a test
//! panics. Interrupts are polled ([`interrupt`]), so that Ctrl-C unwinds through the same drops.

#![forbid(unsafe_code)]

pub mod book;
pub mod browser;
pub mod checker;
pub mod choice;
pub mod cluster;
pub mod commons;
pub mod cpus;
pub mod daemon;
pub mod debian;
pub mod dist;
pub mod emulator;
pub mod foreign;
pub mod frame;
pub mod fuse;
pub mod inspect;
pub mod interop;
pub mod interrupt;
pub mod lab;
pub mod mad_flood;
pub mod measure;
pub mod native;
pub mod netns;
pub mod observer;
pub mod packages;
pub mod paths;
pub mod place;
pub mod process;
pub mod programs;
pub mod pyverbs;
pub mod record;
pub mod remote_node;
pub mod rounds;
pub mod rxe;
pub mod sender_core;
mod slow;
pub mod ssh;
pub mod terminal;
