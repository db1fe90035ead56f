//! What sessions have of the connection manager.

use super::Daemon;
use crate::inspect::Numbers;
use crate::refusal::{Refused, refuse};
use crate::server::{ConnectionSession, Connections};
use rnic_abi::control::{CmRequest, Inspect, Reply, Request};
use serde_json::Value;
use std::os::fd::OwnedFd;

/// A manager that does nothing, and has counted that.
pub(super) struct NoConnections;

impl Connections for NoConnections {
    fn open(&self) -> Box<dyn ConnectionSession> {
        Box::new(Self)
    }

    fn counters(&self) -> Numbers {
        Numbers::from([("cm_refused".into(), 7)])
    }
}

impl ConnectionSession for NoConnections {
    fn execute(&mut self, _: CmRequest) -> Result<(Reply, Option<OwnedFd>), Refused> {
        Err(refuse(libc::EOPNOTSUPP, "nothing"))
    }
}

#[test]
fn the_counters_of_the_connection_manager_are_shown_with_those_of_the_engines() {
    let daemon = Daemon::start("cm-counters", &[]);
    let client = daemon.connect();
    client.greet();
    let answer = client.call(&Request::Inspect { what: Inspect::Counters, from: 0 });
    let Ok(Reply::Inspected { json, .. }) = answer else { panic!("{answer:?}") };
    let counted: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(counted["cm_refused"], 7);
    assert!(counted["tx_packets"].is_u64());
}
