//! Users whose engine processes are hostile: foreign code with the rights, the descriptors and the
//! memory that the daemon gave to the process.
//!
//! The daemon here is a program that is `rnicd` but for the engine processes of some users
//! (`tools/rnic-hostile-engine`), which attack the daemon in ways that follow from their numbers.
//! Clients of these users make the daemon start them again and again. All of them, and the threads
//! by which the daemon attends to them, are pinned to CPU 1, which is never idle. Meanwhile a
//! program of another user and one of root, pinned to CPU 0 with the engines that serve them, work
//! with every byte checked. Both must keep most of the rate that they have beside programs that
//! only spin, and none may stand still for long.
//!
//! The rounds take 8 seconds, 10 minutes with `RNIC_LONG=1`, or `RNIC_ATTACK_SECONDS`. A run of the
//! ordinary form has one of the tests: the ways by the daemon's socket are in both.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use system_tests::checker::{self, Pause, Stream};
use system_tests::choice;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::cpus;
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::{Census, ask, engine_process};
use system_tests::lab::{attack_seconds, cpu_of, own_loopback};
use system_tests::measure::{Reading, judge};
use system_tests::native::{self, HOSTILE, HOSTILE_ENGINE};
use system_tests::place::{Node, Place};
use system_tests::process::{Cmd, Running, User};
use system_tests::rounds::{MOST_LEFT, Pauses, Share, rounds_in, share_left};

/// What others must keep of their rate.
const SHARE: f64 = 0.8;
/// Seconds that the rounds take, in the ordinary form.
const ATTACK: f64 = 7.0;
/// Seconds of a measurement.
const WINDOW: f64 = 0.75;
/// Seconds until the load is steady.
const SETTLED: f64 = 0.4;
/// How long the daemon may take to end.
const SOON: Duration = Duration::from_secs(2);
/// How long everything of the attack may take to go away.
const AWAY: Duration = Duration::from_secs(20);
/// Users that attack at a time. One alone would have to wait for the next process each time.
const ATTACKERS: u32 = 8;
/// The first of those whose engine processes are hostile.
const FIRST_ATTACKER: u32 = 64_000;
/// Users who come during the attack, and find that the daemon answers.
const NEWCOMERS: usize = 2;
/// Lines that the daemon logs in ten seconds, about everything.
const LINES: usize = 120;

/// Ways to attack, each of which must have been tried.
const BY_SOCKET: [&str; 7] =
    ["Forbidden", "Calls", "Deaf", "Nonsense", "Descriptors", "Liar", "Mute"];
const BY_UDP: [&str; 1] = ["Datagrams"];
const BY_MEMORY: [&str; 7] =
    ["Trains", "Entries", "Indexes", "Scribble", "Holes", "Rings", "Waiters"];

struct Stage {
    commons: Commons,
    node: Node,
    report: PathBuf,
}

impl Stage {
    fn open(test: &str, mut spec: Spec) -> Result<Option<Self>> {
        let helpers: [Helper; 3] = [
            (checker::PROGRAM, checker::build),
            (HOSTILE, native::hostile),
            (HOSTILE_ENGINE, native::hostile_engine),
        ];
        let Some(commons) = Commons::open(test, &["ibv_devinfo"], &helpers)? else {
            return Ok(None);
        };
        // In place of the daemon.
        fs::copy(commons.scratch.join(HOSTILE_ENGINE), commons.dist.bin("rnicd"))?;
        let report = commons.dist.bin("hostile-report");
        fs::write(&report, "")?;
        fs::set_permissions(&report, Permissions::from_mode(0o666))?;
        spec.through = cpus::engine_on_the_tenants();
        let mut node = commons.node(&spec)?;
        cpus::daemon_on_the_attackers(&node)?;
        node.host.cpu = cpu_of(0);
        Ok(Some(Self { commons, node, report }))
    }

    /// Clients that bring hostile engine processes to life until they are dropped.
    fn attackers(&self) -> Result<Vec<Running>> {
        let start = |number: u32| {
            let id = FIRST_ATTACKER + number;
            let user = User { uid: id, gid: id };
            let cmd = Cmd::new(self.commons.scratch.join(HOSTILE_ENGINE)).arg("--client");
            let cmd = cmd.env("RNIC_SOCKET", self.node.daemon.socket()).as_user(Some(user));
            cmd.on_cpu(cpu_of(1)).limit(Duration::from_secs(3600)).start()
        };
        (0..ATTACKERS).map(start).collect()
    }

    fn spinner(&self, nice: u32) -> Result<Running> {
        let cmd = Cmd::new("nice").args(["-n", &nice.to_string()]);
        let cmd = cmd.arg(self.commons.scratch.join(HOSTILE)).args(["spin", "--seconds", "3600"]);
        cmd.on_cpu(cpu_of(1)).limit(Duration::from_secs(3600)).start()
    }

    /// A user who was never there before is served.
    fn newcomer(&self, number: usize) -> Result<()> {
        let id = 33_000 + u32::try_from(number % 1000)?;
        let cmd = self.node.cmd("ibv_devinfo")?.args(["-d", self.node.device()]);
        let cmd = cmd.on_cpu(cpu_of(1));
        let output = cmd.as_user(Some(User { uid: id, gid: id })).limit(AWAY).run()?;
        ensure!(output.success(), "a new user is not served: {output}");
        Ok(())
    }

    /// The daemon answers, also where processes give wrong answers or none.
    fn answers(&self) -> Result<()> {
        engine_process(&self.node, SOMEBODY)?;
        for what in ["counters", "qp", "mr", "cq"] {
            ask(&self.node, what)?;
        }
        Ok(())
    }

    /// Attacks in rounds. What share of their rate others kept, and how long they stood still.
    fn rounds(&mut self, seconds: f64) -> Result<(Share, Pauses)> {
        let mut tenants = Tenants::start(&mut self.node)?;
        let stage = &*self;
        let _filler = stage.spinner(19)?;
        let tenants_of = std::cell::RefCell::new(&mut tenants);
        let pauses = std::cell::RefCell::new(Pauses::default());
        let calm = || {
            let _spinners = [stage.spinner(0)?, stage.spinner(0)?];
            let (rate, pause) = tenants_of.borrow_mut().watch()?;
            pauses.borrow_mut().calm.push(pause);
            Ok(rate)
        };
        let disturbed = || {
            let _attackers = stage.attackers()?;
            let (rate, pause) = tenants_of.borrow_mut().watch()?;
            let mut pauses = pauses.borrow_mut();
            pauses.disturbed.push(pause);
            // Not in all: their processes stay for some seconds.
            if pauses.disturbed.len() <= NEWCOMERS {
                stage.newcomer(pauses.disturbed.len())?;
                stage.answers()?;
            }
            Ok(rate)
        };
        let share = share_left(rounds_in(seconds, SETTLED + WINDOW), MOST_LEFT, calm, disturbed)?;
        tenants.end()?;
        // It would stay for some seconds, too, unless they are over by now.
        if let Ok(serving) = engine_process(&stage.node, SOMEBODY) {
            let serving = Pid::from_raw(i32::try_from(serving)?).context("no process")?;
            let killed = kill_process(serving, Signal::KILL);
            ensure!(matches!(killed, Ok(()) | Err(Errno::SRCH)), "{killed:?}");
        }
        Ok((share, pauses.into_inner()))
    }

    /// What the hostile processes did. None did what it must not be able to do.
    fn check_report(&self, ways: &[&str]) -> Result<()> {
        let report = fs::read_to_string(&self.report)?;
        let breaches: Vec<_> = report.lines().filter(|line| line.starts_with("BREACH")).collect();
        ensure!(breaches.is_empty(), "not refused: {breaches:?}");
        let count = |what: &str| {
            report.lines().filter(|line| line.strip_prefix("did ") == Some(what)).count()
        };
        eprintln!("{} hostile processes", count("Process"));
        let missing: Vec<_> = ways.iter().filter(|way| count(way) == 0).collect();
        ensure!(missing.is_empty(), "no attack was made by {missing:?}:\n{report}");
        Ok(())
    }
}

/// Programs of another user and of root.
struct Tenants {
    streams: [Stream; 2],
    /// Their first rates.
    first: Option<[f64; 2]>,
}

impl Tenants {
    fn start(node: &mut Node) -> Result<Self> {
        // The engine process of the user is on the same CPU, and stays for some seconds.
        cpus::engine_processes_start_on(node, 0)?;
        let cmd = node.cmd("ibv_devinfo")?.args(["-d", node.device()]).as_user(Some(SOMEBODY));
        cmd.limit(AWAY).check()?;
        cpus::engine_processes_start_on(node, 1)?;
        let serving = engine_process(node, SOMEBODY)?;
        let mut of = |user: Option<User>| {
            node.host.user = user;
            let all = user.map(|_| serving).into_iter().chain([node.daemon.pid()]);
            // Where nothing is pinned, others may work for it on the other CPU.
            let engines = || Ok(all.filter(|_| cpu_of(0).is_some()).collect());
            Stream::start_beside(node, node, &[], engines)
        };
        Ok(Self { streams: [of(Some(SOMEBODY))?, of(None)?], first: None })
    }

    /// The rate that both have together if each kept as much of its first rate as the one that kept
    /// less, and the longest time for which either stood still.
    fn watch(&mut self) -> Result<(f64, Pause)> {
        let [user, root] = &mut self.streams;
        let watch = |stream: &mut Stream| {
            stream.work(SETTLED)?;
            stream.watch(WINDOW)
        };
        let (user, root) = std::thread::scope(|scope| {
            let user = scope.spawn(|| watch(user));
            (watch(root), user.join().expect("no panic"))
        });
        let (user, root) = (user?, root?);
        let rates = [user.0, root.0];
        let first = *self.first.get_or_insert(rates);
        let kept = (rates[0] / first[0]).min(rates[1] / first[1]);
        Ok((kept * (first[0] + first[1]), user.1.longer(root.1)))
    }

    fn end(self) -> Result<()> {
        self.streams.into_iter().try_for_each(Stream::end)
    }
}

/// Which take turns.
const WITH_SOCKETS: &str = "hostile_engine_processes_with_sockets_of_their_own";
const HANDED_OVER: &str = "hostile_engine_processes_whose_frames_are_handed_over";

fn withstands(test: &str, spec: Spec, ways: &[&str]) -> Result<()> {
    if !choice::has_turn(&[WITH_SOCKETS, HANDED_OVER], &test) {
        return Ok(());
    }
    let Some(mut stage) = Stage::open(test, spec)? else { return Ok(()) };
    let seconds = attack_seconds(ATTACK)?;
    let began = Instant::now();
    // What the daemon allocates at first stays allocated.
    let attackers = stage.attackers()?;
    std::thread::sleep(Duration::from_secs(1));
    drop(attackers);
    // Threads stay for a moment, too.
    std::thread::sleep(Duration::from_secs(2));
    let before = Census::at_rest(&stage.node, AWAY).with_context(|| stage.node.daemon.log())?;
    let mut judged = judge(test, |attempt| {
        let seconds = if attempt == 0 { seconds } else { ATTACK };
        let (share, pauses) = stage.rounds(seconds)?;
        Ok(match share.at_least(SHARE) {
            Reading::Good => pauses.judge(),
            reading => reading,
        })
    });
    judged = judged.and_then(|()| stage.check_report(ways));
    judged.with_context(|| stage.node.daemon.log())?;
    let after = before.returns(&stage.node, AWAY)?;
    eprintln!("{test}: before {before:?}\n{test}: after  {after:?}");
    // It ends beside an attack, too.
    let _attackers = stage.attackers()?;
    std::thread::sleep(Duration::from_millis(700));
    let ending = Instant::now();
    let log = stage.node.stop()?;
    eprintln!("{test}: the end took {:.3} s", ending.elapsed().as_secs_f64());
    ensure!(ending.elapsed() < SOON, "the daemon took {:?} to end", ending.elapsed());
    let lines = log.lines().count();
    let most = LINES * (began.elapsed().as_secs() as usize / 10 + 1);
    ensure!(lines < most, "{lines} lines in the log, more than {most}:\n{log}");
    Ok(())
}

#[test]
fn hostile_engine_processes_with_sockets_of_their_own() -> Result<()> {
    let spec = Spec { addresses: vec![own_loopback()], ..Spec::new(Io::Udp) };
    let ways = [&BY_SOCKET[..], &BY_UDP].concat();
    withstands(WITH_SOCKETS, spec, &ways)
}

#[test]
fn hostile_engine_processes_whose_frames_are_handed_over() -> Result<()> {
    let ways = [&BY_SOCKET[..], &BY_MEMORY].concat();
    withstands(HANDED_OVER, Spec::new(Io::Loopback), &ways)
}
