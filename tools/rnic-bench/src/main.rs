//! `rnic-raw`: the most that a mechanism can do on this machine, without an RDMA engine.
//!
//! One call measures one case, between two processes in two network namespaces that are joined by a
//! link, each spinning on a core of its own, and prints one line of JSON. The packets have the
//! sizes, headers and ICRC of RoCEv2. The payload is copied from memory before sending and into
//! memory after receiving. Shared memory limits what is in flight, so there are no
//! acknowledgements. `cargo xtask bench` prepares the namespaces and compares the results.
//!
//! A case is one of
//!
//! * `LINK/SHAPE/COPY`: a stream. LINK is `udp`, `af-packet`, `xdp-native` or `xdp-generic`; SHAPE
//!   is `PAYLOADxTRAIN` (bytes per packet, packets per train), `write-SIZE-MTU` (RDMA WRITEs
//!   whose FIRST packet travels alone) or `write-SIZE-MTU-QUEUES` (the same from and into so many
//!   memories by turns); COPY is `memcpy` or `process-vm`.
//! * `ping/LINK`: round trips of 8 bytes; `ping-2/LINK`: of two packets that leave together.
//! * `switch`: one change of threads by `sched_yield`, between two processes on one core.
//! * `line`: a cache line from one core to the other and back.
//! * `poke/COPY`: one copy of 8 bytes into the memory of an application.
//! * `loopback/COPY`: 1 MiB from one memory to another, as a device does that talks to itself.

mod case;
mod delays;
mod link;
mod loopback;
mod memory;
mod os;
mod pair;
mod ping;
mod poke;
mod stream;
mod turns;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use case::Case;
use pair::Stage;

const USAGE: &str = "usage: rnic-raw CASE LEFT_NETNS RIGHT_NETNS [MILLISECONDS]";

fn main() -> ExitCode {
    match run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rnic-raw: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (case, left, right, millis) = match &arguments[..] {
        [case, left, right] => (case, left, right, 300),
        [case, left, right, millis] => (case, left, right, millis.parse().context(USAGE)?),
        _ => bail!(USAGE),
    };
    let stage = Stage { netns: [left.clone(), right.clone()], cpus: [0, 1], millis };
    match Case::parse(case)? {
        Case::Stream { link, shape, copy } => stream::run(&stage, link, shape, copy),
        Case::Ping { link, packets } => ping::run(&stage, link, packets),
        Case::Switch => turns::switch(stage),
        Case::Line => turns::line(&stage),
        Case::Poke { copy } => poke::run(&stage, copy),
        Case::Loopback { copy } => loopback::run(&stage, copy),
    }
}
