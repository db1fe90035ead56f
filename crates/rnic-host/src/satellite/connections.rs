//! The daemon's connection manager, as the sessions of a satellite have it.

use super::protocol::{Call, CallAnswer, FromEngine};
use super::upstream::{Upstream, unexpected};
use crate::inspect::Numbers;
use crate::refusal::Refused;
use crate::server::{ConnectionSession, Connections};
use rnic_abi::control::{CmRequest, Reply};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// See the [module](self).
pub(super) struct Relay {
    upstream: Arc<Upstream>,
    opened: AtomicU32,
}

impl Relay {
    pub(super) fn new(upstream: Arc<Upstream>) -> Self {
        Self { upstream, opened: AtomicU32::new(0) }
    }
}

impl Connections for Relay {
    fn open(&self) -> Box<dyn ConnectionSession> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Box::new(Relayed { upstream: Arc::clone(&self.upstream), number })
    }

    /// Those of the manager are sums over all users, and root's to see.
    fn counters(&self) -> Numbers {
        Numbers::new()
    }
}

struct Relayed {
    upstream: Arc<Upstream>,
    number: u32,
}

impl ConnectionSession for Relayed {
    fn execute(&mut self, request: CmRequest) -> Result<(Reply, Option<OwnedFd>), Refused> {
        match self.upstream.call_for_fds(Call::Connections(self.number, request))? {
            (CallAnswer::Connections(reply), mut fds) => Ok((reply?, fds.next())),
            _ => Err(unexpected()),
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.upstream.tell(&FromEngine::CloseConnections(self.number));
    }
}
