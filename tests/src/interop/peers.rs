//! The two sides of the suite: a guest with rxe, and a namespace whose NIC of ours shares its link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Kind, Peer, equip};
use crate::daemon::{Daemon, Io, Spec};
use crate::dist::Dist;
use crate::lab::Lab;
use crate::netns::Netns;
use crate::packages::Toolbox;
use crate::place::{Host, Node};
use crate::rxe::{Guest, Image, Machine};

impl Peer for Guest {
    fn kind(&self) -> Kind {
        Kind::Rxe
    }

    fn install(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("a program has a name")?.to_string_lossy();
        self.put(program, &format!("/bin/{name}"))
    }

    fn log(&self) -> String {
        self.console()
    }

    fn state(&self) -> String {
        let ask = "rdma resource show qp; ip -s link show eth0; netstat -s 2>/dev/null; \
             cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *; dmesg | tail -n 20";
        self.run(ask).map_or_else(|error| format!("{error:#}"), |output| output.stdout)
    }
}

/// The guest's end of the link is a tap, which is our NIC's interface.
pub const INTERFACE: &str = "eth0";
/// Interface MTU: path MTU 4096 with headers.
pub const MTU: u32 = 4200;

/// Addresses of a host on the link; host 1 is ours.
#[must_use]
pub fn addresses(host: u8) -> [(IpAddr, u8); 2] {
    let v6 = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, host.into());
    [(Ipv4Addr::new(10, 79, 0, host).into(), 24), (v6.into(), 64)]
}

/// A guest that has the suite's programs, and the namespace that its tap is in.
pub struct RxePeer {
    /// The guest.
    pub guest: Guest,
    tools: Toolbox,
    netns: Netns,
}

impl RxePeer {
    /// Boots the guest and gives its tap our addresses.
    ///
    /// # Errors
    /// When the guest does not boot, or the programs cannot be built.
    pub fn boot(lab: &Lab) -> Result<Self> {
        let netns = Netns::new("interop")?;
        let machine = Machine {
            mtu: MTU,
            addresses: addresses(2).to_vec(),
            ..Machine::new(INTERFACE, addresses(2)[0].0)
        };
        let guest = Guest::boot(&Image::get()?, &netns, &machine)?;
        for (address, prefix) in addresses(1) {
            let address = format!("{address}/{prefix}");
            netns.ip(&["address", "add", &address, "dev", INTERFACE])?;
        }
        equip(&guest)?;
        let tools = lab.tools.clone().with_built(super::programs()?);
        Ok(Self { guest, tools, netns })
    }

    /// A daemon on the tap.
    ///
    /// # Errors
    /// When it is not ready.
    pub fn nic(&self, io: Io, extra: &[&str]) -> Result<Node> {
        let netns = Some(self.netns.name().to_owned());
        let spec = Spec {
            netdev: Some(INTERFACE.into()),
            netns: netns.clone(),
            extra: extra.iter().map(|word| (*word).to_owned()).collect(),
            ..Spec::new(io)
        };
        let dist = Dist::get()?;
        let daemon = Daemon::start(dist, &spec)?;
        let host = Host { netns, ..Host::here(addresses(1)[0].0, &self.tools) };
        Ok(Node::new(daemon, host, dist))
    }

    /// The namespace of the tap.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }
}
