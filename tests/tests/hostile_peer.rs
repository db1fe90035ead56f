//! An attacker on the path between two hosts sends damaged, replayed and forged packets, while a
//! checker works.
//!
//! An attacker that can read the wire and forge the peer's address knows everything about a
//! connection: RoCEv2 has no cryptography. The test shows that every lesser attack fails: a wrong
//! ICRC, another source address, a PSN outside the window, an old packet.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pnet_datalink::{DataLinkReceiver, DataLinkSender};
use system_tests::checker::{self, Stream};
use system_tests::choice;
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::emulator::{Dice, EmulatedPair, Faults};
use system_tests::frame::{Frame, open_wire};
use system_tests::inspect::{Census, counter};
use system_tests::lab::{Lab, Need, at_end, attack_seconds};
use system_tests::measure::judge;
use system_tests::netns::End;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node};
use system_tests::programs::Dialogue;
use system_tests::rounds::{MOST_LEFT, rounds_in, share_left};

/// Packets that the attacker remembers.
const MEMORY: usize = 4096;
/// Packets sent in one go before the next read from the wire, which takes a millisecond: this tests
/// bad packets, not a flood.
const BURST: usize = 4;
/// Seconds of a measurement. The speed of a shared machine changes from second to second: many
/// short rounds say more than few long ones.
const WINDOW: f64 = 2.0;
/// Seconds until the load is steady.
const SETTLED: f64 = 0.5;
/// Seconds of rounds over each kind of packet I/O, in the ordinary form.
const ATTACK: f64 = 15.0;
/// How long the daemons may take to release everything.
const CLEANUP: Duration = Duration::from_secs(5);
/// What part of the rate must be left.
const SHARE: f64 = 0.8;

/// How a good packet becomes a bad one.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Some bytes changed anywhere, ICRC left.
    Fuzzed,
    /// One bit of the ICRC flipped.
    BadIcrc,
    /// Correct, but from a host that is not a peer.
    WrongSource,
    /// Unchanged, but sent again much later.
    Replayed,
    /// A response for a PSN that is not outstanding.
    GhostResponse,
    /// Correct, for a QP that does not exist.
    NoSuchQp,
    /// Correct, in the peer's name, but a request or response of another transport: XRC, UC, UD.
    OtherTransport,
    /// A random opcode and length, from a host that is not a peer.
    Malformed,
}

const WAYS: [Way; 8] = [
    Way::Fuzzed,
    Way::BadIcrc,
    Way::WrongSource,
    Way::Replayed,
    Way::GhostResponse,
    Way::NoSuchQp,
    Way::OtherTransport,
    Way::Malformed,
];

/// A port of the emulated link: receives what one host sends and sends to it in the other's name.
struct Intruder {
    tx: Box<dyn DataLinkSender>,
    rx: Box<dyn DataLinkReceiver>,
    heard: VecDeque<Frame>,
    numbers: Dice,
    sent: u64,
}

impl Intruder {
    fn at(port: &str, seed: u64) -> Result<Self> {
        let (tx, rx) = open_wire(port)?;
        // Every draw gives a random number.
        let numbers = Dice::new(seed, Faults { corrupt: 1.0, ..Faults::NONE });
        Ok(Self { tx, rx, heard: VecDeque::new(), numbers, sent: 0 })
    }

    fn random(&mut self, below: usize) -> usize {
        let number = self.numbers.roll().flipped_bit.unwrap_or_default();
        usize::try_from(number % below as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.random(256)).unwrap_or(0)
    }

    /// Records packets towards the host with this MAC address.
    fn listen(&mut self, mac: [u8; 6]) {
        while let Ok(bytes) = self.rx.next() {
            let Some(frame) = Frame::parse(bytes).filter(|_| bytes[..6] == mac) else { continue };
            if self.heard.len() == MEMORY {
                self.heard.pop_front();
            }
            self.heard.push_back(frame);
            if self.heard.len() == MEMORY && self.random(64) == 0 {
                return;
            }
        }
    }

    fn speak(&mut self) -> Result<()> {
        let way = WAYS[self.random(WAYS.len())];
        let Some(frame) = self.forge(way) else { return Ok(()) };
        if let Some(sent) = self.tx.send_to(frame.bytes(), None) {
            // A frame whose length fields were fuzzed may still be sent; when the kernel's queue is
            // full, the frame is just lost.
            self.sent += u64::from(sent.is_ok());
        }
        Ok(())
    }

    fn forge(&mut self, way: Way) -> Option<Frame> {
        if self.heard.len() < 64 {
            return None;
        }
        let recent = self.heard.len() - 1 - self.random(32);
        let mut frame = self.heard[recent].clone();
        frame.leave_udp_checksum_out();
        match way {
            Way::Fuzzed => {
                for _ in 0..=self.random(6) {
                    let at = 14 + self.random(frame.bytes().len() - 14);
                    let value = self.byte();
                    frame.set(at, value);
                }
                // A frame that is still correct after the changes is not sent.
                if Frame::parse(frame.bytes())?.icrc() == frame.computed_icrc() {
                    return None;
                }
            }
            Way::BadIcrc => {
                let at = frame.bytes().len() - 1 - self.random(4);
                frame.set(at, frame.bytes()[at] ^ 1);
            }
            Way::WrongSource => {
                frame.set_source_host(66);
                frame.seal();
            }
            Way::Replayed => {
                let old = self.random(self.heard.len() / 2);
                frame = self.heard[old].clone();
            }
            Way::GhostResponse => return self.ghost(),
            Way::NoSuchQp => {
                let qpn = u32::try_from(self.random(1 << 24)).ok()?;
                frame.set_qpn(qpn);
                frame.seal();
            }
            Way::OtherTransport => {
                const XRC: u8 = 0xa0;
                let transports = [XRC, XRC, 0x20, 0x60];
                let transport = transports[self.random(transports.len())];
                frame.set(frame.bth(), frame.opcode() & 0x1f | transport);
                frame.seal();
            }
            Way::Malformed => {
                let opcode = self.byte();
                frame.set(frame.bth(), opcode);
                let flags = self.byte();
                frame.set(frame.bth() + 1, flags);
                frame.set_source_host(66);
                frame.seal();
            }
        }
        Some(frame)
    }

    /// An ACK or NAK of any syndrome, in the peer's name, 2^21 PSNs before or behind the window.
    fn ghost(&mut self) -> Option<Frame> {
        const ACKNOWLEDGE: u8 = 0x11;
        let found = self.heard.iter().rev().find(|frame| frame.opcode() == ACKNOWLEDGE)?;
        let mut frame = found.clone();
        let far = 1 << 21;
        let psn =
            if self.random(2) == 0 { frame.psn() + far } else { frame.psn().wrapping_sub(far) };
        frame.set_psn(psn);
        let syndromes = [0x1f, 0x60, 0x61, 0x62, 0x63, 0x21, 0x00];
        let syndrome = syndromes[self.random(syndromes.len())];
        frame.set(frame.bth() + 12, syndrome);
        frame.seal();
        Some(frame)
    }
}

/// What the intruders have to do.
#[derive(Default)]
struct Orders {
    /// Send. Otherwise they only listen, which costs the machine as much.
    speak: AtomicBool,
    /// End.
    leave: AtomicBool,
}

/// Attacks `host`, whose port of the link is `port`, according to the orders.
fn intrude(link: &EmulatedPair, port: &str, host: &End, seed: u64, orders: &Orders) -> Result<u64> {
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(host.mac.split(':')) {
        *byte = u8::from_str_radix(text, 16)?;
    }
    let mut intruder = link.middle().enter(|| Intruder::at(port, seed))??;
    while !orders.leave.load(Ordering::Relaxed) {
        intruder.listen(mac);
        for _ in 0..BURST {
            if orders.speak.load(Ordering::Relaxed) {
                intruder.speak()?;
            }
        }
    }
    Ok(intruder.sent)
}

/// The connection between two hosts that the intruders attack.
struct Talk {
    left: Node,
    right: Node,
    orders: Orders,
}

impl Talk {
    fn start(&self) -> Result<Stream> {
        let args = ["-m", "1024", "-T", "16", "-s", "0,1,64,1024,5000,65536"];
        Stream::start(&self.left, &self.right, &args)
    }

    /// The rate in MB/s.
    fn rate(&self, stream: &RefCell<Stream>, disturbed: bool) -> Result<f64> {
        self.orders.speak.store(disturbed, Ordering::Relaxed);
        let mut stream = stream.borrow_mut();
        stream.work(SETTLED)?;
        stream.rate(WINDOW)
    }
}

fn withstands(test: &str, io: Io) -> Result<()> {
    let Some(mut lab) = Lab::open(test, Need::Root, &["ethtool"])? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(checker::build()?);
    let folder = Scratch::new("link")?;
    let link = EmulatedPair::new(1500, Faults::NONE, 1, folder.path())?;
    let node = |end: &End| -> Result<Node> {
        let daemon = Daemon::start(Dist::get()?, &at_end(end, io))?;
        Ok(Node::new(daemon, Host::at_end(end, &lab.tools), Dist::get()?))
    };
    let talk =
        Talk { left: node(&link.left)?, right: node(&link.right)?, orders: Orders::default() };
    let Talk { left, right, orders } = &talk;
    Dialogue::new("checker -n 200 -m 1024").run(left, right)?;
    let before = [Census::at_rest(left, CLEANUP)?, Census::at_rest(right, CLEANUP)?];

    let seconds = attack_seconds(ATTACK)?;
    let sent = std::thread::scope(|scope| -> Result<_> {
        let to_left = scope.spawn(|| intrude(&link, "left", &link.left, 3, orders));
        let to_right = scope.spawn(|| intrude(&link, "right", &link.right, 4, orders));
        let judged = judge(test, |attempt| {
            let stream = RefCell::new(talk.start()?);
            let seconds = if attempt == 0 { seconds } else { ATTACK };
            let rounds = rounds_in(seconds, SETTLED + WINDOW);
            let (calm, disturbed) = (|| talk.rate(&stream, false), || talk.rate(&stream, true));
            let share = share_left(rounds, MOST_LEFT, calm, disturbed)?;
            stream.into_inner().end()?;
            eprintln!("of the rate was left {share:.2?}");
            Ok(share.at_least(SHARE))
        });
        orders.leave.store(true, Ordering::Relaxed);
        let [to_left, to_right] =
            [to_left, to_right].map(|thread| thread.join().expect("no panic"));
        judged?;
        Ok(to_left? + to_right?)
    })
    .with_context(|| format!("{}\n{}", left.daemon.log(), right.daemon.log()))?;

    eprintln!("{sent} bad packets");
    ensure!(sent > 1000, "only {sent} bad packets were sent");
    noticed(left, right)?;
    before[0].returns(left, CLEANUP)?;
    before[1].returns(right, CLEANUP)?;
    talk.left.stop()?;
    talk.right.stop()?;
    Ok(())
}

/// Each kind of bad packet was detected and counted.
fn noticed(left: &Node, right: &Node) -> Result<()> {
    let counters = [
        "rx_icrc_encapsulated",
        "rx_bad_address",
        "rx_no_qp",
        "rx_bad_transport",
        "rx_ghost_response",
        "duplicate_request",
    ];
    for name in counters {
        let count = counter(left, name)? + counter(right, name)?;
        eprintln!("  {name} {count}");
        ensure!(count > 0, "no {name}");
    }
    Ok(())
}

/// Which one a run of the ordinary form attacks.
const KINDS: [Io; 2] = [Io::AfXdp, Io::Udp];

#[test]
fn bad_packets_over_af_xdp() -> Result<()> {
    if !choice::has_turn(&KINDS, &Io::AfXdp) {
        return Ok(());
    }
    withstands("bad_packets_over_af_xdp", Io::AfXdp)
}

#[test]
fn bad_packets_over_udp() -> Result<()> {
    if !choice::has_turn(&KINDS, &Io::Udp) {
        return Ok(());
    }
    withstands("bad_packets_over_udp", Io::Udp)
}
