//! Helpers of the system tests: two network namespaces joined by a veth pair, raw sockets that
//! share no code with the ports under test, and frames built by hand.
#![allow(dead_code, reason = "each test file uses a part of the helpers")]

pub(crate) mod frame;
pub(crate) mod netns;
pub(crate) mod raw;
pub(crate) mod udp;

pub(crate) use testbed::wait_for;

/// True when the test must be skipped; says so.
pub(crate) fn skipped_without_root(test: &str) -> bool {
    !testbed::is_root(test)
}
