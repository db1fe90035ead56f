//! A stream rsocket: a peer that sends any message, with any length and any table, and a program
//! that reads and writes meanwhile. And what peers say before: private data, and introductions of
//! datagram rsockets.
//!
//! Whatever they do: no panic, no byte read that was not written, nothing sent beyond what the peer
//! has lent, and never more under way than the queues and the ring hold.
//!
//! What is tried is the source of `rdmacm-shim` itself: that crate is a library of exported C
//! functions, to which no other program can be linked.

use crate::script::Script;
use std::collections::VecDeque;
use std::net::SocketAddr;

#[path = "../../../crates/rdmacm-shim/src/rsocket/flow.rs"]
#[allow(dead_code, reason = "streams use all of it")]
mod flow;
#[path = "../../../crates/rdmacm-shim/src/rsocket/wire.rs"]
#[allow(dead_code, reason = "rsockets use all of it")]
mod wire;

use flow::{CONTROLS, Flow, Outgoing, Sizes};
use wire::{
    Connect, Control, Introduction, MAPPING_LEN, Mapping, Message, PLACE_LEN, Place,
    datagram_header, open_datagram,
};

/// First an input as peers say it before there is a stream, then a list of steps.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    decode(input);
    let mut world = World::new(&mut script);
    while !script.is_over() {
        world.step(&mut script);
        world.judge();
    }
}

/// What is decoded is encoded as it was.
fn decode(input: &[u8]) {
    if let Some(peer) = Connect::decode(input) {
        let own = Connect { order: wire::Order::Same, ..peer };
        assert_eq!(Connect::decode(&own.encode()), Some(own));
        for index in [0, peer.mappings.wrapping_sub(1), peer.mappings, u16::MAX] {
            assert_eq!(peer.mapping_at(index).is_some(), index < peer.mappings);
        }
    }
    if let Some((head, data)) = Introduction::decode(input) {
        let again = [&head.encode()[..], data].concat();
        assert_eq!(Introduction::decode(&again), Some((head, data)));
    }
    if let Some((from, data)) = open_datagram(input) {
        let plain = SocketAddr::new(from.ip(), from.port());
        let again = [&datagram_header(plain)[..], data].concat();
        assert_eq!(open_datagram(&again), Some((plain, data)));
    }
}

/// A request of this end that is under way.
#[derive(Clone, Copy)]
enum Posted {
    /// With bytes of the ring.
    Data(u32),
    Control,
}

struct World {
    flow: Flow,
    sizes: Sizes,
    posted: VecDeque<Posted>,
    /// Bytes that the peer may still write here, as it was told.
    granted: u32,
    /// Bytes that this end may still write, as the peer has said.
    lent: u64,
}

/// Requests up to this length carry their bytes themselves.
const INLINE: u32 = 64;
/// Of a peer that says what it may not.
const EPROTO: i32 = 71;
const RECEIVE: Place = Place { addr: 0x1_0000, rkey: 7, len: 0 };
/// Bytes of a ring: the smallest, odd ones, the usual one, and those of programs with bulk data.
const RINGS: [u32; 8] = [4096, 4162, 20_416, 65_536, 131_072, 1_000_002, 1 << 20, 2 << 20];

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let depth = |byte: u8| 16 + u16::from(byte);
        let sizes = Sizes {
            receives: depth(script.u8()),
            sends: depth(script.u8()),
            receive_bytes: script.pick(&RINGS),
            send_bytes: script.pick(&RINGS),
            mappings: u16::from(script.u8()),
        };
        let mut flow = Flow::new(sizes, RECEIVE);
        let granted = flow.introduce(RECEIVE).data.len;
        let peer = Connect {
            credits: script.u16(),
            mappings: u16::from(script.u8()),
            table: Place { addr: script.u64(), rkey: 1, len: u32::from(script.u8()) },
            data: Place { addr: script.u64(), rkey: 2, len: script.u32() },
            ..Connect::default()
        };
        let lent = match flow.meet(peer) {
            Ok(()) => u64::from(peer.data.len),
            Err(_) => 0,
        };
        Self { flow, sizes, posted: VecDeque::new(), granted, lent }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(10) {
            0 | 1 => self.receive(script),
            2 => {
                let (unread, _) = self.flow.unread();
                let len = self.length(script).min(unread);
                self.flow.read(len);
            }
            3 => {
                let can_send = self.flow.can_send();
                let out = self.flow.send(self.length(script).max(1), INLINE);
                assert_eq!(out.is_some(), can_send);
                if let Some(Outgoing { message, to, .. }) = out {
                    assert_eq!(message, Message::Data(to.len));
                    self.lent = self.lent.checked_sub(to.len.into()).expect("it was lent");
                }
                self.post(out);
            }
            4 => self.grant(),
            5 => self.complete(),
            6 => self.say(script),
            7 => {
                let table: [u8; MAPPING_LEN] = script.bytes();
                if let Some(to) = Mapping::from_table(&table).find(script.u64()) {
                    let out = self.flow.write(self.length(script), INLINE, to);
                    assert!(out.is_none_or(|out| out.to.len <= to.len));
                    self.post(out);
                }
            }
            8 => {
                let out = self.flow.announce(script.u16() & 0x1ff);
                self.post(out);
            }
            _ => match script.below(8) {
                0 => self.flow.stop_reading(),
                1 => self.flow.stop_writing(),
                2 => self.flow.fail(EPROTO),
                _ => self.complete(),
            },
        }
    }

    /// As calls choose it for bulk data, or any.
    fn length(&self, script: &mut Script<'_>) -> u32 {
        let len = u32::from(script.u16());
        match len % 8 {
            7 => self.flow.largest_len(),
            6 => self.flow.first_len(),
            _ => len,
        }
    }

    /// A message that is often what it may be.
    fn receive(&mut self, script: &mut Script<'_>) {
        let place = Place { addr: script.u64(), rkey: 3, len: u32::from(script.u16()) * 32 };
        let (imm, len) = match script.below(4) {
            0 => (script.u32(), script.u32()),
            1 => {
                let len = self.length(script) % (self.granted + 2);
                (len, len)
            }
            2 => (Message::Credits(script.u16()).encode(), PLACE_LEN as u32),
            _ => (u32::from(script.u16()) << 16 | u32::from(script.u8()), 0),
        };
        let message = Message::decode(imm);
        assert_eq!(Message::decode(message.encode()), message);
        if !self.flow.is_up() {
            return;
        }
        let mut read = false;
        let table = |index| {
            assert!(index < wire::PLACES, "a place of the table");
            read = true;
            place
        };
        if self.flow.received(message, len, table).is_err() {
            self.flow.fail(EPROTO);
        } else if let Message::Data(len) = message {
            self.granted = self.granted.checked_sub(len).expect("it was granted");
        } else if read {
            self.lent += u64::from(place.len);
        }
    }

    fn grant(&mut self) {
        while let Some(grant) = self.flow.grant() {
            self.posted.push_back(Posted::Control);
            let Some((bytes, to)) = grant.half else { continue };
            let place = Place::from_table(&bytes);
            let half = self.sizes.receive_bytes / 2;
            let halves = [RECEIVE.addr, RECEIVE.addr + u64::from(half)];
            assert!(place.len == half && halves.contains(&place.addr), "{place:?}");
            assert_eq!(to.len, PLACE_LEN as u32);
            self.granted += half;
        }
    }

    fn post(&mut self, out: Option<Outgoing>) {
        let Some(Outgoing { to, from, .. }) = out else { return };
        assert!(from < self.sizes.send_bytes, "the bytes begin in the ring");
        // The body of an announcement is no part of the ring.
        let len = if to.len > INLINE { to.len } else { 0 };
        self.posted.push_back(Posted::Data(len));
    }

    fn complete(&mut self) {
        match self.posted.pop_front() {
            Some(Posted::Data(len)) => self.flow.sent(len),
            Some(Posted::Control) => self.flow.control_sent(),
            None => {}
        }
    }

    fn say(&mut self, script: &mut Script<'_>) {
        let control = script.pick(&[Control::Disconnect, Control::KeepAlive, Control::Shutdown]);
        let can = self.flow.can_control();
        if self.flow.control(control).is_some() {
            assert!(can, "more control messages than there is room for");
            self.posted.push_back(Posted::Control);
        }
    }

    fn judge(&self) {
        let (unread, at) = self.flow.unread();
        assert!(at < self.sizes.receive_bytes, "reading begins in the ring");
        assert!(unread + self.granted <= self.sizes.receive_bytes, "a peer may overwrite data");
        let controls = self.posted.iter().filter(|one| matches!(one, Posted::Control)).count();
        assert!(controls <= usize::from(CONTROLS));
        let most = usize::from(self.sizes.sends - CONTROLS);
        assert!(self.posted.len() - controls <= most, "the send queue overflows");
        let bytes = |one: &Posted| match one {
            Posted::Data(len) => u64::from(*len),
            Posted::Control => 0,
        };
        let all: u64 = self.posted.iter().map(bytes).sum();
        assert!(all <= u64::from(self.sizes.send_bytes), "bytes that are not sent are overwritten");
        assert_eq!(self.flow.is_quiet(), self.posted.is_empty());
        let (first, largest) = (self.flow.first_len(), self.flow.largest_len());
        assert!((1..=largest).contains(&first), "a call that sends nothing for ever");
        assert!(largest <= self.sizes.send_bytes / 4, "one message fills the ring");
    }
}
