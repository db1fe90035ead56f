//! A pair of namespaces as the ports' tests need it, and settings of its interfaces.

use std::os::fd::AsRawFd;

use testbed::{INTERFACE, Namespace};

/// Settings of `linux/ethtool.h` that are on or off.
#[derive(Clone, Copy)]
pub(crate) enum Feature {
    /// ETHTOOL_STSO.
    TcpSegmentation = 0x1f,
    /// ETHTOOL_SGRO.
    Joining = 0x2c,
}

/// Switches a feature of an interface of the calling thread's namespace.
pub(crate) fn switch(interface: &str, feature: Feature, on: bool) {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut value = [feature as u32, u32::from(on)];
    // SAFETY: ifreq consists of integers and a pointer, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: the request names an interface and points to a command and its value, which is all
    // that the kernel reads of these commands; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    assert_eq!(result, 0, "ethtool {interface}: {}", std::io::Error::last_os_error());
}

/// Two namespaces joined by a veth pair, and its MAC addresses.
pub(crate) struct Pair {
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
    pub(crate) mac_a: [u8; 6],
    pub(crate) mac_b: [u8; 6],
}

impl Pair {
    pub(crate) fn new(mtu: u32) -> Pair {
        let testbed::Pair { a, b } = testbed::Pair::new(mtu);
        let [mac_a, mac_b] =
            [&a, &b].map(|namespace| namespace.run(|| xdp_io::netdev::mac(INTERFACE).unwrap()));
        Pair { a, b, mac_a, mac_b }
    }
}
