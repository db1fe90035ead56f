//! The files of docs/containers.md: the manifests are what Kubernetes would take, and their
//! containers run, as far as that goes without it: with their commands, variables and user, a
//! folder as the volume, a network namespace for each pod, and behind Docker's default filter of
//! system calls. The steps of the action run as a runner runs them, and the image of Containerfile
//! is made and run by Podman.

mod action;
mod compose;
mod image;
mod manifest;
mod page;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use manifest::{Container, Manifest, PodSpec};
use system_tests::commons::{Commons, Helper};
use system_tests::native::{self, SANDBOX};
use system_tests::netns::{End, NetPair};
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Place};
use system_tests::process::{Cmd, Running, User, wait_until};

const HELPERS: [Helper; 1] = [(SANDBOX, native::sandbox)];
const SOON: Duration = Duration::from_secs(30);
/// Where the pingpong listens.
const PORT: u16 = 18515;

fn manifests() -> Result<Vec<Manifest>> {
    let file = paths::repository().join("packaging/kubernetes/pingpong.yaml");
    manifest::read(&fs::read_to_string(file)?)
}

#[test]
fn manifests_are_what_kubernetes_takes() -> Result<()> {
    let all = manifests()?;
    ensure!(all.len() == 3, "{all:?}");
    for manifest in &all {
        manifest.check()?;
        ensure!(manifest.has_pod(&all), "a service without a pod: {manifest:?}");
    }
    let text = fs::read_to_string(paths::repository().join("packaging/kubernetes/pingpong.yaml"))?;
    for (right, wrong) in [
        ("mountPath", "mountpath"),
        ("restartPolicy: Always", "restartPolicy: Sometimes"),
        ("name: rnic\n          mountPath", "name: other\n          mountPath"),
        ("kind: Pod", "kind: Pot"),
    ] {
        let changed = manifest::read(&text.replacen(right, wrong, 1));
        let checked = changed.and_then(|all| all.iter().try_for_each(Manifest::check));
        ensure!(checked.is_err(), "{wrong} is accepted");
    }
    Ok(())
}

/// A pod: one end of a veth pair, its own folder for the volume, and behind the filter.
struct Pod<'a> {
    spec: &'a PodSpec,
    commons: &'a Commons,
    end: &'a End,
    /// The address of the name that programs use.
    server: String,
    volume: Scratch,
}

impl Pod<'_> {
    /// A container's command with the volume and the installation where they are here.
    fn cmd(&self, container: &Container) -> Result<Cmd> {
        let here = |text: &String| {
            let text = if text == "server" { &self.server } else { text };
            let text = text.replace("/rnic/", &format!("{}/", self.volume.path().display()));
            let dist = self.commons.dist;
            let text = text.replace("/usr/sbin/rnicd", &dist.bin("rnicd").display().to_string());
            text.replace("/usr/lib/soft-rnic/lib", &dist.lib().display().to_string())
        };
        let words: Vec<String> = container.command.iter().map(here).collect();
        let (program, args) = words.split_first().context("a container without a command")?;
        let program = if Path::new(program).is_absolute() {
            program.into()
        } else {
            self.commons.lab.tools.program(program)?
        };
        let user = self.spec.user().context("a pod without a user")?;
        let sandbox = self.commons.scratch.join(SANDBOX).display().to_string();
        let mut cmd = Cmd::new(program).args(args);
        for (name, value) in container.variables() {
            cmd = cmd.env(name, here(value));
        }
        let cmd =
            cmd.through(&[sandbox, "-c".to_owned()]).as_user(Some(User { uid: user, gid: user }));
        Ok(cmd.in_netns(Some(self.end.netns.name())).dir(self.volume.path()))
    }

    /// Runs what comes before the program; what goes on beside it is returned.
    fn prepare(&self) -> Result<Vec<Running>> {
        let mut beside = Vec::new();
        for container in &self.spec.init_containers {
            let cmd = self.cmd(container)?;
            if !container.is_sidecar() {
                cmd.check()?;
                continue;
            }
            let running = cmd.start()?;
            let probe = container.probe().context("a sidecar says when it is ready")?;
            let probe = self.cmd(&probe)?;
            wait_until("a ready sidecar", SOON, || Ok(probe.run()?.success()))
                .with_context(|| running.stderr())?;
            beside.push(running);
        }
        Ok(beside)
    }

    fn start(&self) -> Result<Running> {
        let [program] = &self.spec.containers[..] else { anyhow::bail!("one program") };
        self.cmd(program)?.limit(Duration::from_secs(60)).start()
    }
}

/// What Docker's default profile refuses, the daemon and programs do without.
#[test]
fn pods_have_a_device_each() -> Result<()> {
    let name = "pods_have_a_device_each";
    let Some(commons) = Commons::open(name, &["ibv_rc_pingpong"], &HELPERS)? else {
        return Ok(());
    };
    let net = NetPair::new(1500)?;
    let all = manifests()?;
    let pod = |name: &str, end| -> Result<Pod<'_>> {
        let spec = all.iter().find_map(|manifest| manifest.pod(name)).context("no such pod")?;
        let (commons, server) = (&commons, net.left.ipv4.to_string());
        Ok(Pod { spec, commons, end, server, volume: Scratch::new("pod")? })
    };
    let (server, client) = (pod("server", &net.left)?, pod("client", &net.right)?);
    let sandbox = Cmd::new(commons.scratch.join(SANDBOX));
    let refused = sandbox.args(["-c", "unshare", "--user", "true"]).run()?;
    ensure!(refused.stderr.contains("not permitted"), "no filter: {refused}");

    let cards = [server.prepare()?, client.prepare()?];
    let serving = server.start()?;
    let host = Host::at_end(&net.left, &commons.lab.tools);
    wait_until("a server", SOON, || host.listens(PORT))
        .with_context(|| serving.stdout() + &serving.stderr())?;
    let (called, served) = (client.start()?.wait()?, serving.wait()?);
    ensure!(called.success() && served.success(), "{called}\n{served}");
    ensure!(called.stdout.contains("1000 iters"), "{called}");
    for card in cards.into_iter().flatten() {
        let ended = card.terminate(SOON)?;
        ensure!(ended.success(), "{ended}");
    }
    Ok(())
}
