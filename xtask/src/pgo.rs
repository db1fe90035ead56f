//! Builds that the compiler arranges by what programs used (profile-guided optimization).
//!
//! Half of the time that a small message takes passes in the kernel, which leaves little of ours in
//! the processor's caches: what is used then should lie together, and the rest elsewhere. So the
//! same programs that `cargo xtask bench` measures run with a build that counts, and a second build
//! is arranged by these counts. Which code they use is told; how long it takes is not.
//!
//! What was counted is not the same twice, so two such builds differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::dist::{DIST_ENV, Dist};
use system_tests::paths;
use system_tests::process::{Cmd, is_root};

use crate::bench::practice;

/// For the tools of the toolchain, which take seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// What a user gets, of one kind or the other.
pub(crate) fn release(pgo: bool) -> Result<Dist> {
    if pgo { build(&paths::target().join("pgo/release")) } else { Dist::release().cloned() }
}

/// Builds into this folder.
pub(crate) fn build(root: &Path) -> Result<Dist> {
    ensure!(is_root(), "--pgo needs root: programs run in network namespaces");
    ensure!(std::env::var_os(DIST_ENV).is_none(), "--pgo builds anew: unset {DIST_ENV}");
    let profdata = profdata_tool()?;
    let home = paths::target().join("pgo");
    let [counts, profile] = ["counts", "profile.profdata"].map(|name| home.join(name));
    eprintln!("building with counters");
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counting = Dist::build_flagged(&[flag], &home.join("counting"), &home.join("dist"))?;
    eprintln!("counting");
    // Compiling has left some, of the programs that it runs; and so has the time before.
    if counts.exists() {
        fs::remove_dir_all(&counts).with_context(|| counts.display().to_string())?;
    }
    practice::run(&counting)?;
    let found = paths::files_below(&counts)?;
    ensure!(!found.is_empty(), "no program has left counts in {}", counts.display());
    let merge = Cmd::new(profdata).args(["merge", "-o"]).arg(&profile).args(found);
    merge.limit(LIMIT).check()?;
    eprintln!("building");
    let flag = format!("-Cprofile-use={}", profile.display());
    Dist::build_flagged(&[flag], &home.join("arranged"), root)
}

/// Of the compiler's own LLVM: formats change between versions.
fn profdata_tool() -> Result<PathBuf> {
    // There the toolchain is the one that compiles.
    let here = |program: &str| Cmd::new(program).dir(paths::repository()).limit(LIMIT);
    let sysroot = here("rustc").args(["--print", "sysroot"]).check()?;
    let sysroot = PathBuf::from(sysroot.trim());
    let about = here("rustc").arg("-vV").check()?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    let tool = sysroot.join("lib/rustlib").join(host).join("bin/llvm-profdata");
    if !tool.is_file() {
        eprintln!("installing llvm-tools");
        let add = here("rustup").args(["component", "add", "llvm-tools"]).check();
        add.with_context(|| format!("the toolchain's llvm-tools: no {}", tool.display()))?;
    }
    Ok(tool)
}
