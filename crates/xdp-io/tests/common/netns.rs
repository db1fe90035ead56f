//! Nameless network namespaces: they live as long as a descriptor is open, so that nothing is left
//! behind however a test ends.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

/// A network namespace.
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    fn new() -> Namespace {
        let create = || {
            // SAFETY: moves only the calling thread, which ends with this closure.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare");
            Namespace(File::open("/proc/thread-self/ns/net").unwrap().into())
        };
        let namespace = std::thread::scope(|scope| scope.spawn(create).join().unwrap());
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `work` on a thread inside the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: moves only the calling thread, which ends with this closure.
                let result = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(result, 0, "setns");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with space-separated arguments and returns what it printed.
    #[track_caller]
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let output =
            self.run(|| Command::new("ip").args(arguments.split(' ')).output().expect("ip"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

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

/// Two namespaces joined by a veth pair, with an IPv4 and an IPv6 address each.
pub(crate) struct Pair {
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
    pub(crate) mac_a: [u8; 6],
    pub(crate) mac_b: [u8; 6],
}

/// The interface in namespace a, and in namespace b.
pub(crate) const IF_A: &str = "va";
pub(crate) const IF_B: &str = "vb";
/// Addresses, all of one length per family.
pub(crate) const V4_A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 1));
pub(crate) const V4_B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 2));
pub(crate) const V6_A: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1));
pub(crate) const V6_B: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2));

impl Pair {
    pub(crate) fn new(mtu: u32) -> Pair {
        let (a, b) = (Namespace::new(), Namespace::new());
        a.ip(&format!(
            "link add {IF_A} mtu {mtu} type veth peer name {IF_B} mtu {mtu} netns {}",
            b.path()
        ));
        for (namespace, interface, v4, v6) in [(&a, IF_A, V4_A, V6_A), (&b, IF_B, V4_B, V6_B)] {
            namespace.ip(&format!("address add {v4}/24 dev {interface}"));
            namespace.ip(&format!("address add {v6}/64 dev {interface} nodad"));
            namespace.ip(&format!("link set {interface} up"));
        }
        // The kernel drops what is sent before it has noticed the carrier.
        for (namespace, interface) in [(&a, IF_A), (&b, IF_B)] {
            super::wait_for("the link to come up", || {
                namespace.ip(&format!("link show {interface}")).contains("state UP").then_some(())
            });
        }
        let mac_a = a.run(|| xdp_io::netdev::mac(IF_A).unwrap());
        let mac_b = b.run(|| xdp_io::netdev::mac(IF_B).unwrap());
        Pair { a, b, mac_a, mac_b }
    }
}
