//! Debian packages that a run needs and the machine does not have.
//!
//! Root installs them. Other users download them together with the libraries they need,
//! unpacks them under `target/cache/debs` and runs them from there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Cmd, is_root};
use crate::{paths, record};

/// Which Debian package brings a program.
pub const PACKAGE_OF: [(&str, &str); 62] = [
    ("ib_write_bw", "perftest"),
    ("ib_read_bw", "perftest"),
    ("ib_send_bw", "perftest"),
    ("ib_atomic_bw", "perftest"),
    ("ib_write_lat", "perftest"),
    ("ib_read_lat", "perftest"),
    ("ib_send_lat", "perftest"),
    ("ib_atomic_lat", "perftest"),
    ("ibv_devices", "ibverbs-utils"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ibv_uc_pingpong", "ibverbs-utils"),
    ("ibv_ud_pingpong", "ibverbs-utils"),
    ("ibv_srq_pingpong", "ibverbs-utils"),
    ("ibv_xsrq_pingpong", "ibverbs-utils"),
    ("ibv_asyncwatch", "ibverbs-utils"),
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("udaddy", "rdmacm-utils"),
    ("mckey", "rdmacm-utils"),
    ("rdma_client", "rdmacm-utils"),
    ("rdma_server", "rdmacm-utils"),
    ("rdma_xclient", "rdmacm-utils"),
    ("rdma_xserver", "rdmacm-utils"),
    ("cmtime", "rdmacm-utils"),
    ("rstream", "rdmacm-utils"),
    ("riostream", "rdmacm-utils"),
    ("rcopy", "rdmacm-utils"),
    ("udpong", "rdmacm-utils"),
    ("nc", "netcat-openbsd"),
    ("curl", "curl"),
    ("qperf", "qperf"),
    ("iperf3", "iperf3"),
    ("fio", "fio"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("tshark", "tshark"),
    ("ethtool", "ethtool"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("xz", "xz-utils"),
    ("mpirun", "openmpi-bin"),
    ("mpicc", "libopenmpi-dev"),
    ("fi_info", "libfabric-bin"),
    ("fi_pingpong", "libfabric-bin"),
    ("ibstat", "infiniband-diags"),
    ("ucx_info", "ucx-utils"),
    ("ucx_perftest", "ucx-utils"),
    ("io_demo", "ucx-utils"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("dpkg-deb", "dpkg"),
    ("python3", "python3"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
    ("debootstrap", "debootstrap"),
    ("podman", "podman"),
    ("crun", "crun"),
    ("newuidmap", "uidmap"),
    ("systemd-nspawn", "systemd-container"),
    ("lintian", "lintian"),
    ("readelf", "binutils"),
    ("chromium-headless-shell", "chromium-headless-shell"),
];

/// Where the programs of a run are.
#[derive(Clone, Debug)]
pub struct Toolbox {
    /// The root folder of unpacked packages, when there are any.
    unpacked: Option<PathBuf>,
    /// Folders of programs that were built here.
    built: Vec<PathBuf>,
    /// Folders of further shared libraries.
    libraries: Vec<PathBuf>,
}

impl Toolbox {
    /// Makes every named program available.
    ///
    /// # Errors
    /// When one is missing, its package is unknown to this module or apt cannot get it.
    pub fn provide(programs: &[&str]) -> Result<Self> {
        let unpacked = paths::cache("debs")?.join("root");
        let present = unpacked.is_dir().then(|| unpacked.clone());
        let toolbox = Self { unpacked: present, built: Vec::new(), libraries: Vec::new() };
        let missing = toolbox.missing_packages(programs)?;
        if missing.is_empty() {
            return Ok(toolbox);
        }
        let names: Vec<_> = missing.iter().copied().collect();
        let toolbox = if is_root() {
            eprintln!("installing {}", names.join(" "));
            Apt::system().install(&names)?;
            toolbox
        } else {
            eprintln!("unpacking {} into {}", names.join(" "), unpacked.display());
            for deb in Apt::system().download(&names, &paths::cache("debs")?)? {
                unpack(&deb, &unpacked)?;
            }
            Self { unpacked: Some(unpacked), ..toolbox }
        };
        for name in programs {
            toolbox.find(name)?;
        }
        Ok(toolbox)
    }

    /// Adds a folder of programs that were built here.
    #[must_use]
    pub fn with_built(mut self, folder: PathBuf) -> Self {
        self.built.push(folder);
        self
    }

    /// Adds a folder of shared libraries that programs of a test link.
    #[must_use]
    pub fn with_libraries(mut self, folder: PathBuf) -> Self {
        self.libraries.push(folder);
        self
    }

    /// The path of a program that a test is about to start.
    ///
    /// # Errors
    /// When it is nowhere.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        record::add(name);
        self.find(name)
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        let found = self.search_path().into_iter().map(|dir| dir.join(name)).find(|p| p.is_file());
        found.with_context(|| format!("no program {name} on this machine"))
    }

    /// The root folder of unpacked packages, when there are any.
    #[must_use]
    pub fn unpacked(&self) -> Option<&Path> {
        self.unpacked.as_deref()
    }

    /// Folders of shared libraries that unpacked programs need; empty when all is installed.
    #[must_use]
    pub fn library_dirs(&self) -> Vec<PathBuf> {
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let dirs = ["usr/lib", "lib"].map(|dir| Path::new(dir).join(&triple));
        let unpacked = self.unpacked.iter();
        let unpacked = unpacked.flat_map(|root| dirs.iter().map(|dir| root.join(dir)));
        unpacked.chain(self.libraries.iter().cloned()).collect()
    }

    /// The folders of `PATH`, those of the superuser, then those of unpacked packages.
    fn search_path(&self) -> Vec<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs = self.built.clone();
        dirs.extend(std::env::split_paths(&path));
        dirs.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
        if let Some(root) = &self.unpacked {
            dirs.extend(["usr/bin", "usr/sbin", "bin", "sbin"].map(|dir| root.join(dir)));
        }
        dirs
    }

    fn missing_packages(&self, programs: &[&str]) -> Result<BTreeSet<&'static str>> {
        let mut missing = BTreeSet::new();
        for name in programs.iter().filter(|name| self.find(name).is_err()) {
            let (_, package) = PACKAGE_OF
                .iter()
                .find(|(program, _)| program == name)
                .with_context(|| format!("no known Debian package has {name}"))?;
            missing.insert(*package);
        }
        Ok(missing)
    }
}

/// Unpacks a package over a folder.
///
/// # Errors
/// When `dpkg-deb` fails.
pub fn unpack(deb: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
    Cmd::new("dpkg-deb").arg("-x").arg(deb).arg(root).limit(Duration::from_secs(300)).check()?;
    Ok(())
}

/// The architecture of this machine, as dpkg calls it.
///
/// # Errors
/// When dpkg fails.
pub fn architecture() -> Result<String> {
    Ok(Cmd::new("dpkg").arg("--print-architecture").check()?.trim().to_owned())
}

/// apt, with its own record of what is installed and where its files are.
pub struct Apt {
    options: Vec<String>,
    /// Private lists are used after the system's turned out to be missing or out of date.
    private: PathBuf,
}

impl Apt {
    /// apt as the system has it.
    #[must_use]
    pub fn system() -> Self {
        let options = ["-q", "-y", "--no-install-recommends", "-oDPkg::Lock::Timeout=300"];
        let options = options.map(str::to_owned).into();
        Self { options, private: paths::target().join("cache").join("apt") }
    }

    /// apt that also downloads what is installed.
    #[must_use]
    pub fn anew(mut self) -> Self {
        self.options.push("--reinstall".to_owned());
        self
    }

    /// apt that regards only `installed` as installed, so that a download is complete apart from
    /// them: for a guest's file system.
    ///
    /// # Errors
    /// When its status file cannot be written to `dir`.
    pub fn pretending(installed: &[&str], dir: &Path) -> Result<Self> {
        let arch = architecture()?;
        let entry = |name: &&str| {
            format!(
                "Package: {name}\nStatus: install ok installed\nVersion: 9999\n\
                 Architecture: {arch}\nMaintainer: none\nDescription: assumed\n\n"
            )
        };
        let status = dir.join("assumed-status");
        fs::write(&status, installed.iter().map(entry).collect::<String>())?;
        let mut apt = Self::system();
        apt.options.push(format!("-oDir::State::status={}", status.display()));
        Ok(apt)
    }

    /// Installs packages (root only).
    ///
    /// # Errors
    /// When apt fails twice, the second time after an update of its lists.
    pub fn install(&self, packages: &[&str]) -> Result<()> {
        let run = || self.get(&[], "install", packages);
        if run().is_err() {
            self.get(&[], "update", &[])?;
            run()?;
        }
        Ok(())
    }

    /// The file names (with versions) of `packages` and all they need.
    ///
    /// # Errors
    /// When apt does not know one of them, also after an update of its lists.
    pub fn resolve(&self, packages: &[&str]) -> Result<Vec<String>> {
        let uris = self.unprivileged("--print-uris", packages, &paths::cache("apt")?)?;
        let file = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
        let mut files: Vec<_> =
            uris.lines().filter(|line| line.starts_with('\'')).filter_map(file).collect();
        files.sort();
        ensure!(!files.is_empty(), "apt has nothing to download for {}", packages.join(" "));
        Ok(files)
    }

    /// Downloads packages and all they need that is not installed; no privilege is needed.
    ///
    /// # Errors
    /// When apt fails, also after an update of its lists.
    pub fn download(&self, packages: &[&str], dir: &Path) -> Result<Vec<PathBuf>> {
        self.unprivileged("--download-only", packages, dir)?;
        let mut debs = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                debs.push(path);
            }
        }
        if debs.is_empty() {
            bail!("apt downloaded nothing for {}", packages.join(" "));
        }
        debs.sort();
        Ok(debs)
    }

    /// `apt-get install` that only looks or downloads: with the system's lists, else with lists
    /// of our own.
    fn unprivileged(&self, mode: &str, packages: &[&str], archives: &Path) -> Result<String> {
        fs::create_dir_all(archives.join("partial"))?;
        let archives = archives.display();
        let base = [
            mode.to_owned(),
            "-oDebug::NoLocking=1".into(),
            "-oAPT::Sandbox::User=".into(),
            format!("-oDir::Cache::archives={archives}"),
        ];
        if let Ok(text) = self.get(&base, "install", packages) {
            return Ok(text);
        }
        let (lists, cache) = (self.private.join("lists"), self.private.join("cache"));
        fs::create_dir_all(lists.join("partial"))?;
        fs::create_dir_all(&cache)?;
        let own = [
            format!("-oDir::State::lists={}", lists.display()),
            format!("-oDir::Cache::pkgcache={}/pkgcache.bin", cache.display()),
            format!("-oDir::Cache::srcpkgcache={}/srcpkgcache.bin", cache.display()),
        ];
        let all: Vec<_> = base.into_iter().chain(own).collect();
        self.get(&all[1..], "update", &[])?;
        self.get(&all, "install", packages)
    }

    fn get(&self, options: &[String], verb: &str, packages: &[&str]) -> Result<String> {
        Cmd::new("apt-get")
            .args(&self.options)
            .args(options)
            .arg(verb)
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C")
            .limit(Duration::from_secs(900))
            .check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_every_debian_is_found() {
        let toolbox = Toolbox::provide(&["dpkg-deb"]).unwrap();
        assert!(toolbox.program("dpkg-deb").unwrap().is_absolute());
    }

    #[test]
    fn an_unknown_program_is_an_error_that_names_it() {
        let error = Toolbox::provide(&["no-such-program"]).unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
    }
}
