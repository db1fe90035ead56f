//! `docs/compliance.md` as data.

use std::fs;

use anyhow::{Context, Result, bail};
use system_tests::paths;

/// A rule or a bug.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// `file.rs::function`, sorted.
    pub(super) code: Vec<String>,
    pub(super) test: Test,
}

/// A test of rnic-sim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    /// Test program.
    pub(super) program: String,
    /// Its name there.
    pub(super) path: String,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rules: Vec<Row>,
    pub(super) bugs: Vec<Row>,
    /// Of rules without a mutation.
    pub(super) others: Vec<Test>,
    /// Where those rules are kept in rnic-core.
    pub(super) other_places: Vec<String>,
}

const FILE: &str = "docs/compliance.md";
/// Headings of tables whose rows have no mutation.
const BY_CONSTRUCTION: &str = "Kept by construction";
const NOT_BUILT: &str = "Not built yet";
const BUGS: &str = "Planted bugs";

impl Table {
    pub(super) fn read() -> Result<Self> {
        let file = paths::repository().join(FILE);
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let mut table = Self::default();
        let mut heading = "";
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(title) = line.strip_prefix("## ") {
                heading = title;
            }
            table.take(heading, line).with_context(|| format!("{FILE}:{number}"))?;
        }
        Ok(table)
    }

    fn take(&mut self, heading: &str, line: &str) -> Result<()> {
        let Some(inner) = line.strip_prefix("| ") else { return Ok(()) };
        let cells: Vec<&str> = inner.trim_end().trim_end_matches('|').split('|').collect();
        let cells: Vec<&str> = cells.into_iter().map(str::trim).collect();
        let is_header = matches!(cells.first(), Some(&"rule" | &"bug"));
        if is_header || heading == NOT_BUILT {
            return Ok(());
        }
        if heading == BY_CONSTRUCTION {
            let [_, code, test] = cells[..] else { bail!("a row here is rule, code, test") };
            self.others.push(Test::parse(test)?);
            // What other crates keep is named with the crate.
            if code.starts_with('`') {
                self.other_places.push(quoted(code).into());
            }
            return Ok(());
        }
        let (name, code, test) = match cells[..] {
            [name, _, code, test] if heading == BUGS => (name, code, test),
            [name, _, code, test, _] => (name, code, test),
            _ => bail!("a row here is name, what, code, test, deviation"),
        };
        let mut code: Vec<String> = code.split(", ").map(|place| quoted(place).into()).collect();
        code.sort();
        let row = Row { name: quoted(name).into(), code, test: Test::parse(test)? };
        let rows = if heading == BUGS { &mut self.bugs } else { &mut self.rules };
        rows.push(row);
        Ok(())
    }

    /// Every test that any row names, once.
    pub(super) fn tests(&self) -> Vec<&Test> {
        let rows = self.rules.iter().chain(&self.bugs).map(|row| &row.test);
        let mut tests: Vec<&Test> = rows.chain(&self.others).collect();
        tests.sort();
        tests.dedup();
        tests
    }
}

impl Test {
    fn parse(cell: &str) -> Result<Self> {
        let Some((program, path)) = quoted(cell).split_once(' ') else {
            bail!("{cell} is not a program and a test")
        };
        Ok(Self { program: program.into(), path: path.into() })
    }
}

fn quoted(cell: &str) -> &str {
    cell.trim().trim_matches('`')
}
