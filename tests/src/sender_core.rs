//! A peer that is no host: a core in logic, as field-programmable cards have it. It only sends. Its
//! queue pair has a fixed number, every packet asks for an acknowledgement and says that its path
//! has migrated, and it meets its receiver over UDP: management datagrams mean nothing to it.
//!
//! Its frames are made by [`crate::frame`], which shares no code with the product.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pnet_datalink::{DataLinkReceiver, DataLinkSender};

use crate::frame::{Frame, open_wire};
use crate::netns::End;

/// The number of its queue pair.
pub const QPN: u32 = 0x12;
/// Its first PSN, a few before they begin again at zero.
const FIRST_PSN: u32 = 0x00ff_fff0;
/// Payload of a packet.
const PATH_MTU: usize = 4096;
/// Packets that may be unacknowledged.
const WINDOW: u32 = 64;
/// When to go back without an answer.
const PATIENCE: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(30);
const ROCE: u16 = 4791;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND with immediate data.
    Send,
    /// RDMA WRITE with immediate data.
    Write,
}

/// What the receiver said.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    qpn: u32,
    rkey: u32,
    addr: u64,
}

/// The core, connected.
pub struct SenderCore {
    tx: Box<dyn DataLinkSender>,
    rx: Box<dyn DataLinkReceiver>,
    side: UdpSocket,
    /// So that the kernel beside it refuses no acknowledgement.
    _port: UdpSocket,
    /// Ethernet to UDP header.
    front: Vec<u8>,
    receiver: Receiver,
    psn: u32,
    sent: u32,
    /// Packets that were sent again.
    pub again: u32,
}

impl SenderCore {
    /// At this end of a link, for the receiver at `host`, whose interface has this MAC address and
    /// which listens at this port for `messages` messages.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub fn connect(
        end: &End,
        (host, mac): (Ipv4Addr, &str),
        port: u16,
        messages: u32,
    ) -> Result<Self> {
        let (side, roce, (tx, rx)) = end.netns.enter(|| -> Result<_> {
            let side = UdpSocket::bind((end.ipv4, 0))?;
            Ok((side, UdpSocket::bind((end.ipv4, ROCE))?, open_wire(End::INTERFACE)?))
        })??;
        side.connect(SocketAddr::new(host.into(), port))?;
        side.set_read_timeout(Some(Duration::from_millis(200)))?;
        let hello = format!("{QPN} {FIRST_PSN} {} {messages}", end.ipv4);
        let said = ask(&side, Some(&hello))?;
        let numbers: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [qpn, _psn, rkey, addr] = numbers[..] else { bail!("the receiver says {said}") };
        let receiver = Receiver { qpn: u32::try_from(qpn)?, rkey: u32::try_from(rkey)?, addr };
        let front = front((&end.mac, mac), (end.ipv4, host))?;
        let (psn, sent, again) = (FIRST_PSN, 0, 0);
        Ok(Self { tx, rx, side, _port: roce, front, receiver, psn, sent, again })
    }

    /// Sends a message and waits until the receiver has compared it. Of its packets, the wire
    /// loses the one with the number `lost` once.
    ///
    /// # Errors
    /// When it is refused or not answered.
    pub fn send(&mut self, kind: Kind, len: usize, lost: Option<u32>) -> Result<()> {
        ensure!(len.is_multiple_of(4), "the core sends whole words");
        let number = self.sent;
        let data: Vec<u8> = (0..u32::try_from(len)?).map(|at| byte_of(number, at)).collect();
        let packets = u32::try_from(len.div_ceil(PATH_MTU).max(1))?;
        let (mut next, mut acknowledged, mut lost) = (0, 0, lost);
        let (began, mut heard) = (Instant::now(), Instant::now());
        while acknowledged < packets {
            ensure!(began.elapsed() < LIMIT, "message {number}: {acknowledged} of {packets}");
            if next < packets.min(acknowledged + WINDOW) {
                if lost == Some(next) {
                    lost = None;
                } else {
                    self.emit((kind, number, packets), next, &data)?;
                }
                next += 1;
                continue;
            }
            match self.hear()? {
                Some((is_ack, psn)) => {
                    heard = Instant::now();
                    // An acknowledgement is of the packet, a refusal of all before it.
                    let upto = psn.wrapping_sub(self.psn) & PSN_MASK;
                    let upto = if is_ack { upto + 1 } else { upto };
                    if upto <= packets {
                        acknowledged = acknowledged.max(upto);
                    }
                    if !is_ack {
                        self.again += next - acknowledged;
                        next = acknowledged;
                    }
                }
                None if heard.elapsed() > PATIENCE => {
                    self.again += next - acknowledged;
                    (next, heard) = (acknowledged, Instant::now());
                }
                None => {}
            }
        }
        self.psn = (self.psn + packets) & PSN_MASK;
        self.sent += 1;
        let said = ask(&self.side, None)?;
        ensure!(said == format!("{number} {len}"), "message {number} of {len} bytes: {said}");
        Ok(())
    }

    fn emit(&mut self, what: (Kind, u32, u32), nth: u32, data: &[u8]) -> Result<()> {
        let (kind, number, packets) = what;
        let (first, last) = (nth == 0, nth + 1 == packets);
        let at = nth as usize * PATH_MTU;
        let payload = &data[at..data.len().min(at + PATH_MTU)];
        let opcode = match (first, last) {
            (true, true) => 5,
            (true, false) => 0,
            (false, false) => 1,
            (false, true) => 3,
        };
        let opcode = if kind == Kind::Write { opcode + 6 } else { opcode };
        let mut roce = vec![opcode, MIG_REQ, 0xff, 0xff];
        roce.extend(self.receiver.qpn.to_be_bytes());
        roce.extend((ACK_REQ | (self.psn + nth) & PSN_MASK).to_be_bytes());
        if first && kind == Kind::Write {
            roce.extend(self.receiver.addr.to_be_bytes());
            roce.extend(self.receiver.rkey.to_be_bytes());
            roce.extend(u32::try_from(data.len())?.to_be_bytes());
        }
        if last {
            roce.extend(number.to_be_bytes());
        }
        roce.extend(payload);
        roce.extend([0; ICRC]);
        let bytes = with_lengths(&self.front, &roce)?;
        let mut frame = Frame::parse(&bytes).context("no frame")?;
        frame.seal();
        self.tx.send_to(frame.bytes(), None).context("no room")?.context("the link is gone")
    }

    /// The next answer: whether it acknowledges, and its PSN.
    fn hear(&mut self) -> Result<Option<(bool, u32)>> {
        let Ok(bytes) = self.rx.next() else { return Ok(None) };
        let Some(frame) = Frame::parse(bytes) else { return Ok(None) };
        let bth = frame.bth();
        if frame.opcode() != ACKNOWLEDGE
            || frame.bytes()[bth + 5..bth + 8] != QPN.to_be_bytes()[1..]
        {
            return Ok(None);
        }
        ensure!(frame.icrc() == frame.computed_icrc(), "an answer with a wrong ICRC");
        match frame.bytes()[bth + 12] {
            syndrome if syndrome & 0x60 == 0 => Ok(Some((true, frame.psn()))),
            SEQUENCE_ERROR => Ok(Some((false, frame.psn()))),
            // No receive yet: again after a while.
            syndrome if syndrome & 0x60 == 0x20 => Ok(Some((false, frame.psn()))),
            syndrome => bail!("refused with syndrome {syndrome:#x}"),
        }
    }
}

/// What the receiver says next; `hello` is repeated until it does.
fn ask(side: &UdpSocket, hello: Option<&str>) -> Result<String> {
    let deadline = Instant::now() + LIMIT;
    let mut answer = [0; 200];
    while Instant::now() < deadline {
        if let Some(hello) = hello {
            // Refused while the receiver does not listen.
            let _ = side.send(hello.as_bytes());
        }
        match side.recv(&mut answer) {
            Ok(len) => return Ok(String::from_utf8_lossy(&answer[..len]).into_owned()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    bail!("the receiver says nothing")
}

/// Headers up to UDP's, from the first of each pair to the second, without lengths and checksums.
pub(crate) fn front(macs: (&str, &str), addresses: (Ipv4Addr, Ipv4Addr)) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for mac in [macs.1, macs.0] {
        for byte in mac.split(':') {
            bytes.push(u8::from_str_radix(byte, 16)?);
        }
    }
    bytes.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(addresses.0.octets());
    bytes.extend(addresses.1.octets());
    bytes.extend(0xc012_u16.to_be_bytes());
    bytes.extend(ROCE.to_be_bytes());
    bytes.extend([0; 4]);
    Ok(bytes)
}

/// Headers and what they carry, with the lengths in them.
pub(crate) fn with_lengths(front: &[u8], roce: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = front.to_vec();
    let udp = u16::try_from(roce.len() + 8)?;
    bytes[16..18].copy_from_slice(&(udp + 20).to_be_bytes());
    bytes[38..40].copy_from_slice(&udp.to_be_bytes());
    bytes.extend(roce);
    Ok(bytes)
}

/// The receiver compares with the same.
fn byte_of(message: u32, at: u32) -> u8 {
    (message.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)).wrapping_add(at >> 8) & 0xff) as u8
}

const MIG_REQ: u8 = 0x40;
const ACK_REQ: u32 = 1 << 31;
const PSN_MASK: u32 = 0x00ff_ffff;
const ACKNOWLEDGE: u8 = 0x11;
const SEQUENCE_ERROR: u8 = 0x60;
const ICRC: usize = 4;
