//! A plain AF_PACKET socket: sends frames as they are, and sees what reaches the kernel.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A raw socket on one interface, for all protocols.
pub(crate) struct RawSocket(OwnedFd);

impl RawSocket {
    /// Opens it in the calling thread's namespace.
    pub(crate) fn open(interface: &str) -> RawSocket {
        let ifindex = xdp_io::netdev::index(interface).unwrap();
        // SAFETY: all-zero is a valid sockaddr_ll; the pointers below describe it.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex as i32;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers; the descriptor returned is new.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        assert!(fd >= 0, "socket: {}", io::Error::last_os_error());
        // SAFETY: a new descriptor that nothing else owns.
        let socket = RawSocket(unsafe { OwnedFd::from_raw_fd(fd) });
        let (pointer, len) = (std::ptr::from_ref(&address).cast(), size_of_val(&address) as u32);
        // SAFETY: pointer and length describe `address`.
        assert_eq!(unsafe { libc::bind(fd, pointer, len) }, 0, "{}", io::Error::last_os_error());
        socket
    }

    /// Sends one frame.
    #[track_caller]
    pub(crate) fn send(&self, frame: &[u8]) {
        // SAFETY: pointer and length describe `frame`.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "send: {}", io::Error::last_os_error());
    }

    /// The next frame that came in from outside, if there is one.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        loop {
            // SAFETY: all-zero is a valid sockaddr_ll.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut from_len = size_of_val(&from) as u32;
            // SAFETY: pointers and lengths describe `frame` and `from`.
            let received = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    frame.as_mut_ptr().cast(),
                    frame.len(),
                    0,
                    std::ptr::from_mut(&mut from).cast(),
                    &mut from_len,
                )
            };
            if received < 0 {
                return None;
            }
            if from.sll_pkttype != libc::PACKET_OUTGOING {
                frame.truncate(received as usize);
                return Some(frame);
            }
        }
    }

    /// True when a frame containing `needle` has come in.
    pub(crate) fn has_received(&self, needle: &[u8]) -> bool {
        while let Some(frame) = self.receive() {
            if frame.windows(needle.len()).any(|window| window == needle) {
                return true;
            }
        }
        false
    }
}
