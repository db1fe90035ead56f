//! What is checked without running the code.

use std::time::Duration;

use anyhow::Result;
use system_tests::dist::cargo;

use crate::stages::Stage;
use crate::{book, deny, layers, messages, prose};

pub(crate) fn stages() -> Vec<Stage> {
    vec![
        Stage::new("format", format),
        Stage::new("clippy", clippy),
        Stage::new("layers", layers::check),
        Stage::new("prose", prose::check),
        Stage::new("documents", book::check),
        Stage::new("messages", messages::check),
        Stage::new("rustdoc", rustdoc),
        Stage::new("dependencies", deny::lint),
    ]
}

const LIMIT: Duration = Duration::from_secs(1200);

fn format() -> Result<()> {
    cargo().args(["fmt", "--all", "--check"]).limit(LIMIT).check()?;
    Ok(())
}

fn clippy() -> Result<()> {
    let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo().args(args).limit(LIMIT).check()?;
    Ok(())
}

fn rustdoc() -> Result<()> {
    // What is private is documented here too, so that links to it resolve.
    cargo()
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")
        .limit(LIMIT)
        .check()?;
    Ok(())
}
