//! What others tell a shard.

use super::host::EventSocket;
use crate::dma::Space;
use crate::inspect::{Question, Seen};
use crate::observe::Watcher;
use crate::wire::{Branch, Fault, FaultChange, Membership, NoChange, ShardRx};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rnic_abi::doorbell::Doorbells;
use rnic_abi::os::EventFd;
use rnic_core::command::{ChannelId, ClientId, Command, CommandError, Outcome};
use rnic_core::ports::SpaceId;
use rnic_net::Change;
use roce_wire::mad::MAD_LEN;
use roce_wire::{Flow, Qpn};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use xdp_io::udp::ReceiverSockets;

/// A client with everything the shard keeps of it.
pub struct NewClient {
    /// Number.
    pub client: ClientId,
    /// Number of its address space.
    pub space: SpaceId,
    /// Its memory.
    pub memory: Space,
    /// Its doorbells, for the engine.
    pub doorbells: Doorbells,
    /// Written by the client when the engine sleeps.
    pub wake: EventFd,
    /// Our end of its async event socket.
    pub events: EventSocket,
    /// Its process is in another scheduling group than the daemon.
    pub other_group: bool,
}

/// A management datagram that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Mad {
    /// Addresses of its packet; the peer is `src`.
    pub flow: Flow,
    /// The peer's queue pair.
    pub sender: Qpn,
    /// What it says.
    pub mad: [u8; MAD_LEN],
}

/// The faults in force after a change, or why there is none.
pub type FaultsChanged = Result<Vec<Fault>, NoChange>;

/// The answer to a command.
pub(super) type CommandResult = Result<Outcome, CommandError>;

/// See the [module](self).
pub enum ShardMessage {
    /// A command for the engine.
    Execute(Command, Sender<CommandResult>),
    /// A new client.
    AddClient(Box<NewClient>, Sender<CommandResult>),
    /// A client is gone. Once answered, nothing touches its memory or its rings any more.
    RemoveClient(ClientId, SpaceId, Sender<CommandResult>),
    /// A further address space.
    AddSpace(SpaceId, Space),
    /// It is no longer used, and comes back: it takes long to unmap. Once answered, nothing touches
    /// its memory any more, not even payload that was passed by reference and has not arrived.
    RemoveSpace(SpaceId, Sender<Option<Space>>),
    /// A completion channel, our end.
    AddChannel(ClientId, ChannelId, EventSocket),
    /// It is gone.
    RemoveChannel(ClientId, ChannelId),
    /// The network changed.
    Network(Change),
    /// A socket of the daemon for an address.
    Sockets(IpAddr, ReceiverSockets),
    /// The device is a member of a group.
    Join(IpAddr, Membership),
    /// It is none any more.
    Leave(IpAddr),
    /// The further shards that have members of a group, as bits.
    Members(IpAddr, u128),
    /// A further shard of this number sends through this one, and how to reach it.
    AddShard(u8, Box<Branch>, ShardRx),
    /// The shard of this serial number has ended.
    EndShard(u64),
    /// Management datagrams that arrive at QP1 go there, as far as there is room.
    ServeManagement(Sender<Mad>),
    /// For display. Answered within a turn, which has time for one of these.
    Inspect(Question, Sender<Seen>),
    /// Send what a turn of the program has left to the next one, which does not come.
    SendOwed,
    /// One more watches what happens.
    Observe(Watcher),
    /// Faults for what arrives. Answered with those in force, as
    /// [`DeviceWire::change_faults`](crate::wire::DeviceWire::change_faults).
    Faults(FaultChange, Sender<FaultsChanged>),
    /// End.
    Stop,
}

/// The way to a shard.
#[derive(Clone)]
pub struct ShardHandle {
    sender: Sender<ShardMessage>,
    wake: Arc<EventFd>,
}

/// The shard's side of a [`ShardHandle`].
pub(super) struct Inbox {
    pub(super) receiver: Receiver<ShardMessage>,
    pub(super) wake: Arc<EventFd>,
}

/// A way to a shard that is to be started.
///
/// # Errors
/// When there are too many open files.
pub(super) fn channel() -> io::Result<(ShardHandle, Inbox)> {
    let wake = Arc::new(EventFd::new()?);
    let (sender, receiver) = unbounded();
    Ok((ShardHandle { sender, wake: Arc::clone(&wake) }, Inbox { receiver, wake }))
}

/// The shard's thread has ended.
#[derive(Clone, Copy, Debug)]
pub struct ShardStopped;

impl ShardHandle {
    /// Sends a message that has no answer.
    pub fn tell(&self, message: ShardMessage) {
        if self.sender.send(message).is_ok()
            && let Err(error) = self.wake.wake()
        {
            tracing::error!("cannot wake an engine: {error}");
        }
    }

    /// Sends a message and waits for the answer. That takes as long as the memory of this shard's
    /// clients makes its engine wait: only sessions of these clients may call this.
    pub fn ask<T>(
        &self,
        message: impl FnOnce(Sender<T>) -> ShardMessage,
    ) -> Result<T, ShardStopped> {
        let (answer, answered) = bounded(1);
        self.tell(message(answer));
        answered.recv().map_err(|_| ShardStopped)
    }
}
