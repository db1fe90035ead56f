//! `cargo xtask deny`: checks the crates that we depend on against `deny.toml`.

use std::time::Duration;

use anyhow::Result;
use system_tests::paths;
use system_tests::process::Cmd;

use crate::stages::Stage;
use crate::tool;

/// It downloads the list of advisories.
const LIMIT: Duration = Duration::from_secs(600);

/// The fuzzers are a workspace of their own, which needs few of the exceptions.
const MANIFESTS: [(&str, &[&str]); 2] =
    [("Cargo.toml", &[]), ("fuzz/Cargo.toml", &["--allow", "unmatched-skip"])];

pub(crate) fn stages() -> Vec<Stage> {
    let stage = |(manifest, options)| Stage::new(manifest, move || check(manifest, options));
    MANIFESTS.into_iter().map(stage).collect()
}

fn check(manifest: &str, options: &[&str]) -> Result<()> {
    let tool = tool::installed("cargo-deny")?;
    let check = Cmd::new(tool).dir(paths::repository()).args(["--manifest-path", manifest]);
    let check = check.args(["--locked", "--config", "deny.toml", "check"]).args(options);
    check.limit(LIMIT).inherit_output().check()?;
    Ok(())
}
