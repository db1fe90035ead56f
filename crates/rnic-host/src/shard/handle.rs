//! What the thread does with a message.

use super::message::{CommandResult, NewClient, ShardMessage};
use super::monotonic;
use super::run::{Client, Shard};
use super::tokens::Token;
use crate::inspect::{self, Question, Seen};
use rnic_core::command::PortState;
use rnic_core::{ClientCommand, Command, Instant, Outcome};
use rustix::event::epoll;
use std::os::fd::AsFd;

/// Most messages between two turns.
const MAX_MESSAGES: usize = 16;

/// What others have told the engine's thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Told {
    Nothing,
    /// To show something.
    Looks,
    /// To do something, which may leave something for the next turn.
    Commands,
}

impl Shard {
    /// What the messages were that are handled now. While the program drives, questions are
    /// answered without a turn between them; behind more than a few, or one that comes just then,
    /// there is one all the same.
    pub(super) fn handle_messages(&mut self, is_driven: bool) -> Told {
        // The look is a load; the attempt would be a fence, every turn.
        if self.inbox.receiver.is_empty() {
            return Told::Nothing;
        }
        let mut told = Told::Nothing;
        // A flood of commands must not keep packets waiting.
        for _ in 0..MAX_MESSAGES {
            let Ok(message) = self.inbox.receiver.try_recv() else { break };
            let was_a_look = matches!(message, ShardMessage::Inspect(..));
            if !was_a_look {
                self.send_owed();
            }
            self.handle_message(message);
            told = told.max(if was_a_look { Told::Looks } else { Told::Commands });
            // Nor must requests that only look.
            if was_a_look && !is_driven {
                break;
            }
        }
        told
    }

    fn handle_message(&mut self, message: ShardMessage) {
        let now = monotonic();
        match message {
            ShardMessage::Execute(command, answer) => {
                if matches!(command, Command::Client(_, ClientCommand::ResizeCq { .. })) {
                    // What was posted before may complete now, and takes room in the queue.
                    self.turn(now);
                }
                let _ = answer.send(self.execute(now, command));
            }
            ShardMessage::AddClient(new, answer) => {
                let _ = answer.send(self.add_client(now, *new));
            }
            ShardMessage::RemoveClient(client, space, answer) => {
                let outcome = self.nic.engine.execute(now, Command::RemoveClient { client });
                self.nic.dma.remove(space);
                self.nic.events.remove_client(client);
                if let Some(known) = self.clients.remove(&client) {
                    let _ = epoll::delete(&*self.epoll, known.wake.as_fd());
                }
                self.check_groups();
                let _ = answer.send(outcome);
            }
            ShardMessage::AddSpace(id, space) => self.nic.dma.insert(id, space),
            ShardMessage::RemoveSpace(id, answer) => {
                let _ = answer.send(self.nic.dma.remove(id));
            }
            ShardMessage::AddChannel(client, channel, socket) => {
                self.nic.events.add_channel(client, channel, socket);
            }
            ShardMessage::RemoveChannel(client, channel) => {
                self.nic.events.remove_channel(client, channel)
            }
            ShardMessage::Network(change) => {
                let works = self.nic.wire.follow(&change);
                let port = PortState { active: change.port.active && works, ..change.port };
                if let Err(error) = self.nic.engine.execute(now, Command::SetPort(port)) {
                    tracing::error!("the engine refuses a port state: {}", error.reason);
                }
            }
            ShardMessage::Sockets(address, sockets) => self.nic.wire.add_sockets(address, sockets),
            ShardMessage::Join(group, membership) => self.nic.wire.join(group, membership),
            ShardMessage::Leave(group) => self.nic.wire.leave(group),
            ShardMessage::Members(group, shards) => self.nic.events.set_members(group, shards),
            ShardMessage::AddShard(number, branch, receiver) => {
                self.nic.wire.add_shard(*branch);
                self.nic.events.add_receiver(number, receiver);
            }
            ShardMessage::EndShard(serial) => {
                self.nic.wire.end_shard(serial);
                self.nic.events.remove_receiver(serial);
            }
            ShardMessage::ServeManagement(manager) => self.nic.events.set_manager(manager),
            ShardMessage::Inspect(question, answer) => drop(answer.send(self.inspect(question))),
            // It has left already, as before any message that is no question.
            ShardMessage::SendOwed => {}
            ShardMessage::Observe(watcher) => self.nic.observe(watcher),
            ShardMessage::Faults(change, answer) => {
                let _ = answer.send(self.nic.wire.change_faults(change));
            }
            ShardMessage::Stop => self.stopping = true,
        }
    }

    pub(super) fn inspect(&mut self, question: Question) -> Seen {
        let [lost, misled] = self.nic.events.counters();
        let around = [lost, misled, ("driven_turns", self.count_driven_turns())];
        let engine = (&self.nic.engine, monotonic());
        inspect::answer(engine, &self.nic.dma, around, &mut self.nic.wire, question)
    }

    fn check_groups(&mut self) {
        let other_group = self.clients.values().any(|client| client.other_group);
        self.cpu_sharing.set_other_group(other_group, &mut self.nic.engine);
    }

    fn execute(&mut self, now: Instant, command: Command) -> CommandResult {
        let destroyed_cq = match &command {
            Command::Client(client, ClientCommand::DestroyCq { cq }) => Some((*client, *cq)),
            _ => None,
        };
        let mut outcome = self.nic.engine.execute(now, command)?;
        if let (Some((client, cq)), Outcome::CqGone { completion_events, .. }) =
            (destroyed_cq, &mut outcome)
        {
            // Those never arrive, so they cannot be acknowledged.
            *completion_events -= self.nic.events.forget_cq(client, cq).min(*completion_events);
        }
        Ok(outcome)
    }

    fn add_client(&mut self, now: Instant, new: NewClient) -> CommandResult {
        let NewClient { client, space, memory, doorbells, wake, events, other_group } = new;
        let outcome =
            self.nic.engine.execute(now, Command::AddClient { client, space, doorbells })?;
        if let Err(error) = self.watch(wake.as_fd(), Token::Client(client)) {
            tracing::error!("a client cannot wake its engine: {error}");
        }
        self.nic.dma.insert(space, memory);
        self.nic.events.add_client(client, events);
        self.clients.insert(client, Client { wake, other_group });
        self.check_groups();
        Ok(outcome)
    }
}
