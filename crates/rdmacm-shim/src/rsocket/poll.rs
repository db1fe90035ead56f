//! Waiting for several rsockets and ordinary descriptors at once.

use std::{
    ffi::c_int,
    sync::Arc,
    time::{Duration, Instant},
};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd};
use rnic_abi::os::blocking;

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

/// The sets of `select`.
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

impl Sets {
    /// As `select`.
    ///
    /// # Safety
    /// Each set is null, or has so many bits.
    pub(crate) unsafe fn select(&self, count: c_int, timeout: Option<Duration>) -> Result<c_int> {
        let count = count.clamp(0, libc::FD_SETSIZE as c_int);
        let all = [(self.read, POLLIN), (self.write, POLLOUT), (self.except, POLLPRI)];
        // SAFETY: by contract, and below the size of sets.
        let is_in = |set: *mut fd_set, fd| unsafe { !set.is_null() && libc::FD_ISSET(fd, set) };
        let mut fds = Vec::new();
        for fd in 0..count {
            let wanted = all.iter().filter(|(set, _)| is_in(*set, fd));
            let events = wanted.fold(0, |events, (_, event)| events | event);
            if events != 0 {
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        poll(&mut fds, timeout)?;
        if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let means = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
        let mut ready = 0;
        for ((set, event), means) in all.into_iter().zip(means) {
            if set.is_null() {
                continue;
            }
            // A program may have made no more room than for the bits that it names.
            // SAFETY: by contract, and below the size of sets.
            (0..count).for_each(|fd| unsafe { libc::FD_CLR(fd, set) });
            for fd in fds.iter().filter(|fd| fd.events & event != 0 && fd.revents & means != 0) {
                // SAFETY: by contract, and below the size of sets.
                unsafe { libc::FD_SET(fd.fd, set) };
                ready += 1;
            }
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::fd::AsRawFd, os::unix::net::UnixDatagram};

    #[test]
    fn sets_are_written_as_far_as_they_are_named() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(b"x").unwrap();
        let [fd, idle] = [ours.as_raw_fd(), theirs.as_raw_fd()];
        let count = fd.max(idle) + 1;
        // SAFETY: a set of bits.
        let mut read: fd_set = unsafe { std::mem::zeroed() };
        let set = &raw mut read;
        // SAFETY: a local set; what is behind the named bits is the program's.
        unsafe {
            [fd, idle, count, 1000].into_iter().for_each(|fd| libc::FD_SET(fd, set));
            let sets =
                Sets { read: set, write: std::ptr::null_mut(), except: std::ptr::null_mut() };
            assert_eq!(sets.select(count, Some(Duration::ZERO)), Ok(1));
            let left = [fd, idle, count, 1000].map(|fd| libc::FD_ISSET(fd, set));
            assert_eq!(left, [true, false, true, true]);
        }
    }
}
