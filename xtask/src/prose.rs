//! Checks comments: short lines, and no words for persons where the subject is a thread or a
//! program.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use system_tests::paths;

/// Columns of a comment. rustfmt wraps code only.
const WIDTH: usize = 100;
/// Words for persons. A thread, a client or a program is not one; a user is "a user".
const PERSONS: [&str; 5] = ["whoever", "nobody", "somebody", "everybody", "anybody"];
/// Folders where comments must be short.
const NARROW: [&str; 4] = ["crates", "tests", "tools", "xtask"];

/// Finds what is hard to read.
pub(crate) fn check() -> Result<()> {
    let mut faults = Vec::new();
    for folder in NARROW {
        for file in paths::files_below(&paths::repository().join(folder))? {
            let name = file.strip_prefix(paths::repository())?;
            if !is_source(name) {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            for (number, line) in (1..).zip(text.lines()) {
                let place = format!("{}:{number}", name.display());
                faults.extend(fault(line).map(|fault| format!("{place}: {fault}")));
            }
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!("comments that are hard to read:\n{}", faults.join("\n"))
}

/// What is wrong with a line, if anything.
fn fault(line: &str) -> Option<String> {
    let comment = line.trim_start().strip_prefix("//")?;
    // The lines of a table cannot be wrapped.
    let is_table = comment.trim_start_matches(['/', '!']).trim_start().starts_with('|');
    let width = line.chars().count();
    if width > WIDTH && !is_table {
        return Some(format!("{width} columns, more than {WIDTH}"));
    }
    let mut words = comment.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '`');
    let person = words.find(|word| PERSONS.contains(&word.to_lowercase().as_str()))?;
    Some(format!("{person:?}: name the thread, program or user"))
}

/// Whether a file of the repository, named from its root, is of Rust and no output of a build.
fn is_source(file: &Path) -> bool {
    let is_output = file.components().any(|part| part.as_os_str() == "target");
    !is_output && file.extension().is_some_and(|extension| extension == "rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persons_and_wide_lines_are_found_in_comments_only() {
        assert!(fault("    // Whoever rings.").is_some());
        assert_eq!(fault("    // The user `nobody`."), None);
        assert_eq!(fault("let nobody = 1;"), None);
        let wide = format!("/// {}", "a ".repeat(60));
        assert!(fault(&wide).is_some());
        assert_eq!(fault(&format!("//! | {wide} |")), None);
    }
}
