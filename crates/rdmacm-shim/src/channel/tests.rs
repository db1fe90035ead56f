use super::*;
use crate::{forked::status_of_child, session::tests::device};
use rnic_abi::control::{CmHappening, CmNotice};

fn around(fd: RawFd) -> Channel {
    Channel::of(rdma_event_channel { fd }, Mutex::default())
}

fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: a local variable.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}

/// The end of a daemon, and its device.
fn add_to(channel: &Channel) -> (RawFd, &'static Device) {
    let mut ends = [0; 2];
    // SAFETY: room for two.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0);
    let [socket, theirs] = ends;
    let part = Part { device: device(), handle: 0, socket };
    let device = part.device;
    channel.placing().unwrap().add(part).unwrap();
    (theirs, device)
}

#[test]
fn a_channel_has_the_events_of_all_daemons() {
    // SAFETY: no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let channel = around(fd);
    let [first, second] = [(); 2].map(|()| add_to(&channel));
    let receive = || {
        let mut buffer = [0; 64];
        let (device, len) = channel.receive(&mut buffer)?;
        Ok((ptr::from_ref(device), buffer[..len].to_vec()))
    };
    let say = |(daemon, device): (RawFd, &'static Device), text: &[u8]| {
        // SAFETY: so many bytes.
        let sent = unsafe { libc::send(daemon, text.as_ptr().cast(), text.len(), 0) };
        assert_eq!(sent.cast_unsigned(), text.len());
        (ptr::from_ref(device), text.to_vec())
    };
    // A descriptor that blocks has something to wait for.
    let one = say(second, b"one");
    assert!(is_readable(fd));
    assert_eq!(receive(), Ok(one));
    assert!(!is_readable(fd));
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(receive(), Err(Errno(libc::EAGAIN)));
    let (two, three) = (say(first, b"two"), say(second, b"three"));
    let mut both = [receive().unwrap(), receive().unwrap()];
    both.sort_by_key(|(device, _)| *device != two.0);
    assert_eq!(both, [two, three]);
}

#[test]
fn the_end_of_a_daemon_is_told_to_those_who_have_no_other() {
    // SAFETY: no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let channel = around(fd);
    let devices = [(); 3].map(|()| add_to(&channel));
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let receive = || channel.receive(&mut [0; 64]).map(|(_, len)| len);
    // Also where a child of another test has it.
    // SAFETY: no pointers.
    let end = |at: usize| unsafe { libc::shutdown(devices[at].0, libc::SHUT_RDWR) };
    let place = |at: usize| id::Place { device: devices[at].1, handle: 7 };
    let ids = [1, 2].map(|id| id as *mut Id);
    let remember = |at, id| id::remember(&place(at), ids[id], ptr::from_ref(&channel));
    for (at, id) in [(0, 0), (1, 0), (2, 1)] {
        remember(at, id);
    }
    end(0);
    assert_eq!(receive(), Err(Errno(libc::EAGAIN)), "the identifier is elsewhere, too");
    end(1);
    assert_eq!(receive(), Err(Errno(libc::EIO)));
    assert_eq!(receive(), Err(Errno(libc::EAGAIN)));
    // SAFETY: so many bytes.
    unsafe { libc::send(devices[2].0, b"four".as_ptr().cast(), 4, 0) };
    assert_eq!(receive(), Ok(4));
    channel.leave(devices[2].1);
    assert_eq!(channel.parts().len(), 1, "an identifier is there");
    id::unlink(&[0, 1, 2].map(place));
    end(2);
    assert_eq!(receive(), Err(Errno(libc::EIO)), "there is none");
    assert_eq!(receive(), Err(Errno(libc::EAGAIN)));
    add_to(&channel);
    let device = channel.parts()[0].device;
    channel.leave(device);
    assert_eq!(channel.parts().len(), 0, "no identifier is there");
}

/// As if another thread were about to bind an identifier, and yet another one waited.
#[test]
fn a_child_only_closes_the_descriptors_of_a_channel() {
    // SAFETY: no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let channel = around(fd);
    let (daemon, _) = add_to(&channel);
    let held = (channel.parts(), channel.placing.lock());
    let status = status_of_child(|| {
        let is_lost = channel.placing().is_err_and(|error| error == Errno(libc::EIO))
            && channel.receive(&mut [0; 64]).is_err();
        let copy = Box::into_raw(Box::new(around(fd)));
        // SAFETY: just made, and not used any more.
        unsafe { Channel::close(copy) };
        // SAFETY: no pointers.
        is_lost && unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1
    });
    drop(held);
    assert_eq!(status, 0);
    assert!(!is_readable(daemon), "the parent's end is still open");
    // SAFETY: both are this test's.
    unsafe { (libc::close(fd), libc::close(daemon)) };
}

/// As with one device: the descriptor is the daemon's socket.
#[test]
fn a_thread_that_waits_in_a_channel_that_is_destroyed_uses_nothing_else() {
    let (device, _) = session::tests::with_daemon();
    let (socket, daemon) = rnic_abi::os::Connection::pair().unwrap();
    let socket = std::os::fd::OwnedFd::from(socket).into_raw_fd();
    let parts = Mutex::new(vec![Part { device, handle: 0, socket }]);
    let channel = Box::into_raw(Box::new(Channel::of(rdma_event_channel { fd: socket }, parts)));
    let address = channel as usize;
    let (tell, told) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        // SAFETY: no pointers.
        tell.send(unsafe { libc::gettid() }).unwrap();
        events::next(address as *mut Channel).map(drop)
    });
    let state = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    let sleeps = || std::fs::read_to_string(&state).unwrap().contains(") S ");
    // SAFETY: it is alive until it is destroyed below.
    while unsafe { (*channel).users.load(Ordering::Acquire) } == 0 || !sleeps() {
        std::thread::yield_now();
    }
    // SAFETY: only the other thread uses it from now on.
    unsafe { rdma_destroy_event_channel(channel.cast()) };
    let others: Vec<_> = (0..4).map(|_| rnic_abi::os::Connection::pair().unwrap()).collect();
    for (_, end) in &others {
        end.send(b"for others", &[]).unwrap();
    }
    // Of an identifier that is gone: no event, and the thread looks for another one.
    let notice = CmNotice { id: 7, what: CmHappening::Established, private: Vec::new() };
    // Fails where the thread has looked before it slept for it, and is gone.
    let _ = daemon.send_message(&notice, &[]);
    assert_eq!(waiter.join().unwrap(), Err(Errno(libc::EBADF)));
    for (end, _) in &others {
        assert_eq!(end.try_recv(&mut [0; 64]).unwrap().0, 10, "its descriptor got the number");
    }
    assert_eq!(daemon.recv(&mut [0; 64]).unwrap().0, 0, "the last thread has closed it");
}
