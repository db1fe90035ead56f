//! A hostile peer: two connected QPs receive whatever it sends, while their application works.
//!
//! The input is a script: one byte of setup, then steps. Another client's QPs must not be affected;
//! the script cannot imitate their peer.

use crate::packet::{self, Aim, Place};
use crate::script::Script;
use crate::tenant::{CAPS, Tenant};
use crate::world::{HERE, World};
use rnic_abi::verbs::{AccessFlags, AttrMask, QpAttr, QpState, QpType, SendFlags, WrOpcode};
use rnic_abi::wqe::{SendControl, Sge};
use rnic_core::QpView;
use rnic_core::{ClientCommand, Outcome};
use rnic_sim::memory::{PAGE, PageAccess};
use rnic_sim::port::{Packet, PortConfig};
use rnic_sim::verbs::{Connection, Mr, full_access};
use roce_wire::{Flow, Psn, Qpn, Transport};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

/// The hostile peer.
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// That the victim's queue pair for datagrams is attached to.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const PEER_QPN: Qpn = Qpn::new(0x22);
/// Address of the peer of the unaffected QPs; the script sends nothing from it.
const FRIEND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
const MAX_STEPS: usize = 64;
const BURST: usize = 16;
/// A page that must not change.
const UNTOUCHED: [u8; PAGE as usize] = [0xb7; PAGE as usize];

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut scene = Scene::new(&mut script);
    let mut steps = 0;
    while !script.is_over() && steps < MAX_STEPS {
        scene.step(&mut script);
        steps += 1;
    }
    scene.finish();
}

struct Scene {
    world: World,
    victim: Tenant,
    /// Memory of the victim: open to peers, local, readable, of another protection domain, and
    /// registered without being mapped.
    regions: [Mr; 5],
    places: Vec<Place>,
    bystander: Tenant,
    kept: Mr,
    before: Vec<QpView>,
    connection: Connection,
    sent: VecDeque<Packet>,
    delivered: u64,
    wr_id: u64,
}

const OPEN: usize = 0;
const LOCAL: usize = 1;
const READABLE: usize = 2;
const FOREIGN: usize = 3;

impl Scene {
    fn new(script: &mut Script<'_>) -> Self {
        let setup = script.u8();
        let mut world = World::new(port(setup));
        let mut victim = Tenant::new(&mut world, 0);
        let regions = regions(&mut world, &victim);
        let connection = connection(setup);
        if setup & 0x60 == 0x60 {
            victim.create_srq(&mut world);
        }
        let second = match setup & 0x82 {
            0x82 => QpType::Ud,
            0x80 => QpType::Uc,
            0x02 => QpType::XrcRecv,
            _ => QpType::Rc,
        };
        if second == QpType::XrcRecv {
            victim.open_domain(&mut world);
        }
        for qp_type in [QpType::Rc, second] {
            let qp = victim.create_qp(&mut world, qp_type);
            victim.connect(&mut world, qp, connection, (PEER, PEER_QPN));
        }
        if second == QpType::Ud {
            victim.attach(&mut world, 1, GROUP);
        }
        let mut bystander = Tenant::new(&mut world, 1);
        let kept = bystander.region(&mut world, bystander.pds[0], PAGE, full_access());
        for _ in 0..2 {
            let qp = bystander.create_qp(&mut world, QpType::Rc);
            let quiet = Connection { timeout: 0, ..connection };
            bystander.connect(&mut world, qp, quiet, (FRIEND, PEER_QPN));
        }
        stand_by(&mut world, &mut bystander, &kept);
        world.ledger.bystanders = bystander.qps.iter().map(|app| app.qpn).collect();
        let before = views(&world, &bystander);
        let reachable = regions.iter().chain([&kept]);
        let places = reachable.map(|mr| Place { addr: mr.addr, len: mr.len, rkey: mr.rkey });
        Self {
            places: places.collect(),
            world,
            victim,
            regions,
            bystander,
            kept,
            before,
            connection,
            sent: VecDeque::new(),
            delivered: 0,
            wr_id: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let choice = script.u8();
        let nth = usize::from(choice >> 7);
        match choice % 16 {
            0..=3 => self.deliver_any(script, nth),
            4 | 5 => {
                let aim = self.aim(nth);
                let packets = packet::message(script, &aim, &self.places);
                self.deliver(packets);
            }
            6 | 7 => self.answer(script, nth),
            8 | 9 => self.post_send(script, nth),
            10 => self.post_recv(script, nth),
            11 => self.world.wait(1 << (script.below(48))),
            12 => self.change_state(script, nth),
            13 => self.change_memory(script),
            14 => self.deliver_raw(script, nth),
            _ => drop(self.victim.poll()),
        }
        // Several bursts may wait before the engine's turn.
        if choice & 0x40 == 0 {
            self.turn();
        }
    }

    fn turn(&mut self) -> bool {
        let turn = self.world.turn();
        self.sent.extend(self.world.take_sent());
        while self.sent.len() > BURST {
            self.sent.pop_front();
        }
        if !self.world.port.has_input() {
            let received = self.world.engine.counters().rx_packets;
            assert_eq!(received, self.delivered, "datagrams vanished");
        }
        for app in &self.victim.qps {
            let view = self.world.engine.qp_by_number(app.qpn).expect("the QP exists");
            let most = u32::from(app.connection.max_dest_rd_atomic).next_power_of_two();
            assert!(view.replies <= most, "{} replies are owed", view.replies);
        }
        turn.worked || turn.more || self.world.port.has_input()
    }

    /// What the peer knows about a QP.
    fn aim(&self, nth: usize) -> Aim {
        let app = &self.victim.qps[nth];
        let view = self.world.engine.qp_by_number(app.qpn).expect("the QP exists");
        Aim {
            qpn: app.qpn,
            transport: match app.qp_type {
                QpType::Uc => Transport::Uc,
                QpType::Ud => Transport::Ud,
                QpType::XrcRecv => Transport::Xrc,
                _ => Transport::Rc,
            },
            srqn: self.victim.srqn(),
            mtu: app.connection.mtu() as usize,
            expected: Psn::new(view.expected_psn),
            in_flight: (Psn::new(view.in_flight.0), Psn::new(view.in_flight.1)),
            flow: Flow::new(PEER, HERE, 0xc123),
        }
    }

    fn deliver(&mut self, packets: Vec<Packet>) {
        // No network merges empty datagrams into trains, but this port would.
        for packet in packets.into_iter().filter(|packet| !packet.bytes.is_empty()) {
            self.delivered += 1;
            self.world.port.deliver(packet);
        }
    }

    fn deliver_any(&mut self, script: &mut Script<'_>, nth: usize) {
        let mut aim = self.aim(nth);
        // Sometimes for another client's QP, or for none that exists.
        match script.u8() {
            0 => aim.qpn = self.bystander.qps[0].qpn,
            1 => aim.qpn = Qpn::new(script.u32()),
            2 => aim.qpn = Qpn::GSI,
            3 | 4 => aim.qpn = Qpn::MULTICAST,
            _ => {}
        }
        if aim.qpn == Qpn::MULTICAST && script.u8() != 0 {
            aim.flow.dst = GROUP;
        }
        let packet = packet::any(script, &aim, &self.places);
        let copies = if script.u8() == 0xff { BURST } else { 1 };
        self.deliver(vec![packet; copies]);
    }

    fn deliver_raw(&mut self, script: &mut Script<'_>, nth: usize) {
        let packet = packet::raw(script, self.aim(nth).flow);
        self.deliver(vec![packet]);
    }

    fn answer(&mut self, script: &mut Script<'_>, nth: usize) {
        let at = script.below(BURST);
        let Some(request) = self.sent.get(at).or(self.sent.back()) else { return };
        let packets = packet::answer(script, &self.aim(nth), request);
        self.deliver(packets);
    }

    fn any_sge(&mut self, script: &mut Script<'_>) -> Sge {
        let mr = self.regions[script.below(self.regions.len())];
        let length = match script.below(8) {
            0 => 0,
            1 => 8,
            2 => 256,
            3 => script.u16().into(),
            4 => u32::try_from(mr.len).unwrap_or(1 << 31),
            5 => script.pick(&[1 << 31, (1 << 31) - 1, u32::MAX, 1 << 30]),
            _ => script.u8().into(),
        };
        let offset = if script.u8() & 7 == 0 { script.u16().into() } else { 0 };
        Sge { length, ..mr.sge(offset, 0) }
    }

    fn any_sges(&mut self, script: &mut Script<'_>, most: u32) -> Vec<Sge> {
        let count = script.below(most as usize + 1);
        (0..count).map(|_| self.any_sge(script)).collect()
    }

    fn post_send(&mut self, script: &mut Script<'_>, nth: usize) {
        const OPCODES: [WrOpcode; 10] = [
            WrOpcode::Send,
            WrOpcode::SendImm,
            WrOpcode::Write,
            WrOpcode::WriteImm,
            WrOpcode::Read,
            WrOpcode::CmpSwap,
            WrOpcode::FetchAdd,
            WrOpcode::SendInv,
            WrOpcode::AtomicWrite,
            WrOpcode::Flush,
        ];
        self.wr_id += 1;
        let opcode = script.pick(&OPCODES);
        let flags = SendFlags::from_bits_truncate(script.u8());
        let mut control = SendControl::new(opcode, flags, self.wr_id);
        let inline = flags.contains(SendFlags::INLINE);
        let mut sges = self.any_sges(script, if inline { 0 } else { CAPS.max_send_sge });
        if opcode == WrOpcode::CmpSwap || opcode == WrOpcode::FetchAdd {
            sges.truncate(1);
            sges.iter_mut().for_each(|sge| sge.length = 8);
        }
        if opcode == WrOpcode::AtomicWrite {
            sges.truncate(1);
            sges.iter_mut().for_each(|sge| sge.length = 8);
        } else if opcode == WrOpcode::Flush {
            sges.clear();
            control.swap = (script.u8() & 3).into();
        }
        control.num_sge = u8::try_from(sges.len()).unwrap_or(0);
        if inline {
            control.data_len = script.u8().into();
        }
        control.remote_addr = script.u16().into();
        control.rkey = script.u8().into();
        control.imm_or_key = 5;
        self.victim.post_send(&mut self.world, nth, &control, &sges, &[0x1122_3344; 4]);
    }

    fn post_recv(&mut self, script: &mut Script<'_>, nth: usize) {
        for _ in 0..=script.below(3) {
            self.wr_id += 1;
            let sges = self.any_sges(script, CAPS.max_recv_sge);
            self.victim.post_recv(nth, self.wr_id, &sges);
        }
    }

    /// Everything that names the queue of the domain is refused from now on.
    fn destroy_named(&mut self) {
        let Some((_, srq)) = self.victim.xrc.as_ref().filter(|(_, srq)| !srq.is_gone) else {
            return;
        };
        let destroy = ClientCommand::DestroySrq { srq: srq.handle };
        self.world.command(self.victim.client, destroy).expect("it can always go");
        self.victim.poll();
        if let Some((_, srq)) = &mut self.victim.xrc {
            srq.forget();
        }
    }

    fn change_state(&mut self, script: &mut Script<'_>, nth: usize) {
        match script.below(6) {
            // Rarely: little happens afterwards.
            0 if nth == 1 && script.u8() & 7 == 0 => self.destroy_named(),
            0 => drop(self.victim.set_state(&mut self.world, nth, QpState::Err)),
            1 => drop(self.victim.set_state(&mut self.world, nth, QpState::Sqd)),
            2 => drop(self.victim.set_state(&mut self.world, nth, QpState::Rts)),
            3 => self.lower_depth(script, nth),
            _ => {
                self.victim.poll();
                self.victim.set_state(&mut self.world, nth, QpState::Reset);
                let connection = self.connection;
                self.victim.connect(&mut self.world, nth, connection, (PEER, PEER_QPN));
            }
        }
    }

    /// READ depths may change while the send queue is drained.
    fn lower_depth(&mut self, script: &mut Script<'_>, nth: usize) {
        let depth = script.u8() & 3;
        let mask = AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC;
        let attr = QpAttr { state: QpState::Sqd, max_rd_atomic: depth, ..QpAttr::default() };
        self.victim.modify(&mut self.world, nth, mask, attr, None);
    }

    /// Memory is registered and deregistered while it is in use.
    fn change_memory(&mut self, script: &mut Script<'_>) {
        let which = script.below(self.regions.len());
        let mr = self.regions[which];
        match script.below(4) {
            0 => self.protect(mr, PageAccess::Hole),
            1 => self.protect(mr, PageAccess::ReadOnly),
            2 => self.protect(mr, PageAccess::ReadWrite),
            _ => {
                let dereg = ClientCommand::DeregMr { mr: mr.handle };
                let gone = self.world.command(self.victim.client, dereg);
                if gone == Ok(Outcome::Done) {
                    self.world.memory.deregister(self.victim.space, mr.addr, mr.len);
                }
            }
        }
    }

    fn protect(&mut self, mr: Mr, access: PageAccess) {
        if mr.len > PAGE && mr.len <= 2 * PAGE {
            self.world.memory.protect(self.victim.space, mr.addr + PAGE, PAGE, access);
        }
    }

    /// Everything posted completes, and the other client's QPs are unchanged.
    fn finish(&mut self) {
        for nth in 0..self.victim.qps.len() {
            self.victim.set_state(&mut self.world, nth, QpState::Err);
        }
        let mut turns = 0;
        while self.turn() || !self.victim.poll().is_empty() {
            turns += 1;
            assert!(turns < 200, "the engine does not come to rest");
        }
        for app in &self.victim.qps {
            let owed = (app.sq.oracle.owed(), app.rq.oracle.owed());
            assert_eq!(owed, (0, 0), "work requests were not flushed");
        }
        let Tenant { srq, xrc, .. } = &mut self.victim;
        for srq in srq.iter_mut().chain(xrc.as_mut().map(|(_, srq)| srq)) {
            srq.check();
        }
        let foreign = self.victim.bytes(&self.world, &self.regions[FOREIGN]);
        assert!(foreign == UNTOUCHED, "another protection domain was written");
        assert_eq!(views(&self.world, &self.bystander), self.before, "a bystander changed");
        assert!(self.bystander.poll().is_empty(), "a bystander got a completion");
        let kept = self.bystander.bytes(&self.world, &self.kept);
        assert!(kept == UNTOUCHED, "a bystander's memory was written");
        self.world.check();
    }
}

fn port(setup: u8) -> PortConfig {
    let kind = if setup & 1 == 0 { PortConfig::frames() } else { PortConfig::trains() };
    let arenas = 1 + (setup >> 1 & 1);
    let tx_burst = if setup & 4 == 0 { 64 } else { 5 };
    PortConfig { arenas, tx_burst, ..kind }
}

fn connection(setup: u8) -> Connection {
    Connection {
        path_mtu: if setup & 8 == 0 { 1 } else { 2 },
        // PSNs that wrap during the run, or PSNs that do not.
        sq_psn: if setup & 16 == 0 { 0x00ff_fffc } else { 0x10 },
        rq_psn: if setup & 16 == 0 { 0x00ff_fffe } else { 0x20_0000 },
        timeout: 5,
        retry_cnt: 2 + (setup >> 5 & 3),
        ..Connection::default()
    }
}

fn regions(world: &mut World, victim: &Tenant) -> [Mr; 5] {
    let [pd, other_pd] = victim.pds;
    let local = AccessFlags::LOCAL_WRITE;
    let open = victim.region(world, pd, 2 * PAGE, full_access());
    let private = victim.region(world, pd, 2 * PAGE, local);
    let readable = victim.region(world, pd, PAGE, AccessFlags::REMOTE_READ);
    let foreign = victim.region(world, other_pd, PAGE, full_access());
    // Longer than any message, and not mapped.
    let unmapped = victim.register(world, pd, 1 << 40, 5 << 30, full_access());
    victim.fill(world, &foreign, UNTOUCHED[0]);
    let mut regions = [open; 5];
    regions[LOCAL] = private;
    regions[READABLE] = readable;
    regions[FOREIGN] = foreign;
    regions[FOREIGN + 1] = unmapped.expect("memory need not be mapped to be registered");
    debug_assert_eq!(regions[OPEN], open);
    regions
}

/// The other client has receives posted and one request in flight.
fn stand_by(world: &mut World, bystander: &mut Tenant, kept: &Mr) {
    bystander.fill(world, kept, UNTOUCHED[0]);
    for nth in 0..bystander.qps.len() {
        bystander.post_recv(nth, 1, &[kept.sge(0, 64)]);
        let mut control = SendControl::new(WrOpcode::Write, SendFlags::SIGNALED, 2);
        control.num_sge = 1;
        bystander.post_send(world, nth, &control, &[kept.sge(0, 64)], &[]);
    }
    while world.turn().worked {}
    drop(world.take_sent());
}

fn views(world: &World, tenant: &Tenant) -> Vec<QpView> {
    let view = |handle| world.engine.qp(handle).expect("the QP exists");
    tenant.qps.iter().map(|app| view(app.handle)).collect()
}
