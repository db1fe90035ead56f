//! `rnicd --check`: what this host can do as the daemon is configured, and what would change it.
//!
//! Sockets, the network and the wire are opened as the daemon opens them, and closed again. Nothing
//! is served, and a daemon that runs is not disturbed: it keeps what it has.

use crate::config::{Args, Config};
use crate::device::{explain_wire, start_network, wire_config};
use anyhow::{Context, Result, bail};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use rnic_host::discard::discard;
use rnic_host::quota::Machine;
use rnic_host::settings::Io;
use rnic_host::wire;
use rnic_net::{Claims, Network};
use rustix::thread::CapabilitySet;
use std::fmt;
use std::fs;
use std::io::IoSliceMut;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// What would make it better.
    advice: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, with a limit.
    Limited,
    /// The daemon cannot start.
    Bad,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    fn limited(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let verdict = Verdict::Limited;
        Self { what, verdict, found: found.into(), advice: Some(advice.into()) }
    }

    /// The text of an error says what to do.
    fn bad(what: &'static str, error: &anyhow::Error) -> Self {
        let found = crate::for_people(error);
        Self { what, verdict: Verdict::Bad, found, advice: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Good => "ok",
            Verdict::Limited => "limited",
            Verdict::Bad => "FAILED",
        };
        write!(f, "{verdict:8} {:15} {}", self.what, self.found)?;
        let advice = self.advice.iter();
        advice.into_iter().try_for_each(|advice| write!(f, "\n{:24} {advice}", ""))
    }
}

/// Prints what it found.
///
/// # Errors
/// When the daemon could not start.
pub(crate) fn run(args: Args) -> Result<()> {
    crate::system::raise_descriptor_limit();
    let config = Config::resolve(args)?;
    let mut findings = vec![kernel(), user(), memory_access(), limits(), view()];
    findings.extend(log_filter(&config));
    findings.push(control_socket(&config));
    findings.extend(network(&config));
    findings.extend(metrics(&config));
    for finding in &findings {
        println!("{finding}");
    }
    let failed = findings.iter().filter(|one| one.verdict == Verdict::Bad).count();
    match failed {
        0 => println!("rnicd can start here."),
        _ => bail!("{failed} of these keep the daemon from starting as it is configured"),
    }
    Ok(())
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let found = format!("Linux {release}");
    if xdp_io::packet::knows_trains() {
        Finding::good("kernel", found)
    } else {
        let advice = "before Linux 6.2 AF_PACKET sends frame by frame, which is much slower";
        Finding::limited("kernel", found, advice)
    }
}

fn user() -> Finding {
    let what = "user";
    let uid = rustix::process::geteuid().as_raw();
    let own = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let own = own.unwrap_or(CapabilitySet::empty());
    let names = [
        (CapabilitySet::NET_RAW, "CAP_NET_RAW", "AF_PACKET and AF_XDP"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "AF_XDP"),
        (CapabilitySet::BPF, "CAP_BPF", "AF_XDP and sockets for engine processes"),
        (CapabilitySet::SETUID, "CAP_SETUID", "programs of other users"),
        (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "programs of root with other rights"),
    ];
    let missing = names.iter().filter(|(one, ..)| !own.contains(*one));
    let missing: Vec<_> = missing.map(|(_, name, need)| format!("{name} ({need})")).collect();
    match (missing.is_empty(), uid) {
        (true, _) => Finding::good(what, format!("{uid}, with all capabilities that help")),
        (false, 0) => {
            Finding::limited(what, "root without all of its capabilities", without(&missing))
        }
        (false, _) => {
            let found = format!("{uid}: programs of this user only");
            Finding::limited(what, found, without(&missing))
        }
    }
}

fn without(missing: &[String]) -> String {
    format!("missing: {}", missing.join(", "))
}

/// The engine reads and writes registered memory by process_vm_readv and process_vm_writev.
fn memory_access() -> Finding {
    let what = "memory access";
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    let remote = RemoteIoVec { base: from.as_ptr() as usize, len: from.len() };
    let this = nix::unistd::Pid::this();
    if let Err(error) = process_vm_readv(this, &mut [IoSliceMut::new(&mut to)], &[remote]) {
        let advice = "a filter of system calls refuses process_vm_readv: with Docker, run with \
                      --cap-add SYS_PTRACE or a seccomp profile that allows it";
        let error = anyhow::Error::msg(format!("{}; {advice}", error.desc()));
        return Finding::bad(what, &error);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" | "3" => {
            let found = format!("/proc/sys/kernel/yama/ptrace_scope is {}", scope.trim());
            let advice = "the kernel refuses access to programs that are not root's: `sysctl \
                          kernel.yama.ptrace_scope=1`";
            Finding::limited(what, found, advice)
        }
        "" => Finding::good(what, "by process_vm_readv"),
        scope => Finding::good(what, format!("by process_vm_readv, ptrace_scope {scope}")),
    }
}

fn limits() -> Finding {
    /// Fewer do not serve a handful of programs.
    const DESCRIPTORS: u64 = 1024;
    let machine = Machine::look();
    let found = format!(
        "{} of memory, {} descriptors",
        size(machine.memory),
        if machine.descriptors == u64::MAX {
            "any".into()
        } else {
            machine.descriptors.to_string()
        }
    );
    if machine.descriptors < DESCRIPTORS {
        let advice = "few clients fit: `ulimit -n`, or LimitNOFILE= of the service, raises it";
        Finding::limited("limits", found, advice)
    } else {
        Finding::good("limits", found)
    }
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        mib @ 0..4096 => format!("{mib} MiB"),
        mib => format!("{} GiB", mib >> 10),
    }
}

/// `rnic run` shows the device in /sys/class/infiniband by a mount namespace.
fn view() -> Finding {
    let what = "programs' view";
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let none = read("/proc/sys/user/max_user_namespaces") == "0"
        || read("/proc/sys/kernel/unprivileged_userns_clone") == "0";
    if none && !rustix::process::geteuid().is_root() {
        let advice = "UCX and MPI do not find the device; `sysctl user.max_user_namespaces=10000`";
        return Finding::limited(what, "there are no user namespaces", advice);
    }
    Finding::good(what, "with the device in /sys/class/infiniband (rnic run)")
}

/// Only what is wrong with it.
fn log_filter(config: &Config) -> Option<Finding> {
    crate::log::parse(&config.log).err().map(|error| Finding::bad("log filter", &error))
}

fn control_socket(config: &Config) -> Finding {
    let what = "control socket";
    match crate::control_socket::listen(config) {
        Ok(_) => Finding::good(what, config.socket.display().to_string()),
        Err(error) => Finding::bad(what, &error),
    }
}

fn metrics(config: &Config) -> Option<Finding> {
    let (what, address) = ("metrics", config.metrics.as_ref()?);
    Some(match crate::metrics::check(address) {
        Ok(()) => Finding::good(what, address.to_string()),
        Err(error) => Finding::bad(what, &error),
    })
}

fn network(config: &Config) -> Vec<Finding> {
    let what = match config.netdev {
        Some(_) => "interface",
        None => "addresses",
    };
    let opened = Claims::new(config.netdev.as_deref(), discard)
        .context("cannot look for other daemons")
        .and_then(|claims| start_network(config, &Arc::new(claims), &Arc::default()));
    let network = match opened {
        Ok(network) => network,
        Err(error) => return vec![Finding::bad(what, &error)],
    };
    let mut findings = vec![port(config, &network)];
    findings.push(match wire::open(&wire_config(config), &network) {
        Ok(wire) if config.io == Io::Auto => {
            Finding::good("packet I/O", format!("{}, the best for this interface", wire.mode()))
        }
        Ok(wire) => Finding::good("packet I/O", wire.mode()),
        Err(error) => Finding::bad("packet I/O", &explain_wire(config, error)),
    });
    findings
}

fn port(config: &Config, network: &Network) -> Finding {
    let (port, gids) = (network.port(), network.gids());
    let addresses = gids.iter().map(|entry| Ipv6Addr::from(entry.gid).to_canonical().to_string());
    let addresses: Vec<_> = addresses.collect();
    let name = config.netdev.as_deref().unwrap_or("lo");
    let path_mtu = 128_u32 << port.active_mtu;
    let found = format!(
        "{name}: {}, MTU {}, path MTU {path_mtu}",
        if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") },
        port.netdev_mtu
    );
    if addresses.is_empty() {
        let advice = format!("`ip address add ADDRESS dev {name}`; the daemon follows it");
        return Finding::limited("interface", found, advice);
    }
    if !network.interface().up {
        return Finding::limited("interface", found, format!("`ip link set {name} up`"));
    }
    if port.active_mtu < port.max_mtu {
        let advice = format!("`ip link set {name} mtu 4200` for a path MTU of 4096");
        return Finding::limited("interface", found, advice);
    }
    Finding::good("interface", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_advice_below_it() {
        let found = Finding::limited("interface", "eth1: MTU 1500", "use more");
        assert_eq!(
            found.to_string(),
            "limited  interface       eth1: MTU 1500\n                         use more"
        );
        assert_eq!(size(5 << 30), "5 GiB");
        assert_eq!(size(100 << 20), "100 MiB");
    }

    #[test]
    fn memory_of_this_process_can_be_read() {
        assert!(memory_access().verdict != Verdict::Bad);
    }
}
