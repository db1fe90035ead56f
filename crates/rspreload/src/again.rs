//! How a connection by TCP becomes an rsocket: the server listens at the same port and says so, and
//! the client connects again.
//!
//! Any host can connect to that port: only the one that the connection by TCP comes from is heard.

use std::{
    ffi::{c_int, c_void},
    mem::{size_of, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    time::{Duration, Instant},
};

use libc::{in6addr_any, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::real::{
    errno, raccept, rbind, rclose, rconnect, real, rgetpeername, rgetsockname, rlisten, rpoll,
    rsetsockopt, rsocket,
};

/// A connection by TCP, by a descriptor of our own: the program may close its one while this thread
/// waits, and another file gets the number.
struct Held(OwnedFd);

impl Held {
    /// `None` where there is no descriptor left; the other end hears so.
    fn of(fd: c_int) -> Option<Self> {
        // SAFETY: the program has it open, or it is no descriptor, of which the kernel tells.
        let held = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        held.inspect_err(|_| shut(fd)).ok().map(Self)
    }

    fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

/// Waits until the server listens, and connects there.
pub(crate) fn connect_again(fd: c_int) -> Option<c_int> {
    connect_held(&Held::of(fd)?)
}

fn connect_held(client: &Held) -> Option<c_int> {
    let fd = client.fd();
    if !is_called(fd) {
        return None;
    }
    let socket = connected(fd);
    if socket.is_none() {
        let mut message = [0_u8; 4];
        let recv = real!(recv: fn(c_int, *mut c_void, usize, c_int) -> isize);
        // The server says no more by TCP, and what it has said is not the program's.
        // SAFETY: four bytes.
        unsafe { recv(fd, message.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT) };
        shut(fd);
    }
    socket
}

/// An rsocket that is connected to where a socket of the kernel is.
fn connected(fd: c_int) -> Option<c_int> {
    let (peer, len) = name(fd, true)?;
    // SAFETY: no pointers.
    let socket = unsafe { rsocket(c_int::from(peer.ss_family), libc::SOCK_STREAM, 0) };
    if socket < 0 {
        return None;
    }
    if let Some((mut own, len)) = name(fd, false) {
        set_port(&mut own, 0);
        // The server looks where the rsocket comes from. An address that the device does not have
        // cannot be bound.
        // SAFETY: the address is as long as is said.
        unsafe { rbind(socket, (&raw const own).cast(), len) };
    }
    if connects(socket, &peer, len) {
        return Some(socket);
    }
    // SAFETY: no pointers.
    unsafe { rclose(socket) };
    None
}

/// Connects an rsocket, also through signals.
fn connects(socket: c_int, peer: &sockaddr_storage, len: socklen_t) -> bool {
    loop {
        // SAFETY: the address is as long as is said.
        if unsafe { rconnect(socket, ptr::from_ref(peer).cast(), len) } == 0 {
            return true;
        }
        match errno() {
            libc::EINTR => {}
            // Meanwhile.
            libc::EISCONN => return true,
            _ => return false,
        }
    }
}

/// Waits for the server's four zero bytes. False when something else comes.
fn is_called(fd: c_int) -> bool {
    let recv = real!(recv: fn(c_int, *mut c_void, usize, c_int) -> isize);
    let mut message = [0_u8; 4];
    loop {
        polls(fd, libc::POLLIN, -1);
        let (at, flags) = (message.as_mut_ptr().cast(), libc::MSG_PEEK | libc::MSG_WAITALL);
        // SAFETY: four bytes.
        let got = unsafe { recv(fd, at, 4, flags) };
        match usize::try_from(got) {
            Ok(0) => return false,
            Ok(got) if message.iter().take(got).any(|byte| *byte != 0) => return false,
            Ok(4) => return true,
            // The rest is on its way, unless this was the end.
            Ok(_) if polls(fd, libc::POLLRDHUP, PAUSE) => return false,
            Ok(_) => {}
            // A signal came, or another process has it.
            Err(_) if is_passing(errno()) => {}
            Err(_) => return false,
        }
    }
}

/// Says to the client that it shall come.
fn call(fd: c_int) -> bool {
    let send = real!(send: fn(c_int, *const c_void, usize, c_int) -> isize);
    loop {
        // SAFETY: four bytes.
        match unsafe { send(fd, [0_u8; 4].as_ptr().cast(), 4, libc::MSG_NOSIGNAL) } {
            4 => return true,
            sent if sent < 0 && is_passing(errno()) => {
                polls(fd, libc::POLLOUT, PAUSE);
            }
            _ => return false,
        }
    }
}

/// The call fails now, but not for good: the other end counts on it.
fn is_passing(errno: c_int) -> bool {
    [libc::EINTR, libc::EAGAIN].contains(&errno)
}

/// Whether a socket of the kernel has something to say, within so many milliseconds.
fn polls(fd: c_int, events: i16, timeout: c_int) -> bool {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    let poll = real!(poll: fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int);
    // SAFETY: a local variable.
    unsafe { poll(&raw mut polled, 1, timeout) > 0 }
}

/// Listens for the client, says so, and takes its connection.
pub(crate) fn accept_again(fd: c_int) -> Option<c_int> {
    let held = Held::of(fd)?;
    let fd = held.fd();
    let socket = listener_beside(fd).and_then(|listener| {
        let socket = take_from(listener, fd);
        // SAFETY: no pointers.
        unsafe { rclose(listener) };
        socket
    });
    if socket.is_none() {
        // The client may still wait to be called, or have been called and not have read it: then it
        // would find another child's listener.
        shut(fd);
    }
    socket
}

/// An rsocket that may listen at the port of a socket of the kernel.
fn listener_beside(fd: c_int) -> Option<c_int> {
    let (mut own, len) = name(fd, false)?;
    // SAFETY: the family says which address it is; local variables, and no pointers.
    unsafe {
        match i32::from(own.ss_family) {
            libc::AF_INET => (*(&raw mut own).cast::<sockaddr_in>()).sin_addr.s_addr = 0,
            _ => (*(&raw mut own).cast::<sockaddr_in6>()).sin6_addr = in6addr_any,
        }
        let listener = rsocket(c_int::from(own.ss_family), libc::SOCK_STREAM, 0);
        if listener < 0 {
            return None;
        }
        let on: c_int = 1;
        let size = size_of::<c_int>() as socklen_t;
        let (level, option, at) = (libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast());
        rsetsockopt(listener, level, option, at, size);
        if rbind(listener, (&raw const own).cast(), len) == 0 {
            return Some(listener);
        }
        rclose(listener);
        None
    }
}

/// The connection of the client, once it has been called.
fn take_from(listener: c_int, client: c_int) -> Option<c_int> {
    let listens = || {
        // SAFETY: no pointers.
        if unsafe { rlisten(listener, BACKLOG) } == 0 { Ok(()) } else { Err(errno()) }
    };
    // Before it is called: a client that is connected again closes this end, whose name is gone.
    let host = name(client, true).and_then(|(address, _)| ip_of(&address))?;
    if !has_turn(client, Instant::now() + PATIENCE, listens) || !call(client) {
        return None;
    }
    let until = Instant::now() + TURN;
    while comes(listener, client, until) {
        // SAFETY: no addresses are asked for.
        let socket = unsafe { raccept(listener, ptr::null_mut(), ptr::null_mut()) };
        if socket < 0 {
            return None;
        }
        if is_from(host, socket) {
            return Some(socket);
        }
        dismiss(socket);
    }
    None
}

/// Whether an rsocket comes from the host that the connection by TCP comes from.
fn is_from(by_tcp: IpAddr, socket: c_int) -> bool {
    let ends = [rgetpeername, rgetsockname].map(|of| name_by(of, socket));
    match ends.map(|name| name.and_then(|(address, _)| ip_of(&address))) {
        [Some(peer), Some(own)] => is_same_host(by_tcp, peer, own),
        _ => false,
    }
}

fn is_same_host(by_tcp: IpAddr, peer: IpAddr, own: IpAddr) -> bool {
    // Devices have no loopback address: from within the host rsockets come from the device's own.
    peer == by_tcp || by_tcp.is_loopback() && peer == own
}

/// Closes an rsocket of a stranger, without waiting for it.
fn dismiss(socket: c_int) {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let (at, size) = ((&raw const at_once).cast(), size_of::<libc::linger>() as socklen_t);
    // SAFETY: a local variable, and no pointers.
    unsafe {
        rsetsockopt(socket, libc::SOL_SOCKET, libc::SO_LINGER, at, size);
        rclose(socket);
    }
}

/// Children of one server take their turns at its port: one of them listens at a time, and a child
/// that dies leaves the port. False when the client is gone before, or the time over.
fn has_turn(client: c_int, until: Instant, mut listens: impl FnMut() -> Result<(), c_int>) -> bool {
    loop {
        match listens() {
            Ok(()) => return true,
            Err(libc::EADDRINUSE) if Instant::now() < until => {}
            Err(_) => return false,
        }
        if polls(client, 0, PAUSE) {
            return false;
        }
    }
}

/// Waits until a connection is there; not when the client ends before, nor for ever: others wait
/// for the port.
fn comes(listener: c_int, client: c_int, mut until: Instant) -> bool {
    let mut both = [
        libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: client, events: 0, revents: 0 },
    ];
    let mut waited_for = 2;
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        let left = c_int::try_from(left).unwrap_or(0);
        // SAFETY: so many descriptors.
        let ready = unsafe { rpoll(both.as_mut_ptr(), waited_for, left) };
        if ready < 0 && is_passing(errno()) {
            continue;
        }
        if ready <= 0 || both[0].revents != 0 {
            return ready > 0;
        }
        // A client that is connected again has closed this, before the server has heard so.
        waited_for = 1;
        until = until.min(Instant::now() + ON_ITS_WAY);
    }
}

type Name = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// The address of a TCP socket, or of its peer.
fn name(fd: c_int, of_peer: bool) -> Option<(sockaddr_storage, socklen_t)> {
    let call: Name = match of_peer {
        true => real!(getpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int),
        false => real!(getsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int),
    };
    name_by(call, fd)
}

fn name_by(call: Name, fd: c_int) -> Option<(sockaddr_storage, socklen_t)> {
    // SAFETY: numbers only, of which all may be zero.
    let mut address: sockaddr_storage = unsafe { zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: local variables.
    let got = unsafe { call(fd, (&raw mut address).cast(), &raw mut len) };
    (got == 0).then_some((address, len))
}

/// IPv4 addresses also where a socket of IPv6 has them.
fn ip_of(address: &sockaddr_storage) -> Option<IpAddr> {
    let at: *const sockaddr_storage = address;
    // SAFETY: the family says which address it is.
    unsafe {
        match i32::from(address.ss_family) {
            libc::AF_INET => {
                let v4 = (*at.cast::<sockaddr_in>()).sin_addr.s_addr.to_ne_bytes();
                Some(Ipv4Addr::from(v4).into())
            }
            libc::AF_INET6 => {
                let v6 = (*at.cast::<sockaddr_in6>()).sin6_addr.s6_addr;
                Some(Ipv6Addr::from(v6).to_canonical())
            }
            _ => None,
        }
    }
}

fn set_port(address: &mut sockaddr_storage, port: u16) {
    let at: *mut sockaddr_storage = address;
    // SAFETY: the port is at the same place for both families.
    unsafe { (*at.cast::<sockaddr_in>()).sin_port = port.to_be() };
}

/// Neither end hears of the other by TCP any more.
pub(crate) fn shut(fd: c_int) {
    // SAFETY: no pointers.
    unsafe { real!(shutdown: fn(c_int, c_int) -> c_int)(fd, libc::SHUT_RDWR) };
}

/// Milliseconds between two tries to get the port.
const PAUSE: c_int = 5;
/// How long a client may take until it connects, from when it may.
const TURN: Duration = Duration::from_secs(30);
/// How long a child waits for its turn.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a connection may take of which the client knows already.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// Connections that may wait for a child: strangers do not keep its client out at once.
const BACKLOG: c_int = 16;

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        thread,
    };

    use super::*;

    #[test]
    fn a_client_hears_when_it_cannot_be_called() {
        let [server, client] = ends();
        // No rsocket can be where this socket is.
        assert_eq!(accept_again(server.as_raw_fd()), None);
        assert!(polls(client.as_raw_fd(), libc::POLLRDHUP, 0), "it would wait for ever");
    }

    #[test]
    fn a_file_that_gets_the_number_of_a_connection_is_left_alone() {
        let [server, client] = ends();
        let held = Held::of(client.as_raw_fd()).unwrap();
        let [other, others_end] = ends();
        // SAFETY: takes the number from its owner, as programs do.
        unsafe { libc::dup2(other.as_raw_fd(), client.as_raw_fd()) };
        let mut others_end = UnixStream::from(others_end);
        others_end.write_all(&[0; 4]).unwrap();
        UnixStream::from(server).write_all(b"220 ready").unwrap();
        assert_eq!(connect_held(&held), None);
        assert!(!polls(others_end.as_raw_fd(), libc::POLLRDHUP, 0), "it is not shut down");
        assert!(polls(other.as_raw_fd(), libc::POLLIN, 0), "nor read");
    }

    #[test]
    fn a_child_that_never_gets_the_port_gives_up() {
        let [_server, client] = ends();
        let tries = |until, result: Result<(), c_int>| {
            let mut count = 0;
            let has = has_turn(client.as_raw_fd(), until, || {
                count += 1;
                result
            });
            (has, count)
        };
        let now = Instant::now();
        assert_eq!(tries(now, Err(libc::EADDRINUSE)), (false, 1));
        let (has, count) = tries(Instant::now() + Duration::from_secs(1), Err(libc::EADDRINUSE));
        assert!(!has && count > 1, "{count} tries");
        let later = now + Duration::from_secs(60);
        assert_eq!(tries(later, Err(libc::EACCES)), (false, 1));
        assert_eq!(tries(later, Ok(())), (true, 1));
    }

    #[test]
    fn rsockets_of_other_hosts_are_told_from_those_of_the_client() {
        let [client, other, own]: [IpAddr; 3] =
            [[10, 0, 0, 2], [10, 0, 0, 3], [10, 0, 0, 1]].map(IpAddr::from);
        assert!(is_same_host(client, client, own));
        assert!(!is_same_host(client, other, own) && !is_same_host(client, own, own));
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(is_same_host(loopback, own, own));
        assert!(!is_same_host(loopback, other, own));
        assert!(is_same_host(Ipv6Addr::LOCALHOST.into(), own, own));
    }

    /// Both ends of a connection inside the kernel, which wait.
    fn ends() -> [OwnedFd; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [one.into(), other.into()]
    }

    #[test]
    fn a_client_waits_for_the_whole_call() {
        let [server, client] = ends();
        // SAFETY: no pointers.
        unsafe { libc::fcntl(client.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let client_fd = client.as_raw_fd();
        let waits = thread::spawn(move || is_called(client_fd));
        let mut server = UnixStream::from(server);
        server.write_all(&[0, 0]).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert!(!waits.is_finished());
        server.write_all(&[0, 0]).unwrap();
        assert!(waits.join().unwrap());
        assert!(is_called(client_fd), "it was only looked at");
    }

    #[test]
    fn a_client_hears_that_no_call_comes() {
        for said in [&[][..], &[0, 0], &[0, 1], b"220 ready"] {
            let [server, client] = ends();
            UnixStream::from(server).write_all(said).unwrap();
            assert!(!is_called(client.as_raw_fd()), "{said:?}");
        }
    }

    #[test]
    fn a_server_says_it_although_the_queue_is_full() {
        let [server, client] = ends();
        let mut server = UnixStream::from(server);
        server.set_nonblocking(true).unwrap();
        let mut queued = 0;
        while let Ok(written) = server.write(&[7; 4096]) {
            queued += written;
        }
        let says = thread::spawn(move || call(server.as_raw_fd()));
        let mut got = Vec::new();
        UnixStream::from(client).read_to_end(&mut got).unwrap();
        assert!(says.join().unwrap());
        assert_eq!((got.len(), &got[queued..]), (queued + 4, &[0; 4][..]));
    }
}
