//! The connection manager: a peer that sends any message at any time, and programs that ask for
//! anything.
//!
//! Whatever they do: no panic, no more identifiers than there may be, a bounded number of answers
//! to each message, no queue pair with two connections, and nothing left once all have let go and
//! time has passed.

use crate::script::Script;
use rnic_core::cm::{Cm, Connect, Offer, Owner, PrivateData, Route};
use rnic_core::time::Instant;
use rnic_sim::cm::{MAX_IDS, address, config, way};
use roce_wire::Qpn;
use roce_wire::cm::{CmMad, CmaHeader, PortSpace, TransportType};
use roce_wire::mad::MAD_LEN;
use std::collections::BTreeSet;

/// What a script works on.
#[derive(Debug)]
pub(crate) struct World {
    cm: Cm,
    now: Instant,
    /// Identifiers that programs have.
    held: Vec<u32>,
    /// What was sent, the last at the end.
    sent: Vec<[u8; MAD_LEN]>,
}

const OWNER: Owner = Owner { user: 0, place: 1 };
/// Messages that a script can refer to.
const KEPT: usize = 8;
/// Most messages and events that one call may cause.
const MOST: usize = MAX_IDS * 4;

/// A list of steps.
pub fn run(input: &[u8]) {
    let mut world = World::new();
    world.play(input);
    world.close();
}

/// Steps that bring connections into their states, as [`run`] reads them.
pub mod steps {
    /// A program listens at port 1 of the connected space.
    pub const LISTEN: &[u8] = &[0, 0, 0, 1, 0, 0, 9];
    /// Another one at port 1 of the space of datagrams.
    pub const LISTEN_UDP: &[u8] = &[0, 1, 0, 1, 0, 0, 9];
    /// From host 1, about nothing that was sent: port 1, identifier 7, queue pair 5.
    pub const REQ: &[u8] = &[5, 0, 0, 99, 1, 7, 3, 0, 1];
    /// The second identifier takes what it was asked.
    pub const ACCEPT: &[u8] = &[2, 1, 0, 5, 0, 0];
    /// About the message that was sent first.
    pub const RTU: &[u8] = &[5, 0, 4, 0, 0, 1];
    /// An identifier that connects.
    pub const BOUND: &[u8] = &[0, 0, 0, 0, 1, 1];
    /// It asks host 1.
    pub const CONNECT: &[u8] = &[1, 0, 0, 1, 1, 0, 0, 6, 7, 7, 3, 17, 0];
    /// With queue pair 5 of the peer.
    pub const REP: &[u8] = &[5, 0, 3, 0, 2, 38, 5, 24, 9, 1];
    /// The first identifier has what it was answered.
    pub const ESTABLISH: &[u8] = &[2, 0, 0, 0, 0, 2];
    /// The first identifier ends its connection.
    pub const DISCONNECT: &[u8] = &[3, 0, 0];
    /// It asks host 1 for a queue pair of datagrams.
    pub const LOOK_UP: &[u8] = &[1, 0, 0, 0, 0, 1, 0];
    /// Host 1 takes its time for the REQ that was sent first.
    pub const MRA_OF_REQ: &[u8] = &[5, 0, 1, 0, 1, 33, 0xc0, 1];
    /// The same for a REP.
    pub const MRA_OF_REP: &[u8] = &[5, 0, 1, 0, 2, 32, 0x40, 33, 0xc0, 1];
    /// Refuses the REQ that was sent first.
    pub const REJ: &[u8] = &[5, 0, 2, 0, 1, 35, 8, 1];
    /// Ends the connection with our queue pair 5, about the message that was sent first.
    pub const DREQ: &[u8] = &[5, 0, 5, 0, 3, 32, 0, 33, 0, 34, 5, 1];
    /// About the message that was sent third.
    pub const DREP: &[u8] = &[5, 0, 6, 2, 0, 1];
    /// From host 1: port 1 of the space of datagrams, request 8.
    pub const SIDR_REQ: &[u8] = &[5, 0, 7, 99, 1, 8, 0, 1];
    /// The second identifier answers what it was asked: with queue pair 5.
    pub const ANSWER: &[u8] = &[2, 1, 0, 5, 0, 3, 1, 2, 3, 4];
    /// The second identifier is let go of.
    pub const RELEASE: &[u8] = &[3, 1, 1];
}

fn offer(script: &mut Script<'_>) -> Offer {
    Offer {
        qpn: Qpn::new(u32::from(script.u8() % 16)),
        srq: false,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: script.u8() % 9,
    }
}

fn private(script: &mut Script<'_>) -> PrivateData {
    let len = usize::from(script.u8());
    PrivateData::new(script.slice(len)).unwrap_or(PrivateData::NONE)
}

impl World {
    pub(crate) fn new() -> Self {
        let cm = Cm::new(config(0, 1));
        Self { cm, now: Instant::ZERO, held: Vec::new(), sent: Vec::new() }
    }

    /// Takes these steps.
    pub(crate) fn play(&mut self, steps: &[u8]) {
        let mut script = Script::new(steps);
        while !script.is_over() {
            match script.below(8) {
                0 => self.bind(&mut script),
                1 => self.connect(&mut script),
                2 => self.decide(&mut script),
                3 => self.end(&mut script),
                4 => {
                    let milliseconds = u64::from(script.u16()) * 16;
                    self.now = self.now.after_nanos(milliseconds * 1_000_000);
                    self.cm.expire(self.now);
                }
                _ => self.receive(&mut script),
            }
            self.collect();
        }
    }

    /// A message with the identifiers of one that was sent, if there is such a one.
    pub(crate) fn about(&self, sent: usize, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        if let (Some(model), Some(ids)) = (self.sent.get(sent), message.get_mut(24..32)) {
            exchange(model, ids);
        }
        message
    }

    /// The number of the message that was sent last.
    pub(crate) fn last_sent(&self) -> Option<u8> {
        u8::try_from(self.sent.len().checked_sub(1)?).ok()
    }

    /// A message of host 1, of any length.
    pub(crate) fn hear(&mut self, message: &[u8]) {
        self.cm.receive(self.now, &way(0, 1), message);
        self.collect();
    }

    #[cfg(test)]
    pub(crate) fn manager(&self) -> &Cm {
        &self.cm
    }

    fn one(&self, script: &mut Script<'_>) -> u32 {
        let at = usize::from(script.u8());
        match self.held.len() {
            0 => u32::from(script.u16()),
            len => self.held[at % len],
        }
    }

    fn bind(&mut self, script: &mut Script<'_>) {
        let space = script.pick(&[PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]);
        let at = script.pick(&[None, Some(address(0)), Some(address(3))]);
        let port = u16::from(script.u8() % 4);
        if let Ok((id, _)) = self.cm.bind(OWNER, space, at, port, script.below(2) == 0) {
            self.held.push(id);
            if script.below(2) == 0 {
                let _ = self.cm.listen(id, script.u8().into());
            }
        }
    }

    fn connect(&mut self, script: &mut Script<'_>) {
        let id = self.one(script);
        let route = self.route(script);
        if script.below(4) == 0 {
            let private = private(script);
            let _ = self.cm.look_up(self.now, id, route, script.u16(), &private);
            return;
        }
        let connect = Connect {
            route,
            port: script.u16(),
            transport: script.pick(&[
                TransportType::Rc,
                TransportType::Uc,
                TransportType::Rd,
                TransportType::Extended,
            ]),
            offer: offer(script),
            retry_count: script.u8() % 9,
            mtu_code: script.u8(),
            ack_timeout: script.u8() % 33,
            private: private(script),
        };
        let _ = self.cm.connect(self.now, id, &connect);
    }

    fn decide(&mut self, script: &mut Script<'_>) {
        let id = self.one(script);
        let private = private(script);
        let offer = offer(script);
        let _ = match script.below(4) {
            0 => self.cm.accept(self.now, id, &offer, &private),
            1 => self.cm.reject(self.now, id, &private),
            2 => self.cm.establish(id),
            _ => {
                let target = (offer.qpn, roce_wire::QKey(script.u32()));
                self.cm.answer(self.now, id, target, &private)
            }
        };
    }

    fn end(&mut self, script: &mut Script<'_>) {
        let id = self.one(script);
        if script.below(2) == 0 {
            let _ = self.cm.disconnect(self.now, id);
        } else if self.cm.release(self.now, id).is_ok() {
            self.held.retain(|other| *other != id);
        }
    }

    fn route(&self, script: &mut Script<'_>) -> Route {
        way(0, 1 + script.below(3))
    }

    /// A message made of bytes, or one that was sent with the identifiers exchanged, then changed.
    fn receive(&mut self, script: &mut Script<'_>) {
        let route = self.route(script);
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + script.u8() % 12;
        let at = usize::from(script.u8());
        if let Some(model) = self.sent.get(at) {
            exchange(model, &mut mad[24..32]);
        }
        if mad[17] == 0x10 || mad[17] == 0x17 {
            self.ask(script, &route, &mut mad);
        }
        for _ in 0..script.u8() % 8 {
            let at = usize::from(script.u8());
            mad[at] = script.u8();
        }
        let len = if script.u8() == 0 { usize::from(script.u8()) } else { MAD_LEN };
        self.cm.receive(self.now, &route, &mad[..len]);
    }

    /// Makes a good request of it.
    fn ask(&self, script: &mut Script<'_>, route: &Route, mad: &mut [u8; MAD_LEN]) {
        let is_sidr = mad[17] == 0x17;
        let space = if is_sidr { PortSpace::Udp } else { PortSpace::Tcp };
        let service = roce_wire::cm::service_id(space, u16::from(script.u8() % 4));
        mad[24..28].copy_from_slice(&u32::from(script.u8()).to_be_bytes());
        mad[32..40].copy_from_slice(&service.to_be_bytes());
        let header = CmaHeader { src_port: 9, src: route.remote, dst: route.local };
        let at = if is_sidr { 40 } else { 164 };
        mad[at..at + CmaHeader::LEN].copy_from_slice(&header.to_bytes());
        if is_sidr {
            return;
        }
        mad[56..59].copy_from_slice(&[0, 0, 2 + script.u8() % 16]);
        mad[74] = 3 << 4;
        mad[80..96].copy_from_slice(&roce_wire::Gid::from_ip(route.remote).0);
        mad[96..112].copy_from_slice(&roce_wire::Gid::from_ip(route.local).0);
    }

    /// Takes what the last step has caused, and judges.
    fn collect(&mut self) {
        let mut taken = 0;
        while let Some(outgoing) = self.cm.next_mad() {
            CmMad::parse(&outgoing.mad).expect("what is sent is well-formed");
            self.sent.push(outgoing.mad);
            taken += 1;
        }
        if self.sent.len() > KEPT {
            self.sent.drain(..self.sent.len() - KEPT);
        }
        while let Some(event) = self.cm.next_event() {
            assert_eq!(event.owner, OWNER);
            if !self.held.contains(&event.id) {
                self.held.push(event.id);
            }
            taken += 1;
        }
        assert!(taken <= MOST, "{taken} messages and events at once");
        assert!(self.cm.len() <= MAX_IDS);
        let open = self.held.iter().filter_map(|id| self.cm.open_qpns(*id));
        let mut seen = BTreeSet::new();
        for (local, _) in open.filter(|(local, _)| *local != Qpn::SMI) {
            assert!(seen.insert(local), "{local:?} has two connections");
        }
    }

    /// All let go of what they have.
    pub(crate) fn close(&mut self) {
        for id in std::mem::take(&mut self.held) {
            self.cm.release(self.now, id).expect("it is held");
        }
        while let Some(at) = self.cm.next_deadline() {
            self.now = at;
            self.cm.expire(self.now);
            while self.cm.next_mad().is_some() {}
        }
        assert_eq!(self.cm.next_event(), None, "a program that has let go hears nothing");
        assert!(self.cm.is_empty(), "something is left");
    }
}

/// Names both identifiers of a message in the answer to it, which has them the other way round. A
/// search for datagrams has one.
fn exchange(model: &[u8; MAD_LEN], ids: &mut [u8]) {
    let is_sidr = matches!(model[17], 0x17 | 0x18);
    if is_sidr {
        ids[..4].copy_from_slice(&model[24..28]);
    } else {
        ids[..4].copy_from_slice(&model[28..32]);
        ids[4..].copy_from_slice(&model[24..28]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_brings_a_connection_up() {
        let mut world = World::new();
        world.play(steps::LISTEN);
        world.play(steps::REQ);
        assert_eq!(world.held.len(), 2);
        // It is accepted with queue pair 5.
        world.play(steps::ACCEPT);
        let rep = CmMad::parse(world.sent.last().expect("a message")).expect("well-formed");
        assert!(matches!(rep.message, roce_wire::cm::CmMessage::Rep(_)), "{rep:?}");
        world.play(steps::RTU);
        world.close();
    }
}
