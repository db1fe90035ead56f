//! The way of one client to its engine.

use super::reply::engine_gone;
use crate::refusal::{Refused, refused_by_engine};
use crate::shard::{ShardHandle, ShardMessage};
use rnic_core::{ClientCommand, ClientId, Command, Outcome};

/// See the [module](self).
#[derive(Clone)]
pub(super) struct EngineLink {
    pub(super) shard: ShardHandle,
    pub(super) client: ClientId,
}

impl EngineLink {
    /// Has the engine execute a command of the client, and waits.
    pub(super) fn execute(&self, command: ClientCommand) -> Result<Outcome, Refused> {
        let command = Command::Client(self.client, command);
        self.shard
            .ask(|answer| ShardMessage::Execute(command, answer))
            .map_err(engine_gone)?
            .map_err(refused_by_engine)
    }
}
