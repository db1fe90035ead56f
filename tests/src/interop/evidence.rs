//! Diagnostics of a dialogue that makes no progress, collected before the programs end.

use std::time::Duration;

use anyhow::Result;

use super::Peer;
use crate::place::Node;
use crate::process::Cmd;
use crate::slow::when_slow;

/// No case of the suite takes half of this, on a busy machine.
const SLOW: Duration = Duration::from_secs(40);
/// How long frames are captured.
const LISTEN: Duration = Duration::from_secs(2);

/// Does `work`. When that takes too long, prints the state of both sides meanwhile.
pub(super) fn if_slow<T>(ours: &Node, peer: &dyn Peer, work: impl FnOnce() -> T) -> T {
    let look = || eprintln!("no end after {SLOW:?}\n{}", collect(ours, peer));
    when_slow(SLOW, look, work).0
}

fn collect(ours: &Node, peer: &dyn Peer) -> String {
    let ask = |what| shown(ours.rnic(&[what, "--json"]).limit(Duration::from_secs(5)).check());
    let state = || {
        let (qps, counters) = (ask("qp"), ask("counters"));
        format!("our QPs: {qps}\nour counters: {counters}\nthe peer:\n{}", peer.state())
    };
    // Before and after: a difference shows what is still being tried.
    let before = state();
    let frames = shown(listen(&ours.rnic(&["capture"])));
    format!("{before}\nframes of {LISTEN:?}:\n{frames}\n{}", state())
}

fn listen(capture: &Cmd) -> Result<String> {
    let running = capture.start()?;
    std::thread::sleep(LISTEN);
    Ok(running.stdout())
}

fn shown(said: Result<String>) -> String {
    said.unwrap_or_else(|error| format!("{error:#}"))
}
