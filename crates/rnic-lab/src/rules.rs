//! The rules of docs/compliance.md, by name.

use rnic_page::Rule;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const COMPLIANCE: &str = include_str!("../../../docs/compliance.md");

/// What each rule says.
static RULES: LazyLock<BTreeMap<&'static str, &'static str>> = LazyLock::new(|| {
    let row = |line: &'static str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (what, _) = rest.split_once(" | ")?;
        Some((name, what))
    };
    COMPLIANCE.lines().filter_map(row).collect()
});

/// Rules with these names. One that does not exist says so.
pub(crate) fn rules(names: &[&str]) -> Vec<Rule> {
    let rule = |name: &&str| Rule {
        name: (*name).to_owned(),
        what: RULES.get(name).copied().unwrap_or(MISSING).to_owned(),
    };
    names.iter().map(rule).collect()
}

/// What a rule says that is not in the table.
pub(crate) const MISSING: &str = "no such rule";
