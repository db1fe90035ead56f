//! Cargo subcommands from crates.io, installed on first use.

use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use system_tests::paths;
use system_tests::process::Cmd;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The program of that name, from the cache or from the search path, if it is installed.
pub(crate) fn found(name: &str) -> Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cached = paths::cache(name)?.join("bin");
    let folders = iter::once(cached).chain(std::env::split_paths(&path));
    Ok(folders.map(|folder| folder.join(name)).find(|tool| tool.is_file()))
}

/// The same; installed into the cache when it is missing.
pub(crate) fn installed(name: &str) -> Result<PathBuf> {
    if let Some(tool) = found(name)? {
        return Ok(tool);
    }
    eprintln!("installing {name}");
    let root = paths::cache(name)?;
    let install = Cmd::new("cargo").args(["install", name, "--locked", "--root"]).arg(&root);
    install.limit(BUILD_LIMIT).check()?;
    Ok(root.join("bin").join(name))
}
