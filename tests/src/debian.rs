//! A Debian 12 beside the one of this machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::paths;
use crate::process::Cmd;

const PACKAGES: &str = "systemd,systemd-sysv,dbus,init-system-helpers,iproute2,ibverbs-utils,\
                        rdmacm-utils,perftest";

/// The root folder of one that has nothing of ours, and nothing of Rust; made once, by
/// debootstrap.
///
/// # Errors
/// When the packages cannot be had.
pub fn root() -> Result<PathBuf> {
    let root = paths::cache("debian-12")?.join("root");
    if !root.join("usr/bin/ib_write_bw").exists() {
        let _ = fs::remove_dir_all(&root);
        let begun = root.with_extension("begun");
        let _ = fs::remove_dir_all(&begun);
        let include = format!("--include={PACKAGES}");
        let make = Cmd::new("debootstrap").args(["--variant=minbase", &include, "bookworm"]);
        make.arg(&begun).limit(Duration::from_secs(900)).check()?;
        fs::rename(begun, &root)?;
    }
    Ok(root)
}
