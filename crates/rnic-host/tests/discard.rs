//! Closing what another user made slow to close. In a process of its own: one that another test
//! starts meanwhile would have the same descriptors open for a moment, and close them last.

use rnic_abi::os::Connection;
use rnic_host::discard::{Untrusted, start};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use testbed::{lingering, silent_listener};

#[test]
fn what_takes_long_to_close_is_closed_at_once() {
    start().unwrap();
    let (ours, theirs) = Connection::pair().unwrap();
    let (listener, address) = silent_listener();
    let peers = (0..3).map(|_| {
        theirs.send(b"x", &[lingering(address).as_fd()]).unwrap();
        listener.accept().unwrap().0
    });
    let peers: Vec<_> = peers.collect();
    let began = Instant::now();
    drop(Untrusted::from(ours));
    for mut peer in peers {
        // To the end, which comes once the socket is closed.
        std::io::copy(&mut peer, &mut std::io::sink()).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
