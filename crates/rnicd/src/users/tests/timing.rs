//! How long something takes on a machine that other programs use, too.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long an act takes, less what this thread and the engine's wait for CPUs meanwhile: other
/// programs have them then. What they wait for processes is counted. The process has one engine.
pub(super) fn time(act: impl FnOnce()) -> Duration {
    let (began, waited) = (Instant::now(), waited_for_cpus());
    act();
    began.elapsed().saturating_sub(waited_for_cpus().saturating_sub(waited))
}

/// How long this thread and the engine's have been ready to run, and did not.
fn waited_for_cpus() -> Duration {
    let this = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_meant = |task: &PathBuf| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        task.ends_with(&this) || name.starts_with("rnic-engine")
    };
    let waited = tasks.filter(is_meant).map(|task| {
        // On a CPU, then ready for one, both in nanoseconds.
        let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|waited| waited.parse::<u64>().ok()).unwrap_or(0)
    });
    Duration::from_nanos(waited.sum::<u64>())
}

/// Whether one of a few tries takes less than a limit: what the daemon waits for takes longer each
/// time, and other programs do not have the CPUs each time.
pub(super) fn is_quick(limit: Duration, mut act: impl FnMut()) -> bool {
    (0..5).any(|_| {
        let began = Instant::now();
        act();
        began.elapsed() < limit
    })
}
