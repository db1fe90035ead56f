//! An emulated link in a namespace between two hosts.
//!
//! The kernel of a test machine may lack netem, queueing disciplines do not affect AF_XDP frames,
//! and tcpdump does not see them. So a bridge in user space connects the two: it receives every
//! frame of one veth with a packet socket, decides its fate from a seed, and sends it out of the
//! other. It captures what came in and what went out.
//!
//! The hosts' interfaces have segmentation and checksum offload switched off, so each frame is one
//! packet and the capture shows what a real link would carry.

mod capture;
mod faults;
mod queue;

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use pnet_datalink::{self as datalink, Channel, Config, DataLinkReceiver, DataLinkSender};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use capture::Capture;
pub use faults::{Dice, Fate, Faults, REORDER_SPAN};
use queue::Queue;

use crate::netns::{End, Netns};

/// UDP destination port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// What one direction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// RoCE frames that came in.
    pub roce_in: u64,
    /// RoCE frames that went out.
    pub roce_out: u64,
    /// Other frames, all passed on unharmed.
    pub other: u64,
    /// Frames lost on purpose.
    pub lost: u64,
    /// Frames doubled on purpose.
    pub duplicated: u64,
    /// Frames held back until later ones had overtaken them.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames with congestion marked.
    pub marked: u64,
    /// Frames that the kernel could not send.
    pub failed: u64,
}

/// Two hosts and the emulated link between them.
pub struct EmulatedPair {
    /// 10.77.0.1
    pub left: End,
    /// 10.77.0.2
    pub right: End,
    link: EmulatedLink,
}

/// A namespace whose interfaces [`LEFT`] and [`RIGHT`] are the ends of an emulated link.
pub struct EmulatedLink {
    middle: Netns,
    running: Vec<Direction>,
    stop: Arc<AtomicBool>,
}

struct Direction {
    thread: JoinHandle<Result<Tally>>,
    capture: PathBuf,
    forwarded: Arc<AtomicU64>,
}

/// What the link did in all, and where its captures are.
#[derive(Debug)]
pub struct LinkReport {
    /// From the left host to the right one.
    pub to_right: Tally,
    /// From the right host to the left one.
    pub to_left: Tally,
    /// Captures of what the left and the right host sent, before any fault.
    pub captures: [PathBuf; 2],
}

/// The middle's interface towards the left host.
pub const LEFT: &str = "left";
/// The middle's interface towards the right host.
pub const RIGHT: &str = "right";

impl EmulatedPair {
    /// Makes the hosts and starts the link; captures go to `folder`.
    ///
    /// # Errors
    /// When `ip`, `ethtool` or a packet socket refuses.
    pub fn new(mtu: u32, faults: Faults, seed: u64, folder: &Path) -> Result<Self> {
        let mut link = EmulatedLink::new()?;
        let left = link.add_host(LEFT, "l", 1, mtu)?;
        let right = link.add_host(RIGHT, "r", 2, mtu)?;
        let plan = Plan { faults, seed, mtu };
        link.start(plan, [&left.mac, &right.mac], folder)?;
        Ok(Self { left, right, link })
    }

    /// The namespace in the middle, whose interfaces [`LEFT`] and [`RIGHT`] lead to the hosts:
    /// the place of an attacker on the path.
    #[must_use]
    pub fn middle(&self) -> &Netns {
        self.link.middle()
    }

    /// As [`EmulatedLink::finish`]. The hosts stay; nothing they send arrives any more.
    ///
    /// # Errors
    /// When a direction failed.
    pub fn finish(&mut self, quiet: Duration) -> Result<LinkReport> {
        self.link.finish(quiet)
    }
}

impl EmulatedLink {
    /// Makes the namespace. The caller gives it the interfaces [`LEFT`] and [`RIGHT`].
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn new() -> Result<Self> {
        let middle = Netns::new("link")?;
        middle.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        Ok(Self { middle, running: Vec::new(), stop: Arc::new(AtomicBool::new(false)) })
    }

    /// Makes a host whose veth leads to the interface `port` of the middle.
    ///
    /// # Errors
    /// When `ip` or `ethtool` refuses.
    pub fn add_host(&self, port: &str, tag: &str, number: u8, mtu: u32) -> Result<End> {
        let (middle, netns) = (&self.middle, Netns::new(tag)?);
        let dev = End::INTERFACE;
        let mtu_text = mtu.to_string();
        let peer = ["type", "veth", "peer", "name", dev, "netns", netns.name()];
        middle.ip(&[&["link", "add", port, "mtu", &mtu_text][..], &peer].concat())?;
        middle.ip(&["link", "set", port, "up"])?;
        let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        netns.cmd("ethtool").args(["-K", dev]).args(off).check()?;
        middle.cmd("ethtool").args(["-K", port]).args(off).check()?;
        End::configure(netns, number, mtu)
    }

    /// Starts to pass frames on between the hosts with these MAC addresses; captures go to
    /// `folder`.
    ///
    /// # Errors
    /// When a packet socket refuses.
    pub fn start(&mut self, plan: Plan, hosts: [&str; 2], folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let [left, right] = [mac(hosts[0])?, mac(hosts[1])?];
        self.start_direction(plan, left, (LEFT, RIGHT), folder)?;
        let back = Plan { seed: plan.seed ^ 0x5555_aaaa, ..plan };
        self.start_direction(back, right, (RIGHT, LEFT), folder)
    }

    fn start_direction(
        &mut self,
        plan: Plan,
        sender: [u8; 6],
        (from, to): (&str, &str),
        folder: &Path,
    ) -> Result<()> {
        let capture = folder.join(format!("from-{from}.pcap"));
        let (path, stop) = (capture.clone(), Arc::clone(&self.stop));
        let forwarded = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&forwarded);
        let open = || Forwarder::open(plan, sender, (from, to), &path, count);
        let forwarder = self.middle.enter(open)??;
        let thread = std::thread::Builder::new()
            .name(format!("link-{from}"))
            .spawn(move || forwarder.run(&stop))?;
        self.running.push(Direction { thread, capture, forwarded });
        Ok(())
    }

    /// Frames that went through so far, both directions.
    #[must_use]
    pub fn forwarded(&self) -> u64 {
        self.running.iter().map(|d| d.forwarded.load(Ordering::Relaxed)).sum()
    }

    /// The namespace.
    #[must_use]
    pub fn middle(&self) -> &Netns {
        &self.middle
    }

    /// Waits until nothing was forwarded for `quiet`, then stops the link and tells what it did.
    ///
    /// # Errors
    /// When a direction failed.
    pub fn finish(&mut self, quiet: Duration) -> Result<LinkReport> {
        let mut last = (self.forwarded(), Instant::now());
        while last.1.elapsed() < quiet {
            std::thread::sleep(Duration::from_millis(20));
            if self.forwarded() != last.0 {
                last = (self.forwarded(), Instant::now());
            }
        }
        self.stop.store(true, Ordering::Relaxed);
        let mut tallies = Vec::new();
        for direction in self.running.drain(..) {
            let tally = direction.thread.join().map_err(|_| anyhow!("the link panicked"))??;
            tallies.push((tally, direction.capture));
        }
        let [(to_right, from_left), (to_left, from_right)] =
            <[_; 2]>::try_from(tallies).map_err(|_| anyhow!("a direction is missing"))?;
        Ok(LinkReport { to_right, to_left, captures: [from_left, from_right] })
    }
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for direction in self.running.drain(..) {
            let _ = direction.thread.join();
        }
    }
}

/// What a link does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// To the frames of each direction.
    pub faults: Faults,
    /// Decides which frames.
    pub seed: u64,
    /// Of all interfaces, in bytes.
    pub mtu: u32,
}

fn mac(text: &str) -> Result<[u8; 6]> {
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16).with_context(|| format!("MAC address {text}"))?;
    }
    Ok(bytes)
}

/// One direction of the link.
struct Forwarder {
    /// The MAC address of the sending host. A packet socket also sees the frames that are sent
    /// through its interface: those of the opposite direction, which must not be sent back.
    sender: [u8; 6],
    dice: Dice,
    rx: Box<dyn DataLinkReceiver>,
    tx: Box<dyn DataLinkSender>,
    capture: Capture,
    queue: Queue,
    tally: Tally,
    started: Instant,
    forwarded: Arc<AtomicU64>,
}

impl Forwarder {
    fn open(
        plan: Plan,
        sender: [u8; 6],
        (from, to): (&str, &str),
        path: &Path,
        forwarded: Arc<AtomicU64>,
    ) -> Result<Self> {
        let (_, rx) = packet_socket(from, plan.mtu)?;
        let (tx, _) = packet_socket(to, plan.mtu)?;
        Ok(Self {
            sender,
            dice: Dice::new(plan.seed, plan.faults),
            rx,
            tx,
            capture: Capture::create(path)?,
            queue: Queue::new(plan.faults),
            tally: Tally::default(),
            started: Instant::now(),
            forwarded,
        })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<Tally> {
        while !stop.load(Ordering::Relaxed) {
            match self.rx.next() {
                Ok(frame) if frame.get(6..12) != Some(&self.sender) => {}
                Ok(frame) => {
                    let frame = frame.to_vec();
                    self.take(frame);
                }
                Err(e) if matches!(e.kind(), std::io::ErrorKind::TimedOut) => {}
                Err(e) if matches!(e.kind(), std::io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e).context("the link's packet socket failed"),
            }
            self.send_due();
        }
        self.tally.reordered = self.queue.overtaken();
        self.capture.finish()?;
        Ok(self.tally)
    }

    fn take(&mut self, mut frame: Vec<u8>) {
        let Some(roce) = Roce::find(&frame) else {
            self.tally.other += 1;
            self.queue.push(frame, 0, Instant::now());
            return;
        };
        self.tally.roce_in += 1;
        self.capture.add(self.started.elapsed(), &frame);
        let fate = self.dice.roll();
        if fate.lost {
            self.tally.lost += 1;
            self.queue.passed();
            return;
        }
        if let Some(bit) = fate.flipped_bit {
            roce.flip(&mut frame, bit);
            self.tally.corrupted += 1;
        }
        if fate.marked {
            roce.mark(&mut frame);
            self.tally.marked += 1;
        }
        if fate.duplicated {
            self.tally.duplicated += 1;
            self.tally.roce_out += 1;
            self.queue.push(frame.clone(), 0, Instant::now());
        }
        self.tally.roce_out += 1;
        self.queue.push(frame, fate.overtaken_by, Instant::now());
    }

    fn send_due(&mut self) {
        while let Some(frame) = self.queue.pop_due(Instant::now()) {
            match self.tx.send_to(&frame, None) {
                Some(Ok(())) => {}
                _ => self.tally.failed += 1,
            }
            self.forwarded.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn packet_socket(
    interface: &str,
    mtu: u32,
) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    let interface = datalink::interfaces()
        .into_iter()
        .find(|i| i.name == interface)
        .with_context(|| format!("no interface {interface}"))?;
    let config = Config {
        read_buffer_size: mtu as usize + 64,
        write_buffer_size: mtu as usize + 64,
        read_timeout: Some(Duration::from_micros(500)),
        socket_fd: Some(roomy_socket()?.into_raw_fd()),
        ..Config::default()
    };
    match datalink::channel(&interface, config)? {
        Channel::Ethernet(tx, rx) => Ok((tx, rx)),
        _ => bail!("not an Ethernet interface"),
    }
}

/// A packet socket, not yet bound, with a queue large enough for what arrives while this thread has
/// no CPU: the link loses only what it is told to lose.
fn roomy_socket() -> Result<OwnedFd> {
    const ROOM: usize = 64 << 20;
    let kind = (AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None)?;
    set_socket_recv_buffer_size_force(&socket, ROOM)?;
    Ok(socket)
}

/// Where the RoCE packet is in a frame.
struct Roce {
    ip: usize,
    udp: usize,
    v6: bool,
}

impl Roce {
    fn find(frame: &[u8]) -> Option<Self> {
        let be16 = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let ip = if be16(12)? == 0x8100 { 18 } else { 14 };
        let (udp, v6, protocol) = match be16(ip - 2)? {
            0x0800 => (ip + 20, false, *frame.get(ip + 9)?),
            0x86dd => (ip + 40, true, *frame.get(ip + 6)?),
            _ => return None,
        };
        (protocol == 17 && be16(udp + 2)? == ROCE_PORT && frame.len() > udp + 8).then_some(Self {
            ip,
            udp,
            v6,
        })
    }

    /// Inverts a bit behind the UDP header. The UDP checksum, which the ICRC does not cover, is
    /// removed so that the damage reaches the ICRC check.
    fn flip(&self, frame: &mut [u8], bit: u64) {
        let start = self.udp + 8;
        let bits = (frame.len() - start) as u64 * 8;
        let bit = usize::try_from(bit % bits).unwrap_or_default();
        frame[start + bit / 8] ^= 1 << (bit % 8);
        frame[self.udp + 6..self.udp + 8].fill(0);
    }

    /// Sets CE and corrects the IPv4 header checksum incrementally (RFC 1624).
    fn mark(&self, frame: &mut [u8]) {
        if self.v6 {
            frame[self.ip + 1] |= 0x30;
            return;
        }
        let old = u16::from_be_bytes([frame[self.ip], frame[self.ip + 1]]);
        let new = old | 3;
        frame[self.ip + 1] |= 3;
        let at = self.ip + 10;
        let sum = u32::from(!u16::from_be_bytes([frame[at], frame[at + 1]]));
        let sum = sum + u32::from(!old) + u32::from(new);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}
