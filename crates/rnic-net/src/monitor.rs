//! The thread that follows changes of the interface, its addresses and its neighbours.

use super::neighbour::{self, Known};
use super::netlink::{
    self, Netlink, RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
};
use super::{Change, NetError, Shared, interface};
use netlink_sys::Socket;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV6_IFADDR.
const GROUPS: [u32; 4] = [1, 3, 5, 9];
/// How often the kernel is told that a neighbour is in use. Our frames bypass its neighbour table,
/// where unused entries expire.
const REMIND: Duration = Duration::from_secs(20);
/// While a neighbour in use does not answer.
const REMIND_FAILED: Duration = Duration::from_secs(2);

/// A running monitor; stops when dropped.
pub(super) struct Monitor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to collect notifications.
    pub(super) fn listen() -> io::Result<Socket> {
        netlink::listen(&GROUPS)
    }

    pub(super) fn start(
        listener: Socket,
        shared: Arc<Shared>,
        on_change: Box<dyn Fn(Change) + Send>,
    ) -> Result<Self, NetError> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wire = Arc::new(eventfd(0, flags).map_err(io::Error::from)?);
        shared.hops.tell_of_wire(Arc::clone(&wire));
        let follower = Follower {
            listener,
            netlink: Netlink::open()?,
            shared,
            on_change,
            stop: Arc::clone(&stop),
            wire,
            wire_was_lost: false,
            wire_tried: None,
            next_reminder: Instant::now() + REMIND,
        };
        let thread = std::thread::Builder::new()
            .name("rnicd-net".into())
            .spawn(move || follower.run())
            .map_err(NetError::from)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

struct Follower {
    listener: Socket,
    netlink: Netlink,
    shared: Arc<Shared>,
    on_change: Box<dyn Fn(Change) + Send>,
    stop: Arc<OwnedFd>,
    /// Written when the wire is lost or there again, and when it wants to be told again.
    wire: Arc<OwnedFd>,
    /// As was told last.
    wire_was_lost: bool,
    /// The time to try it again that was told last.
    wire_tried: Option<Instant>,
    next_reminder: Instant,
}

impl Follower {
    fn run(mut self) {
        while self.wait() {
            if self.drain() {
                self.refresh();
            }
            self.look_at_wire(Instant::now());
            if Instant::now() >= self.next_reminder {
                self.remind();
            }
        }
    }

    /// Waits for a notification or the next reminder; false when it is time to end.
    fn wait(&self) -> bool {
        let again = self.shared.hops.next_telling();
        let next = self.next_try().into_iter().chain(again).fold(self.next_reminder, Instant::min);
        let left = next.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let listener = borrow(&self.listener);
        let mut fds = [
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&*self.wire, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => fds[0].revents().is_empty(),
            Err(error) => {
                tracing::error!(
                    "poll failed: {error}; changes of links and addresses are no longer followed: \
                     restart the daemon"
                );
                false
            }
        }
    }

    /// Takes all notifications; tells whether interfaces or addresses changed.
    fn drain(&mut self) -> bool {
        let mut changed = false;
        loop {
            match self.listener.recv_from_full() {
                Ok((datagram, _)) => {
                    for message in netlink::messages(&datagram) {
                        if let Some(index) = interface::gone(&message) {
                            self.shared.lock().is_gone(index);
                        }
                        match message.kind {
                            RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => changed = true,
                            RTM_NEWNEIGH | RTM_DELNEIGH => {
                                if let Some((ip, ifindex, known)) = neighbour::parse(&message) {
                                    self.neighbour(ip, ifindex, known);
                                }
                            }
                            _ => {}
                        }
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    // Notifications were lost: look at everything.
                    changed = true;
                    self.next_reminder = Instant::now();
                }
                Err(_) => return changed,
            }
        }
    }

    fn neighbour(&mut self, ip: std::net::IpAddr, ifindex: u32, known: Known) {
        match known {
            Known::At(mac) => self.shared.hops.refresh(ip, ifindex, mac),
            // The last known address stays in use: nothing better is known.
            Known::Failed if self.shared.hops.has(ip, ifindex) => {
                self.next_reminder = self.next_reminder.min(Instant::now() + REMIND_FAILED);
            }
            Known::Failed | Known::NotYet => {}
        }
    }

    fn refresh(&mut self) {
        match self.shared.refresh(&mut self.netlink) {
            Ok(Some(change)) => {
                // The kernel knows no neighbours of an interface that was made anew.
                self.next_reminder = Instant::now();
                (self.on_change)(change);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!("cannot ask the kernel about interfaces: {error}"),
        }
    }

    /// When a lost wire is to be tried again, if that was not told yet.
    fn next_try(&self) -> Option<Instant> {
        self.shared.hops.wire_retry().filter(|at| self.wire_tried != Some(*at))
    }

    /// Tells when the wire is lost or there again, and when it is to be tried again: what kept it
    /// from the new interface, or from an address, may be over.
    fn look_at_wire(&mut self, now: Instant) {
        // It has nothing to be read when this is not what the thread was woken by.
        let _ = rustix::io::read(&*self.wire, &mut [0; 8]);
        let is_lost = self.shared.hops.wire_retry().is_some();
        let due = self.next_try().filter(|at| *at <= now);
        let again = self.shared.hops.take_telling(now);
        if is_lost != self.wire_was_lost || due.is_some() || again {
            self.wire_was_lost = is_lost;
            self.wire_tried = due.or(self.wire_tried);
            self.say_again();
        }
    }

    /// Tells what is known already.
    fn say_again(&self) {
        // A statement of its own, which ends the lock: what is told asks for the network in turn,
        // and other threads do so with locks that it takes. All of them would wait for ever.
        let change = self.shared.lock().change(false);
        (self.on_change)(change);
    }

    /// Reads what the kernel knows about the neighbours in use, and has it look for them.
    fn remind(&mut self) {
        self.next_reminder = Instant::now() + REMIND;
        for (ip, ifindex) in self.shared.hops.neighbours() {
            if ip.is_multicast() {
                continue;
            }
            if let Ok(known) = neighbour::look_up(&mut self.netlink, ip, ifindex) {
                self.neighbour(ip, ifindex, known);
            }
            neighbour::nudge(&mut self.netlink, None, ip, ifindex);
        }
    }
}

#[allow(unsafe_code)]
fn borrow(socket: &Socket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor belongs to `socket`, which the result borrows.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MAC, interface as describe, shared};
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Of a device on one interface.
    fn follower(on_change: impl Fn(&Shared) + Send + 'static) -> Follower {
        let shared = Arc::new(shared(vec![describe(3, "eth0", MAC[0], None)]));
        let told = Arc::clone(&shared);
        Follower {
            listener: Monitor::listen().unwrap(),
            netlink: Netlink::open().unwrap(),
            shared,
            on_change: Box::new(move |_| on_change(&told)),
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
            wire: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()),
            wire_was_lost: false,
            wire_tried: None,
            next_reminder: Instant::now() + REMIND,
        }
    }

    #[test]
    fn what_follows_a_lost_wire_may_ask_for_the_network() {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let mut follower = follower(move |shared| {
            assert!(shared.state.try_lock().is_ok(), "it would wait for ever");
            count.fetch_add(1, Ordering::Relaxed);
        });
        follower.shared.hops.set_wire_retry(Some(Instant::now()));
        follower.look_at_wire(Instant::now());
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_lost_wire_is_told_of_once_and_at_each_time_to_try_it() {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let mut follower = follower(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = |retry: Option<u64>, now| {
            follower.shared.hops.set_wire_retry(retry.map(at));
            let next = follower.next_try();
            follower.look_at_wire(at(now));
            (told.swap(0, Ordering::Relaxed), next.map(|next| next - start))
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(look(None, 0), (0, None));
        assert_eq!(look(Some(20), 0), (1, seconds(20)));
        assert_eq!(look(Some(20), 19), (0, seconds(20)));
        assert_eq!(look(Some(20), 20), (1, seconds(20)));
        // Until it was tried, which may take a moment, or has to wait for the interface.
        assert_eq!(look(Some(20), 21), (0, None));
        assert_eq!(look(Some(40), 22), (0, seconds(40)));
        assert_eq!(look(Some(40), 41), (1, seconds(40)));
        assert_eq!(look(None, 42), (1, None));
        assert_eq!(look(None, 80), (0, None));
    }

    #[test]
    fn a_wire_that_lacks_something_is_told_once_more_when_it_says() {
        let (sender, told) = std::sync::mpsc::channel();
        let mut follower = follower(move |_| sender.send(Instant::now()).unwrap());
        let hops = follower.shared.hops.clone();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = |now| {
            follower.look_at_wire(at(now));
            told.try_iter().count()
        };
        hops.tell_again(at(5));
        hops.tell_again(at(3));
        hops.tell_again(at(4));
        assert_eq!([2, 3, 4, 5, 60].map(&mut look), [0, 1, 0, 0, 0]);
        // The thread sleeps no longer than until then.
        follower.shared.hops.tell_of_wire(Arc::clone(&follower.wire));
        let stop = Arc::clone(&follower.stop);
        let thread = std::thread::spawn(move || follower.run());
        let asked = Instant::now();
        hops.tell_again(asked + Duration::from_millis(50));
        let at = told.recv_timeout(REMIND / 2).unwrap();
        assert!(at - asked >= Duration::from_millis(50));
        rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }
}
