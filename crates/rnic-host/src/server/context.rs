//! An opened device: everything that one client has made.

use super::accounts::{Account, Charge};
use super::device_memory::DmPart;
use super::groups::Joined;
use super::link::EngineLink;
use super::memory::{Regions, Registration};
use super::queues::Queues;
use super::records::Records;
use super::reply::{Attached, COMP_VECTORS, duplicate, engine_gone, unexpected_outcome};
use super::service::Service;
use super::xrc::Domains;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_engine, refused_by_kernel};
use crate::shard::{EventSocket, NewClient, ShardMessage};
use crate::system;
use rnic_abi::control::{Reply, Request};
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells};
use rnic_abi::os::{Credentials, Descriptors, EventFd, memory};
use rnic_abi::verbs::{AhAttr, AttrMask, QpAttr};
use rnic_abi::words::WORD;
use rnic_core::{ChannelId, ClientCommand, ClientId, NewXrcSrq, Outcome, SpaceId};
use rnic_net::Hold;
use roce_wire::Gid;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// See the [module](self). Dropping it removes the client.
pub(super) struct Context {
    service: Arc<Service>,
    link: EngineLink,
    space: SpaceId,
    account: Account,
    regions: Regions,
    queues: Queues,
    domains: Domains,
    pds: HashMap<u32, Charge>,
    ahs: HashMap<u32, (Charge, Hold)>,
    channels: HashMap<u32, [Charge; 2]>,
    /// By queue pair and group.
    attached: HashMap<(u32, IpAddr), ([Charge; 2], Joined)>,
    next_channel: u32,
    _charges: [Charge; 3],
}

impl Context {
    /// Makes a context of `peer`, whose pidfd is `process`. Descriptors: doorbell area, wake-up,
    /// async events.
    pub(super) fn open(
        service: &Arc<Service>,
        session: u32,
        (peer, process): (Credentials, &Arc<OwnedFd>),
        account: Account,
    ) -> Result<(Self, Attached), Refused> {
        let charges = account.take_all([
            (Resource::Descriptors, 3),
            (Resource::Mappings, 1),
            (Resource::RingBytes, (AREA_WORDS * WORD) as u64),
        ])?;
        let fail = |what| refused_by_kernel(what);
        let (file, area) = memory::create("rnic-doorbells", AREA_WORDS)
            .map_err(fail("no memory for the doorbells"))?;
        let impossible = || refuse(libc::ENOMEM, "no memory for the doorbells");
        let doorbells = Doorbells::new(area.clone()).ok_or_else(impossible)?;
        let bell = Bell::new(area).ok_or_else(impossible)?;
        let copy = duplicate(&file)?;
        let records = Records::new(file, bell).map_err(fail("no memory for the doorbells"))?;
        let wake = EventFd::new().map_err(fail("no wake-up descriptor"))?;
        let wake_copy = duplicate(&wake)?;
        let (events, async_end) = EventSocket::pair().map_err(fail("no async event socket"))?;
        let memory = service
            .memory
            .of(peer.pid, process)
            .ok_or_else(|| refuse(libc::EPERM, "the process cannot be seen from the daemon"))?;

        let (client, space) = service.registry.open(session);
        let client = ClientId(client);
        let link = EngineLink { shard: service.engine.clone(), client };
        let context = Self {
            service: Arc::clone(service),
            regions: Regions::new(Arc::clone(service), link.clone(), account.clone(), peer, space),
            queues: Queues::new(Arc::clone(service), link.clone(), account.clone(), records),
            domains: Domains::new(link.clone(), account.clone(), peer.uid),
            link,
            space,
            account,
            pds: HashMap::new(),
            ahs: HashMap::new(),
            channels: HashMap::new(),
            attached: HashMap::new(),
            next_channel: 0,
            _charges: charges,
        };
        let other_group =
            system::scheduling_group("self") != system::scheduling_group(&peer.pid.to_string());
        let new = NewClient { client, space, memory, doorbells, wake, events, other_group };
        context
            .link
            .shard
            .ask(|answer| ShardMessage::AddClient(Box::new(new), answer))
            .map_err(engine_gone)?
            .map_err(refused_by_engine)?;
        Ok((context, vec![copy, wake_copy, async_end]))
    }

    /// Answers a request about the device.
    pub(super) fn execute(
        &mut self,
        request: Request,
        mut fds: Descriptors,
    ) -> Result<(Reply, Attached), Refused> {
        let reply = match request {
            Request::AllocPd => self.alloc_pd()?,
            Request::DeallocPd { pd } => {
                self.link.execute(ClientCommand::DeallocPd { pd })?;
                self.pds.remove(&pd);
                Reply::Done
            }
            Request::RegMr { pd, addr, length, iova, access, fd_offset } => {
                let file = fds.next().map(|file| (file, fd_offset));
                self.regions.register(&Registration { pd, addr, length, iova, access }, file)?
            }
            Request::CheckAccess { pd, lkey, addr, length, access } => {
                let check = ClientCommand::CheckAccess { pd, lkey, addr, length, access };
                self.link.execute(check)?;
                Reply::Done
            }
            Request::AllocDm { length } => return self.regions.allocate_dm(length),
            Request::FreeDm { dm } => self.regions.free_dm(dm)?,
            Request::RegDmMr { pd, dm, offset, length, access } => {
                self.regions.register_dm(pd, &DmPart { dm, offset, length, access })?
            }
            Request::DeregMr { mr } => self.regions.deregister(mr)?,
            Request::CreateChannel => return self.create_channel(),
            Request::DestroyChannel { channel } => self.destroy_channel(channel)?,
            Request::CreateCq { comp_vector: COMP_VECTORS.., .. } => {
                return Err(refuse(libc::EINVAL, "there is no such completion vector"));
            }
            Request::CreateCq { cqe, channel, comp_vector: _ } => {
                let channel = self.channel(channel)?;
                return self.queues.create_cq(cqe, channel);
            }
            Request::ResizeCq { cq, cqe } => return self.queues.resize_cq(cq, cqe),
            Request::DestroyCq { cq } => self.queues.destroy_cq(cq)?,
            Request::CreateQp(wanted) => return self.queues.create_qp(&wanted),
            Request::ModifyQp { qp, mask, attr } => self.modify_qp(qp, mask, attr)?,
            Request::QueryQp { qp } => qp_state(self.link.execute(ClientCommand::QueryQp { qp })?)?,
            Request::DestroyQp { qp } => self.queues.destroy_qp(qp)?,
            Request::OpenQp { xrcd, qpn } => return self.queues.open_qp(xrcd, qpn),
            Request::CreateSrq { pd, max_wr, max_sge, limit, xrc } => {
                let xrc = xrc.map(|(xrcd, cq)| NewXrcSrq { xrcd, cq });
                return self.queues.create_srq(pd, (max_wr, max_sge), limit, xrc);
            }
            Request::OpenXrcd { create, exclusive } => {
                self.domains.open(fds.next(), create, exclusive)?
            }
            Request::CloseXrcd { xrcd } => self.domains.close(xrcd)?,
            Request::SetSrqLimit { srq, limit } => self.queues.set_srq_limit(srq, limit)?,
            Request::QuerySrq { srq } => self.queues.query_srq(srq)?,
            Request::DestroySrq { srq } => self.queues.destroy_srq(srq)?,
            Request::CreateAh { pd, attr } => self.create_ah(pd, attr)?,
            Request::DestroyAh { ah } => {
                self.link.execute(ClientCommand::DestroyAh { ah })?;
                self.ahs.remove(&ah);
                Reply::Done
            }
            Request::Multicast { qp, gid, attach: true } => self.attach(qp, Gid(gid))?,
            Request::Multicast { qp, gid, attach: false } => self.detach(qp, Gid(gid))?,
            request => self.execute_memory(&request)?,
        };
        Ok((reply, Vec::new()))
    }

    /// Answers what else there is about regions, and about windows.
    fn execute_memory(&mut self, request: &Request) -> Result<Reply, Refused> {
        match *request {
            Request::RegNullMr { pd } => self.regions.register_null(pd),
            Request::ReregMr { mr, pd, range, access } => {
                self.regions.reregister(mr, pd, range, access)
            }
            Request::AllocMw { pd, kind } => self.regions.alloc_window(pd, kind),
            Request::DeallocMw { mw } => self.regions.dealloc_window(mw),
            _ => Err(refuse(libc::EOPNOTSUPP, "this daemon does not support that yet")),
        }
    }

    fn alloc_pd(&mut self) -> Result<Reply, Refused> {
        let charge = self.account.take(Resource::Pds, 1)?;
        let Outcome::Handle(pd) = self.link.execute(ClientCommand::AllocPd)? else {
            return Err(unexpected_outcome());
        };
        self.pds.insert(pd, charge);
        Ok(Reply::Handle(pd))
    }

    /// Finds the way to an address, once for all datagrams that will go there.
    fn create_ah(&mut self, pd: u32, attr: AhAttr) -> Result<Reply, Refused> {
        let charge = self.account.take(Resource::Ahs, 1)?;
        let (path, hold) = self.service.network.resolve(&attr)?;
        match self.link.execute(ClientCommand::CreateAh { pd, path })? {
            Outcome::Handle(ah) => {
                self.ahs.insert(ah, (charge, hold));
                Ok(Reply::Handle(ah))
            }
            _ => Err(unexpected_outcome()),
        }
    }

    /// The engine says whether the queue pair may be a member; then the device becomes one.
    fn attach(&mut self, qp: u32, group: Gid) -> Result<Reply, Refused> {
        let place = (qp, group.to_ip());
        if self.attached.contains_key(&place) {
            return Ok(Reply::Done);
        }
        // Each group takes a socket. They are charged for each member, which may be the only one.
        let charges = self.account.take_all([(Resource::Ahs, 1), (Resource::Descriptors, 1)])?;
        self.link.execute(ClientCommand::Attach { qp, group })?;
        match Joined::new(&self.service.groups, place.1) {
            Ok(joined) => {
                self.attached.insert(place, (charges, joined));
                Ok(Reply::Done)
            }
            Err(why) => {
                self.link.execute(ClientCommand::Detach { qp, group })?;
                Err(why)
            }
        }
    }

    fn detach(&mut self, qp: u32, group: Gid) -> Result<Reply, Refused> {
        self.link.execute(ClientCommand::Detach { qp, group })?;
        self.attached.remove(&(qp, group.to_ip()));
        Ok(Reply::Done)
    }

    fn create_channel(&mut self) -> Result<(Reply, Attached), Refused> {
        let wanted = [(Resource::Channels, 1), (Resource::Descriptors, 1)];
        let charges = self.account.take_all(wanted)?;
        let (ours, theirs) =
            EventSocket::pair().map_err(refused_by_kernel("no completion channel"))?;
        let channel = self.next_channel;
        self.next_channel = self.next_channel.wrapping_add(1);
        self.channels.insert(channel, charges);
        self.link.shard.tell(ShardMessage::AddChannel(self.link.client, ChannelId(channel), ours));
        Ok((Reply::Handle(channel), vec![theirs]))
    }

    fn destroy_channel(&mut self, channel: u32) -> Result<Reply, Refused> {
        self.channel(Some(channel))?;
        self.channels.remove(&channel);
        self.link.shard.tell(ShardMessage::RemoveChannel(self.link.client, ChannelId(channel)));
        Ok(Reply::Done)
    }

    /// Checks that a channel exists.
    fn channel(&self, channel: Option<u32>) -> Result<Option<ChannelId>, Refused> {
        match channel {
            Some(channel) if !self.channels.contains_key(&channel) => {
                Err(refuse(libc::EINVAL, "there is no such completion channel"))
            }
            channel => Ok(channel.map(ChannelId)),
        }
    }

    fn modify_qp(&mut self, qp: u32, mask: AttrMask, attr: QpAttr) -> Result<Reply, Refused> {
        if mask.contains(AttrMask::AV) && Gid(attr.ah.dgid).is_multicast() {
            return Err(refuse(libc::EOPNOTSUPP, "a connection leads to one peer, not to a group"));
        }
        let (path, hold) = match mask.contains(AttrMask::AV) {
            true => {
                self.service.network.resolve(&attr.ah).map(|(path, hold)| (Some(path), hold))?
            }
            false => (None, Hold::nothing()),
        };
        let way = self.queues.way_of(qp).unwrap_or_default();
        let mut way = way.lock();
        let outcome = self.link.execute(ClientCommand::ModifyQp { qp, mask, attr, path })?;
        if path.is_some() {
            *way = Some(hold);
        }
        qp_state(outcome)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Once this is answered the engine has let go of memory, rings and descriptors.
        let EngineLink { shard, client } = &self.link;
        let gone = shard.ask(|answer| ShardMessage::RemoveClient(*client, self.space, answer));
        if let Ok(Err(error)) = &gone {
            tracing::error!("removing client {}: {}", client.0, error.reason);
        }
        self.regions.release_spaces();
        if gone.is_ok()
            && !self.service.is_stopping()
            && let Err(error) = self.queues.discard().and_then(|()| self.regions.discard())
        {
            tracing::warn!("client {} may keep memory: {error}", client.0);
        }
        self.service.registry.close(client.0, self.space);
    }
}

fn qp_state(outcome: Outcome) -> Result<Reply, Refused> {
    match outcome {
        Outcome::QpState { attr, caps, sq_sig_all } => {
            Ok(Reply::QpState { attr, caps, sq_sig_all })
        }
        _ => Err(unexpected_outcome()),
    }
}
