//! A client that makes the daemon start engine processes for its user, again and again.

use anyhow::Result;
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Request, encode};
use rnic_abi::os::{Connection, named_socket_paths};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// Connections that are kept.
const KEPT: usize = 4;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(4);

/// Until it is killed.
pub(crate) fn connect_again_and_again() -> Result<()> {
    let path = named_socket_paths().into_iter().next().unwrap_or_default();
    let hello = encode(&Request::Hello { abi: ABI_VERSION }).unwrap_or_default();
    let mut kept = std::collections::VecDeque::new();
    loop {
        std::thread::sleep(PAUSE);
        let Ok(connection) = Connection::connect(&path) else { continue };
        if connection.send(&hello, &[]).is_ok() {
            let mut answer = [PollFd::new(&connection, PollFlags::IN)];
            let _ = poll(&mut answer, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        }
        kept.push_back(connection);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}
