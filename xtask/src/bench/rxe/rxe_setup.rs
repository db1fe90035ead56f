//! The veth pair that both stacks are measured on, and rxe's devices on it, as shell scripts: the
//! same for a guest and for this machine.
//!
//! rxe of older kernels works in the initial network namespace only, so both ends are in it, and
//! policy routing sends packets between two addresses of one host over the veth pair. For that, the
//! lookup of local addresses moves behind rules for these two addresses; nothing else is changed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use system_tests::daemon::Io;
use system_tests::remote_node::{Home, Player, RemoteDaemon, RemoteNode, Shell};

const SIDES: [&str; 2] = ["a", "b"];
/// Followed by the side.
const NETDEV: &str = "rnicv";
const RXE: &str = "rnicrxe";
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2)];

/// The new rules are added before the rule that they replace is removed.
const LAY: &str = "
set -e
ip link add rnicva address 02:00:00:00:79:01 type veth \
    peer name rnicvb address 02:00:00:00:79:02
for side in a b; do
    echo 1 > /proc/sys/net/ipv4/conf/rnicv$side/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/rnicv$side/rp_filter
    ip link set rnicv$side mtu 4200 up
done
ip address add 10.79.0.1/32 dev rnicva
ip address add 10.79.0.2/32 dev rnicvb
ip neighbour add 10.79.0.2 lladdr 02:00:00:00:79:02 dev rnicva
ip neighbour add 10.79.0.1 lladdr 02:00:00:00:79:01 dev rnicvb
ip route add 10.79.0.2/32 dev rnicva src 10.79.0.1 table 7901
ip route add 10.79.0.1/32 dev rnicvb src 10.79.0.2 table 7902
ip rule add pref 1 iif rnicva lookup local
ip rule add pref 2 iif rnicvb lookup local
ip rule add pref 3 to 10.79.0.2 lookup 7901
ip rule add pref 4 to 10.79.0.1 lookup 7902
ip rule add pref 5 lookup local
ip rule delete pref 0
";

/// Undoes what [`LAY`] and [`RXE_ON`] did, and nothing else.
const LIFT: &str = "
exec 2> /dev/null
rdma link delete rnicrxea
rdma link delete rnicrxeb
ip link show rnicva > /dev/null || exit 0
ip rule show | grep -q '^0:' || ip rule add pref 0 lookup local
ip rule delete pref 5 lookup local
ip rule delete pref 4 to 10.79.0.1 lookup 7902
ip rule delete pref 3 to 10.79.0.2 lookup 7901
ip rule delete pref 2 iif rnicvb lookup local
ip rule delete pref 1 iif rnicva lookup local
ip link delete rnicva
";

/// `$load` is the command that loads the module.
const RXE_ON: &str = "
set -e
[ -e /sys/module/rdma_rxe ] || $load
for side in a b; do
    rdma link add rnicrxe$side type rxe netdev rnicv$side
done
for side in a b; do
    tries=0
    until grep -q ACTIVE /sys/class/infiniband/rnicrxe$side/ports/1/state; do
        tries=$((tries + 1))
        [ $tries -lt 50 ]
        sleep 0.1
    done
done
";

const RXE_OFF: &str = "
set -e
rdma link delete rnicrxea
rdma link delete rnicrxeb
";

/// A device that was removed keeps the module in use for a moment.
const UNLOAD: &str = "
for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -e /sys/module/rdma_rxe ] || exit 0
    rmmod rdma_rxe 2> /dev/null || sleep 0.3
done
rmmod rdma_rxe
";

/// What one side runs its programs with.
pub(super) enum Stack<'a> {
    Ours([RemoteDaemon<'a>; 2]),
    Rxe([Player<'a>; 2]),
}

impl Stack<'_> {
    pub(super) fn players(&self) -> [&Player<'_>; 2] {
        match self {
            Self::Ours(daemons) => daemons.each_ref().map(RemoteDaemon::player),
            Self::Rxe(players) => players.each_ref(),
        }
    }

    /// What the daemons logged, to explain a failure.
    pub(super) fn logs(&self) -> String {
        match self {
            Self::Ours(daemons) => daemons.iter().map(RemoteDaemon::log).collect(),
            Self::Rxe(_) => String::new(),
        }
    }
}

/// A machine with the link, which is removed on drop.
pub(super) struct RxeSetup<'a> {
    pub(super) shell: &'a dyn Shell,
    /// Where our programs are.
    pub(super) home: Home,
    /// Where sockets can be made.
    pub(super) folder: PathBuf,
    /// The shell command that loads rxe's module.
    pub(super) load: &'static str,
    /// The module was there before, and stays. It holds UDP port 4791 of all addresses, also
    /// without a device.
    pub(super) keeps_rxe: bool,
}

impl<'a> RxeSetup<'a> {
    /// Sets up the link.
    pub(super) fn lay(&self) -> Result<()> {
        // Left by a killed run.
        self.lift();
        self.shell.check(LAY)?;
        Ok(())
    }

    fn lift(&self) {
        if let Err(error) = self.shell.clean_up(LIFT) {
            eprintln!("the wire is not all gone: {error:#}");
        }
    }

    fn node(&self, side: usize) -> RemoteNode<'a> {
        RemoteNode {
            shell: self.shell,
            netns: None,
            netdev: format!("{NETDEV}{}", SIDES[side]),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cpu: side as u32,
        }
    }

    /// Starts our daemons. rxe must not be loaded meanwhile: it would answer our packets, and it
    /// has the port that UDP sockets need.
    pub(super) fn ours(&self, io: Io) -> Result<Stack<'a>> {
        if !self.keeps_rxe {
            self.shell.check(UNLOAD)?;
        }
        let start =
            |side| RemoteDaemon::start(&self.node(side), &self.home, &self.folder, (io, ""));
        Ok(Stack::Ours([start(0)?, start(1)?]))
    }

    /// rxe's devices, until [`RxeSetup::rxe_off`].
    pub(super) fn rxe(&self) -> Result<Stack<'a>> {
        self.shell.check(&format!("load='{}'\n{RXE_ON}", self.load))?;
        Ok(Stack::Rxe([self.device(0)?, self.device(1)?]))
    }

    pub(super) fn rxe_off(&self) -> Result<()> {
        self.shell.check(RXE_OFF)?;
        Ok(())
    }

    fn device(&self, side: usize) -> Result<Player<'a>> {
        let device = format!("{RXE}{}", SIDES[side]);
        let gids = format!("/sys/class/infiniband/{device}/ports/1/gids");
        let listed = self.shell.check(&format!("cd {gids}; cat 0 1 2 3 4 5 6 7"))?;
        let wanted: Ipv6Addr = ADDRESSES[side].to_ipv6_mapped();
        let at = listed.lines().position(|gid| gid.trim().parse() == Ok(wanted));
        let at = at.with_context(|| format!("{device} has no GID for {wanted}:\n{listed}"))?;
        let node = self.node(side);
        Ok(Player { node, variables: String::new(), device, gid_index: u32::try_from(at)? })
    }
}

impl Drop for RxeSetup<'_> {
    fn drop(&mut self) {
        self.lift();
        if !self.keeps_rxe
            && let Err(error) = self.shell.clean_up(UNLOAD)
        {
            eprintln!("rdma_rxe stays loaded: {error:#}");
        }
    }
}
