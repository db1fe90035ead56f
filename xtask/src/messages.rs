//! Compares the messages that docs/errors.md explains with those that the programs print.

use std::fs;

use anyhow::{Result, bail};
use system_tests::paths;

const DOCUMENT: &str = "docs/errors.md";
/// Sections whose tables begin with a message of ours.
const SECTIONS: [&str; 2] = ["## Errors of the commands", "## Messages of the libraries"];
/// What stands for a name or a number in the document.
const ANYTHING: &str = "...";

/// Finds explained messages that no program prints any more.
pub(crate) fn check() -> Result<()> {
    let mut sources = String::new();
    for file in paths::files_below(&paths::repository().join("crates"))? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            sources += &joined(&fs::read_to_string(file)?);
        }
    }
    let document = fs::read_to_string(paths::repository().join(DOCUMENT))?;
    let is_gone = |message: &&str| !is_printed(message, &sources);
    let gone: Vec<_> = messages(&document).into_iter().filter(is_gone).collect();
    if gone.is_empty() {
        return Ok(());
    }
    bail!("{DOCUMENT} explains messages that no program prints:\n{}", gone.join("\n"))
}

/// A source with its string literals in one line each.
fn joined(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let mut text = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        text += line.trim_start();
    }
    text
}

fn messages(document: &str) -> Vec<&str> {
    let mut messages = Vec::new();
    let mut is_ours = false;
    for line in document.lines() {
        if line.starts_with('#') {
            is_ours = SECTIONS.contains(&line);
        }
        let cell = line.strip_prefix("| `").and_then(|rest| rest.split_once("` |"));
        messages.extend(cell.filter(|_| is_ours).map(|(message, _)| message));
    }
    messages
}

fn is_printed(message: &str, sources: &str) -> bool {
    message.split(ANYTHING).map(str::trim).all(|part| sources.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_gone_is_found() {
        let document = "## Errors of the commands\n| `no ... at \\\n` |\n| `no x in ...` | do |\n";
        assert_eq!(messages(document), ["no x in ..."]);
        let sources = joined("\"no x \\\n     in {place}\"");
        assert!(is_printed("no x in ...", &sources));
        assert!(!is_printed("no y in ...", &sources));
    }
}
