//! How the interface is made to take what is sent to a multicast group.
//!
//! The kernel keeps the memberships: it tells routers and switches of them (IGMP, MLD) and has the
//! interface take the group's Ethernet address. Joining may take as long as the kernel's lock of
//! its network configuration is held, so that threads of the control plane join, and engines only
//! get what came of it.

use roce_wire::ROCE_PORT;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use xdp_io::multicast;
use xdp_io::udp::{UdpConfig, group_socket};

/// Joins groups for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Joiner {
    /// A UDP socket receives for each group; the kernel also gives it what this host sends there.
    Sockets {
        /// Index.
        interface: u32,
    },
    /// Frames of the group are received like those to own addresses, and not what this host sends.
    Frames {
        /// Index.
        interface: u32,
    },
    /// There is no network: groups are within the device.
    #[default]
    Inside,
}

/// What makes the device a member of a group while it exists.
#[derive(Debug, Default)]
pub struct Membership {
    fd: Option<OwnedFd>,
    /// Index of the interface that is a member; 0 unknown.
    interface: u32,
}

impl Joiner {
    /// Joins `group`, a multicast address.
    ///
    /// # Errors
    /// When there are too many open files, or memberships on this host.
    pub fn join(self, group: IpAddr) -> xdp_io::Result<Membership> {
        let fd = match self {
            Self::Sockets { interface } => {
                let buffer = UdpConfig::new(Vec::new(), ROCE_PORT).socket_buffer_bytes;
                Some(group_socket(group, ROCE_PORT, interface, buffer)?)
            }
            Self::Frames { interface } => {
                Some(multicast::Membership::join(interface, group)?.into())
            }
            Self::Inside => None,
        };
        Ok(Membership { fd, interface: self.interface() })
    }

    /// Of the interface; 0 without.
    pub fn interface(self) -> u32 {
        match self {
            Self::Sockets { interface } | Self::Frames { interface } => interface,
            Self::Inside => 0,
        }
    }

    /// The same on the interface of this index.
    #[must_use]
    pub fn on(self, interface: u32) -> Self {
        match self {
            Self::Sockets { .. } => Self::Sockets { interface },
            Self::Frames { .. } => Self::Frames { interface },
            Self::Inside => Self::Inside,
        }
    }

    /// Ends a membership of which another process has a copy.
    pub fn end(self, group: IpAddr, membership: &Membership) {
        let interface = membership.interface;
        if let (Self::Sockets { .. }, Some(fd)) = (self, &membership.fd)
            && let Err(error) = multicast::leave(fd.as_fd(), interface, group)
        {
            tracing::warn!("cannot leave the multicast group {group}: {error}");
        }
    }
}

impl Membership {
    /// The descriptor, to be sent.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Index of the interface that is a member; 0 where it is unknown.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Its socket, where it has one.
    pub(super) fn into_socket(self) -> Option<OwnedFd> {
        self.fd
    }
}

impl From<OwnedFd> for Membership {
    /// As it was sent.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), interface: 0 }
    }
}
