//! Commands: the control plane's way into the engine, executed between turns.

use crate::ah::AddressHandle;
use crate::clients::RecordOwner;
use crate::command::{
    ClientCommand, ClientId, Command, CommandError, Errno, NewQp, NewReceives, NewSrq, Outcome,
    Path, PortState, invalid, no_such, refuse,
};
use crate::cq::Cq;
use crate::engine::Engine;
use crate::modify_qp::{self, AttrLimits};
use crate::mr::{MrKeys, NewMr};
use crate::owned::Owned;
use crate::qp::Qp;
use crate::recv_queue::RecvQueue;
use crate::shared::{Ctx, Pd};
use crate::srq::Srq;
use crate::time::Instant;
use rnic_abi::control::AsyncEvent;
use rnic_abi::cq::CqProducer;
use rnic_abi::doorbell::RecordIndex;
use rnic_abi::verbs::{AsyncEventType, AttrMask, QpAttr, QpType};
use roce_wire::Gid;
use std::net::IpAddr;

mod memory;
mod queue_pairs;
mod xrc;

type CommandResult = Result<Outcome, CommandError>;

const NO_CLIENT: CommandError =
    CommandError { errno: Errno::Invalid, reason: "the device context is gone" };
const NO_PD: CommandError = no_such("no such protection domain");
const NO_CQ: CommandError = no_such("no such completion queue");
const NO_SRQ: CommandError = no_such("no such shared receive queue");
const NO_AH: CommandError = no_such("no such address handle");
const NO_QP: CommandError = no_such("no such queue pair");

impl Engine {
    /// Executes a command. Handles are checked for ownership.
    ///
    /// # Errors
    /// The errno that the verb returns, with a reason for people. Nothing has changed then.
    pub fn execute(&mut self, now: Instant, command: Command) -> CommandResult {
        match command {
            Command::AddClient { client, space: _, doorbells } => {
                self.shared.clients.add(client, doorbells, now)?;
                Ok(Outcome::Done)
            }
            Command::RemoveClient { client } => self.remove_client(now, client),
            Command::Client(client, command) => self.execute_for(now, client, command),
            Command::SendMad(mad) => self.shared.outbox.push(*mad).map(|()| Outcome::Done),
            Command::SetPort(port) => Ok(self.set_port(port)),
        }
    }

    fn execute_for(
        &mut self,
        now: Instant,
        client: ClientId,
        command: ClientCommand,
    ) -> CommandResult {
        match command {
            ClientCommand::AllocPd => self.alloc_pd(client),
            ClientCommand::DeallocPd { pd } => self.dealloc_pd(client, pd),
            ClientCommand::RegMr { pd, space, addr, length, iova, access } => {
                self.reg_mr(NewMr { client, pd, space, addr, length, iova, access })
            }
            ClientCommand::CheckAccess { pd, lkey, addr, length, access } => {
                self.owned_pd(client, pd)?;
                let denied = |_| refuse(Errno::Fault, "the key does not allow this access");
                self.shared.mrs.check(lkey, pd, addr, length, access).map_err(denied)?;
                Ok(Outcome::Done)
            }
            ClientCommand::ReregMr { mr, pd, place, access } => {
                self.rereg_mr(client, mr, pd, place, access)
            }
            ClientCommand::AllocMw { pd, kind } => self.alloc_mw(client, pd, kind),
            ClientCommand::DeallocMw { mw } => self.dealloc_mw(client, mw),
            ClientCommand::DeregMr { mr } => self.dereg_mr(client, mr),
            ClientCommand::CreateCq { ring, capacity, channel } => {
                self.create_cq(Cq::new(client, ring_of(ring, capacity)?, capacity, channel))
            }
            ClientCommand::ResizeCq { cq, ring, capacity } => {
                self.owned_cq(client, cq)?.resize(ring_of(ring, capacity)?, capacity)?;
                Ok(Outcome::Done)
            }
            ClientCommand::DestroyCq { cq } => self.destroy_cq(client, cq),
            ClientCommand::CreateQp(new) => self.create_qp(client, *new),
            ClientCommand::ModifyQp { qp, mask, attr, path } => {
                self.modify_qp(now, client, qp, mask, &attr, path)
            }
            ClientCommand::QueryQp { qp } => Ok(state_of(self.owned_qp(client, qp)?)),
            ClientCommand::DestroyQp { qp } => self.destroy_qp(now, client, qp),
            ClientCommand::CreateTarget { xrcd } => self.create_target(client, xrcd),
            ClientCommand::OpenQp { xrcd, qpn } => self.open_qp(client, xrcd, qpn),
            ClientCommand::OpenXrcd(how) => self.open_xrcd(client, how),
            ClientCommand::CloseXrcd { xrcd } => self.close_xrcd(client, xrcd),
            ClientCommand::CreateSrq(new) => self.create_srq(client, new),
            ClientCommand::SetSrqLimit { srq, limit } => self.set_srq_limit(client, srq, limit),
            ClientCommand::QuerySrq { srq } => self.query_srq(client, srq),
            ClientCommand::DestroySrq { srq } => self.destroy_srq(client, srq),
            ClientCommand::CreateAh { pd, path } => self.create_ah(client, pd, path),
            ClientCommand::DestroyAh { ah } => self.destroy_ah(client, ah),
            ClientCommand::Attach { qp, group } => self.attach(client, qp, group),
            ClientCommand::Detach { qp, group } => self.detach(client, qp, group),
        }
    }

    /// Keys first, so that nothing touches the memory any more; then QPs; then the rest.
    fn remove_client(&mut self, now: Instant, client: ClientId) -> CommandResult {
        self.shared.clients.slot_of(client).ok_or(NO_CLIENT)?;
        self.shared.mrs.remove_client(client);
        for qp in self.qps.of(client) {
            self.remove_qp(now, qp);
        }
        for reference in self.shared.xrc.references_of(client) {
            let _ = self.close_reference(now, reference);
        }
        for srq in self.shared.srqs.of(client) {
            let _ = self.destroy_srq(client, srq);
        }
        self.shared.xrc.remove_client(client);
        for ah in self.shared.ahs.of(client) {
            self.shared.ahs.remove(ah);
        }
        for cq in self.shared.cqs.of(client) {
            self.shared.cqs.remove(cq);
        }
        for pd in self.shared.pds.of(client) {
            self.shared.pds.remove(pd);
        }
        self.shared.clients.remove(client);
        Ok(Outcome::Done)
    }

    fn set_port(&mut self, port: PortState) -> Outcome {
        let before = std::mem::replace(&mut self.shared.config.port, port);
        // Rule: PortEvents
        let state = match (before.active, port.active) {
            (false, true) => Some(AsyncEventType::PortActive),
            (true, false) => Some(AsyncEventType::PortErr),
            _ => None,
        };
        // Rule: GidEvents
        let gids = port.gids_changed.then_some(AsyncEventType::GidChange);
        for event in state.into_iter().chain(gids) {
            for client in self.shared.clients.iter() {
                self.shared.async_events.push((client.id, AsyncEvent { event, element: 1 }));
                self.shared.counters.async_events += 1;
            }
        }
        Outcome::Done
    }

    fn alloc_pd(&mut self, client: ClientId) -> CommandResult {
        self.shared.clients.slot_of(client).ok_or(NO_CLIENT)?;
        let pd = Pd { client, users: 0 };
        let full = |_| refuse(Errno::NoMem, "the device has no free protection domain");
        self.shared.pds.insert(pd).map(Outcome::Handle).map_err(full)
    }

    fn owned_pd(&mut self, client: ClientId, pd: u32) -> Result<&mut Pd, CommandError> {
        self.shared.pds.get_mut(pd).filter(|pd| pd.client == client).ok_or(NO_PD)
    }

    fn dealloc_pd(&mut self, client: ClientId, pd: u32) -> CommandResult {
        let used = self.owned_pd(client, pd)?.users > 0;
        // Rule: DomainInUse
        if used {
            return Err(refuse(
                Errno::Busy,
                "queues, memory regions, windows or address handles use the domain",
            ));
        }
        self.shared.pds.remove(pd);
        Ok(Outcome::Done)
    }

    fn create_cq(&mut self, cq: Cq) -> CommandResult {
        self.shared.clients.slot_of(cq.client).ok_or(NO_CLIENT)?;
        let full = |_| refuse(Errno::NoMem, "the device has no free completion queue");
        self.shared.cqs.insert(cq).map(Outcome::Handle).map_err(full)
    }

    fn owned_cq(&mut self, client: ClientId, cq: u32) -> Result<&mut Cq, CommandError> {
        self.shared.cqs.get_mut(cq).filter(|cq| cq.client == client).ok_or(NO_CQ)
    }

    fn destroy_cq(&mut self, client: ClientId, cq: u32) -> CommandResult {
        let object = self.owned_cq(client, cq)?;
        // Rule: CqInUse
        if object.users > 0 {
            return Err(refuse(Errno::Busy, "queue pairs use the completion queue"));
        }
        let (completion_events, async_events) = (object.completion_events, object.async_events);
        self.shared.cqs.remove(cq);
        Ok(Outcome::CqGone { completion_events, async_events })
    }

    fn create_qp(&mut self, client: ClientId, new: NewQp) -> CommandResult {
        self.owned_pd(client, new.pd)?;
        self.owned_cq(client, new.send_cq)?;
        self.owned_cq(client, new.recv_cq)?;
        let own_rq = match &new.rq {
            NewReceives::Own(rq) => Some(rq.record),
            NewReceives::Shared(srq) => {
                let is_of_domain = self.owned_srq(client, *srq)?.xrc.is_some();
                // Rule: XrcSrqForNamesOnly
                if is_of_domain {
                    return Err(invalid("only messages of XRC use a queue of an XRC domain"));
                }
                None
            }
            NewReceives::None => None,
        };
        // Rule: QpTypes
        let fits = match new.qp_type {
            QpType::XrcSend => matches!(new.rq, NewReceives::None),
            QpType::XrcRecv => false,
            QpType::Rc | QpType::Uc | QpType::Ud => !matches!(new.rq, NewReceives::None),
        };
        if !fits {
            return Err(invalid("a queue pair of this type is not made like this"));
        }
        let identity = self.next_identity(client)?;
        let client_slot = identity.client_slot;
        let records = [Some(new.sq.record), own_rq];
        let unbound = |record: &RecordIndex| self.shared.clients.is_unbound(client_slot, *record);
        if records[0] == records[1] || !records.iter().flatten().all(unbound) {
            return Err(invalid("the doorbell record is in use"));
        }
        let (pd, send_cq, recv_cq) = (new.pd, new.send_cq, new.recv_cq);
        let qp = Qp::new(identity, new, &self.shared.srqs).ok_or(NO_SRQ)?;
        let shared_receives = qp.receive_source.shared();
        self.add_qp(qp)?;
        if let Some(srq) = shared_receives.and_then(|srq| self.shared.srqs.get_mut(srq)) {
            srq.users += 1;
        }
        let slot = identity.slot;
        let owners = [RecordOwner::Sq(slot), RecordOwner::Rq(slot)];
        for (record, owner) in records.into_iter().zip(owners) {
            let Some(record) = record else { continue };
            self.shared.clients.bind(client_slot, record, Some(owner));
        }
        self.owned_pd(client, pd)?.users += 1;
        self.owned_cq(client, send_cq)?.add_qp(identity.handle);
        self.owned_cq(client, recv_cq)?.add_qp(identity.handle);
        Ok(Outcome::Qp { qp: identity.handle, qpn: identity.qpn.value() })
    }

    fn create_srq(&mut self, client: ClientId, new: NewSrq) -> CommandResult {
        let client_slot = self.shared.clients.slot_of(client).ok_or(NO_CLIENT)?;
        self.owned_pd(client, new.pd)?;
        if let Some(xrc) = new.xrc {
            self.owned_cq(client, xrc.cq)?;
        }
        let record = new.queue.record;
        if !self.shared.clients.is_unbound(client_slot, record) {
            return Err(invalid("the doorbell record is in use"));
        }
        let full = refuse(Errno::NoMem, "the device has no free shared receive queue");
        let next = self.shared.srqs.next_handle().ok_or(full)?;
        let xrc = new.xrc.map(|xrc| self.shared.xrc.add_srq(client, xrc, next)).transpose()?;
        let NewSrq { pd, max_wr, max_sge, .. } = new;
        let queue = RecvQueue::new(new.queue);
        let srq = Srq { client, client_slot, pd, queue, max_wr, max_sge, limit: 0, users: 0, xrc };
        let handle = self.shared.srqs.insert(srq).map_err(|_| full)?;
        self.shared.clients.bind(client_slot, record, Some(RecordOwner::Srq));
        self.owned_pd(client, pd)?.users += 1;
        if let Some(xrc) = xrc {
            self.owned_cq(client, xrc.cq)?.add_srq(handle);
        }
        Ok(Outcome::NewSrq { srq: handle, srqn: xrc.map_or(0, |xrc| xrc.number) })
    }

    fn owned_srq(&mut self, client: ClientId, srq: u32) -> Result<&mut Srq, CommandError> {
        // Rule: OwnSrqs
        self.shared.srqs.get_mut(srq).filter(|srq| srq.client == client).ok_or(NO_SRQ)
    }

    fn set_srq_limit(&mut self, client: ClientId, srq: u32, limit: u32) -> CommandResult {
        let object = self.owned_srq(client, srq)?;
        // Rule: SrqLimitRange
        if limit > object.max_wr {
            return Err(invalid("srq_limit is beyond the size of the queue"));
        }
        object.limit = limit;
        // Rule: SrqLimitAtOnce
        self.shared.look_at_limit(srq);
        Ok(Outcome::Done)
    }

    fn query_srq(&mut self, client: ClientId, srq: u32) -> CommandResult {
        let Srq { max_wr, max_sge, limit, .. } = *self.owned_srq(client, srq)?;
        Ok(Outcome::Srq { max_wr, max_sge, limit })
    }

    fn destroy_srq(&mut self, client: ClientId, srq: u32) -> CommandResult {
        let object = self.owned_srq(client, srq)?;
        // Rule: SrqInUse
        if object.users > 0 {
            return Err(refuse(Errno::Busy, "queue pairs use the shared receive queue"));
        }
        let Some(gone) = self.shared.srqs.remove(srq) else { return Err(NO_SRQ) };
        self.shared.clients.bind(gone.client_slot, gone.queue.record, None);
        if let Some(pd) = self.shared.pds.get_mut(gone.pd) {
            pd.users -= 1;
        }
        if let Some(xrc) = &gone.xrc {
            self.forget_xrc_srq(xrc);
        }
        Ok(Outcome::Done)
    }

    fn create_ah(&mut self, client: ClientId, pd: u32, path: Path) -> CommandResult {
        self.owned_pd(client, pd)?;
        modify_qp::check_address(&path.attr, self.shared.config.gid_table_len)?;
        let ah = AddressHandle::new(client, pd, self.shared.config.profile, path);
        let full = |_| refuse(Errno::NoMem, "the device has no free address handle");
        let handle = self.shared.ahs.insert(ah).map_err(full)?;
        self.owned_pd(client, pd)?.users += 1;
        Ok(Outcome::Handle(handle))
    }

    fn destroy_ah(&mut self, client: ClientId, ah: u32) -> CommandResult {
        // Rule: OwnHandles
        let owned = self.shared.ahs.get(ah).filter(|ah| ah.client == client);
        let pd = owned.ok_or(NO_AH)?.pd;
        self.shared.ahs.remove(ah);
        self.owned_pd(client, pd)?.users -= 1;
        Ok(Outcome::Done)
    }

    fn attach(&mut self, client: ClientId, qp: u32, group: Gid) -> CommandResult {
        let qp = self.owned_qp(client, qp)?;
        // Rule: MembersAreDatagramQps
        if qp.rules.is_connected {
            return Err(invalid("only UD queue pairs can be attached to a multicast group"));
        }
        let (handle, slot) = (qp.handle, qp.slot);
        let full = |_| refuse(Errno::NoMem, "no room for another group, or member of this one");
        let is_new = self.shared.groups.attach(group_of(group)?, slot).map_err(full)?;
        self.owned_qp(client, handle)?.groups += u32::from(is_new);
        Ok(Outcome::Done)
    }

    fn detach(&mut self, client: ClientId, qp: u32, group: Gid) -> CommandResult {
        let (handle, slot) = {
            let qp = self.owned_qp(client, qp)?;
            (qp.handle, qp.slot)
        };
        // Rule: DetachUnknown
        if !self.shared.groups.detach(group_of(group)?, slot) {
            return Err(invalid("the queue pair is not attached to this multicast group"));
        }
        self.owned_qp(client, handle)?.groups -= 1;
        Ok(Outcome::Done)
    }

    fn owned_qp(&mut self, client: ClientId, qp: u32) -> Result<&mut Qp, CommandError> {
        match self.shared.xrc.target_of(client, qp) {
            Some(target) => self.qps.get_mut(target?).ok_or(NO_QP),
            // Rule: OwnQps
            None => self.qps.get_mut(qp).filter(|qp| is_of(qp, client)).ok_or(NO_QP),
        }
    }

    fn modify_qp(
        &mut self,
        now: Instant,
        client: ClientId,
        handle: u32,
        mask: AttrMask,
        new: &QpAttr,
        path: Option<Path>,
    ) -> CommandResult {
        let config = &self.shared.config;
        let limits = AttrLimits {
            active_mtu: config.port.active_mtu,
            max_init_rd_atomic: config.limits.max_qp_init_rd_atom,
            max_dest_rd_atomic: config.limits.max_qp_rd_atom,
            gid_table_len: config.gid_table_len,
            privileged: false,
        };
        let qp = self.owned_qp(client, handle)?;
        // Rule: Route
        if mask.contains(AttrMask::AV) && path.is_none() {
            return Err(refuse(Errno::HostUnreachable, "the destination has no route"));
        }
        let attr = modify_qp::modify(qp.qp_type, &qp.attr, mask, new, &limits)?;
        let handle = qp.handle;
        let Some(qp) = self.qps.get_mut(handle) else { return Err(NO_QP) };
        let mut ctx = Ctx { now, shared: &mut self.shared, tap: &mut () };
        qp.apply(&mut ctx, attr, path.filter(|_| mask.contains(AttrMask::AV)));
        Ok(state_of(qp))
    }

    fn destroy_qp(&mut self, now: Instant, client: ClientId, handle: u32) -> CommandResult {
        let qp = self.owned_qp(client, handle)?;
        if qp.target.is_some() {
            return self.close_reference(now, handle);
        }
        let async_events = qp.async_events;
        // Rule: AttachedInUse
        if qp.groups > 0 {
            return Err(refuse(Errno::Busy, "the queue pair is attached to a multicast group"));
        }
        self.remove_qp(now, handle);
        Ok(Outcome::QpGone { async_events })
    }

    pub(crate) fn remove_qp(&mut self, now: Instant, handle: u32) {
        let Some(mut qp) = self.qps.remove(handle) else { return };
        if qp.groups > 0 {
            // Rule: GoneFromGroups
            self.shared.groups.forget(qp.slot);
        }
        qp.give_receive_back(&mut Ctx { now, shared: &mut self.shared, tap: &mut () });
        if let Some(srq) = qp.receive_source.shared().and_then(|srq| self.shared.srqs.get_mut(srq))
        {
            srq.users -= 1;
        }
        self.shared.mrs.unbind_windows_of(handle);
        self.ingress.forget();
        self.shared.active.remove(qp.client_slot, qp.slot);
        for record in qp.records() {
            self.shared.clients.bind(qp.client_slot, record, None);
        }
        // Those of a target are a shared receive queue's, which counts there itself.
        if let Some(target) = &qp.target {
            return self.shared.xrc.remove_target(target.domain, handle);
        }
        if let Some(pd) = self.shared.pds.get_mut(qp.pd) {
            pd.users -= 1;
        }
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.shared.cqs.get_mut(cq) {
                cq.remove_qp(handle);
            }
        }
    }
}

/// The address of a group.
fn group_of(gid: Gid) -> Result<IpAddr, CommandError> {
    // Rule: GroupAddress
    match gid.to_ip() {
        group if group.is_multicast() => Ok(group),
        _ => Err(invalid("the GID is not that of a multicast group")),
    }
}

fn mr_outcome(keys: MrKeys) -> Outcome {
    Outcome::Mr { mr: keys.mr, lkey: keys.lkey, rkey: keys.rkey }
}

impl Owned for Qp {
    /// An XRC target belongs to a domain.
    fn owner(&self) -> Option<ClientId> {
        self.target.is_none().then_some(self.client_id)
    }
}

fn is_of(qp: &Qp, client: ClientId) -> bool {
    qp.owner() == Some(client)
}

fn ring_of(ring: CqProducer, capacity: u32) -> Result<CqProducer, CommandError> {
    if capacity.is_power_of_two() { Ok(ring) } else { Err(invalid("cqe is out of range")) }
}

/// The attributes of now: PSNs move on.
fn state_of(qp: &mut Qp) -> Outcome {
    let mut attr = qp.attr;
    // Rule: QueryTellsPsns
    attr.sq_psn = qp.requester.cursor().psn.value();
    attr.rq_psn = qp.responder.epsn.value();
    Outcome::QpState { attr, caps: qp.caps, sq_sig_all: qp.sq_sig_all }
}
