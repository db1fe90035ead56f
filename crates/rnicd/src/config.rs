//! The daemon's settings: command line and configuration file.
//!
//! The keys of the TOML file are named like the options of the command line, which wins. Settings
//! are checked only against each other here; `net` checks whether an interface exists.

mod address;

pub use address::Address;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rnic_host::quota::{Limits, Machine, Section, UserSection};
use rnic_host::settings::{Idle, Io, Placement, Profile, Settings, XdpMode};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Run an RDMA network card (RoCEv2) on a network interface
///
/// Without options it serves 127.0.0.1 and ::1 through the kernel's UDP sockets, which needs no
/// privilege. Programs find it by themselves when they run with soft-rnic's libraries: `rnic run`.
#[derive(Parser, Clone, Debug, Default)]
// The service has options of its own in front of the user's, which were refused otherwise.
#[command(name = "rnicd", version, args_override_self = true)]
pub struct Args {
    /// Read options from this TOML file; the command line wins. Its sections `[quota]` and
    /// `[total]` limit what each user, and all users together, may have: sessions, descriptors,
    /// mappings, ring-bytes, shared-bytes, registered-bytes, device-memory-bytes, qps, cqs, mrs,
    /// pds, channels, ahs
    ///
    /// With SIGHUP (`systemctl reload`) the daemon reads it again: `log`, `metrics`, `mode`,
    /// `[quota]` except `groups`, and `[total]` change at once. The log names other keys that have
    /// changed, which need a restart.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the RDMA device [default: rnic0]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Network interface whose addresses and MTU the device has
    #[arg(long, value_name = "IFACE")]
    pub netdev: Option<String>,
    /// Packet I/O [default: auto]
    #[arg(long, value_enum)]
    pub io: Option<Io>,
    /// How AF_XDP attaches to the interface [default: auto]
    #[arg(long, value_enum)]
    pub xdp_mode: Option<XdpMode>,
    /// Serve this address only; may be repeated [default: the interface's, or 127.0.0.1 and ::1]
    #[arg(long = "address", value_name = "IP")]
    pub addresses: Vec<IpAddr>,
    /// Control socket [default: $RNIC_SOCKET, /run/rnicd/rnicd.sock for root, else
    /// $XDG_RUNTIME_DIR/rnicd.sock or /tmp/rnicd-UID/rnicd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Group that may use the control socket [default: the daemon's own]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Permission bits of the control socket, octal [default: 0660 with --group; without it 0666
    /// for root, else 0600]
    #[arg(long, value_name = "OCTAL")]
    pub mode: Option<String>,
    /// What an idle engine does [default: adaptive]
    #[arg(long, value_enum)]
    pub idle: Option<Idle>,
    /// Same as --idle busy
    #[arg(long, conflicts_with = "idle")]
    pub busy_poll: bool,
    /// How long --idle adaptive spins after the last work, microseconds [default: 50]
    #[arg(long, value_name = "MICROSECONDS")]
    pub spin: Option<u64>,
    /// Where the engine's thread runs [default: auto]
    #[arg(long, value_enum)]
    pub placement: Option<Placement>,
    /// Engines for programs of the daemon's own user, 1 to 16 [default: 1]
    ///
    /// Each has a thread and a slice of the queue pair numbers. A program gets the one with the
    /// fewest programs when it opens the device, for all of its queue pairs. More than one is of
    /// use where there are more CPUs than busy programs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_ENGINES)))]
    pub engines: Option<u8>,
    /// Vendor behaviour where implementations differ [default: spec]
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,
    /// Serve counters over HTTP in the OpenMetrics format, for Prometheus; a program that
    /// reaches the address can read them
    #[arg(long, value_name = "IP:PORT|unix:PATH")]
    pub metrics: Option<Address>,
    /// Say what this host can do and what would change it, and exit
    ///
    /// Kernel, privileges, memory access, limits, sockets, interface, path MTU and packet I/O are
    /// looked at with the options given. The status is 1 if the daemon could not start.
    #[arg(long)]
    pub check: bool,
    /// Exit some seconds after the last process that has connected has ended
    #[arg(long)]
    pub exit_with_last_client: bool,
    /// Log filter, e.g. `info` or `rnic_net=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

/// The configuration file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    device: Option<String>,
    netdev: Option<String>,
    io: Option<Io>,
    xdp_mode: Option<XdpMode>,
    address: Vec<IpAddr>,
    socket: Option<PathBuf>,
    group: Option<String>,
    mode: Option<String>,
    idle: Option<Idle>,
    spin: Option<u64>,
    placement: Option<Placement>,
    engines: Option<u8>,
    profile: Option<Profile>,
    log: Option<String>,
    metrics: Option<Address>,
    quota: UserSection,
    total: Section,
}

/// Everything decided.
#[derive(Clone, Debug)]
pub struct Config {
    /// Device name.
    pub device: String,
    /// Interface.
    pub netdev: Option<String>,
    /// Packet I/O.
    pub io: Io,
    /// XDP attach mode.
    pub xdp_mode: XdpMode,
    /// Addresses to serve; empty: those of the interface.
    pub addresses: Vec<IpAddr>,
    /// Control socket.
    pub socket: PathBuf,
    /// Group of the control socket.
    pub group: Option<String>,
    /// Permission bits of the control socket.
    pub mode: u32,
    /// Of each engine's thread.
    pub engine: Settings,
    /// Vendor behaviour where implementations differ.
    pub profile: Profile,
    /// End with the last client.
    pub exit_with_last_client: bool,
    /// Log filter.
    pub log: String,
    /// Where counters are served.
    pub metrics: Option<Address>,
    /// Limits of one user, and of all together.
    pub limits: Limits,
    /// Engines for clients of the daemon's own user.
    pub engines: u8,
    /// Groups that the clients of one user may be of at the same time: each has an engine.
    pub groups: u32,
}

impl Config {
    /// Joins command line and file, at the start.
    ///
    /// # Errors
    /// When the file cannot be read or understood, or the options contradict each other; the text
    /// says what to do.
    pub fn resolve(args: Args) -> Result<Self> {
        Self::join(args, "; without --config the defaults apply")
    }

    /// The same for a daemon that runs, which goes on as before when there is no file any more.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub(crate) fn resolve_again(args: Args) -> Result<Self> {
        Self::join(args, "")
    }

    /// `if_missing` is said of a file that does not exist.
    fn join(args: Args, if_missing: &str) -> Result<Self> {
        let file = match &args.config {
            Some(path) => read_file(path, if_missing)?,
            None => File::default(),
        };
        let addresses = if args.addresses.is_empty() { file.address } else { args.addresses };
        let group = args.group.or(file.group);
        let mode = match args.mode.or(file.mode) {
            Some(text) => parse_mode(&text)?,
            // Otherwise root's group would exclude no user, and another user's would admit none.
            None if group.is_some() => 0o660,
            None if rustix::process::geteuid().is_root() => 0o666,
            None => 0o600,
        };
        let socket = match args.socket.or(file.socket) {
            Some(path) => path,
            None => rnic_abi::os::default_socket_path()
                .context("no place for the control socket; name one with --socket")?,
        };
        let idle = if args.busy_poll { Some(Idle::Busy) } else { args.idle.or(file.idle) };
        let defaults = Settings::default();
        let config = Self {
            device: args.device.or(file.device).unwrap_or_else(|| "rnic0".into()),
            netdev: args.netdev.or(file.netdev),
            io: args.io.or(file.io).unwrap_or(Io::Auto),
            xdp_mode: args.xdp_mode.or(file.xdp_mode).unwrap_or(XdpMode::Auto),
            addresses,
            socket,
            group,
            mode,
            engine: Settings {
                idle: idle.unwrap_or(defaults.idle),
                spin: args.spin.or(file.spin).map_or(defaults.spin, Duration::from_micros),
                placement: args.placement.or(file.placement).unwrap_or(defaults.placement),
            },
            engines: args.engines.or(file.engines).unwrap_or(1),
            profile: args.profile.or(file.profile).unwrap_or(Profile::Spec),
            exit_with_last_client: args.exit_with_last_client,
            log: args.log.or(file.log).unwrap_or_else(|| "info".into()),
            metrics: args.metrics.or(file.metrics),
            groups: file.quota.groups.unwrap_or(DEFAULT_GROUPS),
            limits: Limits::new(&file.quota.limits, &file.total, machine()),
        };
        config.check()?;
        Ok(config)
    }

    /// Keys in which the other one differs and that need a restart.
    pub(crate) fn fixed_keys(&self, other: &Self) -> Vec<&'static str> {
        let (engine, others) = (&self.engine, &other.engine);
        let same = [
            ("device", self.device == other.device),
            ("netdev", self.netdev == other.netdev),
            ("io", self.io == other.io),
            ("xdp-mode", self.xdp_mode == other.xdp_mode),
            ("address", self.addresses == other.addresses),
            ("socket", self.socket == other.socket),
            // The daemon has given up the capability that it takes.
            ("group", self.group == other.group),
            ("idle", engine.idle == others.idle),
            ("spin", engine.spin == others.spin),
            ("placement", engine.placement == others.placement),
            ("engines", self.engines == other.engines),
            ("profile", self.profile == other.profile),
            ("quota.groups", self.groups == other.groups),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }

    fn check(&self) -> Result<()> {
        check_device_name(&self.device)?;
        if !(1..=MOST_ENGINES).contains(&self.engines) {
            bail!("engines = {}: give 1 to {MOST_ENGINES}", self.engines);
        }
        let needs_interface = match self.io {
            Io::AfXdp => Some("af-xdp"),
            Io::AfPacket => Some("af-packet"),
            _ => None,
        };
        if let (Some(io), None) = (needs_interface, &self.netdev) {
            bail!("--io {io} needs an interface: add --netdev IFACE (`ip -br link` lists them)");
        }
        if let Some(address) = self.addresses.iter().find(|a| !can_be_served(**a)) {
            bail!("{address} cannot be served: give a unicast address of this host");
        }
        Ok(())
    }
}

fn can_be_served(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn check_device_name(name: &str) -> Result<()> {
    // The service names a device after its interface, and that of a VLAN has a dot: eth0.100. `:`
    // and `,` separate names in the settings of programs, and `..` would be a folder of files.
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_hidden = name.starts_with('.');
    if name.is_empty() || name.len() > MAX_DEVICE_NAME || !name.chars().all(good) || is_hidden {
        bail!(
            "invalid device name {name:?}: use 1 to {MAX_DEVICE_NAME} letters, digits, `_`, `-` \
             or `.`, which is not the first, e.g. rnic0"
        );
    }
    Ok(())
}

fn parse_mode(text: &str) -> Result<u32> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => bail!("socket mode {text:?} is not valid: give octal permission bits, e.g. 0660"),
    }
}

fn read_file(path: &Path, if_missing: &str) -> Result<File> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let advice = if is_missing { if_missing } else { "" };
        anyhow!("cannot read the configuration file {}: {error}{advice}", path.display())
    })?;
    toml::from_str(&text).with_context(|| format!("in the configuration file {}", path.display()))
}

/// As it was at the start: what the daemon's clients use by now is no reason to give less.
fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(Machine::look)
}

/// With one engine each for so many other users, numbers are left.
const MOST_ENGINES: u8 = 16;
/// More than a user's programs are of at a time.
const DEFAULT_GROUPS: u32 = 4;
/// `IBV_SYSFS_NAME_MAX` less the terminator.
const MAX_DEVICE_NAME: usize = 63;

#[cfg(test)]
mod tests;
