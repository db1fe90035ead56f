//! What a daemon reports about itself, and what the kernel reports about the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::dist::Dist;
use crate::place::Node;
use crate::process::{Running, User, tail, wait_until};

/// The resources of a daemon that must not grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// Objects by kind: `qps`, `cqs`, `mrs`, `sessions`.
    pub objects: BTreeMap<String, u64>,
    /// Open descriptors.
    pub descriptors: usize,
    /// Engine processes of users.
    pub processes: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of memory shared with clients.
    pub shared: usize,
    /// Mappings of memory, all of them.
    pub mappings: usize,
    /// Resident memory, KiB.
    pub resident_kib: u64,
}

impl Census {
    /// Counts what a daemon has now.
    ///
    /// # Errors
    /// When the daemon does not answer or has ended.
    pub fn of(node: &Node) -> Result<Self> {
        let status = ask(node, "status")?;
        let objects = ["qps", "cqs", "mrs", "sessions"]
            .iter()
            .map(|kind| Ok(((*kind).to_owned(), total(&status, kind)?)))
            .collect::<Result<_>>()?;
        let home = Path::new("/proc").join(node.daemon.pid().to_string());
        let entries = |name: &str| -> Result<usize> { Ok(fs::read_dir(home.join(name))?.count()) };
        let maps = fs::read_to_string(home.join("maps"))?;
        Ok(Self {
            objects,
            descriptors: entries("fd")?,
            processes: children_of(node.daemon.pid())?,
            threads: entries("task")?,
            shared: maps.lines().filter(|line| line.contains("memfd:")).count(),
            mappings: maps.lines().count(),
            resident_kib: resident_kib(&fs::read_to_string(home.join("status"))?)?,
        })
    }

    /// Counts once no session but the question's own is left, and no engine process: a program's
    /// session ends some time after the program, its user's engine process later, and neither must
    /// count as existing before a test.
    ///
    /// # Errors
    /// When it is still in use after `limit`.
    pub fn at_rest(node: &Node, limit: Duration) -> Result<Self> {
        let mut now = Self::of(node)?;
        let rest = wait_until("end of all sessions", limit, || {
            now = Self::of(node)?;
            Ok(now.objects.get("sessions") == Some(&1) && now.processes == 0)
        });
        rest.with_context(|| format!("{now:?}\n{}", node.daemon.log()))?;
        Ok(now)
    }

    /// Waits until the daemon has no more resources than at `self`: objects, descriptors, threads,
    /// and memory within what an allocator keeps.
    ///
    /// # Errors
    /// When it is not so within `limit`; the error shows both.
    pub fn returns(&self, node: &Node, limit: Duration) -> Result<Self> {
        let mut now = Self::of(node)?;
        let back = wait_until("return of all resources", limit, || {
            now = Self::of(node)?;
            Ok(now.is_within(self))
        });
        back.with_context(|| format!("before: {self:?}\nafter:  {now:?}\n{}", node.daemon.log()))?;
        Ok(now)
    }

    fn is_within(&self, before: &Self) -> bool {
        self.objects == before.objects
            && self.descriptors <= before.descriptors
            && self.processes <= before.processes
            && self.threads <= before.threads
            && self.shared <= before.shared
            && self.mappings <= before.mappings + ALLOCATOR_MAPPINGS
            && self.resident_kib <= before.resident_kib + ALLOCATOR_KIB
    }
}

/// How many processes a process has started that are not waited for.
fn children_of(pid: u32) -> Result<usize> {
    let own = format!("PPid:\t{pid}\n");
    let entries = fs::read_dir("/proc")?.flatten();
    // Those that end meanwhile do not count.
    let status = entries.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    Ok(status.filter(|status| status.contains(&own)).count())
}

/// The C library keeps up to 40 MB of stacks of ended threads (a session's is 256 KiB and its guard
/// page), and for some an arena of two mappings.
const ALLOCATOR_MAPPINGS: usize = 2 * 160 + 32;
/// What each thread's allocator keeps of freed memory.
const ALLOCATOR_KIB: u64 = 16 * 1024;

/// `rnic WHAT --json` of a daemon.
///
/// # Errors
/// When it fails or prints no JSON.
pub fn ask(node: &Node, what: &str) -> Result<Value> {
    let text = node.rnic(&[what, "--json"]).limit(Duration::from_secs(10)).check()?;
    serde_json::from_str(&text).with_context(|| format!("`rnic {what} --json` printed:\n{text}"))
}

/// The engine process that serves a user of a root daemon.
///
/// # Errors
/// As [`ask`], and when the user has none.
pub fn engine_process(node: &Node, user: User) -> Result<u32> {
    let status = ask(node, "status")?;
    let users = status["users"].as_array().context("no users")?;
    let is_it = |entry: &&Value| entry["uid"] == user.uid && entry["gid"] == user.gid;
    let entry = users.iter().find(is_it).with_context(|| format!("no {user:?} in {status:#}"))?;
    entry["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).context("no process")
}

/// One counter of a daemon.
///
/// # Errors
/// As [`ask`], and when there is no such counter.
pub fn counter(node: &Node, name: &str) -> Result<u64> {
    total(&ask(node, "counters")?, name)
}

/// What a daemon knows of a failure, as far as it can be asked: its counters and its log.
#[must_use]
pub fn evidence(daemon: &Daemon, dist: &Dist) -> String {
    format!("{}\n{}", said(daemon, dist, "counters").trim_end(), tail(&daemon.log(), 40))
}

/// `rnic WHAT` of a daemon, or why it did not answer.
pub(crate) fn said(daemon: &Daemon, dist: &Dist, what: &str) -> String {
    let command = daemon.rnic(dist, &[what]);
    match command.limit(Duration::from_secs(5)).start().and_then(Running::wait) {
        Ok(said) if said.success() => said.stdout,
        Ok(said) => said.to_string(),
        Err(error) => format!("{error:#}"),
    }
}

/// The sum of all numbers (or lengths of lists) under a key, at any depth.
///
/// # Errors
/// When the key does not occur.
pub fn total(value: &Value, key: &str) -> Result<u64> {
    let mut found = Vec::new();
    collect(value, key, &mut found);
    ensure!(!found.is_empty(), "no {key} in {value:#}");
    Ok(found.iter().sum())
}

fn collect(value: &Value, key: &str, found: &mut Vec<u64>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                match inner {
                    Value::Array(list) if name == key => found.push(list.len() as u64),
                    _ if name == key => found.extend(inner.as_u64()),
                    _ => collect(inner, key, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| collect(inner, key, found)),
        _ => {}
    }
}

fn resident_kib(status: &str) -> Result<u64> {
    kib(status, "VmRSS:")
}

/// A line of `/proc/PID/status`.
fn kib(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {name} in /proc/PID/status"))
}

/// Resident memory of a process that it shares with no file and no other process, KiB.
///
/// # Errors
/// When the process is no more.
pub fn own_memory_kib(pid: u32) -> Result<u64> {
    kib(&fs::read_to_string(format!("/proc/{pid}/status"))?, "RssAnon:")
}

/// CPU time that a process used until now, user and system.
///
/// # Errors
/// When the process is no more.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    cpu_time_in(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

/// The same in what `/proc` tells in a file `stat`, of a process or a thread.
pub(crate) fn cpu_time_in(stat: &str) -> Result<Duration> {
    // Behind the name in parentheses: state is field 3, utime and stime are 14 and 15.
    let fields = stat.rsplit_once(')').context("no name in /proc/PID/stat")?.1;
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse().ok()).collect();
    ensure!(ticks.len() == 2, "no times in {stat:?}");
    Ok(Duration::from_secs(ticks.iter().sum())
        / rustix::param::clock_ticks_per_second().try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_total_is_over_all_places() {
        let status = json!({"engine": [{"qps": 3}, {"qps": 4}], "sessions": [{}, {}]});
        assert_eq!(total(&status, "qps").unwrap(), 7);
        assert_eq!(total(&status, "sessions").unwrap(), 2);
        assert!(total(&status, "cqs").is_err());
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(resident_kib(&status).unwrap() > 100);
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(50) {}
        assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
    }
}
