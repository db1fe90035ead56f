//! A hostile application: it writes anything into its rings, doorbells and completion queue, and
//! asks for anything, while another client of the same engine moves checked data.

use crate::domains;
use crate::honest::Honest;
use crate::script::Script;
use crate::tenant::{CAPS, QKEY, Tenant, USED};
use crate::world::{HERE, World};
use rnic_abi::doorbell::SUMMARY;
use rnic_abi::verbs::{
    AccessFlags, AhAttr, AttrMask, QpAttr, QpState, QpType, SendFlags, WrOpcode,
};
use rnic_abi::words::{LINE, Words};
use rnic_abi::wqe::{SendControl, Sge};
use rnic_core::command::WindowType::{One, Two};
use rnic_core::ports::HopId;
use rnic_core::{ClientCommand, Command, CommandError, Outcome, Path};
use rnic_sim::memory::PAGE;
use rnic_sim::port::PortConfig;
use rnic_sim::verbs::{Connection, Mr, full_access};
use roce_wire::{Flow, Qpn};
use std::net::{IpAddr, Ipv4Addr};

const MAX_STEPS: usize = 64;
/// An address without a host.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut scene = Scene::new(&mut script);
    let mut steps = 0;
    while !script.is_over() && steps < MAX_STEPS {
        scene.step(&mut script);
        steps += 1;
    }
    scene.honest.finish(&mut scene.world);
    let client = scene.hostile.client;
    let gone = scene.world.execute(Command::RemoveClient { client });
    assert_eq!(gone, Ok(Outcome::Done));
    scene.world.memory_is_gone(&scene.regions, &scene.hostile);
    scene.honest.post(&mut scene.world);
    scene.honest.finish(&mut scene.world);
    scene.world.check();
}

struct Scene {
    world: World,
    hostile: Tenant,
    regions: Vec<Mr>,
    /// Of the queue pairs' own domain, of another one, and of the honest client.
    ahs: Vec<u32>,
    /// Handles and keys of windows: of both types, of another domain, and of the honest client.
    windows: Vec<(u32, u32)>,
    honest: Honest,
}

impl Scene {
    fn new(script: &mut Script<'_>) -> Self {
        let setup = script.u8();
        let kind = if setup & 1 == 0 { PortConfig::frames() } else { PortConfig::trains() };
        let mut world = World::new(kind);
        let mut hostile = Tenant::new(&mut world, 0);
        let rights = full_access() | AccessFlags::MW_BIND;
        let open = hostile.region(&mut world, hostile.pds[0], 2 * PAGE, rights);
        let nowhere = hostile.register(&mut world, hostile.pds[0], 1 << 40, 5 << 30, full_access());
        let foreign = hostile.region(&mut world, hostile.pds[1], PAGE, AccessFlags::LOCAL_WRITE);
        let regions = [Some(open), nowhere, Some(foreign)].into_iter().flatten().collect();
        if setup & 4 != 0 {
            hostile.create_srq(&mut world);
        }
        let types = match (setup & 16 == 0, setup & 8 == 0, setup & 2 == 0) {
            (false, _, _) => [QpType::XrcSend, QpType::XrcRecv],
            (true, false, _) => [QpType::Ud; 2],
            (true, true, true) => [QpType::Rc; 2],
            (true, true, false) => [QpType::Uc; 2],
        };
        if types[1] == QpType::XrcRecv {
            hostile.open_domain(&mut world);
        }
        let quick = Connection { path_mtu: 1, timeout: 4, ..PSNS };
        pair(&mut world, &mut hostile, types, quick);
        let alone = hostile.create_qp(&mut world, QpType::Rc);
        hostile.connect(
            &mut world,
            alone,
            Connection { retry_cnt: 1, ..PSNS },
            (NOWHERE, STRANGER),
        );
        let honest = Honest::new(&mut world);
        let tenants = [&hostile, &hostile, &honest.tenant];
        let ahs = [0, 1, 0].into_iter().zip(tenants);
        let ahs = ahs.map(|(pd, tenant)| tenant.create_ah(&mut world, pd)).collect();
        let windows = [(&hostile, 0, One), (&hostile, 0, Two), (&hostile, 1, Two)]
            .into_iter()
            .chain([(&honest.tenant, 0, One)])
            .map(|(tenant, pd, kind)| tenant.alloc_mw(&mut world, pd, kind))
            .collect();
        Self { world, hostile, regions, ahs, windows, honest }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let choice = script.u8();
        let nth = usize::from(choice >> 4) % self.hostile.qps.len();
        match choice % 16 {
            0..=2 => self.write_send(script, nth),
            3 => self.write_receive(script, nth),
            4..=6 => self.ring(script, nth),
            7 | 8 => self.scribble(script, nth),
            9 => self.scribble_bits(script),
            10 => self.world.wait(1 << script.below(40)),
            11 => self.command(script, nth),
            12 => self.modify(script, nth),
            13 => self.renew(nth),
            14 => self.send_something(nth),
            _ => self.honest.post(&mut self.world),
        }
        if choice & 0x40 == 0 {
            self.world.turn();
            self.world.loop_back();
            self.honest.poll(&mut self.world);
        }
    }

    /// One word anywhere in a queue or in the completion queue.
    fn scribble(&mut self, script: &mut Script<'_>, nth: usize) {
        let app = &self.hostile.qps[nth];
        let words = match script.below(3) {
            0 => &app.sq.words,
            1 => &self.hostile.receives(nth).words,
            _ => &self.hostile.cq_words,
        };
        let at = usize::from(script.u16()) % words.len();
        words.set(at, any_word(script));
    }

    /// One word of the doorbell area.
    fn scribble_bits(&mut self, script: &mut Script<'_>) {
        let [first, bits, records] = USED;
        let at = match script.below(4) {
            // Few words there mean anything, and each has a cache line of its own.
            0 => first.start + script.below(first.len() / LINE) * LINE,
            1 => first.start + script.below(first.len()),
            2 => bits.start + script.below(bits.len()),
            _ => records.start + script.below(records.len()),
        };
        self.hostile.area.set(at, any_word(script));
    }

    fn ring(&mut self, script: &mut Script<'_>, nth: usize) {
        let app = &self.hostile.qps[nth];
        let (sq, rq) = (app.sq.record, self.hostile.receives(nth).record);
        let producer = match script.below(4) {
            0 => script.u32(),
            _ => script.below(32) as u32,
        };
        let _ = self.hostile.bell.ring(if script.below(4) == 0 { rq } else { sq }, producer);
        self.world.engine.client_rang(self.world.now, self.hostile.client);
    }

    /// A send WQE in some slot, most of its fields meaningful.
    fn write_send(&mut self, script: &mut Script<'_>, nth: usize) {
        let flags = SendFlags::from_bits_truncate(script.u8());
        let opcode = WrOpcode::from_number(script.u8() % 16).unwrap_or(WrOpcode::Read);
        let mut control = SendControl::new(opcode, flags, 7);
        control.num_sge = script.u8() % 4;
        control.carried = script.u8() & 7 == 0;
        if control.carried || flags.contains(SendFlags::INLINE) {
            control.data_len = script.u8().into();
        }
        let mr = self.regions[script.below(self.regions.len())];
        control.remote_addr = mr.addr.wrapping_add(script.u16().into());
        control.rkey = if script.u8() & 7 == 1 { self.window_key(script) } else { mr.rkey };
        match opcode {
            WrOpcode::BindMw => {
                control.rkey = self.window_key(script);
                control.qkey = self.regions[script.below(self.regions.len())].lkey;
                control.compare_add = script.pick(&[0, 1, 300, 4096, u64::MAX]);
                control.swap = script.u8().into();
            }
            WrOpcode::LocalInv | WrOpcode::SendInv => {
                control.imm_or_key = self.window_key(script);
            }
            _ => {}
        }
        if self.hostile.qps[nth].qp_type == QpType::XrcSend {
            control.srqn = if script.u8() & 7 == 0 { script.u32() } else { self.hostile.srqn() };
        }
        if self.hostile.qps[nth].qp_type == QpType::Ud {
            control.ah = script.pick(&[self.ahs[0], self.ahs[0], self.ahs[1], self.ahs[2], 77]);
            control.remote_qpn = match script.below(8) {
                0 => script.u32(),
                1 => self.honest.tenant.qps[1].qpn.value(),
                to => self.hostile.qps[to % 2].qpn.value(),
            };
            control.qkey = if script.u8() & 7 == 0 { script.u32() } else { QKEY };
        }
        let mut words = control.encode().to_vec();
        for _ in 0..control.num_sge {
            words.extend(self.any_sge(script).encode());
        }
        if script.u8() & 7 == 0 {
            let at = script.below(words.len());
            words[at] ^= 1 << (script.u8() & 63);
        }
        let app = &self.hostile.qps[nth];
        write_slot(&app.sq.words, script.below(8), app.sq.ring.stride(), &words);
    }

    /// A key that a window has, or had, or may have next.
    fn window_key(&self, script: &mut Script<'_>) -> u32 {
        let (_, key) = self.windows[script.below(self.windows.len())];
        key & !0xff | u32::from(script.u8() & 3)
    }

    fn write_receive(&mut self, script: &mut Script<'_>, nth: usize) {
        let count = script.u8() % 5;
        let mut words = vec![count.into(), 9];
        for _ in 0..count {
            words.extend(self.any_sge(script).encode());
        }
        let rq = self.hostile.receives(nth);
        write_slot(&rq.words, script.below(8), rq.ring.stride(), &words);
    }

    fn any_sge(&self, script: &mut Script<'_>) -> Sge {
        let mr = self.regions[script.below(self.regions.len())];
        let length = match script.below(6) {
            0 => 8,
            1 => 256,
            2 => script.u16().into(),
            3 => script.u32(),
            4 => script.pick(&[1 << 31, (1 << 31) - 1, u32::MAX, 1 << 24]),
            _ => script.u8().into(),
        };
        let lkey = if script.u8() == 0 { script.u32() } else { mr.lkey };
        let offset = if script.u8() & 7 == 0 { any_word(script) } else { 0 };
        Sge { addr: mr.addr.wrapping_add(offset), length, lkey }
    }

    /// A valid request, so that there is something to disturb.
    fn send_something(&mut self, nth: usize) {
        let mr = self.regions[0];
        let app = &self.hostile.qps[nth];
        let opcode = match app.qp_type {
            QpType::Ud => WrOpcode::Send,
            _ => WrOpcode::Read,
        };
        let mut control = SendControl::new(opcode, SendFlags::SIGNALED, 3);
        (control.ah, control.qkey, control.srqn) = (self.ahs[0], QKEY, self.hostile.srqn());
        control.remote_qpn = self.hostile.qps[nth ^ usize::from(nth < 2)].qpn.value();
        control.num_sge = 1;
        control.remote_addr = mr.addr;
        control.rkey = mr.rkey;
        let mut words = control.encode().to_vec();
        words.extend(mr.sge(0, 1000).encode());
        for slot in 0..CAPS.max_send_wr as usize {
            write_slot(&app.sq.words, slot, app.sq.ring.stride(), &words);
        }
        let before = self.hostile.area.get(SUMMARY.end + app.sq.record.value() as usize);
        #[expect(clippy::cast_possible_truncation, reason = "producer indices are 32 bits")]
        let producer = (before as u32).wrapping_add(1);
        let _ = self.hostile.bell.ring(app.sq.record, producer);
        self.world.engine.client_rang(self.world.now, self.hostile.client);
    }

    /// A command with handles that may belong to another client.
    fn command(&mut self, script: &mut Script<'_>, nth: usize) {
        let own = &self.hostile;
        let other = &self.honest.tenant;
        let any = |script: &mut Script<'_>, own: u32, other: u32| match script.below(4) {
            0 => (other, true),
            1 => (script.u32(), false),
            _ => (own, false),
        };
        let mr = self.regions[script.below(self.regions.len())];
        let (command, foreign) = match script.below(13) {
            0 => (ClientCommand::AllocPd, false),
            1 => {
                let (pd, foreign) = any(script, own.pds[1], other.pds[0]);
                (ClientCommand::DeallocPd { pd }, foreign)
            }
            2 => {
                let (mr, foreign) = any(script, mr.handle, self.honest.from.handle);
                return self.deregister(mr, foreign);
            }
            3 => {
                let (cq, foreign) = any(script, own.cq, other.cq);
                (ClientCommand::DestroyCq { cq }, foreign)
            }
            4 => {
                let (qp, foreign) = any(script, own.qps[nth].handle, other.qps[0].handle);
                (ClientCommand::QueryQp { qp }, foreign)
            }
            5 => {
                let (pd, foreign) = any(script, own.pds[0], other.pds[0]);
                return self.register(script, pd, foreign);
            }
            6 => {
                let (qp, mut foreign) = any(script, 0, other.qps[0].handle);
                // Its own QPs are destroyed by `renew`.
                foreign |= own.qps.iter().all(|app| app.handle != qp);
                if !foreign {
                    return;
                }
                (ClientCommand::DestroyQp { qp }, foreign)
            }
            7 => {
                let at = script.below(self.windows.len());
                let foreign = at == self.windows.len() - 1;
                (ClientCommand::DeallocMw { mw: self.windows[at].0 }, foreign)
            }
            8 => {
                let clients = [self.hostile.client, self.honest.tenant.client];
                return domains::join(&mut self.world, script, clients);
            }
            9..=11 => (domains::any_command(script, own), false),
            _ => {
                let qp = other.qps[0].handle;
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                (ClientCommand::ModifyQp { qp, mask: AttrMask::STATE, attr, path: None }, true)
            }
        };
        let outcome = self.world.command(self.hostile.client, command);
        assert!(!foreign || outcome.is_err(), "a client got at another one's object: {outcome:?}");
    }

    fn deregister(&mut self, mr: u32, foreign: bool) {
        let outcome = self.world.command(self.hostile.client, ClientCommand::DeregMr { mr });
        assert!(!foreign || outcome.is_err(), "a client deregistered another one's memory");
        if outcome.is_ok() {
            let known = self.regions.iter().find(|known| known.handle == mr);
            let gone = known.expect("what it deregisters it has registered");
            self.world.memory.deregister(self.hostile.space, gone.addr, gone.len);
        }
    }

    fn register(&mut self, script: &mut Script<'_>, pd: u32, foreign: bool) {
        let mapped = self.regions[0];
        let (addr, len) = match script.below(3) {
            0 => (mapped.addr + u64::from(script.u8()), script.u16().into()),
            1 => (script.u64(), script.u64()),
            _ => (u64::MAX - u64::from(script.u16()), script.u16().into()),
        };
        let access = AccessFlags::from_bits_truncate(script.u8().into());
        let made = self.hostile.register(&mut self.world, pd, addr, len, access);
        assert!(!foreign || made.is_none(), "a client used another one's protection domain");
        if let Some(mr) = made
            && self.regions.len() < 8
        {
            self.regions.push(mr);
        }
    }

    /// Arbitrary attributes.
    fn modify(&mut self, script: &mut Script<'_>, nth: usize) {
        let state = QpState::from_number(script.u8() % 7).unwrap_or(QpState::Err);
        let attr = QpAttr {
            state,
            cur_state: QpState::from_number(script.u8() % 7).unwrap_or(QpState::Err),
            path_mtu: script.u8() % 8,
            rq_psn: script.u32(),
            sq_psn: script.u32(),
            dest_qpn: self.hostile.qps[usize::from(script.u8()) % 3].qpn.value(),
            access: AccessFlags::from_bits_truncate(script.u8().into()),
            ah: AhAttr { is_global: true, port_num: script.u8() % 3, ..AhAttr::default() },
            max_rd_atomic: script.u8(),
            max_dest_rd_atomic: script.u8(),
            min_rnr_timer: script.u8(),
            timeout: script.u8(),
            retry_cnt: script.u8(),
            rnr_retry: script.u8(),
            port_num: script.u8() % 3,
            ..QpAttr::default()
        };
        let mask = AttrMask::from_bits_truncate(script.u32()) | AttrMask::STATE;
        let path = (mask.contains(AttrMask::AV) || script.u8() & 1 == 0).then(|| Path {
            attr: attr.ah,
            flow: Flow::new(HERE, HERE, 0),
            hop: HopId(0),
        });
        let qp = self.hostile.qps[nth].handle;
        let modify = ClientCommand::ModifyQp { qp, mask, attr, path };
        let _: Result<Outcome, CommandError> = self.world.command(self.hostile.client, modify);
    }

    /// Destroys all its QPs and makes new ones.
    fn renew(&mut self, nth: usize) {
        let peer = self.hostile.qps[nth ^ usize::from(nth < 2)].qpn;
        self.hostile.set_state(&mut self.world, nth, QpState::Reset);
        let address = if nth < 2 { HERE } else { NOWHERE };
        let connection = Connection { path_mtu: 1, timeout: 3, ..PSNS };
        if self.hostile.qps[nth].qp_type == QpType::Ud {
            // What is posted still names the old one.
            let gone = ClientCommand::DestroyAh { ah: self.ahs[0] };
            let outcome = self.world.command(self.hostile.client, gone);
            assert_eq!(outcome, Ok(Outcome::Done));
            self.ahs[0] = self.hostile.create_ah(&mut self.world, 0);
        }
        self.hostile.connect(&mut self.world, nth, connection, (address, peer));
    }
}

impl World {
    /// The memory of a destroyed client must not be accessed any more.
    fn memory_is_gone(&mut self, regions: &[Mr], tenant: &Tenant) {
        for mr in regions {
            self.memory.deregister(tenant.space, mr.addr, mr.len);
        }
    }
}

/// Both ends use the same initial PSNs.
pub(crate) const PSNS: Connection = Connection {
    path_mtu: 1,
    sq_psn: 0x00ff_fff0,
    rq_psn: 0x00ff_fff0,
    timeout: 0,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 1,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    access: AccessFlags::all(),
};
const STRANGER: Qpn = Qpn::new(0x99);

/// Two QPs of a tenant, connected to each other.
pub(crate) fn pair(
    world: &mut World,
    tenant: &mut Tenant,
    types: [QpType; 2],
    connection: Connection,
) {
    let [a, b] = types.map(|qp_type| tenant.create_qp(world, qp_type));
    let (qpn_a, qpn_b) = (tenant.qps[a].qpn, tenant.qps[b].qpn);
    tenant.connect(world, a, connection, (HERE, qpn_b));
    tenant.connect(world, b, connection, (HERE, qpn_a));
}

fn write_slot(ring: &Words, slot: usize, stride: usize, words: &[u64]) {
    let start = 2 * LINE + slot * stride;
    ring.copy_in(start, &words[..words.len().min(stride)]);
}

fn any_word(script: &mut Script<'_>) -> u64 {
    match script.below(5) {
        0 => u64::MAX,
        1 => 1 << (script.u8() & 63),
        2 => script.u8().into(),
        3 => u64::MAX - u64::from(script.u8()),
        _ => script.u64(),
    }
}
