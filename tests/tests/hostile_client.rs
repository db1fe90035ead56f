//! Clients that attack the daemon through everything they can reach, while another user's client
//! works.
//!
//! The attacker is a user, pinned to CPU 1, and has an engine process of its own. The tenant is a
//! checker of another user, or of root where the test says so, both ends pinned to CPU 0 with the
//! engine that serves them, that works from the first measurement to the last. Whatever the daemon
//! does or starts for the attacker is on CPU 1 too ([`cpus`]). The tenant's rate beside the
//! attacker must be at least 80% of its rate beside two programs on CPU 1 that do nothing but spin,
//! so what is compared is not how much CPU time each gets. Both are measured in turn, in windows of
//! the same length that begin when the load is steady, and the median of the rounds counts;
//! [`share_left`] says when the machine's other work disturbs too much. CPU 1 is never idle, even
//! while the attacker waits: two CPUs may be one core. Nor may the tenant ever stand still for long
//! ([`Pauses`]), unless it does beside the programs that spin, too. A pause that foreign programs
//! on the tenant's CPU may explain says nothing: the measurement is repeated. It does not pass.
//!
//! Every byte and completion of the tenant is checked all the time, and so is memory for which no
//! other program has a key. Afterwards the daemon has no resources of the attacker left.
//!
//! The rounds of an attack take 12 seconds, 10 minutes with `RNIC_LONG=1`, or
//! `RNIC_ATTACK_SECONDS`, and longer where some have to be repeated.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::checker::{self, Pause, Stream};
use system_tests::choice;
use system_tests::commons::{Commons, Helper, SOMEBODY};
use system_tests::cpus;
use system_tests::daemon::{Io, Spec};
use system_tests::inspect::{Census, engine_process};
use system_tests::lab::{attack_seconds, cpu_of, only_in_long_form, own_loopback};
use system_tests::measure::{Reading, judge};
use system_tests::native::{self, HOSTILE, VICTIM};
use system_tests::place::{Host, Node, Place};
use system_tests::process::{Cmd, Output, Running, User, wait_until};
use system_tests::rounds::{MOST_LEFT, Pauses, Share, rounds_in, share_left};

/// What the tenant must keep of its rate.
const SHARE: f64 = 0.8;
/// Seconds that the rounds of an attack take, in the ordinary form.
const ATTACK: f64 = 12.0;
/// Attacks of which a run of the ordinary form makes one.
const TAKE_TURNS: [&[&str]; 2] = [&["process"], &["quotas"]];
/// Seconds of a measurement.
const WINDOW: f64 = 1.4;
/// How long the daemon may take to end.
const SOON: Duration = Duration::from_secs(2);
/// Seconds until the load of an attacker, or of a program that spins, is steady.
const SETTLED: f64 = 0.6;

/// So small that an attacker reaches all of them, and large enough for the tenant.
const QUOTAS: &str = "[quota]\nsessions = 60\nqps = 50\ncqs = 40\nmrs = 200\npds = 30\n\
                      channels = 20\nring-bytes = 67108864\n";

struct Stage {
    commons: Commons,
    tenant: Node,
    attacker: Host,
}

/// A daemon for attackers and a tenant.
fn stage(test: &str, tenant: Option<User>) -> Result<Option<Stage>> {
    let helpers: [Helper; 3] =
        [(checker::PROGRAM, checker::build), (VICTIM, native::victim), (HOSTILE, native::hostile)];
    let Some(commons) = Commons::open(test, &["ibv_devinfo"], &helpers)? else { return Ok(None) };
    let config = commons.scratch.join("rnicd.toml");
    std::fs::write(&config, QUOTAS)?;
    let mut spec = Spec { addresses: vec![own_loopback()], ..Spec::new(Io::Udp) };
    spec.through = cpus::engine_on_the_tenants();
    spec.extra =
        vec!["--config".into(), config.display().to_string(), "--log".into(), "info".into()];
    let node = commons.node(&spec)?;
    cpus::daemon_on_the_attackers(&node)?;
    let attacker = Host { cpu: cpu_of(1), user: Some(User::NOBODY), ..node.host.clone() };
    let host = Host { cpu: cpu_of(0), user: tenant, ..node.host.clone() };
    Ok(Some(Stage { commons, tenant: Node { host, ..node }, attacker }))
}

impl Stage {
    /// The attacker's program, as another user.
    fn attack(&self, kind: &str, seconds: f64, seed: u64) -> Cmd {
        let program = self.commons.scratch.join(HOSTILE);
        let (seconds_text, seed) = (seconds.to_string(), seed.to_string());
        Cmd::new(program)
            .args([kind, "--seconds", &seconds_text, "--seed", &seed])
            .env("RNIC_SOCKET", self.tenant.daemon.socket())
            .as_user(self.attacker.user)
            .on_cpu(self.attacker.cpu)
            .limit(Duration::from_secs_f64(seconds + 30.0))
    }

    /// A low-priority program that uses what others leave of the attacker's CPU.
    fn filler(&self) -> Result<Running> {
        let nice = Cmd::new("nice").args(["-n", "19"]).arg(self.commons.scratch.join(HOSTILE));
        let spin = nice.args(["spin", "--seconds", "3600"]).on_cpu(self.attacker.cpu);
        spin.limit(Duration::from_secs(3600)).start()
    }

    fn rate_beside_spinners(&self, tenant: &mut Stream) -> Result<(f64, Pause)> {
        let spin = self.attack("spin", SETTLED + WINDOW + 5.0, 1);
        let spinners = [spin.start()?, spin.start()?];
        tenant.work(SETTLED)?;
        let seen = tenant.watch(WINDOW)?;
        drop(spinners);
        Ok(seen)
    }

    /// Also returns what the attackers printed. A user who was never there before is served
    /// meanwhile.
    fn rate_beside_attackers(
        &self,
        tenant: &mut Stream,
        kinds: &[&str],
        seed: u64,
    ) -> Result<((f64, Pause), Vec<Output>)> {
        std::thread::scope(|scope| {
            // It ends after the measurement.
            let seconds = SETTLED + WINDOW + 0.5;
            let attacking = scope.spawn(move || self.attack_for(kinds, seconds, seed));
            let seen = tenant.work(SETTLED).and_then(|()| tenant.watch(WINDOW));
            let newcomer = self.newcomer(seed);
            let outputs = attacking.join().expect("no panic")?;
            newcomer?;
            Ok((seen?, outputs))
        })
    }

    fn newcomer(&self, number: u64) -> Result<()> {
        let id = 31_000 + u32::try_from(number % 1000)?;
        let cmd = self.tenant.cmd("ibv_devinfo")?.args(["-d", self.tenant.device()]);
        let cmd = cmd.as_user(Some(User { uid: id, gid: id })).on_cpu(self.attacker.cpu);
        let output = cmd.limit(Duration::from_secs(10)).run()?;
        ensure!(output.success(), "a new user is not served: {output}");
        Ok(())
    }

    /// The tenant at work, and its engine process, if it has one, on its CPU.
    fn tenant(&self) -> Result<Stream> {
        // It keeps the engine process, of which the tenant is told when it starts.
        let _guard = self.guard()?;
        let engine = || match self.tenant.host.user {
            Some(user) => engine_process(&self.tenant, user),
            None => Ok(self.tenant.daemon.pid()),
        };
        // Where nothing is pinned, others may work for the tenant on the other CPU.
        let engines = || Ok(if cpu_of(0).is_some() { vec![engine()?] } else { Vec::new() });
        Stream::start_beside(&self.tenant, &self.tenant, &[], engines)
    }

    /// Its user's engine process, if it has one, is on the tenant's CPU.
    fn guard(&self) -> Result<Running> {
        cpus::engine_processes_start_on(&self.tenant, 0)?;
        let gid = self.tenant.gid_index().to_string();
        let cmd = self.tenant.cmd(VICTIM)?.args(["-d", self.tenant.device(), "-g", &gid, "guard"]);
        let mut guard = cmd.limit(Duration::from_secs(3600)).start()?;
        wait_until("guard", Duration::from_secs(10), || {
            ensure!(guard.try_status()?.is_none(), "the guard failed: {}", guard.stderr());
            Ok(guard.stdout().contains("ready"))
        })?;
        cpus::engine_processes_start_on(&self.tenant, 1)?;
        Ok(guard)
    }

    /// Attacks in all these ways at once until the time is over.
    fn attack_for(&self, kinds: &[&str], seconds: f64, seed: u64) -> Result<Vec<Output>> {
        std::thread::scope(|scope| {
            let attacks = kinds.iter().map(|kind| scope.spawn(|| self.repeat(kind, seconds, seed)));
            let attacks: Vec<_> = attacks.collect();
            let outputs = attacks.into_iter().map(|one| one.join().expect("no panic"));
            Ok(outputs.collect::<Result<Vec<_>>>()?.concat())
        })
    }

    /// An attacker that the daemon disconnects is started again.
    fn repeat(&self, kind: &str, seconds: f64, seed: u64) -> Result<Vec<Output>> {
        let began = Instant::now();
        let mut outputs = Vec::new();
        while began.elapsed().as_secs_f64() < seconds {
            let left = (seconds - began.elapsed().as_secs_f64()).max(0.5);
            let output = self.attack(kind, left, seed + outputs.len() as u64).run()?;
            ensure!(output.code() < 100, "the attacker itself broke: {output}");
            outputs.push(output);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(outputs)
    }

    /// Attacks in rounds for so many seconds. Returns what share of its rate the tenant kept, and
    /// what the attackers printed.
    fn rounds(&self, kinds: &[&str], seconds: f64) -> Result<(Share, Pauses, Vec<Output>)> {
        let _filler = self.filler()?;
        let tenant = RefCell::new(self.tenant()?);
        let mut outputs = Vec::new();
        let pauses = RefCell::new(Pauses::default());
        let calm = || {
            let (rate, pause) = self.rate_beside_spinners(&mut tenant.borrow_mut())?;
            pauses.borrow_mut().calm.push(pause);
            Ok(rate)
        };
        let disturbed = || {
            let seed = outputs.len() as u64 + 1;
            let ((rate, pause), said) =
                self.rate_beside_attackers(&mut tenant.borrow_mut(), kinds, seed)?;
            pauses.borrow_mut().disturbed.push(pause);
            outputs.extend(said);
            Ok(rate)
        };
        let share = share_left(rounds_in(seconds, SETTLED + WINDOW), MOST_LEFT, calm, disturbed)?;
        tenant.into_inner().end()?;
        eprintln!("{} attackers; of its rate the tenant kept {share:.2?}", outputs.len());
        Ok((share, pauses.into_inner(), outputs))
    }
}

/// The number that an attacker prints at its end.
fn things_done(output: &Output) -> u64 {
    let line =
        output.stdout.lines().find_map(|line| line.strip_prefix("did ")?.strip_suffix(" things"));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The tenant is a user, too.
const OTHER: Option<User> = Some(SOMEBODY);

fn withstands(kinds: &[&str], tenant: Option<User>) -> Result<Option<Vec<Output>>> {
    if TAKE_TURNS.contains(&kinds) && !choice::has_turn(&TAKE_TURNS, &kinds) {
        return Ok(None);
    }
    let name = kinds.join(" and ");
    let Some(stage) = stage(&name, tenant)? else { return Ok(None) };
    let seconds = attack_seconds(ATTACK)?;
    // The tenant has been there before anything is counted: some of what the daemon allocates for
    // its first client stays allocated.
    let mut tenant = stage.tenant()?;
    let log = || format!("the daemon's log:\n{}", stage.tenant.daemon.log());
    stage.attack_for(kinds, 2.0, 0).with_context(log)?;
    tenant.work(0.1)?;
    tenant.end()?;
    let before = Census::at_rest(&stage.tenant, Duration::from_secs(20))?;
    let mut guard = stage.guard()?;
    let mut outputs = Vec::new();
    judge(&name, |attempt| {
        let seconds = if attempt == 0 { seconds } else { ATTACK };
        let (share, pauses, said) = stage.rounds(kinds, seconds)?;
        outputs.extend(said);
        Ok(match share.at_least(SHARE) {
            Reading::Good => pauses.judge(),
            reading => reading,
        })
    })
    .with_context(log)?;
    for kind in kinds {
        let of_kind = || outputs.iter().filter(|output| output.title.contains(kind));
        let done: u64 = of_kind().map(things_done).sum();
        ensure!(done > 30, "no attack was made: {:?}", of_kind().next());
    }
    ensure!(guard.try_status()?.is_none(), "guarded memory: {}", guard.stderr());
    drop(guard);
    let after = before.returns(&stage.tenant, Duration::from_secs(20))?;
    eprintln!("{name}: before {before:?}\n{name}: after  {after:?}");
    let began = Instant::now();
    stage.tenant.stop()?;
    ensure!(began.elapsed() < SOON, "the daemon took {:?} to end", began.elapsed());
    Ok(Some(outputs))
}

/// Also random values in every word of the shared memory.
#[test]
fn doorbells_messages_requests_and_keys_that_make_no_sense() -> Result<()> {
    withstands(&["scribble", "doorbells", "control", "wqes", "keys"], OTHER).map(drop)
}

/// A user may do what it likes to a process that has its ids: to stop, starve, limit and kill it,
/// and to look into it, which the kernel refuses.
#[test]
fn whatever_a_user_may_do_to_its_engine_process() -> Result<()> {
    withstands(&["process"], OTHER).map(drop)
}

/// The same beside root's own programs, which the daemon itself serves.
#[test]
fn whatever_a_user_may_do_beside_programs_of_root() -> Result<()> {
    if only_in_long_form("whatever_a_user_may_do_beside_programs_of_root") {
        return Ok(());
    }
    withstands(&["process"], None).map(drop)
}

#[test]
fn as_much_of_everything_as_the_daemon_gives() -> Result<()> {
    let Some(outputs) = withstands(&["quotas"], OTHER)? else { return Ok(()) };
    // A client that opened a device has one PD and CQ, one MR and two windows of its own, and is
    // one session.
    let expected = "got 29 pds, 39 cqs, 20 channels, 197 mrs, 50 qps, 59 sessions, 47 dms";
    let first = outputs.first().context("no attack was made")?;
    ensure!(first.stdout.contains(expected), "not {expected:?}: {first}");
    Ok(())
}
