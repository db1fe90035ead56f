//! What the `rnic` command asks for.

use serde::{Deserialize, Serialize};

/// What `rnic fault` does to the faults in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FaultChange {
    /// Lists them only.
    Keep,
    /// Adds faults.
    Add {
        /// As `rnic fault add` takes them, e.g. `drop=0.01,qp=0x11`.
        faults: Vec<String>,
        /// Seeds the random choices: equal seeds treat equal arrivals alike.
        seed: Option<u64>,
    },
    /// Removes those of these numbers.
    Remove(Vec<u32>),
    /// Removes all.
    Clear,
}

/// What `rnic status|qp|mr|cq|counters` ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inspect {
    /// Daemon, devices, engines, totals.
    Status,
    /// Queue pairs.
    Qps,
    /// Memory regions.
    Mrs,
    /// Completion queues.
    Cqs,
    /// Counters of port and engine.
    Counters,
    /// Sessions.
    Sessions,
}
