//! Unmodified OpenMPI: four ranks on four hosts, over UCX and over libfabric, with every byte of
//! messages and collective operations compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::daemon::{Daemon, Io, Spec};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::netns::Netns;
use system_tests::paths::{self, Scratch};
use system_tests::process::Cmd;

const HOSTS: u32 = 4;
/// What `mpirun` is told, and what its ranks have in their environment.
const WAYS: [(&str, &[&str]); 3] = [
    ("--mca pml ucx", &["UCX_TLS=rc_v,self", "UCX_NET_DEVICES=rnic0:1"]),
    ("--mca pml ucx", &["UCX_TLS=ud_v,self", "UCX_NET_DEVICES=rnic0:1"]),
    ("--mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include verbs;ofi_rxm", &[]),
];

/// Hosts at one switch, each with a daemon; `mpirun` runs at the switch.
struct Cluster {
    switch: Netns,
    hosts: Vec<(Netns, Daemon)>,
    scratch: Scratch,
}

impl Cluster {
    fn start() -> Result<Self> {
        let switch = Netns::new("switch")?;
        switch.add_bridge("br0", 4200)?;
        switch.ip(&["addr", "add", "10.78.0.100/24", "dev", "br0"])?;
        let hosts = (1..=HOSTS).map(|number| host(&switch, number)).collect::<Result<_>>()?;
        let cluster = Self { switch, hosts, scratch: Scratch::new("mpi")? };
        cluster.write_agent()?;
        Ok(cluster)
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

    fn run(&self, program: &Path, options: &str, environment: &[&str]) -> Result<()> {
        let hosts: Vec<_> = (1..=HOSTS).map(|number| format!("10.78.0.{number}:1")).collect();
        let exported = environment.iter().flat_map(|variable| ["-x", variable]);
        let mpirun = self.switch.cmd("mpirun").args(["-n", &HOSTS.to_string()]);
        let mpirun = mpirun.args(["--host", &hosts.join(","), "--mca", "plm_rsh_agent"]);
        let mpirun = mpirun.arg(self.agent()).args(["--mca", "plm_rsh_no_tree_spawn", "1"]);
        let mpirun = mpirun.args(["--mca", "oob_tcp_if_include", "10.78.0.0/24"]);
        let output = mpirun
            .args(options.split(' '))
            .args(exported)
            .arg(program)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .limit(Duration::from_secs(120))
            .run()?;
        let agreed = format!("{HOSTS} ranks agree");
        ensure!(output.success() && output.stdout.contains(&agreed), "{options}: {output}");
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

fn build() -> Result<PathBuf> {
    let program = paths::cache("native")?.join("mpi");
    let source = paths::repository().join("tests/mpi/main.c");
    let compile =
        Cmd::new("mpicc").args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&program).arg(source).limit(Duration::from_secs(60)).check()?;
    Ok(program)
}

#[test]
fn four_ranks_on_four_hosts() -> Result<()> {
    let programs = ["mpirun", "mpicc"];
    let Some(_lab) = Lab::open("four_ranks_on_four_hosts", Need::Root, &programs)? else {
        return Ok(());
    };
    let program = build()?;
    let cluster = Cluster::start()?;
    for (options, environment) in WAYS {
        cluster.run(&program, options, environment)?;
        eprintln!("{options} {environment:?}");
    }
    for (_, daemon) in cluster.hosts {
        daemon.stop()?;
    }
    Ok(())
}
