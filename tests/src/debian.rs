//! Another Debian beside the one of this machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::paths;
use crate::process::Cmd;

const PACKAGES: &str = "systemd,systemd-sysv,dbus,init-system-helpers,iproute2,ibverbs-utils,\
                        rdmacm-utils,perftest,libfabric-bin";

/// A release of Debian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Release {
    /// Its name, and that of its folder in the cache.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Bookworm => ("bookworm", "debian-12"),
            Self::Trixie => ("trixie", "debian-13"),
        }
    }
}

/// The root folder of one that has nothing of ours, and nothing of Rust; made once, by
/// debootstrap.
///
/// # Errors
/// When the packages cannot be had.
pub fn root(release: Release) -> Result<PathBuf> {
    let (name, folder) = release.names();
    let root = paths::cache(folder)?.join("root");
    if !root.join("usr/bin/fi_pingpong").exists() {
        let begun = root.with_extension("begun");
        let _ = fs::remove_dir_all(&begun);
        let include = format!("--include={PACKAGES}");
        let make = Cmd::new("debootstrap").args(["--variant=minbase", &include, name]);
        make.arg(&begun).limit(Duration::from_secs(900)).check()?;
        // Only now: where it could not be made, the old one stays.
        let _ = fs::remove_dir_all(&root);
        fs::rename(begun, &root)?;
    }
    Ok(root)
}
