//! Random traffic over links that fail in every way, one world per seed.
//!
//! [`the_walk`] mixes everything, in a thousand worlds; the other sweeps each have one kind of
//! trouble and prove that it happened. `RNIC_SIM_SEEDS=50000 cargo test -p rnic-sim --test faults
//! the_walk` runs more seeds, `RNIC_SIM_SEED=17 cargo test -p rnic-sim --test faults NAME` replays
//! one.

mod area;
mod distance;
mod disturb;
mod ending;
mod flow;
mod lent;
mod message;
mod plan;
mod receives;
mod traffic;
mod trouble;

use disturb::Disturbances;
use message::Taste;
use plan::{Ending, Plan};
use rnic_core::counters::Counters;
use rnic_core::profile::Profile;
use rnic_sim::link::{FaultCounts, Faults};
use rnic_sim::rng::Rng;
use rnic_sim::sweep;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds of each sweep when nothing else is asked for.
const SEEDS: u64 = 25;
/// Seeds of the walk.
const WALK: u64 = 1_000;

/// What a sweep's worlds saw, together.
#[derive(Default)]
struct Sum {
    faults: FaultCounts,
    counters: Counters,
    disturbances: Disturbances,
}

/// Runs the seeds of one sweep. `salt` makes sweeps differ.
fn run(salt: u64, adjust: impl Fn(&mut Plan, &mut Rng) + Sync) -> Sum {
    worlds(sweep::seeds(SEEDS), salt, adjust)
}

/// One world per seed, on every CPU.
fn worlds(seeds: Range<u64>, salt: u64, adjust: impl Fn(&mut Plan, &mut Rng) + Sync) -> Sum {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Sum::default()));
    let work = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < seeds.end
        {
            let mut plan = Plan::random(seed, salt);
            adjust(&mut plan, &mut Rng::new(seed ^ salt));
            let (faults, counters, disturbances) = traffic::run(&plan);
            let mut sum = sum.lock().expect("no world failed");
            sum.faults.add(&faults);
            sum.counters.add(&counters);
            sum.disturbances.add(&disturbances);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let sum = sum.into_inner().expect("no world failed");
    eprintln!("{:?} {:?}", sum.faults, sum.disturbances);
    sum
}

impl Sum {
    /// The sweep proves something only when this happened.
    #[track_caller]
    fn happened(&self, what: &str, count: impl Fn(&Self) -> u64) {
        assert!(sweep::is_replay() || count(self) > 0, "no world had {what}");
    }
}

/// Up to `most` parts per million.
fn some(rng: &mut Rng, most: u32) -> u32 {
    1_000 + rng.below32(most)
}

#[test]
fn one_seed_is_one_world() {
    for seed in 0..5 {
        let mut plan = Plan::random(seed, 0);
        plan.faults.loss = 50_000;
        plan.faults.reorder = 50_000;
        assert_eq!(traffic::run(&plan), traffic::run(&plan));
    }
}

/// Any mix of faults, receivers and ends: each seed draws its own.
fn anything(plan: &mut Plan, rng: &mut Rng) {
    let mut maybe = |chance: u32, most: u32| if rng.chance(chance) { some(rng, most) } else { 0 };
    plan.faults = Faults {
        loss: maybe(500_000, 60_000),
        duplicate: maybe(300_000, 100_000),
        reorder: maybe(300_000, 60_000),
        corrupt: maybe(300_000, 30_000),
        mark: maybe(200_000, 100_000),
        ..plan.faults
    };
    plan.pauses = maybe(200_000, 100_000);
    plan.stalls = maybe(150_000, 10_000);
    plan.leaps = maybe(250_000, 20_000);
    plan.resizes = maybe(300_000, 20_000);
    plan.faults.echo = maybe(300_000, 500_000);
    plan.faults.reorder_by = 1_000 + rng.below(100_000);
    plan.faults.late_by = rng.pick(&[3_000, 3_000, 100_000]);
    plan.faults.jitter = rng.pick(&[0, 0, 5_000, 50_000]);
    plan.faults.ps_per_byte = rng.pick(&[0, 0, 80, 800, 8_000]);
    plan.bursts = rng.chance(200_000);
    plan.depth_changes = rng.pick(&[0, 500_000]);
    plan.tastes = rng.pick(&[[Taste::Everything; 2], [Taste::Everything; 2], ONE_READS]);
    if plan.tastes == ONE_READS {
        // A slow link takes longer for all that is asked for than the retries last.
        plan.faults.ps_per_byte = plan.faults.ps_per_byte.min(800);
    }
    if rng.chance(300_000) {
        plan.ending = Ending::bad(rng);
    }
    // The memory that is lent takes no part in any other end.
    plan.lends = plan.ending == Ending::Clean && rng.chance(500_000);
    // A side that stops at once posts no receives any more: with few, the peer would ask for ever.
    if !plan.ending.is_sudden() {
        plan.receive_delay = rng.pick(&[0, 0, 300_000, 2_000_000]);
    }
    if rng.chance(200_000) && !plan.ending.needs_timer() {
        rely_on_answers(plan, rng);
    }
    plan.xrc = plan.may_be_xrc() && rng.chance(500_000);
    plan.shares = plan.may_share() && rng.chance(500_000);
}

/// One direction reads what it can, the other sends.
const ONE_READS: [Taste; 2] = [Taste::Reads, Taste::Sends];

/// No timer runs: everything that is lost shows by what follows, and is mended by that.
fn rely_on_answers(plan: &mut Plan, rng: &mut Rng) {
    plan.timer = false;
    plan.faults.shown_loss = rng.pick(&[0, 20_000, 200_000]);
    (plan.faults.loss, plan.faults.corrupt, plan.faults.reorder) = (0, 0, 0);
}

#[test]
fn the_walk() {
    let sum = worlds(sweep::seeds(WALK), 11, anything);
    sum.happened("losses", |s| s.faults.lost);
    sum.happened("duplicates", |s| s.faults.duplicated);
    sum.happened("reordering", |s| s.faults.reordered);
    sum.happened("corruption", |s| s.faults.corrupted);
    sum.happened("RNR NAKs", |s| s.counters.rcvd_rnr_err);
    sum.happened("implied NAKs", |s| s.counters.implied_nak_seq_err);
    sum.happened("exhausted retries", |s| s.counters.req_retry_exceeded);
    sum.happened("echoes of RNR NAKs", |s| s.faults.echoed);
    sum.happened("CQ overflows", |s| s.counters.cq_overflows);
    sum.happened("pauses", |s| s.disturbances.pauses);
    sum.happened("changes of the READ depth", |s| s.disturbances.depths);
    sum.happened("wires that take nothing", |s| s.disturbances.stalls);
    sum.happened("leaps", |s| s.disturbances.leaps);
    sum.happened("completion queues of another size", |s| s.disturbances.resizes);
    sum.happened("windows that ended", |s| s.disturbances.windows);
    sum.happened("messages over XRC", |s| s.disturbances.named);
    sum.happened("windows that ended behind XRC", |s| s.disturbances.windows_of_xrc);
    sum.happened("receives of shared queues", |s| s.disturbances.shared);
}

/// A window that was taken away lets nothing through, whatever is still on its way.
#[test]
fn windows_that_come_and_go() {
    let sum = worlds(sweep::seeds(4 * SEEDS), 14, |plan, rng| {
        plan.lends = true;
        plan.bursts = rng.chance(500_000);
        plan.faults.loss = rng.pick(&[0, 20_000, 60_000]);
        plan.faults.duplicate = rng.pick(&[0, 100_000]);
        plan.faults.reorder = rng.pick(&[0, 60_000]);
        plan.faults.reorder_by = 1_000 + rng.below(100_000);
        plan.pauses = rng.pick(&[0, 50_000]);
    });
    sum.happened("windows that ended", |s| s.disturbances.windows);
    sum.happened("duplicate requests", |s| s.counters.duplicate_request);
}

/// Each message is received where it says, and each key is good for the domain of the queue that a
/// request names, whatever was named before and is still to be answered.
#[test]
fn names_of_shared_receive_queues() {
    let sum = worlds(sweep::seeds(4 * SEEDS), 15, |plan, rng| {
        plan.xrc = true;
        plan.bursts = rng.chance(500_000);
        plan.faults.loss = rng.pick(&[0, 20_000, 60_000]);
        plan.faults.duplicate = rng.pick(&[0, 100_000]);
        plan.faults.reorder = rng.pick(&[0, 60_000]);
        plan.faults.reorder_by = 1_000 + rng.below(100_000);
        plan.pauses = rng.pick(&[0, 50_000]);
        plan.leaps = rng.pick(&[0, 20_000]);
        plan.receive_delay = rng.pick(&[0, 300_000]);
        plan.lends = rng.chance(500_000);
    });
    sum.happened("leaps", |s| s.disturbances.leaps);
    sum.happened("messages over XRC", |s| s.disturbances.named);
    sum.happened("windows that ended behind XRC", |s| s.disturbances.windows_of_xrc);
    sum.happened("RNR NAKs", |s| s.counters.rcvd_rnr_err);
    sum.happened("duplicate requests", |s| s.counters.duplicate_request);
}

#[test]
fn good_links() {
    let sum = run(1, |_, _| {});
    assert_eq!(sum.faults.harmed(), 0);
}

#[test]
fn loss() {
    let sum = run(2, |plan, rng| plan.faults.loss = some(rng, 80_000));
    sum.happened("losses", |s| s.faults.lost);
    sum.happened("retransmissions", |s| s.counters.retransmitted_packets);
    sum.happened("NAKs", |s| s.counters.packet_seq_err);
    sum.happened("implied NAKs", |s| s.counters.implied_nak_seq_err);
    sum.happened("timeouts", |s| s.counters.local_ack_timeout_err);
    sum.happened("duplicates", |s| s.counters.duplicate_request);
}

#[test]
fn duplicates() {
    let sum = run(3, |plan, rng| plan.faults.duplicate = some(rng, 200_000));
    sum.happened("duplicates on the link", |s| s.faults.duplicated);
    sum.happened("duplicate requests", |s| s.counters.duplicate_request);
}

#[test]
fn reordering() {
    let sum = run(4, |plan, rng| {
        plan.faults.reorder = some(rng, 100_000);
        plan.faults.reorder_by = 1_000 + rng.below(200_000);
    });
    sum.happened("reordering", |s| s.faults.reordered);
    sum.happened("retransmissions", |s| s.counters.retransmitted_packets);
}

#[test]
fn corruption() {
    let sum = run(5, |plan, rng| plan.faults.corrupt = some(rng, 60_000));
    sum.happened("corruption", |s| s.faults.corrupted);
    sum.happened("retransmissions", |s| s.counters.retransmitted_packets);
    let noticed = sum.counters.rx_icrc_encapsulated + sum.counters.rx_malformed;
    assert_eq!(noticed, sum.faults.corrupted, "every flipped bit is noticed, and nothing else");
}

#[test]
fn congestion() {
    let sum = run(6, |plan, rng| {
        // Only ConnectX's packets can be marked when the application does not ask for it.
        plan.profiles = [Profile::ConnectX, rng.pick(&[Profile::ConnectX, Profile::Spec])];
        plan.faults.mark = some(rng, 500_000);
        plan.faults.jitter = rng.below(50_000);
        plan.faults.ps_per_byte = rng.pick(&[80, 800, 8_000]);
    });
    sum.happened("marks", |s| s.faults.marked);
}

#[test]
fn receiver_not_ready() {
    let sum = run(7, |plan, rng| {
        plan.receive_delay = 1_000 + rng.below(2_000_000);
        plan.faults.loss = some(rng, 20_000);
    });
    sum.happened("RNR NAKs", |s| s.counters.rcvd_rnr_err);
}

#[test]
fn everything_at_once() {
    let sum = run(8, |plan, rng| {
        plan.faults = Faults {
            loss: some(rng, 30_000),
            duplicate: some(rng, 50_000),
            reorder: some(rng, 50_000),
            reorder_by: 1_000 + rng.below(50_000),
            corrupt: some(rng, 20_000),
            mark: some(rng, 50_000),
            jitter: rng.below(20_000),
            ps_per_byte: rng.pick(&[0, 80, 800]),
            ..plan.faults
        };
        plan.receive_delay = rng.pick(&[0, 0, 300_000]);
    });
    sum.happened("harm", |s| s.faults.harmed());
    sum.happened("retransmissions", |s| s.counters.retransmitted_packets);
}

/// Everything that can go wrong, with ConnectX's habits on one end or on both.
#[test]
fn connectx_with_itself_and_with_others() {
    use Profile::{ConnectX, Spec};
    let sum = run(11, |plan, rng| {
        plan.profiles = rng.pick(&[[ConnectX; 2], [ConnectX, Spec], [Spec, ConnectX]]);
        plan.faults = Faults {
            loss: some(rng, 30_000),
            duplicate: some(rng, 50_000),
            reorder: some(rng, 50_000),
            reorder_by: 1_000 + rng.below(50_000),
            ..plan.faults
        };
        plan.receive_delay = rng.pick(&[0, 0, 300_000]);
    });
    sum.happened("losses", |s| s.faults.lost);
    sum.happened("reordering", |s| s.faults.reordered);
    sum.happened("timeouts", |s| s.counters.local_ack_timeout_err);
    sum.happened("NAKs", |s| s.counters.packet_seq_err);
    sum.happened("RNR NAKs", |s| s.counters.rcvd_rnr_err);
}

#[test]
fn send_queues_that_are_drained_now_and_then() {
    let sum = run(10, |plan, rng| {
        plan.pauses = some(rng, 200_000);
        plan.faults.loss = rng.pick(&[0, 20_000]);
    });
    sum.happened("losses", |s| s.faults.lost);
}

/// Whatever a burst holds besides what finds its memory gone completes as it must.
#[test]
fn memory_that_goes_away_in_the_middle_of_traffic() {
    let sum = worlds(sweep::seeds(16 * SEEDS), 12, |plan, rng| {
        plan.ending = Ending::memory(rng);
        plan.bursts = true;
        plan.tastes = rng.pick(&[[Taste::Everything; 2], [Taste::Sends; 2], ONE_READS]);
        plan.faults.loss = rng.pick(&[0, 40_000]);
    });
    sum.happened("flushed requests", |s| s.counters.flushed_wqes);
}

#[test]
fn completion_queues_that_overflow() {
    let sum = worlds(sweep::seeds(2 * SEEDS), 13, |plan, _| {
        plan.ending = Ending::CqOverflows;
        plan.bursts = true;
    });
    sum.happened("overflows", |s| s.counters.cq_overflows);
}

#[test]
fn errors_in_the_middle_of_traffic() {
    let sum = run(9, |plan, rng| {
        plan.ending = Ending::bad(rng);
        plan.faults.loss = rng.pick(&[0, 20_000]);
    });
    sum.happened("flushed requests", |s| s.counters.flushed_wqes);
    sum.happened("exhausted retries", |s| s.counters.req_retry_exceeded);
}
