//! An opened device: everything that one client has made.

use super::accounts::{Account, Charge};
use super::arena::{Arenas, Ring};
use super::memory::Regions;
use super::records::Records;
use super::reply::{Attached, COMP_VECTORS, duplicate, engine_gone, unexpected_outcome};
use super::service::Service;
use crate::dma::Process;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_engine, refused_by_kernel};
use crate::shard::{EventSocket, Message, NewClient, ShardHandle};
use crate::system;
use rnic_abi::control::{Reply, Request};
use rnic_abi::doorbell::{AREA_WORDS, Bell, Doorbells, RecordIndex};
use rnic_abi::os::{Credentials, Descriptors, EventFd, memory};
use rnic_abi::verbs::{AttrMask, QpAttr};
use rnic_abi::words::WORD;
use rnic_core::{ChannelId, ClientCommand, ClientId, Command, Outcome, SpaceId};
use std::collections::HashMap;
use std::sync::Arc;

/// See the [module](self). Dropping it removes the client.
pub(super) struct Context {
    pub(super) service: Arc<Service>,
    pub(super) shard: ShardHandle,
    pub(super) client: ClientId,
    pub(super) space: SpaceId,
    pub(super) peer: Credentials,
    pub(super) account: Account,
    pub(super) arenas: Arenas,
    pub(super) records: Records,
    pub(super) regions: Regions,
    pub(super) cqs: HashMap<u32, (Ring, Charge)>,
    pub(super) qps: HashMap<u32, (QpParts, Charge)>,
    pds: HashMap<u32, Charge>,
    channels: HashMap<u32, [Charge; 2]>,
    next_channel: u32,
    _charges: [Charge; 3],
}

/// What the daemon made for a QP.
pub(super) struct QpParts {
    pub(super) rings: [Ring; 2],
    pub(super) records: [RecordIndex; 2],
}

impl Context {
    /// Makes a context of `peer`. Descriptors: doorbell area, wake-up, async events.
    pub(super) fn open(
        service: &Arc<Service>,
        session: u32,
        peer: Credentials,
        account: Account,
    ) -> Result<(Self, Attached), Refused> {
        let charges = [
            account.take(Resource::Descriptors, 3)?,
            account.take(Resource::Mappings, 1)?,
            account.take(Resource::RingBytes, (AREA_WORDS * WORD) as u64)?,
        ];
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
        let process = Process::new(peer.pid)
            .ok_or_else(|| refuse(libc::EPERM, "the process cannot be seen from the daemon"))?;

        let (client, space) = service.registry.open(session);
        let client = ClientId(client);
        let context = Self {
            service: Arc::clone(service),
            shard: service.engine.clone(),
            client,
            space,
            peer,
            arenas: Arenas::new(account.clone()),
            account,
            records,
            regions: Regions::default(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            pds: HashMap::new(),
            channels: HashMap::new(),
            next_channel: 0,
            _charges: charges,
        };
        let other_group =
            system::scheduling_group("self") != system::scheduling_group(&peer.pid.to_string());
        let new = NewClient { client, space, process, doorbells, wake, events, other_group };
        context
            .shard
            .ask(|answer| Message::AddClient(Box::new(new), answer))
            .map_err(engine_gone)?
            .map_err(refused_by_engine)?;
        Ok((context, vec![copy, wake_copy, async_end]))
    }

    /// Tells the engine and waits.
    pub(super) fn engine(&self, command: ClientCommand) -> Result<Outcome, Refused> {
        let command = Command::Client(self.client, command);
        self.shard
            .ask(|answer| Message::Execute(command, answer))
            .map_err(engine_gone)?
            .map_err(refused_by_engine)
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
                self.engine(ClientCommand::DeallocPd { pd })?;
                self.pds.remove(&pd);
                Reply::Done
            }
            Request::RegMr { pd, addr, length, iova, access, fd_offset } => {
                let file = fds.next().map(|file| (file, fd_offset));
                self.register(pd, addr, length, iova, access, file)?
            }
            Request::DeregMr { mr } => self.deregister(mr)?,
            Request::CreateChannel => return self.create_channel(),
            Request::DestroyChannel { channel } => self.destroy_channel(channel)?,
            Request::CreateCq { comp_vector: COMP_VECTORS.., .. } => {
                return Err(refuse(libc::EINVAL, "there is no such completion vector"));
            }
            Request::CreateCq { cqe, channel, comp_vector: _ } => {
                return self.create_cq(cqe, channel);
            }
            Request::DestroyCq { cq } => self.destroy_cq(cq)?,
            Request::CreateQp(wanted) => return self.create_qp(&wanted),
            Request::ModifyQp { qp, mask, attr } => self.modify_qp(qp, mask, attr)?,
            Request::QueryQp { qp } => qp_state(self.engine(ClientCommand::QueryQp { qp })?)?,
            Request::DestroyQp { qp } => self.destroy_qp(qp)?,
            _ => return Err(refuse(libc::EOPNOTSUPP, "this daemon does not support that yet")),
        };
        Ok((reply, Vec::new()))
    }

    fn alloc_pd(&mut self) -> Result<Reply, Refused> {
        let charge = self.account.take(Resource::Pds, 1)?;
        let Outcome::Handle(pd) = self.engine(ClientCommand::AllocPd)? else {
            return Err(unexpected_outcome());
        };
        self.pds.insert(pd, charge);
        Ok(Reply::Handle(pd))
    }

    fn create_channel(&mut self) -> Result<(Reply, Attached), Refused> {
        let charges = [
            self.account.take(Resource::Channels, 1)?,
            self.account.take(Resource::Descriptors, 1)?,
        ];
        let (ours, theirs) =
            EventSocket::pair().map_err(refused_by_kernel("no completion channel"))?;
        let channel = self.next_channel;
        self.next_channel = self.next_channel.wrapping_add(1);
        self.channels.insert(channel, charges);
        self.shard.tell(Message::AddChannel(self.client, ChannelId(channel), ours));
        Ok((Reply::Handle(channel), vec![theirs]))
    }

    fn destroy_channel(&mut self, channel: u32) -> Result<Reply, Refused> {
        self.channel(Some(channel))?;
        self.channels.remove(&channel);
        self.shard.tell(Message::RemoveChannel(self.client, ChannelId(channel)));
        Ok(Reply::Done)
    }

    /// Checks that a channel exists.
    pub(super) fn channel(&self, channel: Option<u32>) -> Result<Option<ChannelId>, Refused> {
        match channel {
            Some(channel) if !self.channels.contains_key(&channel) => {
                Err(refuse(libc::EINVAL, "there is no such completion channel"))
            }
            channel => Ok(channel.map(ChannelId)),
        }
    }

    fn modify_qp(&mut self, qp: u32, mask: AttrMask, attr: QpAttr) -> Result<Reply, Refused> {
        let path = match mask.contains(AttrMask::AV) {
            true => Some(self.service.network.resolve(&attr.ah)?),
            false => None,
        };
        qp_state(self.engine(ClientCommand::ModifyQp { qp, mask, attr, path })?)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Once this is answered the engine has let go of memory, rings and descriptors.
        let gone = self.shard.ask(|answer| Message::RemoveClient(self.client, self.space, answer));
        if let Ok(Err(error)) = gone {
            tracing::error!("removing client {}: {}", self.client.0, error.reason);
        }
        self.regions.release_spaces(&self.shard, &self.service.registry);
        self.service.registry.close(self.client.0, self.space);
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
