//! A connection that goes on for longer than there are PSNs.

use rnic_sim::link::{Blow, Faults, Strike};
use rnic_sim::pair::{MEMORY, Pair};
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::WorldConfig;
use roce_wire::Opcode;

const MTU: u64 = 256;
/// All PSNs come again.
const LONG: u64 = (1 << 24) / (MEMORY / MTU) + 16;
/// Enough to see that it runs.
const SHORT: u64 = 64;

/// WRITEs of a mebibyte: all PSNs in the long form (`RNIC_LONG=1`), which takes a minute.
fn writes() -> u64 {
    if std::env::var_os("RNIC_LONG").is_some_and(|value| value == "1") { LONG } else { SHORT }
}

/// What the responder remembers of the only atomic hides nothing that follows, however far behind
/// it is, and what it forgot is not executed again.
#[test]
fn losses_long_after_an_atomic_cost_retries_and_nothing_else() {
    let faults = Faults { loss: 30, ..Faults::default() };
    let config = WorldConfig { faults, ..WorldConfig::pair(24) };
    let connection = Connection { path_mtu: 1, ..Connection::default() };
    let mut pair = Pair::with(&config, connection, |_| {});
    let (a, b) = (pair.a, pair.b);
    let add = |wr_id| SendWr::fetch_add(wr_id, a.mr.sge(0, 8), b.mr.remote(0), 1);
    pair.run(a, &add(0));
    let len = u32::try_from(MEMORY - 8).expect("a length that fits");
    for k in 1..=writes() {
        if k.is_multiple_of(16) {
            pair.world.strike(1, 0, Strike::new(Blow::Drop).opcode(Opcode::RcAck));
            pair.fill(a, 8, len.into(), k);
        }
        pair.run(a, &SendWr::write(k, &[a.mr.sge(8, len)], b.mr.remote(8)));
        if k.is_multiple_of(16) {
            assert!(pair.memory(a, 8, len.into()) == pair.memory(b, 8, len.into()), "message {k}");
        }
    }
    pair.run(a, &add(0));
    assert_eq!(pair.memory(b, 0, 8), 2_u64.to_ne_bytes());
    let counters = *pair.world.hosts()[0].engine.counters();
    assert!(counters.retransmitted_packets > 0, "nothing was lost");
    assert!(counters.tx_packets >= writes() * (MEMORY / MTU));
}
