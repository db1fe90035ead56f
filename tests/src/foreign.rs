//! Programs that others wrote in Rust over the verbs: examples of crates from crates.io, unchanged.
//!
//! Cargo builds each with the versions of its own lock file, so that none of what they depend on is
//! a dependency of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::packages::Apt;
use crate::paths;
use crate::process::{Cmd, is_root};

/// A crate, and which of its examples are programs.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Its name.
    pub name: &'static str,
    /// Its only version that is built.
    pub version: &'static str,
    /// The programs.
    pub examples: &'static [&'static str],
}

/// Verbs for Rust that open the C libraries when the program starts.
pub const SIDEWAY: Foreign = Foreign {
    name: "sideway",
    version: "0.4.3",
    examples: &["rc_pingpong", "rc_pingpong_split", "show_gids"],
};

impl Foreign {
    /// Builds the programs where they are not yet, and returns the folder they are in.
    ///
    /// # Errors
    /// When the packages that building takes cannot be had, or cargo fails.
    pub fn build(self) -> Result<PathBuf> {
        let root = paths::cache(self.name)?.join(self.version);
        let bin = root.join("bin");
        if self.examples.iter().all(|example| bin.join(example).is_file()) {
            return Ok(bin);
        }
        provide_builders()?;
        let version = format!("={}", self.version);
        let install = ["install", self.name, "--version", &version, "--locked", "--force"];
        let mut cargo = Cmd::new("cargo").args(install).arg("--root").arg(&root);
        for example in self.examples {
            cargo = cargo.args(["--example", example]);
        }
        cargo.env("CARGO_TARGET_DIR", root.join("target")).limit(BUILD_LIMIT).check()?;
        Ok(bin)
    }
}

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// CMake and libclang, with which such crates make Rust of C headers.
fn provide_builders() -> Result<()> {
    let is_clang = |folder: PathBuf| folder.join("lib/libclang.so").exists();
    let mut folders = fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path());
    if Path::new("/usr/bin/cmake").exists() && folders.any(is_clang) {
        return Ok(());
    }
    ensure!(is_root(), "cmake and libclang-dev must be installed: only root installs packages");
    Apt::system().install(&["cmake", "libclang-dev"])
}
