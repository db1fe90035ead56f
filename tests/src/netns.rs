//! Network namespaces and the veth pair between two of them.
//!
//! Names carry the process id of their maker. [`sweep`] removes what a killed run left.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use rustix::fd::AsFd;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::Cmd;

const PREFIX: &str = "rnic";
const HOME: &str = "/run/netns";

/// A network namespace with its loopback up; deleted on drop.
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace whose name ends in `tag`. Needs root.
    ///
    /// # Errors
    /// When `ip netns` refuses.
    pub fn new(tag: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{serial}-{tag}", std::process::id());
        Cmd::new("ip").args(["netns", "add", &name]).check()?;
        let netns = Self { name };
        netns.ip(&["link", "set", "lo", "up"])?;
        // Addresses must be usable at once: no duplicate address detection on interfaces added
        // later.
        for which in ["default", "all"] {
            netns.sysctl(&format!("net/ipv6/conf/{which}/accept_dad"), "0")?;
        }
        Ok(netns)
    }

    /// Its name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip -n THIS ARGS`.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        Cmd::new("ip").args(["-n", &self.name]).args(args).check()
    }

    /// Makes a bridge that is up.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn add_bridge(&self, name: &str, mtu: u32) -> Result<()> {
        self.ip(&["link", "add", name, "mtu", &mtu.to_string(), "type", "bridge"])?;
        self.ip(&["link", "set", name, "up"])?;
        Ok(())
    }

    /// A command that will run in this namespace.
    pub fn cmd(&self, program: impl AsRef<std::ffi::OsStr>) -> Cmd {
        Cmd::new(program).in_netns(Some(&self.name))
    }

    /// Writes a file under `/proc/sys`; `key` is separated by slashes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        let write = || std::fs::write(&path, value);
        self.enter(write)?.with_context(|| format!("cannot set {key}={value} in {}", self.name))
    }

    /// Runs a closure in this namespace, as [`enter`] does.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        enter(&self.name, work)
    }
}

/// Runs a closure in a namespace, on a thread of its own. Sockets it opens stay there.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn enter<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let file = File::open(Path::new(HOME).join(name))
        .with_context(|| format!("no network namespace {name}"))?;
    let inside = || -> Result<T> {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    std::thread::scope(|scope| scope.spawn(inside).join())
        .map_err(|_| anyhow!("a thread inside {name} panicked"))?
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// One end of a veth pair, in a namespace of its own.
pub struct End {
    /// The namespace.
    pub netns: Netns,
    /// The MAC address of its interface.
    pub mac: String,
    /// Its IPv4 address, of a /24 network shared with the other end.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address, of a /64 network shared with the other end.
    pub ipv6: Ipv6Addr,
}

impl End {
    /// The interface's name, the same at both ends.
    pub const INTERFACE: &str = "eth0";

    /// The addresses as `rnicd --address` takes them.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.ipv4.into(), self.ipv6.into()]
    }

    /// Gives the interface of a host its MTU and addresses.
    pub(crate) fn configure(netns: Netns, host: u8, mtu: u32) -> Result<Self> {
        let ipv4 = Ipv4Addr::new(10, 77, 0, host);
        let ipv6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into());
        let dev = Self::INTERFACE;
        netns.ip(&["link", "set", dev, "mtu", &mtu.to_string(), "up"])?;
        netns.ip(&["addr", "add", &format!("{ipv4}/24"), "dev", dev])?;
        netns.ip(&["addr", "add", &format!("{ipv6}/64"), "dev", dev, "nodad"])?;
        let link = netns.ip(&["-o", "link", "show", dev])?;
        let mac = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        let mac = mac.with_context(|| format!("no MAC address in {link:?}"))?.to_owned();
        Ok(Self { netns, mac, ipv4, ipv6 })
    }
}

/// Two namespaces joined by a veth pair: 10.77.0.1 and fd77::1 on the left, .2 and ::2 on the
/// right.
pub struct NetPair {
    /// 10.77.0.1
    pub left: End,
    /// 10.77.0.2
    pub right: End,
}

impl NetPair {
    ///
    /// # Errors
    /// When `ip` refuses; what was made until then is removed.
    pub fn new(mtu: u32) -> Result<Self> {
        let (left, right) = (Netns::new("l")?, Netns::new("r")?);
        let dev = End::INTERFACE;
        let peer = ["type", "veth", "peer", "name", dev, "netns", right.name()];
        left.ip(&[&["link", "add", dev][..], &peer].concat())?;
        Ok(Self { left: End::configure(left, 1, mtu)?, right: End::configure(right, 2, mtu)? })
    }
}

/// Removes namespaces of this harness whose maker has ended, with the processes in them.
///
/// # Errors
/// When the namespaces cannot be listed.
pub fn sweep() -> Result<()> {
    for line in Cmd::new("ip").args(["netns", "list"]).check()?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if maker(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(name);
        }
    }
    Ok(())
}

/// The process id in a namespace's name, when it is one of ours.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
}

/// Deletes a namespace. Processes inside would keep it alive without a name, so they are killed:
/// only this harness starts processes there.
fn remove(name: &str) {
    // A drop cannot return an error; the next sweep removes what is left.
    let ip = |verb| Cmd::new("ip").args(["netns", verb, name]).for_cleanup().check();
    if let Ok(pids) = ip("pids") {
        for pid in pids.lines().filter_map(|pid| Pid::from_raw(pid.trim().parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = ip("delete");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_a_maker() {
        assert_eq!(maker("rnic-4711-0-l"), Some(4711));
        assert_eq!(maker("rnic-x-0-l"), None);
        assert_eq!(maker("somebody-4711"), None);
    }
}
