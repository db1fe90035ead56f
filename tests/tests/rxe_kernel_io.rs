//! Our own daemons inside the emulated machine: every kind of packet I/O on the kernel of Debian
//! 12, which is older than some of what they use.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::inspect::total;
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::programs::Dialogue;
use system_tests::remote_node::{Home, RemoteDaemon, RemoteNode};
use system_tests::rxe::{Guest, Image, Machine};

/// Two namespaces of the guest, joined by a veth pair.
const WIRE: &str = "
set -e
mkdir -p /var
ln -s /run /var/run
ip link add left type veth peer name right
host=0
for side in left right; do
    host=$((host + 1))
    ip netns add $side
    ip link set $side netns $side name eth0
    ip -n $side link set lo up
    ip -n $side address add 10.77.0.$host/24 dev eth0
    ip -n $side link set eth0 mtu 4200 up
done
";

/// Packet I/O, further arguments of a daemon, and how the daemon describes it.
type Kind = (Io, &'static str, &'static str);

const UDP: Kind = (Io::Udp, "", "udp");
const AUTO: Kind = (Io::Auto, "", "udp");
const PACKET: Kind = (Io::AfPacket, "", "af-packet, single frames (trains need Linux 6.2)");
const NATIVE: Kind = (Io::AfXdp, "--xdp-mode native", "af-xdp native");
const GENERIC: Kind = (Io::AfXdp, "--xdp-mode generic", "af-xdp generic");

/// What is run over MTU 4200 and over MTU 1500. Frames of AF_XDP must fit a page on this kernel.
const WIRES: [(u32, &[[Kind; 2]]); 2] = [
    (4200, &[[UDP, UDP], [PACKET, PACKET], [PACKET, UDP], [AUTO, AUTO]]),
    (1500, &[[NATIVE, UDP], [GENERIC, GENERIC], [PACKET, NATIVE]]),
];

/// Both directions carry data that the receiver compares.
const PROGRAM: &str = "ibv_rc_pingpong -c -s 65536 -n 100";

/// Counters that must stay 0 on a link that loses nothing.
const FAULTS: [&str; 3] = ["link_tx_errors", "link_rx_malformed", "link_rx_errors"];

#[test]
fn every_packet_io_on_the_kernel_of_debian_12() -> Result<()> {
    let name = "every_packet_io_on_the_kernel_of_debian_12";
    let Some(_lab) = Lab::open(name, Need::Guest, &[])? else { return Ok(()) };
    let netns = Netns::new("kernel")?;
    let address = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
    let machine = Machine { cpus: 2, memory: 1024, ..Machine::new("tap1", address) };
    let guest = Guest::boot(&Image::get()?, &netns, &machine)?;
    guest.check(WIRE)?;
    let table = Table { guest: &guest, home: Home::in_guest(&guest, Dist::get()?)? };
    for (mtu, pairs) in WIRES {
        table.set_mtu(mtu)?;
        for kinds in pairs {
            let what = format!("{} and {} at MTU {mtu}", kinds[0].2, kinds[1].2);
            table.converse(*kinds).with_context(|| what.clone())?;
            eprintln!("{what}: well");
        }
    }
    table.daemon(0, GENERIC)?.expect("use --io udp or --xdp-mode native")?;
    table.set_mtu(4200)?;
    for kind in [NATIVE, GENERIC] {
        table.refuses(kind, "lower the MTU with `ip link set eth0 mtu 3822`")?;
    }
    table.falls_back_beside_rxe()
}

/// The guest with its wire.
struct Table<'a> {
    guest: &'a Guest,
    home: Home,
}

impl Table<'_> {
    fn set_mtu(&self, mtu: u32) -> Result<()> {
        for side in ["left", "right"] {
            self.guest.check(&format!("ip -n {side} link set eth0 mtu {mtu}"))?;
        }
        Ok(())
    }

    fn node(&self, side: usize) -> RemoteNode<'_> {
        RemoteNode {
            shell: self.guest,
            netns: Some(["left", "right"][side].to_owned()),
            netdev: "eth0".to_owned(),
            address: Ipv4Addr::new(10, 77, 0, side as u8 + 1).into(),
            cpu: side as u32,
        }
    }

    fn daemon(&self, side: usize, (io, extra, _): Kind) -> Result<RemoteDaemon<'_>> {
        let folder = ["/run/0", "/run/1"][side];
        self.guest.check(&format!("mkdir -p {folder}"))?;
        RemoteDaemon::start(&self.node(side), &self.home, Path::new(folder), (io, extra))
    }

    /// Two programs move data, and the daemons report which packet I/O they use.
    fn converse(&self, kinds: [Kind; 2]) -> Result<()> {
        let (left, right) = (self.daemon(0, kinds[0])?, self.daemon(1, kinds[1])?);
        let done = Dialogue::new(PROGRAM).run(left.player(), right.player());
        done.with_context(|| format!("left: {}\nright: {}", left.log(), right.log()))?;
        for (daemon, kind) in [(&left, kinds[0]), (&right, kinds[1])] {
            daemon.expect(&format!("packet I/O {} on eth0", kind.2))?;
            let counters = daemon.ask("counters")?;
            for name in FAULTS {
                let count = total(&counters, name).unwrap_or(0);
                ensure!(count == 0, "{name} is {count}: {counters:#}");
            }
        }
        Ok(())
    }

    /// On this machine's interface AF_XDP is impossible at this MTU, and rxe has the UDP port.
    fn falls_back_beside_rxe(&self) -> Result<()> {
        let node = RemoteNode { netns: None, ..self.node(0) };
        let folder = Path::new("/run");
        let daemon = RemoteDaemon::start(&node, &self.home, folder, (AUTO.0, AUTO.1))?;
        let used = format!("packet I/O {} on eth0", PACKET.2);
        ["packet I/O af-xdp is not possible", "packet I/O udp is not possible", &used]
            .iter()
            .try_for_each(|text| daemon.expect(text))
    }

    /// The daemon refuses what this kernel cannot do, and says what to do instead.
    fn refuses(&self, kind: Kind, advice: &str) -> Result<()> {
        let error = self.daemon(0, kind).err().map(|error| format!("{error:#}"));
        let error = error.with_context(|| format!("{} works at this MTU", kind.2))?;
        ensure!(error.contains(advice), "{error}");
        eprintln!("{error}");
        Ok(())
    }
}
