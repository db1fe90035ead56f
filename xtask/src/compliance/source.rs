//! The switches in the engine's source: which there are, and where they are asked.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use system_tests::paths;

/// By name: the functions that ask it, as `file.rs::function`, sorted.
#[derive(Debug, Default)]
pub(super) struct Source {
    switches: BTreeMap<String, Vec<String>>,
}

const ROOT: &str = "crates/rnic-core/src";
/// Where the switches are declared.
const DECLARATIONS: &str = "planted.rs";

impl Source {
    pub(super) fn read() -> Result<Self> {
        let root = paths::repository().join(ROOT);
        let mut source = Self::default();
        source.folder(&root, &root)?;
        for places in source.switches.values_mut() {
            places.sort();
            places.dedup();
        }
        Ok(source)
    }

    pub(super) fn places(&self, name: &str) -> &[String] {
        self.switches.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.switches.keys().map(String::as_str)
    }

    fn folder(&mut self, root: &Path, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            let name = path.strip_prefix(root)?.display().to_string();
            if path.is_dir() {
                self.folder(root, &path)?;
            } else if name.ends_with(".rs") && name != DECLARATIONS {
                self.file(&name, &fs::read_to_string(&path)?);
            }
        }
        Ok(())
    }

    fn file(&mut self, name: &str, text: &str) {
        let mut function = "";
        for line in text.lines() {
            function = declared(line).unwrap_or(function);
            for kind in ["Rule::", "Bug::"] {
                for (at, _) in line.match_indices(kind) {
                    let rest = &line[at + kind.len()..];
                    let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
                    let places = self.switches.entry(rest[..end].into()).or_default();
                    places.push(format!("{name}::{function}"));
                }
            }
        }
    }
}

/// The function that a line begins.
fn declared(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let words = words.strip_prefix("pub ").unwrap_or(words);
    let words = match words.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => words,
    };
    let name = words.strip_prefix("const ").unwrap_or(words).strip_prefix("fn ")?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_recognised() {
        assert_eq!(declared("    pub(crate) fn settle<T: Tap>("), Some("settle"));
        assert_eq!(declared("fn fail(rule: Rule)"), Some("fail"));
        assert_eq!(declared("    pub const fn new() -> Self {"), Some("new"));
        assert_eq!(declared("    // fn is a keyword"), None);
    }

    #[test]
    fn switches_are_found_in_their_function() {
        let mut source = Source::default();
        source.file("qp/a.rs", "fn one() {\n  if Rule::Big.applies() && Bug::Small.is_planted() {");
        assert_eq!(source.places("Big"), ["qp/a.rs::one"]);
        assert_eq!(source.places("Small"), ["qp/a.rs::one"]);
        assert_eq!(source.places("None"), [""; 0]);
    }
}
