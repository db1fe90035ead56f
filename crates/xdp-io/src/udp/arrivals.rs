//! How many datagrams and trains the kernel has led to a receiver, read without a system call.
//!
//! The program of a [`SteeredPort`](super::SteeredPort) counts in a map that receivers see as
//! memory. To ask an empty socket costs a quarter of a microsecond and takes the lock that a
//! delivery on another CPU needs; to look here costs a load.
//!
//! The count goes up shortly before the datagram can be received, and one that does not reach its
//! socket (the buffer is full, its checksum is wrong) is counted too. And what a socket holds may
//! be more than was counted: from before the count was read, or because one that was counted was
//! given up too soon. So a receiver that found more than was counted, that has slept or that has
//! only just begun is **behind**: it asks until the socket is empty. One that is not asks now and
//! then all the same.

use std::io;
use std::os::fd::BorrowedFd;

use super::UdpPort;
use super::socket::Socket;
use crate::umem::MappedMemory;

/// The counts are a cache line apart.
pub(super) const STRIDE_BITS: u8 = 6;

/// After so many calls in a row that found nothing while nothing new was counted, the socket is
/// empty: some microseconds, in which the kernel delivers what it counted before. A peer that
/// answers at once leaves no more time.
const EMPTY: u32 = 8;
/// After so many, what was counted and did not come is given up. Only if its CPU is taken from it
/// in between does the kernel deliver later than that.
const LOST: u32 = 64;
/// Every so many calls ask, whatever the count says.
const ANYWAY: u32 = 64;

/// What was counted for one receiver, and what it has received.
pub(super) struct Arrivals {
    counts: MappedMemory,
    at: usize,
    /// The count when it was read last.
    counted: u64,
    received: u64,
    /// The socket may hold more than was counted.
    behind: bool,
    /// Calls in a row that asked and received nothing.
    fruitless: u32,
    /// Calls with nothing waiting since one of them asked.
    silent: u32,
}

impl Arrivals {
    /// Of `receiver`, in the map of `receivers` counts.
    ///
    /// # Errors
    /// When the map cannot be mapped, or has no such receiver.
    pub(super) fn new(map: BorrowedFd<'_>, receiver: u8, receivers: u32) -> io::Result<Arrivals> {
        let counts = MappedMemory::read_only(map, (receivers as usize) << STRIDE_BITS)?;
        let at = usize::from(receiver) << STRIDE_BITS;
        if at >= counts.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (counted, received) = (0, 0);
        Ok(Arrivals { counts, at, counted, received, behind: true, fruitless: 0, silent: 0 })
    }

    /// The count was not followed for a while.
    pub(super) fn may_be_behind(&mut self) {
        self.behind = true;
    }

    /// Whether there may be something, at the cost of a load.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.behind || self.counts.number(self.at) != self.received
    }

    /// How many messages to ask for now, at most; 0 to leave the socket alone.
    #[inline]
    pub(super) fn wanted(&mut self) -> usize {
        let before = std::mem::replace(&mut self.counted, self.counts.number(self.at));
        if self.counted != before {
            self.fruitless = 0;
        }
        if self.behind {
            return usize::MAX;
        }
        let waiting = self.counted.wrapping_sub(self.received).cast_signed();
        if waiting > 0 {
            // Behind several more follow, which the same call may find.
            return if waiting == 1 { 1 } else { usize::MAX };
        }
        self.silent += 1;
        if self.silent < ANYWAY {
            return 0;
        }
        self.silent = 0;
        1
    }

    /// The kernel had this many, of those [wanted](Self::wanted) last.
    #[inline]
    pub(super) fn note(&mut self, received: usize) {
        if received > 0 {
            self.fruitless = 0;
            self.received = self.received.wrapping_add(received as u64);
            self.behind |=
                self.counts.number(self.at).wrapping_sub(self.received).cast_signed() < 0;
            return;
        }
        self.fruitless += 1;
        if self.fruitless >= if self.behind { EMPTY } else { LOST } {
            self.fruitless = 0;
            self.received = self.counted;
            self.behind = false;
        }
    }
}

impl UdpPort {
    /// Looks whether [`receive`](Self::receive) may find something, again and again: for so many
    /// loads, one for each address at a time. False when nothing has come. True at once where a
    /// socket is not counted, and after a [sleep](Self::awake).
    #[must_use]
    pub fn look(&self, loads: usize) -> bool {
        let times = loads.checked_div(self.sockets.len()).unwrap_or(0).max(1);
        let may_have_some = || self.sockets.iter().flatten().any(Socket::may_have_some);
        self.has_slept || (0..times).any(|_| may_have_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::steered::{RECEIVERS, ReceiverSockets, SteerBy, SteeredPort};
    use super::super::{RxTrain, UdpConfig};
    use super::*;
    use memmap2::MmapOptions;
    use std::fs::File;
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Counts in a file, which the kernel keeps with a map.
    struct Counted(File);

    impl Counted {
        fn new() -> Self {
            let file = tempfile();
            file.set_len(4 << STRIDE_BITS).unwrap();
            Self(file)
        }

        fn set(&self, receiver: u64, count: u64) {
            self.0.write_all_at(&count.to_ne_bytes(), receiver << STRIDE_BITS).unwrap();
        }

        fn receiver(&self, receiver: u8) -> Arrivals {
            Arrivals::new(self.0.as_fd(), receiver, 4).unwrap()
        }
    }

    fn tempfile() -> File {
        let name = format!("xdp-io-arrivals-{:?}", std::thread::current().id());
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        std::fs::remove_file(path).unwrap();
        file.unwrap()
    }

    #[test]
    fn the_kernel_counts_for_each_receiver() {
        if !testbed::is_root("the_kernel_counts_for_each_receiver") {
            return;
        }
        const PORT: u16 = 47_917;
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 11));
        let by = SteerBy { offset: 5, shift: 3 };
        let steered = SteeredPort::new(PORT, 0, 1 << 20, by, false).unwrap();
        let [three, four] = [3, 4].map(|number| steered.sockets(number, 30, address).unwrap());
        let counts = |sockets: &ReceiverSockets, receiver| {
            let (counts, _) = sockets.arrivals.as_ref().unwrap();
            Arrivals::new(counts.as_fd(), receiver, RECEIVERS).unwrap()
        };
        let mut all = [counts(&three, 0), counts(&three, 3), counts(&four, 4), counts(&four, 9)];
        all.iter_mut().for_each(|receiver| assert_eq!(asks(receiver, EMPTY), EMPTY));
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // What is for 9, or for none, is receiver 0's.
        for (number, times) in [(3_u8, 2), (4, 5), (9, 3)] {
            for _ in 0..times {
                sender.send_to(&[number << 3; 32], (address, PORT)).unwrap();
            }
        }
        sender.send_to(&[0; 4], (address, PORT)).unwrap();
        let waiting = all.each_mut().map(|receiver| {
            receiver.wanted();
            receiver.counted - receiver.received
        });
        assert_eq!(waiting, [4, 2, 5, 0]);
        let (map, _) = three.arrivals.unwrap();
        let writable = MmapOptions::new().len(4096).map_raw(&map);
        assert!(writable.is_err(), "a receiver can change the counts of others");
    }

    #[test]
    fn a_port_looks_at_the_counts_of_all_addresses() {
        if !testbed::is_root("a_port_looks_at_the_counts_of_all_addresses") {
            return;
        }
        const PORT: u16 = 47_919;
        let addresses = [12, 13, 14].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        let by = SteerBy { offset: 5, shift: 3 };
        let mut config = UdpConfig::new(addresses.to_vec(), PORT);
        config.shared = Some(SteeredPort::new(PORT, 0, 1 << 20, by, false).unwrap().into());
        let mut port = UdpPort::bind(&config).unwrap();
        let mut room = [RxTrain::default(); 4];
        let mut receive =
            |port: &mut UdpPort| (0..10 * EMPTY).map(|_| port.receive(&mut room)).sum::<usize>();
        assert!(port.look(1), "something may be there from before");
        assert_eq!(receive(&mut port), 0);
        assert!(!port.look(0) && !port.look(1) && !port.look(1000));
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.send_to(&[0; 32], (addresses[2], PORT)).unwrap();
        assert!(port.look(1));
        assert_eq!(receive(&mut port), 1);
        assert!(!port.look(1000));
        port.awake();
        assert!(port.look(1));
        let uncounted = UdpConfig::new(vec![Ipv4Addr::LOCALHOST.into()], 0);
        assert!(UdpPort::bind(&uncounted).unwrap().look(1000));
        assert!(!UdpPort::bind(&UdpConfig::new(Vec::new(), 0)).unwrap().look(1000));
    }

    /// In how many of the next calls a receiver asks that finds nothing.
    fn asks(arrivals: &mut Arrivals, calls: u32) -> u32 {
        let ask = |_: &u32| {
            let asks = arrivals.wanted() > 0;
            if asks {
                arrivals.note(0);
            }
            asks
        };
        (0..calls).filter(ask).count() as u32
    }

    /// A receiver that knows that its socket is empty.
    fn up_to_date(counted: &Counted, number: u8) -> Arrivals {
        let mut arrivals = counted.receiver(number);
        assert_eq!(asks(&mut arrivals, EMPTY), EMPTY, "something may be there from before");
        assert_eq!(arrivals.wanted(), 0);
        arrivals
    }

    #[test]
    fn what_is_counted_is_asked_for_until_it_is_received() {
        let counted = Counted::new();
        counted.set(1, 7);
        let (mut first, mut other) = (up_to_date(&counted, 1), up_to_date(&counted, 2));
        counted.set(1, 10);
        assert_eq!((first.wanted(), other.wanted()), (usize::MAX, 0));
        first.note(2);
        assert_eq!(first.wanted(), 1);
        first.note(0);
        assert_eq!(first.wanted(), 1, "it is on its way");
        first.note(1);
        assert_eq!(first.wanted(), 0);
    }

    #[test]
    fn a_look_tells_whether_to_ask() {
        let counted = Counted::new();
        assert!(counted.receiver(3).any(), "something may be there from before");
        let mut arrivals = up_to_date(&counted, 3);
        assert!(!arrivals.any());
        counted.set(3, 1);
        assert!(arrivals.any() && arrivals.any());
        assert_eq!(arrivals.wanted(), 1);
        arrivals.note(1);
        assert!(!arrivals.any());
        arrivals.may_be_behind();
        assert!(arrivals.any());
    }

    #[test]
    fn what_was_counted_and_does_not_come_is_given_up() {
        let counted = Counted::new();
        let mut arrivals = up_to_date(&counted, 0);
        counted.set(0, 5);
        assert_eq!(asks(&mut arrivals, LOST / 2), LOST / 2);
        counted.set(0, 6);
        assert_eq!(
            asks(&mut arrivals, LOST + ANYWAY / 4),
            LOST,
            "the last one has only just been counted"
        );
        counted.set(0, 7);
        assert_eq!(arrivals.wanted(), 1);
    }

    #[test]
    fn one_that_is_behind_asks_until_the_socket_is_empty() {
        let counted = Counted::new();
        let mut arrivals = up_to_date(&counted, 0);
        assert_eq!(asks(&mut arrivals, 10 * ANYWAY), 10, "it asks, whatever the count says");
        while arrivals.wanted() == 0 {}
        arrivals.note(1);
        assert_eq!(
            asks(&mut arrivals, EMPTY + ANYWAY / 4),
            EMPTY,
            "more than was counted may be there"
        );
        counted.set(0, 1);
        assert_eq!(arrivals.wanted(), 1, "and that is not counted again");
        arrivals.note(1);
        arrivals.may_be_behind();
        assert_eq!(asks(&mut arrivals, EMPTY + ANYWAY / 4), EMPTY);
    }
}
