//! Ours and Linux rxe over one link: two devices on a veth pair, the programs pinned.
//!
//! In an emulated machine, which any host can run, every instruction is executed by software. Only
//! the ratio means something there, and it favours the stack that executes fewer instructions. On
//! this machine itself the comparison needs a kernel that has rxe.
//!
//! Both are measured in every round, one stack after the other. rxe is loaded for its own turn
//! only: it would also process our frames.

mod rxe_setup;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::interrupt;
use system_tests::netns::Netns;
use system_tests::paths::Scratch;
use system_tests::programs::{Dialogue, perftest};
use system_tests::remote_node::{Here, Home, Shell};
use system_tests::rxe::{Guest, Image, Machine};

use super::connections;
use super::idle_cost::Finding;
use super::series::Spread;
use crate::budget;
use rxe_setup::{RxeSetup, Stack};

/// What a comparison found.
pub(super) struct Comparison {
    pub(super) heading: &'static str,
    pub(super) findings: Vec<Finding>,
    /// What a reader needs to know beside the numbers.
    pub(super) notes: Vec<String>,
}

/// Where both are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Guest,
    Here,
}

struct Case {
    title: &'static str,
    line: &'static str,
    /// Its counts in the instruction budget, and the packets of a message.
    budget: (&'static str, u64),
}

const CASES: [Case; 3] = [
    Case {
        title: "WRITE 64 KiB",
        line: "ib_write_bw -s 65536 -m 4096 -n 500",
        budget: ("write-65536", 16),
    },
    Case {
        title: "WRITE 1 MiB",
        line: "ib_write_bw -s 1048576 -m 4096 -n 40",
        budget: ("write-1048576", 256),
    },
    Case {
        title: "WRITE 8 B, latency p50 (less is better)",
        line: "ib_write_lat -s 8 -n 500",
        budget: ("write-8", 1),
    },
];

const METHOD: &str = "A veth pair with path MTU 4096 in the initial network namespace, server on CPU 0, client on \
     CPU 1; medians of the rounds, in which both stacks take turns, and their ranges.";
const EMULATION: &str = "Every instruction is executed by software, so this compares instructions, not hardware: only \
     the ratios mean something. A change of address space costs the emulator far more than a \
     processor, because it forgets every translation; ours has such changes in each latency, rxe \
     in the kernel has none.";

/// Of one run, both ends in that machine.
const CONNECTIONS: u32 = 100;

/// The packet I/O that ours is measured with. rxe has one kind.
const OURS: [Io; 3] = [Io::Udp, Io::AfPacket, Io::AfXdp];

impl Place {
    const fn heading(self) -> &'static str {
        match self {
            Self::Guest => {
                "Ours and Linux rxe, both in one emulated machine: compares instructions, not \
                 hardware"
            }
            Self::Here => "Ours and this kernel's rxe, both on this machine",
        }
    }
}

/// What fails is a finding too: the rest of a run took minutes.
pub(super) fn measure(dist: &Dist, quick: bool, place: Place) -> Result<Comparison> {
    let rounds = if quick { 2 } else { 5 };
    let outcome = match place {
        Place::Guest => in_guest(dist, rounds),
        Place::Here => here(dist, rounds),
    };
    interrupt::check()?;
    let (findings, mut notes) = outcome.unwrap_or_else(|error| {
        eprintln!("the comparison with rxe: {error:#}");
        (Vec::new(), vec![format!("The comparison failed: {}.", reason(&error))])
    });
    notes.push(METHOD.to_owned());
    if place == Place::Guest {
        notes.push(EMULATION.to_owned());
    }
    notes.extend(instructions()?);
    Ok(Comparison { heading: place.heading(), findings, notes })
}

/// Says what is missing where this kernel has no rxe.
pub(super) fn kernel_has_rxe() -> Result<()> {
    let asked = "[ -e /sys/module/rdma_rxe ] || modprobe --dry-run --quiet rdma_rxe";
    if Here.check(asked).is_err() {
        bail!(
            "--rxe-here: this kernel has no rdma_rxe. Debian's kernels bring it (not the \"cloud\" \
             ones), Ubuntu has it in linux-modules-extra-$(uname -r), Fedora in \
             kernel-modules-internal or -extra; a kernel of your own needs CONFIG_RDMA_RXE=m. \
             `--rxe` compares in an emulated machine instead"
        );
    }
    let driver = Path::new("/etc/libibverbs.d/rxe.driver");
    ensure!(
        driver.exists(),
        "--rxe-here: programs do not find rxe without {}: install ibverbs-providers",
        driver.display()
    );
    Ok(())
}

type Found = (Vec<Finding>, Vec<String>);

fn in_guest(dist: &Dist, rounds: usize) -> Result<Found> {
    let netns = Netns::new("bench")?;
    let machine = Machine { cpus: 2, memory: 1024, ..Machine::new("tap1", "10.78.0.1".parse()?) };
    let guest = Guest::boot(&Image::get()?, &netns, &machine)?;
    // The device of its boot.
    guest.check("rdma link delete rxe0")?;
    let setup = RxeSetup {
        shell: &guest,
        home: Home::in_guest(&guest, dist)?,
        folder: PathBuf::from("/run"),
        load: "insmod /lib/modules/rdma_rxe.ko",
        keeps_rxe: false,
    };
    compare(&setup, rounds).with_context(|| guest.console())
}

fn here(dist: &Dist, rounds: usize) -> Result<Found> {
    let scratch = Scratch::new("rxe")?;
    let setup = RxeSetup {
        shell: &Here,
        home: Home::here(dist),
        folder: scratch.path().to_owned(),
        load: "modprobe -a rdma_rxe ib_uverbs",
        keeps_rxe: Path::new("/sys/module/rdma_rxe").exists(),
    };
    compare(&setup, rounds)
}

/// The values of each case, round by round.
type Values = [Vec<f64>; CASES.len()];

/// What was measured of one stack.
#[derive(Default)]
struct Played {
    values: Values,
    /// Connections a second.
    connections: Vec<f64>,
}

/// Our stack over one kind of packet I/O, and why it failed, if it did.
struct Contender {
    io: Io,
    played: Played,
    failure: Option<String>,
}

fn compare(setup: &RxeSetup<'_>, rounds: usize) -> Result<Found> {
    setup.lay()?;
    let contender = |io| Contender { io, played: Played::default(), failure: None };
    let mut contenders = OURS.map(contender);
    let mut rxe = Played::default();
    for round in 0..rounds {
        for one in contenders.iter_mut().filter(|one| one.failure.is_none()) {
            let name = one.io.as_str();
            if one.io == Io::Udp && setup.keeps_rxe {
                one.failure = Some("rdma_rxe was loaded and has the UDP port".to_owned());
                continue;
            }
            let played = setup.ours(one.io).and_then(|stack| play(&stack, &mut one.played));
            interrupt::check()?;
            if let Err(error) = played {
                eprintln!("{name}: {error:#}");
                one.failure = Some(reason(&error));
            }
        }
        let stack = setup.rxe()?;
        let played = play(&stack, &mut rxe);
        setup.rxe_off()?;
        played.context("rxe")?;
        eprintln!("rxe: round {} of {rounds} done", round + 1);
    }
    Ok((findings(&contenders, &rxe), failures(&contenders)))
}

/// Every case once.
fn play(stack: &Stack<'_>, played: &mut Played) -> Result<()> {
    let [server, client] = stack.players();
    for (case, values) in CASES.iter().zip(&mut played.values) {
        let done = Dialogue::new(case.line).run(server, client);
        let text = done.with_context(|| stack.logs())?.client.stdout;
        values.push(if is_latency(case) {
            perftest::latency(&text)?.pop().context("no row")?.typical
        } else {
            perftest::bandwidth(&text)?.pop().context("no row")?.average
        });
    }
    let connected = connections::rate(server, client, CONNECTIONS);
    played.connections.push(connected.with_context(|| stack.logs())?);
    Ok(())
}

fn is_latency(case: &Case) -> bool {
    case.line.contains("_lat ")
}

fn findings(contenders: &[Contender], rxe: &Played) -> Vec<Finding> {
    let mut findings = Vec::new();
    let measured = || contenders.iter().filter(|one| one.failure.is_none());
    for (index, case) in CASES.iter().enumerate() {
        for one in measured() {
            let (ours, theirs) = (&one.played.values[index], &rxe.values[index]);
            let value = format!("{}, rxe {}", shown(case, ours), shown(case, theirs));
            findings.push(finding(case.title, one.io, value, (ours, theirs)));
        }
    }
    for one in measured() {
        let (ours, theirs) = (&one.played.connections, &rxe.connections);
        let value = format!("{}, rxe {}", a_second(ours), a_second(theirs));
        findings.push(finding("Connections by cmtime", one.io, value, (ours, theirs)));
    }
    findings
}

fn finding(title: &str, io: Io, value: String, (ours, theirs): (&[f64], &[f64])) -> Finding {
    let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let ratio = Spread::of(ratios).map(|spread| spread.median);
    let title = format!("{title}, {}", io.as_str());
    eprintln!("{title:<60} {value}");
    Finding { title, value, target: "of rxe", met: None, ratio }
}

fn a_second(rates: &[f64]) -> String {
    match Spread::of(rates.to_vec()) {
        Some(Spread { median, min, max }) => format!("{median:.0} a second ({min:.0}..{max:.0})"),
        None => "nothing".to_owned(),
    }
}

/// A median with its range. An emulated machine is too slow for the table's usual units.
fn shown(case: &Case, values: &[f64]) -> String {
    let Some(Spread { median, min, max }) = Spread::of(values.to_vec()) else {
        return "nothing".to_owned();
    };
    if is_latency(case) {
        return format!("{median:.1} us ({min:.1}..{max:.1})");
    }
    format!("{:.0} MB/s ({:.0}..{:.0})", median / 1e6, min / 1e6, max / 1e6)
}

/// The kinds of packet I/O that failed, and why.
fn failures(contenders: &[Contender]) -> Vec<String> {
    let note = |one: &Contender| {
        Some(format!("Not measured with --io {}: {}.", one.io.as_str(), one.failure.as_ref()?))
    };
    contenders.iter().filter_map(note).collect()
}

/// What the daemon said last, or else the end of what went wrong; all of it was shown when it
/// happened.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let said = last.rsplit("rnicd: ").next().unwrap_or(last);
    said.trim().trim_end_matches('.').to_owned()
}

/// What our engine takes, as callgrind counted it for the budget.
fn instructions() -> Result<Vec<String>> {
    let counts = budget::recorded()?;
    let mut notes = vec![
        "Instructions of our engine beside it, counted by callgrind (`cargo xtask budget`), \
         without kernel, copies and checksums:"
            .to_owned(),
    ];
    for Case { title, budget: (key, packets), .. } in &CASES {
        let side = |side: &str| -> Result<String> {
            let count = counts.get(&format!("{key} {side}"));
            let count = count.with_context(|| format!("the budget has no {key} {side}"))?;
            Ok(format!("{side} {count} a message, {} a packet", count / packets))
        };
        let title = title.split(',').next().unwrap_or(title);
        notes.push(format!("{title}: {}; {}.", side("requester")?, side("responder")?));
    }
    Ok(notes)
}
