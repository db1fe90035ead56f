//! Opens the device's packet I/O, and chooses it for `--io auto`.
//!
//! | the device sits on | packet I/O | why (measured: 4 KiB packets, veth, two cores) |
//! |---|---|---|
//! | `lo`, or addresses without `--netdev` | `udp` | AF_XDP and AF_PACKET see no traffic between addresses of one host |
//! | hardware | `af-xdp` (zero-copy, else native, else generic), then `af-packet`, then `udp` | no copy, shortest path; headers and source ports are ours |
//! | a virtual link (veth, tap, bridge, vlan, ...) | `udp` | trains: 70 Gbit/s, where AF_XDP copies every frame (13 Gbit/s, though with half the round trip: 2.5 against 5.0 us) |
//! | a virtual link whose addresses have UDP port 4791 taken | `af-packet` | trains with headers of our own: 46 Gbit/s; needs no port |
//!
//! Before Linux 6.2 `af-packet` has no trains and costs several times what `udp` costs: it is then
//! the last choice everywhere.
//!
//! Whatever lacks a privilege or is not supported falls through to the next choice.

use super::packet::PacketWire;
use super::udp::{self, UdpWire};
use super::xdp::XdpWire;
use super::{DeviceWire, Joiner, Link, Links};
use crate::settings::{Io, XdpMode, name_of};
use rnic_net::{Change, Incarnation, Interface, Network};
use std::sync::Arc;
use xdp_io::udp::SteeredPort;
use xdp_io::xsk;

/// How frames leave and arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireConfig {
    /// Packet I/O.
    pub io: Io,
    /// How AF_XDP attaches.
    pub xdp_mode: XdpMode,
    /// Whether AF_PACKET carries trains: the kernel must know them.
    pub trains: bool,
    /// Whether there are engine processes of other users.
    pub users: bool,
}

/// Why there is no way outside; the text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WireError(String);

/// What AF_PACKET without trains is called.
const SINGLE_FRAMES: &str = "af-packet, single frames (trains need Linux 6.2)";

/// Links, and what they are called.
struct Opened {
    mode: String,
    links: Links,
}

/// Sockets of engine processes beside a link of frames, and the link to them.
type Local = Option<(Arc<SteeredPort>, UdpWire)>;

impl Opened {
    /// Frames on this interface. What is for several engines at a time leaves and arrives through
    /// sockets.
    fn new(
        mode: impl Into<String>,
        interface: Incarnation,
        link: impl Link + 'static,
        local: Local,
    ) -> Self {
        let joiner = match local {
            Some(_) => Joiner::Sockets { interface },
            None => Joiner::Frames { interface },
        };
        let (shared, local) = local.unzip();
        let local = local.map(|link| Box::new(link) as Box<dyn Link>);
        let links = Links { joiner, outside: Some(Box::new(link)), local, shared };
        Self { mode: mode.into(), links }
    }
}

/// Opens the device's wire on its network.
///
/// # Errors
/// [`WireError`], also when `--io auto` finds no way at all.
pub fn open(config: &WireConfig, network: &Network) -> Result<DeviceWire, WireError> {
    let interface = network.interface();
    let opener = LinkOpener { network, interface, now: network.now(), users: config.users };
    let opened = match config.io {
        Io::Loopback => {
            let mode = "loopback".to_owned();
            return Ok(DeviceWire::new(mode, Links::default(), network.hops()));
        }
        Io::Udp => opener.udp(),
        Io::AfXdp => opener.xdp(config.xdp_mode),
        Io::AfPacket => opener.packet(config.trains),
        Io::Auto => opener.best(config),
    };
    let Opened { mode, links } = opened.map_err(WireError)?;
    let name = &opener.interface.name;
    tracing::info!("packet I/O {mode} on {name}, addresses {:?}", opener.now.addresses);
    Ok(DeviceWire::new(mode, links, network.hops()))
}

/// Opens the link of a device: its interface and what the network has at the moment.
struct LinkOpener<'a> {
    network: &'a Network,
    interface: Interface,
    now: Change,
    users: bool,
}

impl LinkOpener<'_> {
    fn udp(&self) -> Result<Opened, String> {
        let scope = if self.interface.loopback { 0 } else { self.interface.index };
        let shared = match self.users {
            true => udp::shared_port(scope, false),
            false => Some(udp::own_port(scope)),
        };
        let wire = UdpWire::new(&self.now, scope, shared.clone(), self.network.hops())
            .map_err(|error| error.to_string())?;
        self.network.set_kernel_sends(true);
        let outside: Option<Box<dyn Link>> = Some(Box::new(wire));
        let joiner = Joiner::Sockets { interface: self.now.interface };
        Ok(Opened { mode: "udp".to_owned(), links: Links { joiner, outside, local: None, shared } })
    }

    fn xdp(&self, mode: XdpMode) -> Result<Opened, String> {
        self.refuse_loopback("AF_XDP")?;
        let mode = match mode {
            XdpMode::Auto => xsk::XdpMode::Auto,
            XdpMode::ZeroCopy => xsk::XdpMode::ZeroCopy,
            XdpMode::Native => xsk::XdpMode::Native,
            XdpMode::Generic => xsk::XdpMode::Generic,
        };
        let local = self.local();
        let steer = local.as_ref().map(|_| udp::STEER);
        let wire =
            XdpWire::new(&self.interface.name, mode, (&self.now, steer), self.network.hops())
                .map_err(|error| error.to_string())?;
        self.network.set_kernel_sends(false);
        if wire.loses_trains() && self.interface.kind.is_some() {
            tracing::warn!(
                "AF_XDP in generic mode before Linux 6.6 loses what a peer on this host sends in \
                 trains (its --io udp, or af-packet): if there is one, use --io udp or --xdp-mode \
                 native here"
            );
        }
        Ok(Opened::new(wire.describe(), self.now.interface, wire, local))
    }

    fn packet(&self, trains: bool) -> Result<Opened, String> {
        self.refuse_loopback("AF_PACKET")?;
        let local = self.local().map(|(shared, link)| (shared, link.beside_a_tap()));
        let steer = local.as_ref().map(|_| udp::STEER);
        let hops = self.network.hops();
        let wire = PacketWire::new(&self.interface.name, trains, (&self.now, steer), hops)
            .map_err(|error| error.to_string())?;
        self.network.set_kernel_sends(false);
        let mode = if trains { "af-packet" } else { SINGLE_FRAMES };
        Ok(Opened::new(mode, self.now.interface, wire, local))
    }

    /// The sockets of other users' engine processes beside frames; none where they cannot be had.
    fn local(&self) -> Local {
        if !self.users {
            return None;
        }
        let scope = self.interface.index;
        let shared = udp::shared_port(scope, true)?;
        match UdpWire::new(&self.now, scope, Some(Arc::clone(&shared)), self.network.hops()) {
            Ok(wire) => Some((shared, wire)),
            Err(error) => {
                udp::tell_of_hand_over(&error);
                None
            }
        }
    }

    fn refuse_loopback(&self, what: &str) -> Result<(), String> {
        if self.interface.loopback {
            let advice = "use --io udp, or name --netdev";
            return Err(format!("{what} on lo reaches no other host; {advice}"));
        }
        Ok(())
    }

    /// The table in the [module's documentation](self).
    fn best(&self, config: &WireConfig) -> Result<Opened, String> {
        let on_link = self.network.netdev_was_given() && !self.interface.loopback;
        let hardware = self.interface.kind.is_none();
        let choices: &[Io] = match (on_link, hardware) {
            (false, _) => &[Io::Udp],
            (true, true) if config.trains => &[Io::AfXdp, Io::AfPacket, Io::Udp],
            (true, true) => &[Io::AfXdp, Io::Udp, Io::AfPacket],
            (true, false) => &[Io::Udp, Io::AfPacket],
        };
        let mut reasons = Vec::new();
        for choice in choices {
            let opened = match choice {
                Io::AfXdp => self.xdp(config.xdp_mode),
                Io::AfPacket => self.packet(config.trains),
                _ => self.udp(),
            };
            match opened {
                Ok(link) => return Ok(link),
                Err(reason) => {
                    tracing::info!("packet I/O {} is not possible: {reason}", name_of(choice));
                    reasons.push(reason);
                }
            }
        }
        Err(reasons.join("; "))
    }
}
