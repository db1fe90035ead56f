//! The XDP program that steers frames to AF_XDP sockets, and its attachment.
//!
//! The program is assembled by [`filter`](self) in Rust, so that neither building nor running
//! needs a compiler for eBPF. As C it would read:
//!
//! ```c
//! struct { __uint(type, BPF_MAP_TYPE_XSKMAP); ... } sockets;          // queue -> AF_XDP socket
//! struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __be32); ... } v4;
//! struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, struct in6_addr); ... } v6;
//!
//! SEC("xdp.frags")
//! int steer(struct xdp_md *ctx)
//! {
//!     void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
//!     if (data + 14 > end) return XDP_PASS;
//!     __be16 type = *(__be16 *)(data + 12);
//!     if (type == htons(ETH_P_8021Q) || type == htons(ETH_P_8021AD)) {   // one tag
//!         if (data + 18 > end) return XDP_PASS;
//!         type = *(__be16 *)(data + 16);
//!         data += 4;
//!     }
//!     void *ip = data + 14;
//!     if (type == htons(ETH_P_IP)) {
//!         if (ip + 28 > end || *(__u8 *)ip != 0x45) return XDP_PASS;     // no options
//!         if (*(__u8 *)(ip + 9) != IPPROTO_UDP) return XDP_PASS;
//!         if (*(__be16 *)(ip + 6) & htons(0x3fff)) return XDP_PASS;      // a fragment
//!         if (*(__be16 *)(ip + 22) != htons(PORT)) return XDP_PASS;
//!         if (!bpf_map_lookup_elem(&v4, ip + 16)) return XDP_PASS;
//!     } else if (type == htons(ETH_P_IPV6)) {
//!         if (ip + 48 > end || *(__u8 *)ip >> 4 != 6) return XDP_PASS;
//!         if (*(__u8 *)(ip + 6) != IPPROTO_UDP) return XDP_PASS;         // no extension headers
//!         if (*(__be16 *)(ip + 42) != htons(PORT)) return XDP_PASS;
//!         if (!bpf_map_lookup_elem(&v6, ip + 24)) return XDP_PASS;
//!     } else
//!         return XDP_PASS;
//!     if (STEER) {                                         // the rest is for sockets of others
//!         if (payload + OFFSET + 1 > end) return XDP_PASS;
//!         if (*(__u8 *)(payload + OFFSET) >> SHIFT != 0) return XDP_PASS;
//!     }
//!     return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
//! }
//! ```
//!
//! The last argument says what happens on a queue without a socket: the kernel keeps the frame.
//! In generic mode the kernel may have moved a VLAN tag out of the frame before the program runs
//! (a tag set by a VLAN interface of a veth peer); such frames look untagged.

pub(crate) mod asm;
mod filter;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::bpf::{self, MapKind, ProgramKind};
use crate::udp::SteerBy;
use crate::{Error, Result, netdev};

/// Addresses the program can hold, per family.
const MAX_ADDRESSES: u32 = 4096;
/// Queues the program can steer to.
pub(crate) const MAX_QUEUES: u32 = 256;

/// Where in the kernel the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver, before the kernel makes a packet of the frame.
    Native,
    /// After that; works on every interface, loopback included.
    Generic,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AttachMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            AttachMode::Native => "native",
            AttachMode::Generic => "generic",
        }
    }

    /// XDP_FLAGS_* of `linux/if_link.h`.
    fn flags(self) -> u32 {
        match self {
            AttachMode::Generic => 1 << 1,
            AttachMode::Native => 1 << 2,
        }
    }
}

/// A loaded and attached program. It is detached when this value is dropped or the process ends,
/// by whatever cause.
#[derive(Debug)]
pub struct XdpProgram {
    /// Held open: the attachment ends when it is closed.
    _link: OwnedFd,
    sockets: OwnedFd,
    v4: OwnedFd,
    v6: OwnedFd,
    mode: AttachMode,
    interface: String,
}

impl XdpProgram {
    /// Loads the program for UDP destination port `port`, with `steer` only for what names
    /// receiver 0 of a [`SteeredPort`](crate::udp::SteeredPort), and attaches it to `interface`.
    /// It steers nothing before addresses are added.
    ///
    /// # Errors
    /// [`Error::Privilege`], [`Error::AlreadyAttached`], [`Error::ModeUnsupported`],
    /// [`Error::MtuTooLarge`], [`Error::InterfaceMissing`], [`Error::ProgramRejected`].
    pub fn attach(
        interface: &str,
        port: u16,
        steer: Option<SteerBy>,
        mode: AttachMode,
    ) -> Result<XdpProgram> {
        XdpProgram::attach_at((interface, netdev::index(interface)?), port, steer, mode)
    }

    /// The same on the interface of this index, whatever has its name now.
    pub(crate) fn attach_at(
        (interface, ifindex): (&str, u32),
        port: u16,
        steer: Option<SteerBy>,
        mode: AttachMode,
    ) -> Result<XdpProgram> {
        let map = |kind, key, entries| bpf::create_map(kind, key, 4, entries).map_err(map_error);
        let sockets = map(MapKind::XskMap, 4, MAX_QUEUES)?;
        let v4 = map(MapKind::Hash, 4, MAX_ADDRESSES)?;
        let v6 = map(MapKind::Hash, 16, MAX_ADDRESSES)?;
        let maps = filter::Maps { sockets: sockets.as_fd(), v4: v4.as_fd(), v6: v6.as_fd() };
        let code = filter::assemble(port, steer, &maps);
        let program = bpf::load_program(ProgramKind::Xdp, b"xdp_io_steer", &code).map_err(
            |(error, log)| match error.raw_os_error() {
                Some(libc::EPERM) => privilege(),
                _ if !log.is_empty() => Error::ProgramRejected { log },
                _ => Error::Os { operation: "loading the XDP program", source: error },
            },
        )?;
        let link = bpf::create_link(program.as_fd(), ifindex, mode.flags())
            .map_err(|error| attach_error(interface, mode, error))?;
        Ok(XdpProgram { _link: link, sockets, v4, v6, mode, interface: interface.to_owned() })
    }

    /// How the program is attached.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// The interface the program is attached to.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Steers frames to `address` (unicast or multicast) from now on.
    ///
    /// # Errors
    /// [`Error::Os`]; E2BIG when 4096 addresses of the family are present.
    pub fn add_address(&self, address: IpAddr) -> Result<()> {
        let present = [1, 0, 0, 0];
        match address {
            IpAddr::V4(v4) => bpf::update_element(self.v4.as_fd(), &v4.octets(), &present),
            IpAddr::V6(v6) => bpf::update_element(self.v6.as_fd(), &v6.octets(), &present),
        }
        .map_err(Error::os("adding an address to the XDP program"))
    }

    /// Leaves frames to `address` to the kernel from now on; no error when it was not present.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn remove_address(&self, address: IpAddr) -> Result<()> {
        let result = match address {
            IpAddr::V4(v4) => bpf::delete_element(self.v4.as_fd(), &v4.octets()),
            IpAddr::V6(v6) => bpf::delete_element(self.v6.as_fd(), &v6.octets()),
        };
        match result {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(Error::Os {
                operation: "removing an address from the XDP program",
                source: error,
            }),
            _ => Ok(()),
        }
    }

    /// Steers frames of a queue to a bound AF_XDP socket; the kernel undoes it when the socket is
    /// closed.
    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        use std::os::fd::AsRawFd;
        let value = socket.as_raw_fd().to_ne_bytes();
        bpf::update_element(self.sockets.as_fd(), &queue.to_ne_bytes(), &value)
            .map_err(Error::os("giving the socket to the XDP program"))
    }
}

fn privilege() -> Error {
    Error::Privilege { operation: "loading the XDP program", needs: "CAP_BPF and CAP_NET_ADMIN" }
}

fn map_error(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM) => privilege(),
        _ => Error::Os { operation: "creating a BPF map", source: error },
    }
}

fn attach_error(interface: &str, mode: AttachMode, error: io::Error) -> Error {
    let interface = interface.to_owned();
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            Error::Privilege { operation: "attaching the XDP program", needs: "CAP_NET_ADMIN" }
        }
        // EEXIST: a program is attached in the other mode.
        Some(libc::EBUSY | libc::EEXIST) => Error::AlreadyAttached { interface, mode },
        Some(libc::EOPNOTSUPP) => Error::ModeUnsupported { interface, mode: mode.name() },
        // EINVAL: what most drivers say, virtio_net among them.
        Some(libc::ERANGE | libc::EINVAL) if mode == AttachMode::Native => {
            let mtu = netdev::mtu(&interface).unwrap_or(0);
            Error::MtuTooLarge { interface, mtu }
        }
        Some(libc::ENODEV) => Error::InterfaceMissing { interface },
        _ => Error::Os { operation: "attaching the XDP program", source: error },
    }
}
