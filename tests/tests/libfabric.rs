//! libfabric's own tools, unmodified: its verbs provider asks both libraries when it starts.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use system_tests::daemon::{Daemon, Io};
use system_tests::debian::{self, Release};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, alone};
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node, Place};
use system_tests::process::wait_until;
use system_tests::programs::next_port;
use system_tests::ssh::quoted;

/// Its provider asks the connection manager for the device, and connects by it.
#[test]
fn fi_info_finds_the_device() -> Result<()> {
    let Some(lab) = Lab::open("fi_info_finds_the_device", Need::Root, &["fi_info"])? else {
        return Ok(());
    };
    the_device_is_found(&lab)
}

fn the_device_is_found(lab: &Lab) -> Result<()> {
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let node = Node::new(daemon, host, Dist::get()?);
    let output = node.cmd("fi_info")?.args(["-p", "verbs"]).run()?;
    ensure!(output.success() && output.stdout.contains("rnic0"), "{output}");
    node.stop()?;
    Ok(())
}

/// Endpoints of each type, with every byte compared (`-c`): datagrams, connections, and reliable
/// datagrams that libfabric makes of connections.
#[test]
fn fi_pingpong_over_endpoints_of_every_type() -> Result<()> {
    let name = "fi_pingpong_over_endpoints_of_every_type";
    let Some(lab) = Lab::open(name, Need::Root, &["fi_pingpong"])? else { return Ok(()) };
    endpoints_of_every_type(&lab)
}

fn endpoints_of_every_type(lab: &Lab) -> Result<()> {
    let pair = lab.pair(Io::Udp, 4200)?;
    for (provider, endpoint) in [("verbs", "dgram"), ("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        pingpong(&pair.left, &pair.right, provider, endpoint)
            .with_context(|| format!("{endpoint} over {provider}"))?;
    }
    pair.stop()
}

fn pingpong(server: &Node, client: &Node, provider: &str, endpoint: &str) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let port = next_port();
    let text = port.to_string();
    let common = ["-p", provider, "-e", endpoint, "-c", "-I", "100"];
    let with = |more: &[&str]| -> Vec<String> {
        common.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    };
    let serving = server.start("fi_pingpong", &with(&["-B", &text]), LIMIT)?;
    wait_until("listening server", Duration::from_secs(10), || server.listens(port))
        .with_context(|| serving.said())?;
    let address = server.address().to_string();
    let calling = client.start("fi_pingpong", &with(&["-P", &text, &address]), LIMIT)?;
    let called = calling.wait()?;
    ensure!(called.success(), "{called}\nserver: {}", serving.said());
    let served = serving.wait()?;
    ensure!(served.success(), "{served}\nclient: {called}");
    Ok(())
}

/// The same of Debian 13, which has libfabric 2, with that release's own C library.
#[test]
fn libfabric_2_over_endpoints_of_every_type() -> Result<()> {
    let name = "libfabric_2_over_endpoints_of_every_type";
    let Some(mut lab) = Lab::open_long(name, Need::Root, &["debootstrap"])? else { return Ok(()) };
    let root = debian::root(Release::Trixie)?;
    let folder = Scratch::new("libfabric")?;
    for program in ["fi_info", "fi_pingpong"] {
        run_in(&root, program, folder.path())?;
    }
    lab.tools = lab.tools.clone().with_built(folder.path().to_owned());
    let host = Host::here(Ipv4Addr::LOCALHOST.into(), &lab.tools);
    let version = host.cmd("fi_info")?.arg("--version").check()?;
    ensure!(version.contains("libfabric: 2."), "{version}");
    the_device_is_found(&lab)?;
    endpoints_of_every_type(&lab)
}

/// Writes a script that runs a program of another Debian, with our libraries, here.
fn run_in(root: &Path, program: &str, folder: &Path) -> Result<()> {
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let loader = loader_in(&libraries)?;
    let path = std::env::join_paths([Dist::get()?.lib(), libraries])?;
    let binary = root.join("usr/bin").join(program);
    let [loader, path, binary] =
        [loader.as_os_str(), &path, binary.as_os_str()].map(|word| quoted(&word.to_string_lossy()));
    let script = format!("#!/bin/sh\nexec {loader} --library-path {path} {binary} \"$@\"\n");
    let file = folder.join(program);
    fs::write(&file, script)?;
    fs::set_permissions(&file, Permissions::from_mode(0o755))?;
    Ok(())
}

/// The loader of programs among these libraries. The place that programs name may be a link to an
/// absolute path, which would be this machine's.
fn loader_in(libraries: &Path) -> Result<PathBuf> {
    let is_loader = |name: &str| name.starts_with("ld-linux-") && name.contains(".so.");
    for file in fs::read_dir(libraries).with_context(|| libraries.display().to_string())? {
        let file = file?;
        if file.file_name().to_str().is_some_and(is_loader) {
            return Ok(file.path());
        }
    }
    bail!("{} has no loader of programs", libraries.display())
}
