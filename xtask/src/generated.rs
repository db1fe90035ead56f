//! Documents that programs write. Tests of the crates that write them fail when they are out of
//! date.

use std::time::Duration;

use anyhow::Result;
use system_tests::dist::cargo;
use system_tests::paths;

const LIMIT: Duration = Duration::from_secs(1200);

/// All stories of docs/walkthrough, by `rnic lab`.
pub(crate) fn walkthrough() -> Result<()> {
    write(&["-p", "rnicd", "--bin", "rnic", "--", "lab", "--walkthrough"], "docs/walkthrough")
}

/// All options of both programs.
pub(crate) fn options() -> Result<()> {
    write(&["-p", "manual", "--", "--options"], "docs/options.md")
}

fn write(program: &[&str], place: &str) -> Result<()> {
    let run = cargo().args(["run", "--quiet"]).args(program).arg(paths::repository().join(place));
    print!("{}", run.limit(LIMIT).check()?);
    Ok(())
}
