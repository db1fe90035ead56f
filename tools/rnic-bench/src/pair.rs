//! Two pinned processes in two namespaces, and the page they share.

use std::fs;
use std::io::Error;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::os::{self, Mapping};

/// Where the two processes run and for how long.
pub(crate) struct Stage {
    pub(crate) netns: [String; 2],
    pub(crate) cpus: [usize; 2],
    /// Measured time.
    pub(crate) millis: u64,
}

/// Time before the measurement.
const WARM_UP: Duration = Duration::from_millis(60);
const PATIENCE: Duration = Duration::from_secs(10);
/// Values of `phase`.
const PREPARE: u32 = 0;
const RUN: u32 = 1;
const STOP: u32 = 2;

/// A counter alone in its cache lines: the neighbour's stores do not slow its readers down.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counter(pub(crate) AtomicU64);

impl Counter {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// What the two processes and their parent share.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Board {
    phase: AtomicU32,
    ready: AtomicU32,
    macs: [AtomicU64; 2],
    /// Packets that arrived.
    pub(crate) packets: Counter,
    /// Payload bytes that were placed.
    pub(crate) bytes: Counter,
    /// Packets given up as lost.
    pub(crate) lost: Counter,
    /// Nanoseconds: median and 99th percentile of what is timed.
    pub(crate) delays: [Counter; 2],
    /// How often the two processes passed the CPU or word to each other.
    pub(crate) turn: Counter,
}

impl Board {
    pub(crate) fn is_running(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != STOP
    }
}

/// One of the two processes, from its own view.
pub(crate) struct Side<'a> {
    /// 0 sends, 1 receives.
    pub(crate) index: usize,
    pub(crate) board: &'a Board,
}

impl Side<'_> {
    /// Tells the other side our MAC address and waits for its.
    pub(crate) fn exchange_macs(&self, mac: [u8; 6]) -> Result<[u8; 6]> {
        let [a, b, c, d, e, f] = mac;
        let packed = u64::from_be_bytes([0, 1, a, b, c, d, e, f]);
        self.board.macs[self.index].store(packed, Ordering::Release);
        let mut other = 0;
        wait_for("MAC address of the other side", || {
            other = self.board.macs[1 - self.index].load(Ordering::Acquire);
            Ok(other != 0)
        })?;
        let [_, _, mac @ ..] = other.to_be_bytes();
        Ok(mac)
    }

    /// Waits until both sides are ready.
    pub(crate) fn start(&self) -> Result<()> {
        self.board.ready.fetch_add(1, Ordering::AcqRel);
        wait_for("start", || Ok(self.board.phase.load(Ordering::Acquire) != PREPARE))
    }
}

/// What was counted while the pair ran.
pub(crate) struct Measured {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    pub(crate) seconds: f64,
    /// The longest share of the time that one of the processes waited for its core.
    pub(crate) waited: f64,
}

struct Children(Vec<libc::pid_t>);

impl Drop for Children {
    fn drop(&mut self) {
        for pid in self.0.drain(..) {
            os::end(pid);
        }
    }
}

/// Runs `role` in both namespaces, pinned, and counts during the measured time.
pub(crate) fn run(
    stage: &Stage,
    board: &Board,
    role: impl Fn(&Side<'_>) -> Result<()>,
) -> Result<Measured> {
    let mut children = Children(Vec::new());
    for index in [0, 1] {
        let side = Side { index, board };
        children.0.push(os::fork(|| in_child(stage, &side, &role))?);
    }
    let alive = || {
        ensure!(!children.0.iter().any(|pid| os::has_ended(*pid)), "a process of the pair ended");
        Ok(())
    };
    wait_for("readiness of both processes", || {
        alive()?;
        Ok(board.ready.load(Ordering::Acquire) == 2)
    })?;
    board.phase.store(RUN, Ordering::Release);
    std::thread::sleep(WARM_UP);
    let count = || [board.packets.get(), board.bytes.get(), board.lost.get()];
    let waits = || children.0.iter().map(|pid| waited(*pid)).collect::<Result<Vec<_>>>();
    let (began, before, waits_before) = (Instant::now(), count(), waits()?);
    std::thread::sleep(Duration::from_millis(stage.millis));
    let (seconds, after) = (began.elapsed().as_secs_f64(), count());
    let waited = waits()?.into_iter().zip(waits_before).map(|(after, before)| after - before);
    let waited = waited.fold(0.0, f64::max) / seconds;
    alive()?;
    board.phase.store(STOP, Ordering::Release);
    let [packets, bytes, lost] = std::array::from_fn(|i| after[i].saturating_sub(before[i]));
    wait_for("end of both processes", || Ok(children.0.iter().all(|pid| os::has_ended(*pid))))?;
    Ok(Measured { packets, bytes, lost, seconds, waited })
}

/// A board that children share.
pub(crate) fn with_board<T>(work: impl FnOnce(&Board) -> Result<T>) -> Result<T> {
    let mapping = Mapping::new(size_of::<Board>(), true)?;
    assert!(mapping.len() >= size_of::<Board>());
    // SAFETY: the mapping is page-aligned, at least as long as a Board, lives until the end of this
    // function, and its zeros are a valid Board, which is made of atomics only.
    let board = unsafe { mapping.start().cast::<Board>().as_ref() };
    work(board)
}

fn in_child(stage: &Stage, side: &Side<'_>, role: &impl Fn(&Side<'_>) -> Result<()>) -> i32 {
    let work = || -> Result<()> {
        let (netns, cpu) = (&stage.netns[side.index], stage.cpus[side.index]);
        os::enter_netns(netns).with_context(|| format!("cannot enter {netns}"))?;
        os::pin(cpu).with_context(|| format!("cannot use CPU {cpu}"))?;
        role(side)
    };
    match work() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rnic-raw: side {}: {error:#}", side.index);
            1
        }
    }
}

/// Seconds that a process waited for a core so far.
fn waited(pid: libc::pid_t) -> Result<f64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let nanoseconds = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    Ok(nanoseconds.with_context(|| path)? as f64 / 1e9)
}

fn wait_for(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        ensure!(Instant::now() < deadline, Error::other(format!("no {what} within 10 s")));
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
