//! Cargo subcommands from crates.io, installed on first use.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use system_tests::paths;
use system_tests::process::Cmd;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A program of a crate of that name, in the cache.
pub(crate) fn installed(name: &str) -> Result<PathBuf> {
    let root = paths::cache(name)?;
    let tool = root.join("bin").join(name);
    if !tool.exists() {
        eprintln!("installing {name}");
        Cmd::new("cargo")
            .args(["install", name, "--locked", "--root"])
            .arg(&root)
            .limit(BUILD_LIMIT)
            .check()?;
    }
    Ok(tool)
}
