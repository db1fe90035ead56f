//! The programs that objects belong to.

use super::client::Client;
use anyhow::Result;
use rnic_abi::control::Inspect;
use rnic_host::report::{Made, Session};
use std::collections::BTreeMap;

/// The sessions of programs, by the numbers of their contexts.
#[derive(Default)]
pub(super) struct Programs(BTreeMap<u32, Session>);

impl Programs {
    /// Those of a daemon.
    pub(super) fn of(client: &Client) -> Result<Self> {
        let sessions: Vec<Session> = client.list(Inspect::Sessions)?;
        let of_context = |session: Session| Some((session.client?, session));
        Ok(Self(sessions.into_iter().filter_map(of_context).collect()))
    }

    /// An object with the process that made it, if that is known.
    pub(super) fn made<T>(&self, object: T, client: u32) -> Made<T> {
        let maker = self.0.get(&client);
        let (pid, command) = (maker.map(|m| m.pid), maker.and_then(|m| m.command.clone()));
        Made { object, pid, command }
    }
}
