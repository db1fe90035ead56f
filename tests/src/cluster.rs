//! Hosts at one switch, each with a daemon, for jobs of unmodified OpenMPI.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::{Daemon, Io, Spec};
use crate::dist::Dist;
use crate::inspect;
use crate::netns::Netns;
use crate::paths::{self, Scratch};
use crate::process::Cmd;
use crate::record;
use crate::slow::when_slow;

/// A job whose rounds take so long may not end well: UCX gives up after 30 s without an answer.
const STUCK: Duration = Duration::from_secs(20);

/// Programs of a job.
pub const PROGRAMS: [&str; 2] = ["mpirun", "mpicc"];

/// How ranks reach each other.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// For people.
    pub name: &'static str,
    /// What `mpirun` is told.
    pub options: &'static str,
    /// What ranks have in their environment.
    pub environment: &'static [&'static str],
}

/// Reliable connections, chosen by UCX. Ranks have engines of their own, as `rnic run` gives them.
pub const UCX_RC: Way = Way {
    name: "UCX over RC",
    options: "--mca pml ucx",
    environment: &["UCX_TLS=rc_v,self", "UCX_NET_DEVICES=rnic0:1"],
};
/// The same with the daemons' engines.
pub const UCX_DAEMONS: Way = Way {
    name: "UCX over RC, engines in the daemons",
    options: "--mca pml ucx",
    environment: &["UCX_TLS=rc_v,self", "UCX_NET_DEVICES=rnic0:1", "RNIC_ENGINE=daemon"],
};
/// Datagrams.
pub const UCX_UD: Way = Way {
    name: "UCX over UD",
    options: "--mca pml ucx",
    environment: &["UCX_TLS=ud_v,self", "UCX_NET_DEVICES=rnic0:1"],
};
/// The kernel's TCP: the same library without our device, which OpenMPI takes only if told so.
pub const UCX_TCP: Way = Way {
    name: "UCX over TCP",
    options: "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any",
    environment: &["UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0"],
};
/// libfabric's reliable datagrams over connected endpoints.
pub const LIBFABRIC: Way = Way {
    name: "libfabric over RC",
    options: "--mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include \
              verbs;ofi_rxm",
    environment: &[],
};

/// What the ranks of a job measured, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Messages between all pairs, from a byte to a mebibyte.
    pub messages: f64,
    /// Sums of vectors, from a number to 65,536.
    pub sums: f64,
    /// A hundred broadcasts of a number, with a barrier behind each.
    pub barriers: f64,
}

/// The hosts. `mpirun` runs at the switch.
pub struct Cluster {
    switch: Netns,
    hosts: Vec<(Netns, Daemon)>,
    scratch: Scratch,
    program: PathBuf,
}

impl Cluster {
    /// So many hosts, from 1 to 64. Needs root and [`PROGRAMS`].
    ///
    /// # Errors
    /// When a namespace, a daemon or the ranks' program cannot be made.
    pub fn start(hosts: u32) -> Result<Self> {
        ensure!((1..=64).contains(&hosts), "a cluster has 1 to 64 hosts, not {hosts}");
        let program = build()?;
        let switch = Netns::new("switch")?;
        switch.add_bridge("br0", 4200)?;
        switch.ip(&["addr", "add", "10.78.0.100/24", "dev", "br0"])?;
        let hosts = (1..=hosts).map(|number| host(&switch, number)).collect::<Result<_>>()?;
        let cluster = Self { switch, hosts, scratch: Scratch::new("mpi")?, program };
        cluster.write_agent()?;
        Ok(cluster)
    }

    /// So many ranks on each host exchange messages, each with all others, so many times. Every
    /// byte is compared.
    ///
    /// # Errors
    /// When a rank fails or finds a wrong byte.
    pub fn run(&self, way: Way, on_each: usize, rounds: u32) -> Result<Times> {
        let count = self.hosts.len() * on_each;
        let slots = |number| format!("10.78.0.{number}:{on_each}");
        let hosts: Vec<_> = (1..=self.hosts.len()).map(slots).collect();
        let exported = way.environment.iter().flat_map(|variable| ["-x", variable]);
        record::add("mpirun");
        let mpirun = self.switch.cmd("mpirun").args(["-n", &count.to_string()]);
        let mpirun = mpirun.args(["--host", &hosts.join(","), "--mca", "plm_rsh_agent"]);
        let mpirun = mpirun.arg(self.agent()).args(["--mca", "plm_rsh_no_tree_spawn", "1"]);
        let mpirun = mpirun.args(["--mca", "oob_tcp_if_include", "10.78.0.0/24"]);
        let job = mpirun
            .args(way.options.split_whitespace())
            .args(exported)
            .arg(&self.program)
            .arg(rounds.to_string())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .limit(Duration::from_secs(120));
        let (output, sight) = when_slow(STUCK * rounds, || self.sight(), || job.run());
        let sight = sight.unwrap_or_default();
        // One that was ended because it took too long, too.
        let output = output.with_context(|| sight.clone())?;
        let agreed = format!("{count} ranks agree: ");
        let line = output.stdout.lines().find_map(|line| line.strip_prefix(&agreed));
        let line = line.filter(|_| output.success());
        let line =
            line.with_context(|| format!("{}: {output}\n{}{sight}", way.name, self.evidence()))?;
        let after = |what: &str| -> Result<f64> {
            let number = line.split(what).nth(1).and_then(|rest| rest.split_whitespace().next());
            Ok(number.context("no number")?.parse()?)
        };
        Ok(Times {
            messages: after("messages ")?,
            sums: after("sums ")?,
            barriers: after("barriers ")?,
        })
    }

    /// What the daemons know of the ranks' queue pairs, and what the ranks' threads do: one line
    /// for each rank.
    fn sight(&self) -> String {
        let mut text = String::new();
        for (netns, daemon) in &self.hosts {
            let Ok(dist) = Dist::get() else { continue };
            for what in ["counters", "qp"] {
                let said = inspect::said(daemon, dist, what);
                text += &format!("stuck, {}:\n{said}\n", netns.name());
            }
        }
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_rank = |exe: PathBuf| exe == self.program;
            if fs::read_link(process.path().join("exe")).is_ok_and(is_rank) {
                let path = process.path();
                text += &format!("{}:{}\n", path.display(), threads(&path));
            }
        }
        text
    }

    /// What the daemons know of a failure.
    fn evidence(&self) -> String {
        let Ok(dist) = Dist::get() else { return String::new() };
        let of = |(netns, daemon): &(Netns, Daemon)| {
            format!("{}:\n{}\n", netns.name(), inspect::evidence(daemon, dist))
        };
        self.hosts.iter().map(of).collect()
    }

    /// The daemon of every host gets a fault, in the words of `rnic fault add`.
    ///
    /// # Errors
    /// When a daemon refuses it.
    pub fn inject(&self, fault: &str) -> Result<()> {
        self.fault(&["add", "--seed", "7", fault])
    }

    /// Ends all faults.
    ///
    /// # Errors
    /// When a daemon does not answer.
    pub fn clear_faults(&self) -> Result<()> {
        self.fault(&["clear"])
    }

    fn fault(&self, words: &[&str]) -> Result<()> {
        for (_, daemon) in &self.hosts {
            daemon.rnic(Dist::get()?, &["fault"]).args(words).check()?;
        }
        Ok(())
    }

    /// Ends the daemons, none of which may have failed. Whether programs of each have had engines
    /// of their own.
    ///
    /// # Errors
    /// When one has.
    pub fn stop(self) -> Result<Vec<bool>> {
        let ended = self.hosts.into_iter().map(|(_, daemon)| daemon.stop());
        ended.map(|log| Ok(log?.contains("the function of process "))).collect()
    }

    fn agent(&self) -> PathBuf {
        self.scratch.join("agent")
    }

    /// What `mpirun` calls in place of ssh: with a host's address and a command line. OpenMPI tells
    /// hosts apart by name and keeps files of each in its temporary folder. UCX finds the device
    /// only in the view that `rnic run` gives it.
    fn write_agent(&self) -> Result<()> {
        let mut text = String::from("#!/bin/sh\naddress=$1\nshift\ncase $address in\n");
        for (number, (netns, daemon)) in (1..).zip(&self.hosts) {
            let folder = self.scratch.join(&format!("h{number}"));
            fs::create_dir(&folder)?;
            text += &format!(
                "10.78.0.{number}) export TMPDIR={}; exec ip netns exec {} unshare --uts sh -c \
                 'hostname h{number}; exec \"$@\"' sh {} run --socket {} -- sh -c \"$*\" ;;\n",
                folder.display(),
                netns.name(),
                Dist::get()?.bin("rnic").display(),
                daemon.socket().display()
            );
        }
        text += "esac\n";
        fs::write(self.agent(), text)?;
        fs::set_permissions(self.agent(), fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}

/// A host with the address that ends in its number.
fn host(switch: &Netns, number: u32) -> Result<(Netns, Daemon)> {
    let netns = Netns::new(&format!("h{number}"))?;
    let port = format!("p{number}");
    let (address, name) = (format!("10.78.0.{number}/24"), netns.name());
    switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name])?;
    switch.ip(&["link", "set", &port, "master", "br0", "mtu", "4200", "up"])?;
    netns.ip(&["addr", "add", &address, "dev", "eth0"])?;
    netns.ip(&["link", "set", "eth0", "mtu", "4200", "up"])?;
    let spec =
        Spec { netdev: Some("eth0".into()), netns: Some(name.to_owned()), ..Spec::new(Io::Udp) };
    let daemon = Daemon::start(Dist::get()?, &spec)?;
    Ok((netns, daemon))
}

/// The threads of a process: name, state, time of the CPU and where in the kernel each sleeps.
fn threads(process: &Path) -> String {
    let mut text = String::new();
    for thread in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let [name, stat, place] = ["comm", "stat", "wchan"].map(read);
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.get(..1)).unwrap_or_default();
        let used = inspect::cpu_time_in(&stat).unwrap_or_default();
        text += &format!(" {} {state} {used:.2?} {place};", name.trim());
    }
    text
}

fn build() -> Result<PathBuf> {
    let program = paths::cache("native")?.join("mpi");
    let source = paths::repository().join("tests/mpi/main.c");
    let compile =
        Cmd::new("mpicc").args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&program).arg(source).limit(Duration::from_secs(60)).check()?;
    Ok(program)
}
