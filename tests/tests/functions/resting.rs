//! Programs whose waits for completion events turn the engine that is in them.

use super::driving::{drive_rightly, driving, replaced};
use super::*;

/// What they do, and what they print then: `tests/errors/resting.c`
/// and `tests/errors/resting_threads.c`.
const RESTING: [(&str, &str); 14] = [
    ("resting_exchanges", "2000 messages"),
    ("resting_for_pauses", "1230 messages"),
    ("resting_computes", "200 times"),
    ("resting_is_interrupted", "4100 messages, 0 waits interrupted, then some"),
    ("resting_is_cancelled", "10 cancelled, 2000 messages"),
    ("resting_jumps_out_of_waits", "200 messages after 30 jumps"),
    ("resting_while_another_thread_posts", "1000 messages"),
    ("resting_changes_to_poll", "200 messages"),
    ("resting_changes_to_polling", "200 messages"),
    ("resting_loses_descriptors", "1200 messages, many sockets lost, 0 files changed"),
    ("resting_forks", "children have 0 sockets, 200 messages"),
    ("resting_in_two_threads", "20100 and 20100 messages"),
    ("resting_destroys_a_queue", "200 messages"),
    ("resting_is_stopped", "200 messages, 0 waits interrupted"),
];
/// Another one, whose daemon is killed.
const OUTLIVES: &str = "resting_outlives_its_daemon";

#[test]
fn programs_that_wait_for_events_may_do_what_they_like() -> Result<()> {
    let name = "programs_that_wait_for_events";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let mut pair = pair(&lab, Io::Udp)?;
    // Each has a peer, and some have two threads.
    pair.left.host.cpu = None;
    let list = pair.left.cmd(ERRORS)?.arg("list-resting").check()?;
    let known = RESTING.map(|(what, _)| what);
    let is_known = |what| known.contains(&what) || what == OUTLIVES;
    let is_complete = list.lines().count() == known.len() + 1 && list.lines().all(is_known);
    ensure!(is_complete, "the program's:\n{list}here: {known:?}");
    judge(name, |_| drive_rightly(&pair.left, &RESTING))?;
    pair.stop()
}

/// A wait learns of it at once, and keeps no port.
#[test]
fn a_wait_ends_when_the_daemon_is_killed() -> Result<()> {
    let name = "killed_daemon_of_one_that_waits";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    judge(name, |_| {
        let mut pair = pair(&lab, Io::Udp)?;
        pair.left.host.cpu = None;
        let stays = driving(&pair.left, OUTLIVES)?.start()?;
        if let Err(error) = wait_until("turns", SOON, || Ok(stays.stdout().contains("rests"))) {
            return Ok(judged_by_machine(format!("{error:#}")));
        }
        pair = replaced(pair)?;
        wait_until("its end", SOON, || Ok(stays.stdout().contains("ended")))?;
        pair.stop()?;
        Ok(Reading::Good)
    })
}
