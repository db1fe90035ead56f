//! Engines in programs. The other suites run in this form, too (`RNIC_TEST_ENGINE=program`); here
//! is what only this form has.

mod driving;
mod resting;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use driving::{IN_A_SANDBOX, drive_rightly};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::checker;
use system_tests::choice;
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::inspect::{Census, ask, counter, cpu_time, own_memory_kib};
use system_tests::lab::{Lab, Need, Pair, at_end, cpu_of, long_form, only_in_long_form};
use system_tests::measure::{Reading, is_quiet, judge, taken_by_others};
use system_tests::native::{self, CROWD, ERRORS, MESH, SANDBOX, VICTIM};
use system_tests::paths::Scratch;
use system_tests::place::{Job, Node, Place};
use system_tests::process::{Cmd, Output, Running, wait_until};
use system_tests::programs::{Dialogue, next_port};

/// How long anything that is expected may take.
const SOON: Duration = Duration::from_secs(10);

fn open(test: &str) -> Result<Option<Lab>> {
    let programs = ["ibv_rc_pingpong", "ib_write_bw", "ib_send_lat"];
    let Some(mut lab) = Lab::open(test, Need::Root, &programs)? else { return Ok(None) };
    let tools = lab.tools.clone().with_built(checker::build()?).with_built(native::victim()?);
    lab.tools = tools.with_built(native::sandbox()?).with_built(native::crowd()?);
    lab.tools = lab.tools.clone().with_built(native::mesh()?);
    Ok(Some(lab))
}

/// Two hosts whose programs have engines of their own.
fn pair(lab: &Lab, io: Io) -> Result<Pair> {
    let pair = lab.pair(io, 4200)?;
    let Pair { left, right, net } = pair;
    let own = |node| Node { in_program: true, ..node };
    Ok(Pair { left: own(left), right: own(right), net })
}

/// What `rnic status` says of engines outside of the daemon.
fn engines(node: &Node) -> Result<Vec<Value>> {
    Ok(ask(node, "status")?["users"].as_array().cloned().unwrap_or_default())
}

/// A victim that moves data to or from a peer.
fn stream(node: &Node, args: &str) -> Result<Running> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(VICTIM)?.args(["-d", node.device(), "-g", &gid]);
    cmd.args(args.split(' ')).limit(Duration::from_secs(60)).start()
}

/// Two of them, once data flows.
fn streams(pair: &Pair) -> Result<[Running; 2]> {
    let (to, port) = (pair.left.address(), next_port());
    let left = stream(&pair.left, &format!("-p {port} -T 12 -r 3 stream"))?;
    let right = stream(&pair.right, &format!("-p {port} -T 12 -r 3 stream {to}"))?;
    for end in [&left, &right] {
        wait_until("data", SOON, || Ok(end.stdout().contains("moved")))
            .with_context(|| format!("{}{}", end.stdout(), end.stderr()))?;
    }
    Ok([left, right])
}

/// Where the engines are is told, and what they have is shown, as of the daemon's own.
#[test]
fn functions_are_seen() -> Result<()> {
    let Some(lab) = open("functions_are_seen")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let before = Census::of(&pair.left)?;
    let [left, right] = streams(&pair)?;
    let [engine] = &engines(&pair.left)?[..] else { anyhow::bail!("not one engine") };
    ensure!(engine["place"] == "program" && engine["pid"] == left.pid(), "{engine}");
    ensure!(engine["tx_bytes"].as_u64() > Some(10_000) && engine["answers"] == true, "{engine}");
    for what in ["qp", "mr", "cq"] {
        let listed = ask(&pair.left, what)?;
        let own = listed.as_array().into_iter().flatten().filter(|one| one["pid"] == left.pid());
        ensure!(own.count() > 0, "{what}: {listed}");
    }
    let counted = |name: &str| -> Result<u64> {
        Ok(ask(&pair.left, "counters")?[name].as_u64().unwrap_or_default())
    };
    let first = counted("tx_packets")?;
    wait_until("packets", SOON, || Ok(counted("tx_packets")? > first))?;
    // A fault of the daemon strikes in the function, and its end is told.
    pair.left.rnic(&["fault", "add", "drop=2%"]).check()?;
    wait_until("a retry", SOON, || Ok(counted("fault_dropped")? > 0))?;
    pair.left.rnic(&["fault", "clear"]).check()?;
    left.signal(Signal::KILL)?;
    left.wait()?;
    right.wait()?;
    before.returns(&pair.left, SOON)?;
    ensure!(engines(&pair.left)?.is_empty());
    pair.stop()
}

/// With each other, and with a program whose engine is the daemon: each over one kind of packet
/// I/O, in the long form over both.
#[test]
fn functions_talk_with_functions_and_daemons() -> Result<()> {
    const KINDS: [Io; 2] = [Io::Udp, Io::AfXdp];
    let name = "functions_and_daemons";
    let Some(lab) = open(name)? else { return Ok(()) };
    let dealt = choice::pairs(name, &KINDS, &[(true, true), (true, false), (false, true)]);
    for io in KINDS {
        let mut pair = pair(&lab, io)?;
        for (_, in_program) in dealt.iter().filter(|(at, _)| *at == io) {
            (pair.left.in_program, pair.right.in_program) = **in_program;
            for line in ["checker -t 1", "ib_write_bw -s 65536 -n 500", "ib_send_lat -n 500 -e"] {
                let talk = Dialogue::new(line).run(&pair.left, &pair.right);
                talk.with_context(|| pair.evidence())?;
            }
        }
        // Both on one host.
        (pair.left.in_program, pair.right.in_program) = (true, true);
        Dialogue::new("checker -t 1").run(&pair.left, &pair.left)?;
        pair.stop()?;
    }
    Ok(())
}

/// A program that ends, also without giving anything back, leaves what its function has counted.
#[test]
fn what_functions_have_counted_is_kept() -> Result<()> {
    let Some(lab) = open("what_functions_have_counted")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let sent = || -> Result<u64> {
        Ok(ask(&pair.left, "counters")?["tx_packets"].as_u64().unwrap_or_default())
    };
    let before = sent()?;
    for times in 1..=2 {
        Dialogue::new("ibv_rc_pingpong -n 500").run(&pair.left, &pair.right)?;
        ensure!(sent()? >= before + times * 1000, "{} after {before}", sent()?);
    }
    pair.stop()
}

/// Where no process may reach the memory of another one; also without `close_range`, and in a
/// container.
#[test]
fn programs_in_a_sandbox_work() -> Result<()> {
    let name = "programs_in_a_sandbox";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let mut pair = pair(&lab, Io::Udp)?;
    let sandbox = lab.tools.program(SANDBOX)?.display().to_string();
    for option in [None, Some("-t"), Some("-c")] {
        let words: Vec<_> =
            [Some(sandbox.clone()), option.map(str::to_owned)].into_iter().flatten().collect();
        for node in [&mut pair.left, &mut pair.right] {
            node.host.through.clone_from(&words);
        }
        Dialogue::new("ibv_rc_pingpong -c -s 65536 -n 500").run(&pair.left, &pair.right)?;
        Dialogue::new("ib_write_bw -s 65536 -n 500").run(&pair.left, &pair.right)?;
        Dialogue::new("checker -t 1").run(&pair.left, &pair.right)?;
        pair.left.host.cpu = None;
        judge(name, |_| drive_rightly(&pair.left, &IN_A_SANDBOX))?;
        pair.left.host.cpu = cpu_of(0);
    }
    pair.stop()
}

/// The program learns of it, as of the end of any daemon, and the next one finds the next daemon.
#[test]
fn a_daemon_that_is_killed_takes_its_functions_along() -> Result<()> {
    let Some(lab) = open("killed_daemon_of_functions")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let [left, right] = streams(&pair)?;
    pair.left.daemon.signal(Signal::KILL)?;
    let output = left.wait()?;
    ensure!(output.stdout.contains("failed"), "{output}");
    // Nothing answers any more: its peer notices that by itself.
    let output = right.wait()?;
    ensure!(output.stdout.contains("RETRY_EXC_ERR"), "{output}");
    Ok(())
}

/// The threads of an engine are in the program, its descriptors are not.
#[test]
fn a_function_takes_no_descriptors_of_its_program() -> Result<()> {
    let Some(lab) = open("descriptors_of_functions")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let [left, right] = streams(&pair)?;
    let sockets = |pid: u32| -> Result<usize> {
        let links =
            fs::read_dir(format!("/proc/{pid}/fd"))?.map(|entry| fs::read_link(entry?.path()));
        Ok(links.flatten().filter(|to| to.to_string_lossy().starts_with("socket:")).count())
    };
    let has_engine = fs::read_dir(format!("/proc/{}/task", left.pid()))?.any(|task| {
        let name = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
        name.is_ok_and(|name| name.starts_with("rnic-engine"))
    });
    ensure!(has_engine, "no engine in the program");
    // Its peer's, the session, the ways to its function and from it, and events; and because it
    // polls, copies of the two that the function has for each of its addresses.
    ensure!(sockets(left.pid())? <= 6 + 2 * 3, "{} sockets", sockets(left.pid())?);
    left.signal(Signal::KILL)?;
    left.wait()?;
    right.wait()?;
    pair.stop()
}

/// In destructors, in programs whose threads have large variables of their own, and in those that
/// allow themselves few system calls.
#[test]
fn programs_use_verbs_until_their_end() -> Result<()> {
    let Some(mut lab) = open("verbs_until_the_end")? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let pair = pair(&lab, Io::Udp)?;
    for (what, says) in [("used_at_the_end", "SUCCESS"), ("few_system_calls", "200 messages")] {
        let gid = pair.left.gid_index().to_string();
        let cmd = pair.left.cmd(ERRORS)?.args(["-d", pair.left.device(), "-g", &gid]);
        let output = cmd.arg(what).run()?;
        ensure!(output.success() && output.stdout.trim() == says, "{what}: {output}");
    }
    pair.stop()
}

/// A program does not drive, or is late: other work may be the reason (docs/cpu-sharing.md).
fn judged_by_machine(what: String) -> Reading {
    let taken = taken_by_others();
    if is_quiet(taken) { Reading::Suspect(what) } else { Reading::Unclear(what) }
}

/// Polls turn the engine, and so do waits for events in `ibv_get_cq_event`.
#[test]
fn programs_that_poll_drive() -> Result<()> {
    let name = "programs_that_poll_drive";
    let Some(lab) = open(name)? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let turns = |line: &str| -> Result<[u64; 2]> {
        let all = || -> Result<[u64; 2]> {
            Ok([counter(&pair.left, "driven_turns")?, counter(&pair.right, "driven_turns")?])
        };
        let before = all()?;
        Dialogue::new(line).run(&pair.left, &pair.right)?;
        let after = all()?;
        eprintln!("{line}: {before:?}, then {after:?} turns");
        Ok([after[0] - before[0], after[1] - before[1]])
    };
    judge(name, |_| {
        // The second one watches its memory for messages, and polls for the end of its own. The
        // last one waits for events.
        let lines = [
            ("ib_send_lat -s 8 -n 20000", 20_000),
            ("ib_write_lat -s 8 -n 20000", 20_000),
            ("ib_send_lat -s 8 -n 5000 -e", 5_000),
        ];
        for (line, least) in lines {
            let made = turns(line)?;
            if made.iter().any(|turns| *turns <= least) {
                return Ok(judged_by_machine(format!("{line}: {made:?} turns")));
            }
        }
        Ok(Reading::Good)
    })?;
    pair.stop()
}

/// A program that ends with its last message has acknowledged that: else its peer would repeat it
/// and fail in the end.
#[test]
fn what_a_program_that_ends_has_received_is_acknowledged() -> Result<()> {
    let Some(lab) = open("acknowledged_at_the_end")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    for round in 0..10 {
        let pingpong = Dialogue::new("ibv_rc_pingpong -n 200");
        pingpong.run(&pair.left, &pair.right).with_context(|| format!("round {round}"))?;
    }
    pair.stop()
}

/// Also where nothing of it runs at its end, as long as it does not answer. Nearly always: one that
/// the engine's thread gives its last message may end before that thread goes on.
#[test]
fn what_a_program_that_vanishes_has_received_is_acknowledged() -> Result<()> {
    const ROUNDS: usize = 10;
    const MOST_LOST: usize = 3;
    let name = "acknowledged_without_an_end";
    let Some(lab) = open(name)? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    judge(name, |_| {
        let mut lost = Vec::new();
        for _ in 0..ROUNDS {
            let (port, to) = (next_port(), pair.left.address());
            let left = stream(&pair.left, &format!("-p {port} -T 14 -r 7 vanish"))?;
            let right = stream(&pair.right, &format!("-p {port} -T 14 -r 7 vanish {to}"))?;
            let (received, sent) = (left.wait()?, right.wait()?);
            if !received.success() || sent.stdout.trim() != "all acknowledged" {
                lost.push(format!("{received}\n{sent}"));
            }
        }
        eprintln!("{} of {ROUNDS} were not acknowledged", lost.len());
        let few = lost.len() <= MOST_LOST;
        Ok(if few { Reading::Good } else { judged_by_machine(lost.join("\n")) })
    })?;
    pair.stop()
}

/// Threads that post and poll, children that inherit the device and use one of their own.
#[test]
fn crowds_have_functions() -> Result<()> {
    let Some(lab) = open("crowds_have_functions")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let output = pair.left.cmd(CROWD)?.args(["-d", pair.left.device(), "-g", "0"]).run()?;
    ensure!(output.success(), "{output}");
    pair.stop()
}

/// Programs of which each has queue pairs with all others, by the places where they run.
struct Mesh(Vec<Running>);

impl Mesh {
    /// Waits until all have exchanged their messages.
    fn start(places: &[&Node], rounds: u32) -> Result<Self> {
        let folder = Scratch::new("mesh")?;
        let start = |(number, node): (usize, &&Node)| {
            let gid = node.gid_index().to_string();
            let cmd = node.cmd(MESH)?.args(["-d", node.device(), "-g", &gid]).arg(folder.path());
            let words = [number, places.len()].map(|word| word.to_string());
            cmd.args(words).arg(rounds.to_string()).limit(Duration::from_secs(180)).start()
        };
        let mut mesh = Self(places.iter().enumerate().map(start).collect::<Result<_>>()?);
        for program in &mut mesh.0 {
            wait_until("agreement", Duration::from_secs(150), || {
                ensure!(program.try_status()?.is_none(), "it failed: {}", program.stderr());
                Ok(program.stdout().contains("agreed"))
            })?;
        }
        eprintln!("{} programs: {}", places.len(), mesh.0[0].stdout().trim());
        Ok(mesh)
    }

    /// What each uses of a core while it has nothing to do.
    fn idle_share(&self) -> Result<f64> {
        const TIME: Duration = Duration::from_secs(5);
        let used =
            || self.0.iter().map(|program| cpu_time(program.pid())).sum::<Result<Duration>>();
        let before = used()?;
        let began = Instant::now();
        std::thread::sleep(TIME);
        let share = (used()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
        Ok(share / self.0.len() as f64)
    }

    /// Memory of each, KiB.
    fn memory(&self) -> Result<u64> {
        let all = self.0.iter().map(|program| own_memory_kib(program.pid()));
        Ok(all.sum::<Result<u64>>()? / self.0.len() as u64)
    }
}

/// On one host and on two.
#[test]
fn each_of_many_functions_talks_with_all_others() -> Result<()> {
    let Some(lab) = open("many_functions")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let many = if long_form() { 64 } else { 16 };
    let places: Vec<_> =
        (0..many).map(|number| if number % 4 == 0 { &pair.right } else { &pair.left }).collect();
    drop(Mesh::start(&places, 4)?);
    pair.stop()
}

/// A function without work costs next to nothing, beside the same program without one.
#[test]
fn idle_functions_cost_little() -> Result<()> {
    const MOST: f64 = 0.001;
    const MOST_KIB: u64 = 2048;
    /// The packets that it receives and sends are in rings of so much.
    const RINGS_KIB: u64 = 8192;
    let name = "idle_functions_cost_little";
    if only_in_long_form(name) {
        return Ok(());
    }
    let Some(lab) = open(name)? else { return Ok(()) };
    let mut pair = pair(&lab, Io::Udp)?;
    let functions = Mesh::start(&[&pair.left; 64], 2)?;
    let (share, with) = (functions.idle_share()?, functions.memory()?);
    drop(functions);
    pair.left.in_program = false;
    let without = Mesh::start(&[&pair.left; 64], 2)?.memory()?;
    let more = with.saturating_sub(without + RINGS_KIB);
    let cost = format!("{:.3} % of a core, {more} KiB beyond its rings", 100.0 * share);
    eprintln!("an idle function: {cost}");
    ensure!(share < MOST && more < MOST_KIB, "{cost}");
    pair.stop()
}

/// A user who asks for a function that cannot be had is told why, and one who leaves the choice
/// gets the daemon's engine.
#[test]
fn a_program_that_cannot_have_an_engine_is_told() -> Result<()> {
    let Some(lab) = open("no_function")? else { return Ok(()) };
    let pair = pair(&lab, Io::Udp)?;
    let run = |engine: &str, before: &str| -> Result<Output> {
        let words = format!("{before} exec ibv_devinfo");
        let cmd = pair.left.cmd("sh")?.args(["-c", &words]).env("RNIC_DEBUG", "1");
        let path = std::env::var("PATH").unwrap_or_default();
        let tools = lab.tools.program("ibv_devinfo")?.with_file_name("");
        cmd.env("PATH", format!("{}:{path}", tools.display())).env("RNIC_ENGINE", engine).run()
    };
    const DAEMONS: &str = "the engine is the daemon's";
    for engine in ["program", "daemon", "auto"] {
        let output = run(engine, "")?;
        ensure!(output.success() && !output.stderr.contains(DAEMONS), "{engine}: {output}");
    }
    let output = run("elsewhere", "")?;
    let text = "RNIC_ENGINE=elsewhere: it is daemon, program or auto";
    ensure!(output.stderr.contains(text), "{output}");
    // Its rings would be files.
    let limited = "ulimit -f 1000;";
    let output = run("program", limited)?;
    let told = output.stderr.contains("this program has no engine of its own: the size of its");
    ensure!(told && !output.success(), "{output}");
    let output = run("auto", limited)?;
    ensure!(output.success() && output.stderr.contains(DAEMONS), "{output}");
    pair.stop()
}
