//! A UDP port in a thread that has another table of descriptors.

mod common;

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use common::udp::{LOOP_1, bind, collect, queue, train};
use xdp_io::udp::{RxTrain, SocketCopy, UdpPort, Use};

/// Copies of a port's sockets, and the numbers of the sockets.
fn copies_of(port: &UdpPort) -> (Vec<OwnedFd>, Vec<RawFd>, u64) {
    let (sockets, changes) = port.sockets();
    let copies = sockets.iter().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
    (copies, sockets.iter().map(AsRawFd::as_raw_fd).collect(), changes)
}

fn known(copies: &[OwnedFd]) -> Vec<SocketCopy> {
    copies.iter().map(|copy| SocketCopy::of(copy.as_fd()).unwrap()).collect()
}

/// Runs `work` in a thread with a table of its own, in which these numbers are closed.
fn without(numbers: &[RawFd], work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: what is closed is closed in this thread's table only, which uses none of it.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
                for number in numbers {
                    assert_eq!(libc::close(*number), 0);
                }
            }
            work();
        });
    });
}

fn send_to_itself(port: &mut UdpPort) -> usize {
    let to = SocketAddr::new(LOOP_1, port.port());
    queue(port, &train(LOOP_1, to, 0), b"copy");
    port.submit().sent
}

#[test]
fn a_thread_without_the_sockets_uses_its_copies() {
    let mut port = bind(&[LOOP_1]);
    let (copies, sockets, changes) = copies_of(&port);
    let copied = known(&copies);
    without(&sockets, || {
        assert!(!port.has_copies());
        assert!(!port.take_copies(changes + 1, &copied), "of other sockets");
        assert!(!port.take_copies(changes, &[]), "too few");
        assert!(port.take_copies(changes, &copied) && port.has_copies());
        port.use_copies(Use::Compared);
        assert_eq!(send_to_itself(&mut port), 1);
        assert_eq!(collect(&mut port, 4).0, b"copy");
        port.use_copies(Use::No);
    });
    assert_eq!(send_to_itself(&mut port), 1);
    assert_eq!(collect(&mut port, 4).0, b"copy");
    // Other sockets have no copies, and are told from those that did.
    drop(copies);
    port.remove_address(LOOP_1);
    // The kernel closes a thread's table a moment after the thread was joined.
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = port.add_address(LOOP_1) {
        assert!(Instant::now() < until, "{error}");
        std::thread::yield_now();
    }
    assert!(!port.has_copies() && !port.take_copies(changes, &copied));
}

#[test]
fn a_number_that_stands_for_another_file_is_not_used() {
    let mut port = bind(&[LOOP_1]);
    let other = bind(&[LOOP_1]);
    let (copies, sockets, changes) = copies_of(&port);
    assert!(port.take_copies(changes, &known(&copies)));
    let foreign = other.sockets().0[0].as_raw_fd();
    without(&sockets, || {
        for copy in &copies {
            // SAFETY: in this thread's table only, as a program does that knows nothing of copies.
            unsafe { libc::dup2(foreign, copy.as_raw_fd()) };
        }
        port.use_copies(Use::Compared);
        assert_eq!(port.receive(&mut [RxTrain::default()]), 0);
        assert_eq!(send_to_itself(&mut port), 0);
        port.use_copies(Use::No);
        assert!(!port.has_copies());
    });
    // What could not be sent there is sent here.
    assert_eq!(port.submit().sent, 1);
    assert_eq!(collect(&mut port, 4).0, b"copy");
}
