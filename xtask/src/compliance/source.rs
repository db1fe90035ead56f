//! The rules that the engine's source cites, and where.
//!
//! A citation is a comment that begins with `Rule: ` and lists names: `// Rule: FirstPsn`,
//! `/// Rule: Fence, ReadDepth`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Result;
use system_tests::paths;

use super::splice::declared;

/// By rule: the functions that cite it, as `file.rs::function`, sorted.
#[derive(Debug, Default)]
pub(super) struct Source {
    citations: BTreeMap<String, Vec<String>>,
    /// All functions, as `file.rs::function`.
    functions: BTreeSet<String>,
}

const ROOT: &str = "crates/rnic-core/src";
const CITATION: &str = "Rule: ";

impl Source {
    pub(super) fn read() -> Result<Self> {
        let root = paths::repository().join(ROOT);
        let mut source = Self::default();
        for path in paths::files_below(&root)? {
            let name = path.strip_prefix(&root)?.display().to_string();
            if name.ends_with(".rs") {
                source.file(&name, &fs::read_to_string(&path)?);
            }
        }
        for places in source.citations.values_mut() {
            places.sort();
            places.dedup();
        }
        Ok(source)
    }

    pub(super) fn places(&self, name: &str) -> &[String] {
        self.citations.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn has(&self, place: &str) -> bool {
        self.functions.contains(place)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.citations.keys().map(String::as_str)
    }

    fn file(&mut self, name: &str, text: &str) {
        let mut function = "";
        // Documentation of a function stands before it.
        let mut documented: Vec<&str> = Vec::new();
        for line in text.lines() {
            if let Some(next) = declared(line) {
                function = next;
                self.functions.insert(format!("{name}::{function}"));
                for rule in documented.drain(..) {
                    self.cite(rule, name, function);
                }
            }
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let is_documentation = comment.starts_with('/');
            let words = comment.trim_start_matches('/').trim_start();
            for rule in words.strip_prefix(CITATION).into_iter().flat_map(|it| it.split(", ")) {
                if is_documentation {
                    documented.push(rule);
                } else {
                    self.cite(rule, name, function);
                }
            }
        }
    }

    fn cite(&mut self, rule: &str, file: &str, function: &str) {
        let places = self.citations.entry(rule.trim_end_matches('.').into()).or_default();
        places.push(format!("{file}::{function}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found_in_their_function() {
        let mut source = Source::default();
        let text =
            "/// Does it.\n/// Rule: Big\nfn one() {\n    // Rule: Small, Fine\n    x();\n}\n";
        source.file("qp/a.rs", text);
        for name in ["Big", "Small", "Fine"] {
            assert_eq!(source.places(name), ["qp/a.rs::one"]);
        }
        assert_eq!(source.places("None"), [""; 0]);
        assert!(source.has("qp/a.rs::one") && !source.has("qp/a.rs::two"));
    }
}
