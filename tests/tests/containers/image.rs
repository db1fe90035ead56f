//! The image of Containerfile: made, and its containers run, by Podman without root, a registry or
//! a network, behind the filter of system calls that Docker has, too.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::debian::{self, Release};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::netns::{End, NetPair};
use system_tests::paths::{self, Scratch};
use system_tests::place::{Host, Place};
use system_tests::process::{Cmd, wait_until};

use super::compose::{Compose, Service};
use super::{PORT, SOON};

/// What an ordinary user's Podman has, gone at the end.
struct Podman {
    folder: Scratch,
}

impl Podman {
    fn new() -> Result<Self> {
        Ok(Self { folder: Scratch::new("podman")? })
    }

    fn cmd(&self, args: &[&str]) -> Cmd {
        let script = paths::repository().join("tests/scripts/rootless.sh");
        let home = self.folder.join("home");
        let shell = Cmd::new("sh").arg(script).arg(home).arg("podman").args(args);
        shell.limit(Duration::from_secs(300))
    }

    /// Makes the image without a registry.
    fn build(&self, image: &str) -> Result<()> {
        let (base, context) = (self.folder.join("base"), self.folder.join("context"));
        let copy = |from: &str, to: &_| {
            Cmd::new("cp").arg("-r").arg(paths::repository().join(from)).arg(to).check()
        };
        copy("tests/container-base", &base)?;
        Cmd::new("cp").arg("-rL").arg(Dist::get()?.root()).arg(base.join("dist")).check()?;
        fs::create_dir(&context)?;
        for file in ["Containerfile", ".dockerignore", "packaging"] {
            copy(file, &context)?;
        }
        Cmd::new("chmod").args(["-R", "a+rX"]).args([&base, &context]).check()?;
        let debian = self.folder.join("debian.tar");
        let pack =
            Cmd::new("tar").arg("-C").arg(debian::root(Release::Bookworm)?).arg("-cf").arg(&debian);
        pack.arg(".").limit(Duration::from_secs(120)).check()?;
        let import = self.cmd(&["import", "--quiet"]).arg(&debian).arg("localhost/debian");
        import.check().context("a Debian")?;
        let build = |tag: &str| self.cmd(&["build", "--network=host", "--tag", tag]);
        build("localhost/base").arg(&base).check()?;
        let args = ["RUST", "DEBIAN"].map(|name| format!("--build-arg={name}=localhost/base"));
        build(image).args(args).arg(&context).check()?;
        Ok(())
    }

    /// A container whose interface is that of one end. The name `server` is the other's address.
    fn run(&self, service: &Service, end: &End, server: &str) -> Cmd {
        let options = ["run", "--rm", "--network=host", "--timeout=60", "--add-host"];
        let run = self.cmd(&options).arg(format!("server:{server}"));
        let drop = service.cap_drop.iter().map(|one| format!("--cap-drop={one}"));
        let security = service.security_opt.iter().map(|one| format!("--security-opt={one}"));
        let run = run.args(drop).args(security).arg(&service.image);
        run.in_netns(Some(end.netns.name()))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // The second ends the process that keeps the namespaces. Nothing is left to do about a
        // failure: containers end by themselves.
        for args in [&["rm", "--all", "--force", "--time=0"][..], &["system", "migrate"]] {
            let _ = self.cmd(args).for_cleanup().run();
        }
    }
}

#[test]
fn two_containers_of_the_image_reach_each_other() -> Result<()> {
    let name = "two_containers_of_the_image_reach_each_other";
    let programs = ["podman", "crun", "newuidmap", "debootstrap"];
    let Some(lab) = Lab::open_long(name, Need::Root, &programs)? else { return Ok(()) };
    let (compose, podman) = (Compose::read()?, Podman::new()?);
    let (server, client) = (compose.service("server")?, compose.service("client")?);
    podman.build(&server.image)?;

    let net = NetPair::new(1500)?;
    let address = net.left.ipv4.to_string();
    let status = podman.run(client, &net.right, &address).args(["cat", "/proc/self/status"]);
    let status = status.check()?;
    let value = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    for (field, expected) in
        [("Seccomp:", "2"), ("NoNewPrivs:", "1"), ("Uid:", "1000"), ("CapBnd:", "0000000000000000")]
    {
        ensure!(value(field) == expected, "{field} is not {expected}:\n{status}");
    }

    // The command that the image has.
    let shown = podman.run(client, &net.right, &address).check()?;
    ensure!(shown.contains("rnic0") && shown.contains("PORT_ACTIVE"), "{shown}");

    let serving = podman.run(server, &net.left, &address).args(&server.command).start()?;
    let host = Host::at_end(&net.left, &lab.tools);
    wait_until("a server", SOON, || host.listens(PORT))
        .with_context(|| serving.stdout() + &serving.stderr())?;
    let called = podman.run(client, &net.right, &address).args(&client.command).run()?;
    let served = serving.wait()?;
    ensure!(called.success() && served.success(), "{called}\n{served}");
    ensure!(called.stdout.contains("65536      5000"), "{called}");
    Ok(())
}
