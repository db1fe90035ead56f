//! `cargo xtask deny`: checks the crates that we depend on against `deny.toml`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use system_tests::paths;
use system_tests::process::Cmd;

use crate::stages::{Skipped, Stage};
use crate::tool;

const TOOL: &str = "cargo-deny";

/// It downloads the list of advisories.
const LIMIT: Duration = Duration::from_secs(600);

/// The fuzzers are a workspace of their own, which needs few of the exceptions.
const MANIFESTS: [(&str, &[&str]); 2] =
    [("Cargo.toml", &[]), ("fuzz/Cargo.toml", &["--allow", "unmatched-skip"])];

/// All but the advisories, which change from day to day: a change must not fail for them.
const OF_EVERY_CHANGE: [&str; 3] = ["bans", "licenses", "sources"];

pub(crate) fn stages() -> Vec<Stage> {
    let stage = |(manifest, options)| {
        Stage::new(manifest, move || check(&tool::installed(TOOL)?, manifest, options, &[]))
    };
    MANIFESTS.into_iter().map(stage).collect()
}

/// A stage of lint, where the tool is installed: to build it takes minutes.
pub(crate) fn lint() -> Result<()> {
    let Some(tool) = tool::found(TOOL)? else {
        let reason = "cargo-deny is not installed: `cargo xtask deny` installs it";
        return Err(Skipped(reason.into()).into());
    };
    for (manifest, options) in MANIFESTS {
        check(&tool, manifest, options, &OF_EVERY_CHANGE)?;
    }
    Ok(())
}

fn check(tool: &Path, manifest: &str, options: &[&str], which: &[&str]) -> Result<()> {
    let config = paths::repository().join("deny.toml");
    let check = Cmd::new(tool).dir(paths::repository()).args(["--manifest-path", manifest]);
    let check = check.args(["--locked", "--config"]).arg(config).arg("check");
    check.args(options).args(which).limit(LIMIT).show_output().check()?;
    Ok(())
}
