//! Helpers of the system tests: two network namespaces joined by a veth pair, raw sockets that
//! share no code with the ports under test, and frames built by hand.
#![allow(dead_code, reason = "each test file uses a part of the helpers")]

pub(crate) mod frame;
pub(crate) mod netns;
pub(crate) mod raw;

use std::time::{Duration, Instant};

/// True when the test must be skipped; says so.
pub(crate) fn skipped_without_root(test: &str) -> bool {
    // SAFETY: no arguments, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("\n*** SKIPPED: {test} needs root: network namespaces, XDP, AF_PACKET ***\n");
    }
    !root
}

/// Calls `step` until it returns something or ten seconds have passed.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}
