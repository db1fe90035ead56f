//! Waiting for several rsockets and ordinary descriptors at once.

use std::{
    ffi::c_int,
    sync::Arc,
    time::{Duration, Instant},
};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, pollfd};
use rnic_abi::os::{blocking, select::Sets};

use super::{
    datagram::Datagram,
    settings::Settings,
    stream::Stream,
    table::{self, Socket},
    waiting::{Waits, Waker, is_readable, timeout},
};
use crate::error::{Errno, Result};

/// As `poll`: how many descriptors have something to say. `None` waits for ever.
pub(crate) fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<c_int> {
    let sockets: Vec<Option<Socket>> = fds.iter().map(|fd| table::find(fd.fd)).collect();
    let mut others = Vec::new();
    let begin = Instant::now();
    loop {
        let ready = check(fds, &sockets, &mut others)?;
        if ready > 0 || timeout == Some(Duration::ZERO) {
            return Ok(ready);
        }
        if begin.elapsed() >= Settings::get().polling {
            break;
        }
    }
    let waker = Waker::own();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
        let asleep = Asleep::new(fds, &sockets, waker.as_ref());
        for socket in sockets.iter().flatten() {
            socket.arm();
        }
        // What another thread takes from now on it tells this one.
        let ready = check(fds, &sockets, &mut others)?;
        if ready > 0 || left == Some(Duration::ZERO) {
            return Ok(ready);
        }
        asleep.poll(left)?;
        let ready = check(fds, &sockets, &mut others)?;
        if ready > 0 {
            return Ok(ready);
        }
    }
}

/// Fills in what each descriptor has to say now.
fn check(
    fds: &mut [pollfd],
    sockets: &[Option<Socket>],
    others: &mut Vec<pollfd>,
) -> Result<c_int> {
    others.clear();
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        match socket {
            Some(socket) => {
                let always = POLLERR | POLLHUP | POLLNVAL;
                fd.revents = socket.readiness() & (fd.events | always);
            }
            None => others.push(pollfd { revents: 0, ..*fd }),
        }
    }
    if !others.is_empty() {
        poll_others(others, 0)?;
        let mut polled = others.iter();
        for (fd, _) in fds.iter_mut().zip(sockets).filter(|(_, socket)| socket.is_none()) {
            fd.revents = polled.next().map_or(0, |polled| polled.revents);
        }
    }
    let ready = fds.iter().filter(|fd| fd.revents != 0).count();
    Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
}

/// The thread sleeps for these sockets, or is about to.
struct Asleep<'a> {
    polled: Vec<pollfd>,
    sockets: &'a [Option<Socket>],
    waker: Option<&'a Waker>,
}

impl<'a> Asleep<'a> {
    fn new(fds: &[pollfd], sockets: &'a [Option<Socket>], waker: Option<&'a Waker>) -> Self {
        let mut polled = Vec::with_capacity(fds.len() * 3);
        for (fd, socket) in fds.iter().zip(sockets) {
            match socket {
                Some(socket) => polled.extend(socket.asleep(waker, fd.events)),
                None => polled.push(pollfd { revents: 0, ..*fd }),
            }
        }
        Self { polled, sockets, waker }
    }

    /// Sleeps until any of them may have something to say.
    fn poll(mut self, left: Option<Duration>) -> Result<()> {
        let timeout = timeout(left, self.waker);
        poll_others(&mut self.polled, timeout)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let mut rest = self.polled.as_slice();
        for socket in self.sockets {
            let (own, others) = rest.split_at(if socket.is_some() { 3 } else { 1 }.min(rest.len()));
            rest = others;
            if let Some(socket) = socket {
                socket.awake(self.waker, own);
            }
        }
    }
}

fn poll_others(fds: &mut [pollfd], timeout: c_int) -> Result<()> {
    if blocking::poll(fds, timeout) < 0 { Err(Errno::last()) } else { Ok(()) }
}

impl Socket {
    fn arm(&self) {
        fn arm<W: Waits>(of: &Arc<W>) {
            of.arm(&mut of.lock());
        }
        match self {
            Self::Stream(stream) => arm::<Stream>(stream),
            Self::Datagram(datagram) => arm::<Datagram>(datagram),
        }
    }

    fn readiness(&self) -> i16 {
        match self {
            inherited if inherited.is_inherited() => POLLNVAL,
            Self::Stream(stream) => match stream.listener.get() {
                Some(listener) => {
                    let waits = if is_readable(listener.fd()) { POLLIN } else { 0 };
                    waits | if listener.is_over() { POLLERR } else { 0 }
                }
                None => stream.readiness(&mut stream.core()),
            },
            Self::Datagram(datagram) => datagram.readiness(),
        }
    }

    fn asleep(&self, waker: Option<&Waker>, events: i16) -> [pollfd; 3] {
        match self {
            Self::Stream(stream) => {
                let mut polled = stream.asleep(&mut stream.lock(), waker);
                // A connection that waits stays readable: a thread that does not ask for it would
                // wake at once, again and again.
                if stream.listener.get().is_some() && events & POLLIN == 0 {
                    polled[0].fd = -1;
                }
                polled
            }
            Self::Datagram(datagram) => datagram.asleep(&mut datagram.lock(), waker),
        }
    }

    fn awake(&self, waker: Option<&Waker>, polled: &[pollfd]) {
        match self {
            Self::Stream(stream) => stream.awake(&mut stream.lock(), waker, polled),
            Self::Datagram(datagram) => datagram.awake(&mut datagram.lock(), waker, polled),
        }
    }
}

/// As `select`: how many bits are set then.
pub(crate) fn select(mut sets: Sets, timeout: Option<Duration>) -> Result<c_int> {
    poll(sets.polled_mut(), timeout)?;
    sets.write().ok_or(Errno(libc::EBADF))
}
