//! Errors of opening a port; each text says what the user can do.

use std::io;
use std::net::IpAddr;

use crate::program::AttachMode;

/// Result of the control operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a control operation. The display text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such network interface in this network namespace.
    #[error("no network interface {interface} in this network namespace; `ip link` lists them")]
    InterfaceMissing { interface: String },
    /// The process lacks a capability.
    #[error("{operation} needs {needs}; run as root, grant the capabilities, or use UDP I/O")]
    Privilege { operation: &'static str, needs: &'static str },
    /// Another XDP program is attached to the interface.
    #[error(
        "another XDP program is attached to {interface} ({mode} was asked for); find it with \
         `ip link show {interface}` and stop its owner, or `ip link set {interface} xdp off`"
    )]
    AlreadyAttached { interface: String, mode: AttachMode },
    /// The driver does not offer the wanted XDP mode.
    #[error("the driver of {interface} does not support XDP mode {mode}; use mode auto or generic")]
    ModeUnsupported { interface: String, mode: &'static str },
    /// The driver refuses XDP at this MTU.
    #[error(
        "the driver of {interface} does not accept XDP at MTU {mtu}; lower the MTU with `ip \
         link set {interface} mtu ...` or use generic mode"
    )]
    MtuTooLarge { interface: String, mtu: u32 },
    /// Frames of this MTU do not fit one chunk of packet memory, and the kernel or the driver does
    /// not spread them over several.
    #[error(
        "AF_XDP cannot carry frames of MTU {mtu} on {interface}: that needs Linux 6.6 and a \
         driver that supports it; lower the MTU with `ip link set {interface} mtu {limit}`, or \
         use AF_PACKET or UDP I/O"
    )]
    FrameTooLong { interface: String, mtu: u32, limit: u32 },
    /// Another AF_XDP socket is bound to this queue.
    #[error(
        "another AF_XDP socket is bound to queue {queue} of {interface}; stop its owner or \
         choose another queue"
    )]
    QueueBusy { interface: String, queue: u32 },
    /// The interface has no such queue.
    #[error(
        "{interface} has no queue {queue}, or the queue does not offer the wanted XDP mode; \
         `ethtool -l {interface}` shows its queues"
    )]
    QueueMissing { interface: String, queue: u32 },
    /// The packet memory could not be pinned.
    #[error(
        "cannot pin {bytes} bytes of packet memory; raise the locked-memory limit (`ulimit -l`, \
         LimitMEMLOCK=) or use fewer frames"
    )]
    MemoryLimit { bytes: usize },
    /// The UDP port is taken on this address.
    #[error(
        "UDP port {port} on {address} is taken: by a kernel rxe device, another daemon of this \
         kind, or another program (`ss -ulnp sport = :{port}` shows it); stop it or use another \
         address"
    )]
    AddressInUse { address: IpAddr, port: u16 },
    /// The address belongs to no interface of this network namespace.
    #[error(
        "{address} is not an address of this host; `ip address` lists them (a link-local IPv6 \
         address also needs its interface)"
    )]
    AddressNotLocal { address: IpAddr },
    /// A setting is out of its range.
    #[error("invalid setting: {0}")]
    InvalidConfig(&'static str),
    /// The kernel's verifier refused the XDP program; its log follows.
    #[error("the kernel rejected the XDP program; verifier log:\n{log}")]
    ProgramRejected { log: String },
    /// Any other failure of a system call.
    #[error("{operation}: {source}")]
    Os { operation: &'static str, source: io::Error },
}

impl Error {
    /// For `map_err`: names the operation that failed.
    pub(crate) fn os(operation: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Os { operation, source }
    }
}
