//! The checker program: built from C against the public verbs header, run against any device.
//!
//! Its source says what it checks. Here it is compiled once per run and made part of the toolbox,
//! so that a [`Dialogue`](crate::programs::Dialogue) can name it like any other program.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::packages::Apt;
use crate::paths;
use crate::process::{Cmd, is_root};

/// The program's name.
pub const PROGRAM: &str = "checker";

/// Compiles the checker and returns the folder it is in. Needs a C compiler; the verbs header is
/// installed (root) when it is missing.
///
/// # Errors
/// When header or compiler cannot be had, or the source does not compile without a warning.
pub fn build() -> Result<PathBuf> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().map_err(|_| anyhow::anyhow!("an earlier build panicked"))?;
    let source = paths::repository().join("tests/checker");
    let folder = paths::cache("checker")?;
    provide_header()?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(&source)
        .with_context(|| format!("no checker source at {}", source.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    // Another test program may be running the old one: replace, do not overwrite.
    let fresh = folder.join(format!("{PROGRAM}.{}", std::process::id()));
    Cmd::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&fresh)
        .args(&files)
        .arg("-libverbs")
        .limit(Duration::from_secs(60))
        .check()?;
    std::fs::rename(&fresh, folder.join(PROGRAM))?;
    Ok(folder)
}

fn provide_header() -> Result<()> {
    let header = std::path::Path::new("/usr/include/infiniband/verbs.h");
    if !header.exists() {
        ensure!(
            is_root(),
            "the checker needs the package libibverbs-dev, which only root installs"
        );
        Apt::system().install(&["libibverbs-dev"])?;
    }
    Ok(())
}
