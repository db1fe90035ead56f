//! `cargo xtask package`: what a person installs, as a Debian package and as an archive.
//!
//! The libraries are in a folder of their own: nothing of the system's rdma-core is replaced, and
//! `rnic run` puts the folder on a program's library path. Two builds of one commit give the same
//! bytes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use system_tests::dist::{Dist, cargo};
use system_tests::packages::{Toolbox, architecture};
use system_tests::paths;
use system_tests::process::Cmd;

use crate::{pgo, sbom};

/// Where to put the packages.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folder of the packages [default: target/package]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Of a build as `cargo xtask dist --pgo` makes it, which is not the same twice; needs root
    #[arg(long)]
    pgo: bool,
}

/// The folder of a package in a system.
const HOME: &str = "usr/lib/soft-rnic";
/// Programs that are found on the path.
const PROGRAMS: [(&str, &str); 2] = [("usr/bin/rnic", "bin/rnic"), ("usr/sbin/rnicd", "bin/rnicd")];
/// What systemd reads: the service, a group and the folder of the sockets.
const SYSTEMD: [(&str, &str); 3] = [
    ("lib/systemd/system", "rnicd@.service"),
    ("usr/lib/sysusers.d", "sysusers.conf"),
    ("usr/lib/tmpfiles.d", "tmpfiles.conf"),
];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// What follows the version of the workspace in that of the package.
const REVISION: &str = "-1";
const DESCRIPTION: &str = "\
rnicd is an RDMA network card in a process: on AF_XDP, AF_PACKET or, without
any privilege, on UDP sockets. `rnic run` runs unmodified RDMA programs on it,
with drop-in libibverbs and librdmacm from a folder of their own; those of the
system stay as they are. rnicd@INTERFACE.service is a card for all users of the
host.
";
const MAINTAINER: &str = "the soft-rnic authors <soft-rnic@localhost>";

/// The program that writes the manual pages is built first.
const BUILD_LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(options: &Options) -> Result<()> {
    Toolbox::provide(&["dpkg-deb", "gzip", "xz", "strip", "readelf"])?;
    let out = options.out.clone().unwrap_or_else(|| paths::target().join("package"));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    // tar works in another folder.
    let out = out.canonicalize()?;
    let dist = pgo::release(options.pgo)?;
    let time = time_of_commit()?;
    let tree = out.join("tree");
    let _ = fs::remove_dir_all(&tree);
    lay_out(&dist, &tree.join("root"))?;
    for made in [archive(&tree, &out, &time)?, debian(&tree, &out, &time)?] {
        println!("{}", made.display());
    }
    fs::remove_dir_all(&tree)?;
    Ok(())
}

/// Everything that is installed, as below `/`.
fn lay_out(dist: &Dist, root: &Path) -> Result<()> {
    for file in Dist::files() {
        let to = root.join(HOME).join(file);
        let mode = if file.starts_with("bin/") { 0o755 } else { 0o644 };
        put(&dist.root().join(file), &to, mode)?;
        Cmd::new("strip")
            .args(["--strip-unneeded", "--remove-section=.comment"])
            .arg(&to)
            .check()?;
    }
    for (link, program) in PROGRAMS {
        let link = root.join(link);
        fs::create_dir_all(link.parent().context("a folder")?)?;
        symlink(format!("../lib/soft-rnic/{program}"), &link)?;
    }
    let made = ["run", "--quiet", "-p", "manual", "--"];
    cargo().args(made).arg(root.join("usr/share")).limit(BUILD_LIMIT).check()?;
    for page in paths::files_below(&root.join("usr/share/man"))? {
        compress(&page)?;
    }
    for (folder, file) in SYSTEMD {
        let name = if file.ends_with(".service") { file } else { "soft-rnic.conf" };
        put(&ours(file), &root.join(folder).join(name), 0o644)?;
    }
    let about = root.join("usr/share/doc/soft-rnic");
    put(&ours("copyright"), &about.join("copyright"), 0o644)?;
    for text in ["README.md", "CHANGELOG.md"] {
        put(&paths::repository().join(text), &about.join(text), 0o644)?;
    }
    fs::write(about.join("sbom.cdx.json"), sbom::text()? + "\n")?;
    fs::set_permissions(about.join("sbom.cdx.json"), Permissions::from_mode(0o644))?;
    compress(&about.join("sbom.cdx.json"))?;
    fs::rename(about.join("CHANGELOG.md"), about.join("changelog"))?;
    compress(&about.join("changelog"))
}

/// The tree without what only Debian's tools read.
fn archive(tree: &Path, out: &Path, time: &str) -> Result<PathBuf> {
    let name = format!("soft-rnic-{}-{}", version()?, std::env::consts::ARCH);
    let path = out.join(format!("{name}.tar.xz"));
    Cmd::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cJf"])
        .arg(&path)
        .arg(format!("--mtime=@{time}"))
        .arg(format!("--transform=s,^root/usr,{name},SH;s,^root/lib,{name}/lib,SH"))
        .args(["root/usr", "root/lib"])
        .dir(tree)
        .check()?;
    Ok(path)
}

fn debian(tree: &Path, out: &Path, time: &str) -> Result<PathBuf> {
    let root = tree.join("root");
    let version = version()? + REVISION;
    let about = root.join("usr/share/doc/soft-rnic/changelog.Debian");
    let date = Cmd::new("date").args(["-u", "-R", "-d", &format!("@{time}")]).check()?;
    let entry = format!(
        "soft-rnic ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n \
         -- {MAINTAINER}  {date}"
    );
    fs::write(&about, entry)?;
    compress(&about)?;
    let control = root.join("DEBIAN");
    fs::create_dir_all(&control)?;
    for script in SCRIPTS {
        put(&ours(script), &control.join(script), 0o755)?;
    }
    put(&ours("lintian-overrides"), &root.join("usr/share/lintian/overrides/soft-rnic"), 0o644)?;
    let files = root.join(HOME);
    let text = format!(
        "Package: soft-rnic\nVersion: {version}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
         Depends: libc6 (>= {}), libgcc-s1\nSuggests: ibverbs-utils, rdmacm-utils, perftest\n\
         Section: net\nPriority: optional\nInstalled-Size: {}\n\
         Description: RoCEv2 RDMA network card in user space\n {}\n",
        architecture()?,
        needed_libc(&files)?,
        size_kib(&root)?,
        DESCRIPTION.trim_end().replace('\n', "\n "),
    );
    fs::write(control.join("control"), text)?;
    fs::write(control.join("md5sums"), sums(&root)?)?;
    let path = out.join(format!("soft-rnic_{version}_{}.deb", architecture()?));
    Cmd::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([root.as_os_str(), path.as_os_str()])
        .env("SOURCE_DATE_EPOCH", time)
        .check()?;
    Ok(path)
}

/// The packages say that they were made when the commit was.
fn time_of_commit() -> Result<String> {
    let log = Cmd::new("git").args(["log", "-1", "--format=%ct"]).dir(paths::repository()).check();
    Ok(log.context("packages are made from a checkout with its history")?.trim().to_owned())
}

fn version() -> Result<String> {
    let manifest = fs::read_to_string(paths::repository().join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has no version")?.to_owned())
}

/// The newest version of the C library of which a file below the folder needs something.
fn needed_libc(folder: &Path) -> Result<String> {
    let mut newest = (0, 0);
    for file in paths::files_below(folder)? {
        let told = Cmd::new("readelf").args(["-V", "-W"]).arg(&file).check()?;
        for name in told.split("GLIBC_").skip(1) {
            let end = name.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(name.len());
            let mut parts = name[..end].split('.').map_while(|part| part.parse().ok());
            newest = newest.max((parts.next().unwrap_or(0), parts.next().unwrap_or(0)));
        }
    }
    ensure!(newest > (0, 0), "nothing below {} needs a C library", folder.display());
    Ok(format!("{}.{}", newest.0, newest.1))
}

fn size_kib(root: &Path) -> Result<u64> {
    let size = |file: &PathBuf| Ok(file.symlink_metadata()?.len().div_ceil(1024));
    paths::files_below(root)?.iter().map(size).sum()
}

fn sums(root: &Path) -> Result<String> {
    let mut names = Vec::new();
    for file in paths::files_below(root)? {
        let name = file.strip_prefix(root)?.to_owned();
        if !name.starts_with("DEBIAN") && !file.is_symlink() {
            names.push(name);
        }
    }
    Cmd::new("md5sum").args(names).dir(root).check()
}

/// Without the file's name and time in it.
fn compress(file: &Path) -> Result<()> {
    Cmd::new("gzip").args(["-9", "-n"]).arg(file).check()?;
    let mut packed = file.as_os_str().to_owned();
    packed.push(".gz");
    fs::set_permissions(packed, Permissions::from_mode(0o644))?;
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let what = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().context("a folder")?).with_context(what)?;
    fs::copy(from, to).with_context(what)?;
    fs::set_permissions(to, Permissions::from_mode(mode)).with_context(what)
}

/// A file of the folder `packaging`.
fn ours(name: &str) -> PathBuf {
    paths::repository().join("packaging").join(name)
}
