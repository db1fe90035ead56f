//! Boots a guest, runs commands in it, ends it.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Image;
use super::agent::Link;
use crate::interrupt;
use crate::netns::Netns;
use crate::paths::Scratch;
use crate::place::{Job, Place};
use crate::process::{Cmd, Output, Running, tail, wait_until};
use crate::remote_node::Shell;

/// How long a boot may take; two seconds are usual on an idle machine.
const BOOT: Duration = Duration::from_secs(60);
/// The line that ends the guest's boot.
const READY: &str = "rxe peer ready";
/// The limit of a command that is given none.
const COMMAND: Duration = Duration::from_secs(60);
/// Kernel arguments that save time under emulation and keep the interface names predictable.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet nokaslr mitigations=off cryptomgr.notests \
     random.trust_cpu=on tsc=reliable no_timer_check nowatchdog audit=0 apparmor=0 net.ifnames=0";
/// Options of QEMU's network device that take all offloads from the guest.
const NO_OFFLOADS: &str = ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
     guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// What machine to make.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its end of the wire: the name of a tap interface, made in the namespace.
    pub tap: String,
    /// The bridge of the namespace that the tap joins ([`Netns::add_bridge`]).
    pub bridge: Option<String>,
    /// Its addresses with prefix lengths; the first is the one that it is called by.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The MTU of its interface in bytes. The RoCE path MTU is the largest power of two that
    /// fits with headers: 1500 gives 1024, 4200 gives 4096.
    pub mtu: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Processors.
    pub cpus: u32,
    /// Whether the host may finish what the guest leaves undone: segments and checksums. Without,
    /// every frame on the tap is what a real link would carry.
    pub offloads: bool,
}

impl Machine {
    /// One processor, 512 MiB, MTU 4200, and one address with a /24 or /64 network.
    #[must_use]
    pub fn new(tap: &str, address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 24 } else { 64 };
        Self {
            tap: tap.to_owned(),
            bridge: None,
            addresses: vec![(address, prefix)],
            mtu: 4200,
            memory: 512,
            cpus: 1,
            offloads: true,
        }
    }
}

/// A running guest with `rxe0` ACTIVE; killed on drop.
pub struct Guest {
    link: Link,
    qemu: Running,
    scratch: Scratch,
    address: IpAddr,
    gid_index: u32,
}

impl Guest {
    /// Boots a machine in a namespace.
    ///
    /// # Errors
    /// When QEMU ends early or the guest is not ready within a minute; the error shows its console.
    pub fn boot(image: &Image, netns: &Netns, machine: &Machine) -> Result<Self> {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(23_000);
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let (address, _) = *machine.addresses.first().context("a guest needs an address")?;
        make_tap(netns, machine)?;
        let scratch = Scratch::new("guest")?;
        let console = scratch.join("console");
        let qemu = qemu(image, machine, port, &console, mac_of(port))
            .in_netns(Some(netns.name()))
            .limit(Duration::MAX)
            .start()?;
        let link = Link { netns: netns.name().to_owned(), port };
        let mut guest = Self { link, qemu, scratch, address, gid_index: 0 };
        guest.wait_ready().with_context(|| tail(&guest.console(), 30))?;
        guest.gid_index = guest.find_gid(address)?;
        Ok(guest)
    }

    /// Runs a shell command to its end, whatever its exit status. Standard error is mixed in.
    ///
    /// # Errors
    /// When the agent does not answer, or the command runs out of its minute.
    pub fn run(&self, command: &str) -> Result<Output> {
        Box::new(self.link.start(command, &[], COMMAND)?).wait()
    }

    /// Runs a shell command and returns what it printed.
    ///
    /// # Errors
    /// As [`Guest::run`], and when its exit status is not zero.
    pub fn check(&self, command: &str) -> Result<String> {
        let output = self.run(command)?;
        ensure!(output.success(), "{output}");
        Ok(output.stdout)
    }

    /// Copies a file of the host into the guest and makes it executable.
    ///
    /// # Errors
    /// When the file cannot be read or the guest's memory is full.
    pub fn put(&self, from: &Path, to: &str) -> Result<()> {
        let data =
            std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let command = format!("cat > '{to}' && chmod 755 '{to}'");
        let output = Box::new(self.link.start(&command, &data, COMMAND)?).wait()?;
        ensure!(output.success(), "{output}");
        Ok(())
    }

    /// Copies a file of the guest to the host.
    ///
    /// # Errors
    /// When the guest has no such file or the host's cannot be written.
    pub fn get(&self, from: &str, to: &Path) -> Result<()> {
        let bytes = self.link.start(&format!("cat '{from}'"), &[], COMMAND)?.wait_bytes()?;
        std::fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))
    }

    /// Gives the guest another MTU and other addresses, and a new `rxe0` on them.
    ///
    /// # Errors
    /// When the guest's kernel refuses them.
    pub fn configure(&mut self, mtu: u32, addresses: &[(IpAddr, u8)]) -> Result<()> {
        let (address, _) = *addresses.first().context("a guest needs an address")?;
        let mut command = format!("configure {mtu}");
        for (address, prefix) in addresses {
            write!(command, " {address}/{prefix}")?;
        }
        self.check(&command)?;
        self.address = address;
        self.gid_index = self.find_gid(address)?;
        Ok(())
    }

    /// The MAC address of its wire.
    #[must_use]
    pub fn mac(&self) -> String {
        mac_of(self.link.port)
    }

    /// What the guest's kernel and scripts wrote.
    #[must_use]
    pub fn console(&self) -> String {
        let bytes = std::fs::read(self.scratch.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let console = self.scratch.join("console");
        wait_until("boot of the rxe guest", BOOT, || {
            if let Some(status) = self.qemu.try_status()? {
                bail!("QEMU ended with {status}: {}", self.qemu.stderr());
            }
            let text = std::fs::read(&console).unwrap_or_default();
            Ok(String::from_utf8_lossy(&text).contains(READY))
        })
    }

    fn find_gid(&self, address: IpAddr) -> Result<u32> {
        let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
        let listed =
            self.check(&format!("cd {gids}; for i in 0 1 2 3 4 5 6 7; do cat $i; done"))?;
        let wanted = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let at = listed.lines().position(|gid| gid.trim().parse() == Ok(wanted));
        let at = at.with_context(|| format!("rxe0 has no GID for {address}:\n{listed}"))?;
        Ok(u32::try_from(at)?)
    }
}

impl Shell for Guest {
    fn start(&self, script: &str, limit: Duration) -> Result<Box<dyn Job>> {
        Ok(Box::new(self.link.start(script, &[], limit)?))
    }

    /// The guest is discarded with everything in it, so an interrupt leaves nothing to undo.
    fn clean_up(&self, script: &str) -> Result<()> {
        match interrupt::check() {
            Ok(()) => self.check(script).map(drop),
            Err(_) => Ok(()),
        }
    }
}

impl Place for Guest {
    fn device(&self) -> &str {
        "rxe0"
    }

    fn gid_index(&self) -> u32 {
        self.gid_index
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn start(&self, program: &str, args: &[String], limit: Duration) -> Result<Box<dyn Job>> {
        let quoted: Vec<_> = args.iter().map(|arg| format!("'{arg}'")).collect();
        let command = format!("exec {program} {}", quoted.join(" "));
        Ok(Box::new(self.link.start(&command, &[], limit)?))
    }

    fn listens(&self, port: u16) -> Result<bool> {
        let tables = self.check("cat /proc/net/tcp /proc/net/tcp6")?;
        Ok(crate::place::has_listener(&tables, port))
    }
}

/// The tap that QEMU will open, up and with the machine's MTU.
fn make_tap(netns: &Netns, machine: &Machine) -> Result<()> {
    let (tap, mtu) = (machine.tap.as_str(), machine.mtu.to_string());
    netns.ip(&["tuntap", "add", "dev", tap, "mode", "tap", "vnet_hdr"])?;
    netns.ip(&["link", "set", tap, "mtu", &mtu, "up"])?;
    if let Some(bridge) = &machine.bridge {
        netns.ip(&["link", "set", tap, "master", bridge])?;
    }
    Ok(())
}

/// Differs between the guests of a process; a guest finds its link's interface by the prefix.
fn mac_of(port: u16) -> String {
    let [high, low] = port.to_be_bytes();
    format!("52:54:00:00:{high:02x}:{low:02x}")
}

fn qemu(image: &Image, machine: &Machine, port: u16, console: &Path, mac: String) -> Cmd {
    let addresses: Vec<_> =
        machine.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect();
    let arguments =
        format!("{KERNEL_ARGUMENTS} peer.address={} peer.mtu={}", addresses.join(","), machine.mtu);
    let offloads = if machine.offloads { "" } else { NO_OFFLOADS };
    Cmd::new("qemu-system-x86_64")
        // The emulator executes REP MOVSB byte by byte. A kernel that does not see the flag for a
        // fast REP MOVSB copies eight bytes at a time instead.
        .args(["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"])
        .args(["-M", "q35,usb=off,hpet=off"])
        // More than one processor is possible: for a machine with only one, QEMU before 8.1 omits
        // the guest's memory barriers, although its own I/O threads run concurrently. A virtio
        // notification lost that way stalls its queue for ever.
        .args(["-smp", &format!("{0},maxcpus={1}", machine.cpus, machine.cpus + 1)])
        .args(["-m", &machine.memory.to_string()])
        .args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-chardev", &format!("file,id=console,path={}", console.display())])
        .args(["-serial", "chardev:console"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initrd)
        .args(["-append", &arguments])
        .args(["-netdev", &format!("tap,id=wire,ifname={},script=no,downscript=no", machine.tap)])
        .args([
            "-device",
            &format!("virtio-net-pci,netdev=wire,mac={mac},host_mtu=9000,romfile={offloads}"),
        ])
        .args([
            "-netdev",
            &format!(
                "user,id=control,ipv6=off,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:2323"
            ),
        ])
        .args(["-device", "virtio-net-pci,netdev=control,mac=52:54:00:ff:00:01,romfile="])
}
