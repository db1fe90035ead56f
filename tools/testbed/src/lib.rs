//! Nameless network namespaces for tests: they live as long as a descriptor is open, so that
//! nothing is left behind however a test ends. And a socket that keeps the thread that closes it.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace.
pub struct Namespace(OwnedFd);

impl Namespace {
    #[expect(clippy::new_without_default, reason = "it makes something outside of the program")]
    pub fn new() -> Namespace {
        let create = || {
            #[allow(unsafe_code)]
            // SAFETY: moves only the calling thread, which ends with this closure.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            Namespace(File::open("/proc/thread-self/ns/net").unwrap().into())
        };
        let namespace = std::thread::scope(|scope| scope.spawn(create).join().unwrap());
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `work` on a thread inside the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with space-separated arguments and returns what it printed.
    #[track_caller]
    pub fn ip(&self, arguments: &str) -> String {
        self.try_ip(arguments).unwrap_or_else(|error| panic!("ip {arguments}: {error}"))
    }

    /// As [`ip`](Self::ip), or what it complained about.
    pub fn try_ip(&self, arguments: &str) -> Result<String, String> {
        let run = || Command::new("ip").args(arguments.split(' ')).output().unwrap();
        let output = self.run(run);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Two namespaces joined by a veth pair `eth0`, with an IPv4 and an IPv6 address each.
pub struct Pair {
    pub a: Namespace,
    pub b: Namespace,
}

/// Name of the interfaces of a [`Pair`].
pub const INTERFACE: &str = "eth0";
/// Addresses of a [`Pair`].
pub const V4_A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 88, 0, 1));
pub const V4_B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 88, 0, 2));
pub const V6_A: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, 1));
pub const V6_B: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, 2));

impl Pair {
    pub fn new(mtu: u32) -> Pair {
        Pair::with_queues(mtu, 1)
    }

    /// With so many queues in both directions.
    pub fn with_queues(mtu: u32, queues: u32) -> Pair {
        let pair = Pair { a: Namespace::new(), b: Namespace::new() };
        pair.make(mtu, queues);
        pair
    }

    /// Deletes both interfaces and makes them again, with other indices and Ethernet addresses.
    pub fn make_anew(&self, mtu: u32) {
        self.a.ip("link delete eth0");
        self.make(mtu, 1);
    }

    /// Gives both interfaces to another namespace for a moment. They come back with the indices
    /// that they had, and without addresses, which they get again.
    pub fn lend(&self) {
        for (namespace, v4, v6) in [(&self.a, V4_A, V6_A), (&self.b, V4_B, V6_B)] {
            let other = Namespace::new();
            namespace.ip(&format!("link set eth0 netns {}", other.path()));
            other.ip(&format!("link set eth0 netns {}", namespace.path()));
            configure(namespace, v4, v6);
        }
        self.wait_until_up();
    }

    fn make(&self, mtu: u32, queues: u32) {
        let Pair { a, b } = self;
        let path = b.path();
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        a.ip(&format!(
            "link add eth0 mtu {mtu} {queues} type veth peer name eth0 mtu {mtu} {queues} netns \
             {path}"
        ));
        configure(a, V4_A, V6_A);
        configure(b, V4_B, V6_B);
        self.wait_until_up();
    }

    fn wait_until_up(&self) {
        for namespace in [&self.a, &self.b] {
            wait_for("the link to come up", || {
                namespace.ip("link show eth0").contains("state UP").then_some(())
            });
        }
    }
}

fn configure(namespace: &Namespace, v4: IpAddr, v6: IpAddr) {
    // The usual link-local address would come up some time later.
    namespace.ip("link set eth0 addrgenmode none");
    let host = v4.to_string().split('.').next_back().map(str::to_owned).unwrap_or_default();
    namespace.ip(&format!("address add fe80::{host}/64 dev eth0 nodad"));
    namespace.ip(&format!("address add {v4}/24 dev eth0"));
    namespace.ip(&format!("address add {v6}/64 dev eth0 nodad"));
    namespace.ip("link set eth0 up");
}

/// A socket connected with a listener, whose last `close` waits for a minute: until the peer has
/// read what is on its way.
pub fn lingering(listener: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(listener).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    let patience = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&socket, patience).unwrap();
    socket
}

/// Where [such sockets](lingering) find peers that read nothing.
pub fn silent_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Waits until `look` sees something; at most 10 s.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether namespaces can be made; says loudly when a test is skipped for want of it.
pub fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "needs root");
    }
    root
}

/// Says loudly that a test is skipped.
pub fn skip(test: &str, why: &str) {
    // Straight to the descriptor: the test harness would swallow it.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {why}");
}
