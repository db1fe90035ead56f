//! What programs do: each verb is called in the world, and is a step of the story.

use crate::decode;
use crate::narrate::count;
use crate::teller::{NAMES, PATIENCE, Teller};
use rnic_abi::cq::ArmKind;
use rnic_abi::cqe::{Cqe, CqeFlags};
use rnic_abi::verbs::{AccessFlags, SendFlags, WcStatus, WrOpcode};
use rnic_abi::wqe::Sge;
use rnic_page::{Block, Kind, Step};
use rnic_sim::verbs::{CqId, Mr, QpId, SendWr};
use rnic_sim::world::HostId;

impl Teller {
    /// The program posts sends with one doorbell.
    pub(crate) fn post(&mut self, host: HostId, qp: QpId, wrs: &[SendWr]) {
        let qpn = self.world.host(host).qpn(qp);
        let name = Self::qp_name(host, qpn);
        let list: Vec<_> = wrs.iter().map(request).collect();
        let title = format!("ibv_post_send({qpn:#08x}, {})", list.join("; "));
        let call = self.step(Kind::Call, host, title);
        self.push(Step { qp: Some(name.clone()), ..call });
        if self.world.host(host).post_sends(qp, wrs).is_err() {
            self.note(Kind::Refusal, host, "ibv_post_send fails: ENOMEM or EINVAL".into());
            return;
        }
        let posted = u32::try_from(wrs.len()).unwrap_or(u32::MAX);
        for ago in (0..posted).rev() {
            let (index, slot) = self.world.host(host).send_slot(qp, ago);
            let opcode = wrs[wrs.len() - 1 - ago as usize].opcode;
            self.posted.insert((host, qpn, index), opcode);
            let block = decode::send(index, &slot);
            let title = format!("The library writes WQE {index} into the send queue");
            let mut step = self.step(Kind::Wqe, host, title);
            (step.qp, step.blocks) = (Some(name.clone()), vec![block]);
            self.push(step);
        }
        let (record, producer) = self.world.host(host).send_doorbell(qp);
        let title = format!("The library rings: doorbell record {record} = {producer}");
        let mut step = self.step(Kind::Doorbell, host, title);
        let text = if self.world.host(host).has_rung() {
            "The NIC sleeps, so the library also writes an eventfd, which wakes it."
        } else {
            "The NIC is awake: a store into shared memory is enough, there is no system call."
        };
        (step.qp, step.text) = (Some(name), vec![text.to_owned()]);
        self.push(step);
        self.resync();
    }

    /// The program posts a receive.
    pub(crate) fn receive(&mut self, host: HostId, qp: QpId, wr_id: u64, sges: &[Sge]) {
        let qpn = self.world.host(host).qpn(qp);
        let bytes: u32 = sges.iter().map(|sge| sge.length).sum();
        let title = format!("ibv_post_recv({qpn:#08x}, wr_id {wr_id}, a buffer of {bytes} bytes)");
        let mut step = self.step(Kind::Call, host, title);
        step.qp = Some(Self::qp_name(host, qpn));
        if self.world.host(host).post_recv(qp, wr_id, sges).is_ok() {
            let (index, slot) = self.world.host(host).recv_slot(qp, 0);
            step.blocks.push(decode::receive(index, &slot));
        } else {
            step.title += ": fails, the queue is full";
        }
        self.push(step);
        self.resync();
    }

    /// The program polls until there is a completion. `None` when none comes for a long time.
    pub(crate) fn wait(&mut self, host: HostId, cq: CqId) -> Option<Cqe> {
        let mut found = None;
        self.run(PATIENCE, |teller| {
            found = teller.world.host(host).poll(cq);
            found.is_some()
        });
        self.polled(host, cq, found)
    }

    /// The program polls once.
    pub(crate) fn poll(&mut self, host: HostId, cq: CqId) -> Option<Cqe> {
        let found = self.world.host(host).poll(cq);
        self.polled(host, cq, found)
    }

    fn polled(&mut self, host: HostId, cq: CqId, found: Option<Cqe>) -> Option<Cqe> {
        let Some(cqe) = found else {
            self.note(Kind::Call, host, "ibv_poll_cq() = 0: there is no completion".into());
            return None;
        };
        let sequence = self.polled.entry((host, cq)).or_default();
        *sequence += 1;
        let block = decode::cqe(*sequence, &cqe);
        self.levels.completions(host, self.now(), -1);
        let receive = cqe.flags.contains(CqeFlags::RECV);
        let title = format!("ibv_poll_cq() = 1: {}", completion(&cqe));
        let mut step = self.step(Kind::Completion, host, title);
        step.qp = Some(Self::qp_name(host, cqe.qpn));
        step.blocks.push(block);
        if cqe.status != WcStatus::Success {
            step.reason = Some(decode::status(cqe.status));
        }
        let note = match (cqe.status, receive) {
            (WcStatus::Success, true) => "The data is in the buffer.",
            (WcStatus::Success, false) => "The memory of the request may be used again.",
            (WcStatus::WrFlushErr, _) => "It was posted, but the queue pair is in the state ERR.",
            _ => "The request failed.",
        };
        self.push(step).text.push(note.to_owned());
        self.resync();
        Some(cqe)
    }

    /// The program asks for an event with the next completion.
    pub(crate) fn arm(&mut self, host: HostId, cq: CqId, kind: ArmKind) {
        self.world.host(host).arm(cq, kind);
        let solicited = u8::from(kind == ArmKind::Solicited);
        let title = format!("ibv_req_notify_cq(cq, solicited_only = {solicited})");
        self.note(Kind::Call, host, title);
    }

    /// Completion events of a host, which wake a program that sleeps in `ibv_get_cq_event`.
    pub(crate) fn events(&mut self, host: HostId) -> usize {
        let events = self.world.host(host).take_completion_events().len();
        let title = match events {
            0 => "No event: a program in ibv_get_cq_event() sleeps on".to_owned(),
            _ => format!(
                "{}: ibv_get_cq_event() returns",
                count(u32::try_from(events).unwrap_or(u32::MAX), "event")
            ),
        };
        self.note(Kind::Completion, host, title);
        events
    }

    /// Asynchronous events of a host.
    pub(crate) fn async_events(&mut self, host: HostId) -> usize {
        let events = self.world.host(host).take_async_events();
        for event in &events {
            let name = decode::constant("IBV_EVENT_", &format!("{:?}", event.event));
            let title = format!("ibv_get_async_event() returns: {name}");
            self.note(Kind::Completion, host, title);
        }
        events.len()
    }

    /// The program registers memory.
    pub(crate) fn register(&mut self, host: HostId, pd: u32, len: u64, access: AccessFlags) -> Mr {
        let mr = self.world.host(host).new_mr(pd, len, access);
        let rights = decode::rights(access);
        let title = format!(
            "ibv_reg_mr({len} bytes at {:#x}, {rights}): lkey {:#010x}, rkey {:#010x}",
            mr.addr, mr.lkey, mr.rkey
        );
        self.note(Kind::Call, host, title);
        mr
    }

    /// The program writes into its own memory.
    pub(crate) fn write(&mut self, host: HostId, addr: u64, bytes: &[u8]) {
        self.world.host(host).write_bytes(addr, bytes);
        let shown = value(bytes);
        let title = format!("The program writes {} bytes at {addr:#x}: {shown}", bytes.len());
        self.note(Kind::Memory, host, title);
    }

    /// The program looks at its memory, and compares it with what it should be.
    pub(crate) fn look(&mut self, host: HostId, addr: u64, expected: &[u8], what: &str) -> bool {
        let bytes = self.world.host(host).bytes(addr, expected.len() as u64).to_vec();
        let same = bytes == expected;
        let verdict = if same { format!("this is {what}") } else { format!("not {what}") };
        let title = format!(
            "Memory of {}, {} bytes at {addr:#x}: {}: {verdict}",
            NAMES[host],
            bytes.len(),
            value(&bytes)
        );
        let mut step = self.step(Kind::Memory, host, title);
        let hex = decode::hex(&bytes);
        let title = format!("memory at {addr:#x}");
        step.blocks.push(Block { title, hex, fields: Vec::new() });
        self.push(step);
        same
    }

    /// Something that the story has to mention.
    pub(crate) fn note(&mut self, kind: Kind, host: HostId, title: String) -> &mut Step {
        let step = self.step(kind, host, title);
        self.push(step)
    }
}

/// Eight bytes that are no text are a number; everything else is shown as text.
fn value(bytes: &[u8]) -> String {
    match bytes.try_into().map(u64::from_le_bytes) {
        Ok(number) if !bytes.iter().all(u8::is_ascii_graphic) && !bytes.contains(&b' ') => {
            format!("the number {number}")
        }
        _ => decode::text(bytes),
    }
}

/// A request in a few words.
fn request(wr: &SendWr) -> String {
    let mut text = format!("{}, wr_id {}", verb(wr.opcode), wr.wr_id);
    if matches!(wr.opcode, WrOpcode::CmpSwap | WrOpcode::FetchAdd) {
        text += &format!(", compare_add {}, swap {}", wr.compare_add, wr.swap);
    } else {
        text += &format!(", {} bytes", wr.len());
    }
    let remote = wr.remote;
    if remote.rkey != 0 {
        text += &format!(", remote {:#x} rkey {:#010x}", remote.addr, remote.rkey);
    }
    let flags: Vec<_> = wr.flags.iter_names().map(|(name, _)| name).collect();
    if wr.flags != SendFlags::SIGNALED {
        let flags = if flags.is_empty() { "no flags".to_owned() } else { flags.join("|") };
        text += &format!(", {flags}");
    }
    text
}

fn verb(opcode: WrOpcode) -> &'static str {
    match opcode {
        WrOpcode::Write => "IBV_WR_RDMA_WRITE",
        WrOpcode::WriteImm => "IBV_WR_RDMA_WRITE_WITH_IMM",
        WrOpcode::Send => "IBV_WR_SEND",
        WrOpcode::SendImm => "IBV_WR_SEND_WITH_IMM",
        WrOpcode::Read => "IBV_WR_RDMA_READ",
        WrOpcode::CmpSwap => "IBV_WR_ATOMIC_CMP_AND_SWP",
        WrOpcode::FetchAdd => "IBV_WR_ATOMIC_FETCH_AND_ADD",
        WrOpcode::LocalInv => "IBV_WR_LOCAL_INV",
        WrOpcode::BindMw => "IBV_WR_BIND_MW",
        WrOpcode::SendInv => "IBV_WR_SEND_WITH_INV",
        WrOpcode::Flush => "IBV_WR_FLUSH",
        WrOpcode::AtomicWrite => "IBV_WR_ATOMIC_WRITE",
    }
}

fn completion(cqe: &Cqe) -> String {
    let receive = cqe.flags.contains(CqeFlags::RECV);
    let good = cqe.status == WcStatus::Success;
    let mut text = format!("wr_id {}, {}", cqe.wr_id, decode::status(cqe.status));
    if good {
        text += &format!(", {}", decode::completed(cqe.opcode));
    }
    if good && receive {
        text += &format!(", {} bytes", cqe.byte_len);
    }
    if cqe.flags.contains(CqeFlags::IMM) {
        text += &format!(", immediate {:#x}", u32::from_be(cqe.imm_or_key));
    }
    text
}
