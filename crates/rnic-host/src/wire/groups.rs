//! How the interface is made to take what is sent to a multicast group.
//!
//! The kernel keeps the memberships: it tells routers and switches of them (IGMP, MLD) and has the
//! interface take the group's Ethernet address. Joining may take as long as the kernel's lock of
//! its network configuration is held, so that threads of the control plane join, and engines only
//! get what came of it.

use rnic_net::Incarnation;
use roce_wire::ROCE_PORT;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use xdp_io::multicast;
use xdp_io::udp::{UdpConfig, group_socket};

/// Joins groups for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Joiner {
    /// A UDP socket receives for each group; the kernel also gives it what this host sends there.
    Sockets {
        /// Which one is a member.
        interface: Incarnation,
    },
    /// Frames of the group are received like those to own addresses, and not what this host sends.
    Frames {
        /// Which one is a member.
        interface: Incarnation,
    },
    /// There is no network: groups are within the device.
    #[default]
    Inside,
}

/// What makes the device a member of a group while it exists.
#[derive(Debug, Default)]
pub struct Membership {
    fd: Option<OwnedFd>,
    /// Which interface is a member; that of index 0 where it is unknown.
    interface: Incarnation,
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
                Some(group_socket(group, ROCE_PORT, interface.index, buffer)?)
            }
            Self::Frames { interface } => {
                Some(multicast::Membership::join(interface.index, group)?.into())
            }
            Self::Inside => None,
        };
        Ok(Membership { fd, interface: self.interface() })
    }

    /// Which interface is made a member; that of index 0 without.
    pub fn interface(self) -> Incarnation {
        match self {
            Self::Sockets { interface } | Self::Frames { interface } => interface,
            Self::Inside => Incarnation::default(),
        }
    }

    /// The same on this interface.
    #[must_use]
    pub fn on(self, interface: Incarnation) -> Self {
        match self {
            Self::Sockets { .. } => Self::Sockets { interface },
            Self::Frames { .. } => Self::Frames { interface },
            Self::Inside => Self::Inside,
        }
    }

    /// Ends a membership of which another process has a copy.
    pub fn end(self, group: IpAddr, membership: &Membership) {
        if let Self::Sockets { .. } = self
            && let Err(error) = membership.leave(group)
        {
            tracing::warn!("cannot leave the multicast group {group}: {error}");
        }
    }
}

impl Membership {
    /// The same once more, to [leave](Self::leave) with.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn copy(&self) -> io::Result<Self> {
        let fd = self.fd.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { fd, interface: self.interface })
    }

    /// Ends it, whatever has copies. A membership of an interface that went must end before there
    /// is one of the interface that came with the same index: the kernel would end that one.
    ///
    /// # Errors
    /// When it has ended.
    pub fn leave(&self, group: IpAddr) -> xdp_io::Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        multicast::leave(fd.as_fd(), self.interface.index, group)
    }

    /// The descriptor, to be sent.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Which interface is a member; that of index 0 where it is unknown.
    pub fn interface(&self) -> Incarnation {
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
        Self { fd: Some(fd), interface: Incarnation::default() }
    }
}
