//! Programs whose polls turn the engine that is in them.

use super::*;

/// What programs do that drive, and what they print then: `tests/errors/driving.c`.
const DRIVING: [(&str, &str); 15] = [
    ("driving_forks", "children have 0 and 0 sockets, programs 0, 200 messages"),
    ("driving_loses_descriptors", "200 messages, 0 files changed"),
    ("driving_loses_descriptors_to_sockets", "200 messages, datagram own"),
    ("driving_exits_in_a_handler", "10 ended in order"),
    ("driving_jumps_out_of_polls", "200 messages after 30 jumps"),
    ("driving_thread_filtered", "lives"),
    (
        "driving_unmapped",
        "source LOC_PROT_ERR, destination REM_OP_ERR; \
         signals blocked: source LOC_PROT_ERR, destination REM_OP_ERR",
    ),
    ("driving_blocks_faults", "200 messages, source LOC_PROT_ERR, destination REM_OP_ERR"),
    ("driving_small_stack", "200 messages"),
    ("driving_computes", "in time: 4 posted by itself, 4 by another thread"),
    ("driving_posts", "in time: 4 of many at once, 4 of some for long"),
    ("driving_cancelled", "2000 messages after 10 threads"),
    ("driving_polls_are_not_cancelled", "polled, 200 messages"),
    ("driving_waits_are_cancelled", "2 cancelled, destroyed, 200 messages"),
    ("driving_closes_standard_input", "standard input is free, 200 messages"),
];
/// Those for which it matters that the kernel copies no memory, or has no `close_range`.
pub(super) const IN_A_SANDBOX: [(&str, &str); 3] = [DRIVING[1], DRIVING[6], DRIVING[7]];
/// Another one, which is told not to drive.
const FORBIDDEN: (&str, &str) = ("driving_forbidden", "200 and 200 messages");
/// Another one, whose daemon is killed.
const OUTLIVES: &str = "driving_outlives_its_daemon";
/// Another one, which closes the device when its polls are about to turn the engine, and stays.
const ENDS: &str = "driving_ends_before_it_begins";

/// An application that drives, in one process.
pub(super) fn driving(node: &Node, what: &str) -> Result<Cmd> {
    let gid = node.gid_index().to_string();
    let cmd = node.cmd(ERRORS)?.args(["-d", node.device(), "-g", &gid, what]);
    Ok(cmd.limit(Duration::from_secs(30)))
}

#[test]
fn programs_that_drive_may_do_what_they_like() -> Result<()> {
    let name = "programs_that_drive";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let mut pair = pair(&lab, Io::Udp)?;
    // Some have two threads that poll.
    pair.left.host.cpu = None;
    let list = pair.left.cmd(ERRORS)?.arg("list-driving").check()?;
    let mut known: Vec<_> = DRIVING.iter().map(|(what, _)| *what).collect();
    known.extend([FORBIDDEN.0, OUTLIVES, ENDS]);
    let is_complete =
        list.lines().count() == known.len() && list.lines().all(|n| known.contains(&n));
    ensure!(is_complete, "the program's:\n{list}here: {known:?}");
    judge(name, |_| drive_rightly(&pair.left, &DRIVING))?;
    judge(name, |_| {
        let forbidden = || Ok(driving(&pair.left, FORBIDDEN.0)?.env("RNIC_DRIVE", "off"));
        let wrong = run_driving(&pair.left, FORBIDDEN, forbidden, false)?;
        Ok(conclude(wrong.as_slice()))
    })?;
    pair.stop()
}

/// Each of these applications ends as it is to, and has driven.
pub(super) fn drive_rightly(node: &Node, rows: &[(&str, &str)]) -> Result<Reading> {
    let mut wrong = Vec::new();
    for row in rows {
        wrong.extend(run_driving(node, *row, || driving(node, row.0), true)?);
    }
    Ok(conclude(&wrong))
}

/// In the words of the applications that wait for sockets of their own.
const DOES_NOT_DRIVE: &str = "do not turn the engine";
/// In the words of those that measure.
const IN_TIME: &str = "in time:";
/// How often an application runs that other work may have disturbed.
const ATTEMPTS: usize = 5;

/// What is wrong with an application.
struct Wrong {
    what: String,
    /// Other work of the machine may explain it.
    may_be_disturbed: bool,
}

/// What is wrong, if anything is. Where other work has the CPUs for some milliseconds, an
/// application is late, or loses the sockets that it was given before its first turn: then it has
/// shown nothing, and runs again.
fn run_driving(
    node: &Node,
    row: (&str, &str),
    cmd: impl Fn() -> Result<Cmd>,
    drives: bool,
) -> Result<Option<Wrong>> {
    for _ in 1..ATTEMPTS {
        match run_once(node, row, cmd()?, drives)? {
            Some(wrong) if wrong.may_be_disturbed => {}
            other => return Ok(other),
        }
    }
    run_once(node, row, cmd()?, drives)
}

fn run_once(
    node: &Node,
    (name, says): (&str, &str),
    cmd: Cmd,
    drives: bool,
) -> Result<Option<Wrong>> {
    let before = counter(node, "driven_turns")?;
    let output = cmd.run()?;
    let turns = counter(node, "driven_turns")? - before;
    eprintln!("{name}: {turns} turns in {:.1?}", output.elapsed);
    let said = output.stdout.trim();
    let says_right = output.success() && said == says;
    if says_right && (turns > 0) == drives {
        return Ok(None);
    }
    let is_late = output.success() && said.starts_with(IN_TIME);
    let made_none = says_right && drives;
    let found_none = output.stderr.contains(DOES_NOT_DRIVE);
    let may_be_disturbed = is_late || made_none || found_none;
    let what = format!("{output}\ninstead of: {says}\n{turns} turns");
    Ok(Some(Wrong { what, may_be_disturbed }))
}

fn conclude(wrong: &[Wrong]) -> Reading {
    let all = wrong.iter().map(|one| one.what.as_str()).collect::<Vec<_>>().join("\n");
    match wrong.len() {
        0 => Reading::Good,
        _ if wrong.iter().all(|one| one.may_be_disturbed) => judged_by_machine(all),
        count => Reading::Bad(format!("{count} wrong:\n{all}")),
    }
}

/// Two programs of one host that drive for long.
fn pollers(node: &Node) -> Result<[Box<dyn Job>; 2]> {
    let (gid, port) = (node.gid_index(), next_port());
    let line = format!("-F -d {} -x {gid} -p {port} -s 8 -n 5000000", node.device());
    let args: Vec<_> = line.split(' ').map(str::to_owned).collect();
    let server = node.start("ib_send_lat", &args, Duration::from_secs(60))?;
    wait_until("listening server", SOON, || node.listens(port))?;
    let args: Vec<_> = args.into_iter().chain([node.address().to_string()]).collect();
    let client = node.start("ib_send_lat", &args, Duration::from_secs(60))?;
    Ok([server, client])
}

/// The copies of sockets in a program do not keep the port, whether the program ends or stays.
#[test]
fn a_daemon_that_is_killed_while_functions_drive_is_replaced() -> Result<()> {
    let name = "replaced_daemon_of_functions";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    judge(name, |_| {
        let mut pair = pair(&lab, Io::Udp)?;
        // These poll, and so do others.
        pair.left.host.cpu = None;
        let ends = pollers(&pair.left)?;
        let drive = || Ok(counter(&pair.left, "driven_turns")? > 10_000);
        if let Err(error) = wait_until("turns", SOON, drive) {
            return Ok(judged_by_machine(format!("{error:#}")));
        }
        pair = replaced(pair)?;
        for end in ends {
            let output = end.wait()?;
            ensure!(!output.success(), "{output}");
        }
        let stay = || driving(&pair.left, OUTLIVES)?.start();
        let stays = [stay()?, stay()?];
        let all_say = |what| Ok(stays.iter().all(|one| one.stdout().contains(what)));
        if let Err(error) = wait_until("turns", SOON, || all_say("drives")) {
            return Ok(judged_by_machine(format!("{error:#}")));
        }
        pair = replaced(pair)?;
        wait_until("fatal events", SOON, || all_say("fatal"))?;
        pair.stop()?;
        Ok(Reading::Good)
    })
}

/// Sockets that were on their way to a program which does not want them any more.
#[test]
fn programs_that_have_closed_the_device_keep_no_sockets() -> Result<()> {
    let name = "programs_that_have_closed";
    let Some(mut lab) = open(name)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let mut pair = pair(&lab, Io::Udp)?;
    pair.left.host.cpu = None;
    let port = format!(":{:04X} ", 4791);
    let sockets = || -> Result<usize> {
        let all =
            pair.net.left.netns.cmd("cat").args(["/proc/net/udp", "/proc/net/udp6"]).check()?;
        Ok(all.lines().filter(|line| line.contains(&port)).count())
    };
    let before = sockets()?;
    let mut stay = Vec::new();
    for _ in 0..12 {
        let one = driving(&pair.left, ENDS)?.start()?;
        wait_until("a closed device", SOON, || Ok(one.stdout().contains("closed")))?;
        stay.push(one);
    }
    wait_until("the end of their functions", SOON, || Ok(sockets()? == before))?;
    drop(stay);
    pair.stop()
}

/// The left daemon is killed; the next one serves its programs.
pub(super) fn replaced(pair: Pair) -> Result<Pair> {
    let began = Instant::now();
    let spec = at_end(&pair.net.left, Io::Udp);
    let Pair { mut left, right, net } = pair;
    left.daemon = left.daemon.kill_and_restart(Dist::get()?, &spec)?;
    let ready = began.elapsed();
    Dialogue::new("ib_send_lat -s 8 -n 1000").run(&left, &right)?;
    eprintln!("ready after {ready:.1?}, a program has ended after {:.1?}", began.elapsed());
    ensure!(ready < Duration::from_secs(3), "ready only after {ready:.1?}");
    Ok(Pair { left, right, net })
}
