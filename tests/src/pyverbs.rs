//! rdma-core's own tests: Python programs in the documentation of Debian's package rdma-core.
//!
//! `docs/verbs.md` has a table of those that are skipped. Every other one must pass, and each of
//! the table must be skipped, so that the table stays true when the device learns something.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{Apt, Toolbox, unpack};
use crate::paths::{self, Scratch};
use crate::place::{Node, Place};
use crate::process::Cmd;

/// Their modules for cards of one vendor, and those that need a GPU's library.
const NOT_OURS: [&str; 3] = ["test_mlx5", "test_efa", "test_cuda"];

/// The packages: the tests, what they import, and libraries that this links.
const PACKAGES: [&str; 3] = ["rdma-core", "python3-pyverbs", "ibverbs-providers"];

const FOLDER: &str = "usr/share/doc/rdma-core/tests";

/// Programs of the machine that they need.
pub const PROGRAMS: [&str; 2] = ["python3", "gzip"];

/// What became of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It found that it cannot run, for this reason.
    Skipped(String),
    /// It failed, or ended by an error.
    Failed(String),
}

/// The tests, unpacked.
pub struct Suite {
    root: PathBuf,
}

impl Suite {
    /// Downloads and unpacks them where they are not yet.
    ///
    /// They are unpacked for root too: many images leave out the documentation of the packages that
    /// they install.
    ///
    /// # Errors
    /// When apt cannot get them.
    pub fn provide(tools: &Toolbox) -> Result<Self> {
        let cache = paths::cache("pyverbs")?;
        let (root, fresh) = (cache.join("root"), cache.join("fresh"));
        if !root.is_dir() {
            eprintln!("unpacking {} into {}", PACKAGES.join(" "), root.display());
            let _ = fs::remove_dir_all(&fresh);
            for deb in Apt::system().anew().download(&PACKAGES, &cache.join("debs"))? {
                unpack(&deb, &fresh)?;
            }
            let packed = in_folder(&fresh.join(FOLDER), ".gz")?;
            Cmd::new(tools.program("gzip")?).arg("-d").args(packed).check()?;
            fs::rename(&fresh, &root).context("cannot name the unpacked tests")?;
        }
        Ok(Self { root })
    }

    /// The libraries that they link, for [`Toolbox::with_libraries`].
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH))
    }

    /// Runs those of no vendor beside a daemon, and returns what became of each.
    ///
    /// # Errors
    /// When they crash or cannot be started.
    pub fn run(&self, node: &Node) -> Result<BTreeMap<String, Outcome>> {
        self.run_tests(node, &self.modules()?)
    }

    /// Runs some of them: modules as `tests.test_qpex`, or single ones by their names in these.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_tests(
        &self,
        node: &Node,
        tests: &[impl AsRef<OsStr>],
    ) -> Result<BTreeMap<String, Outcome>> {
        let scratch = Scratch::new("pyverbs")?;
        let report = scratch.join("report");
        let gid = node.gid_index().to_string();
        let cmd = node
            .cmd("python3")?
            .arg(paths::repository().join("tests/pyverbs/report.py"))
            .arg(self.root.join(FOLDER))
            .arg(&report)
            .args(["--dev", node.device(), "--gid", &gid])
            .args(tests)
            .env("PYTHONPATH", self.root.join("usr/lib/python3/dist-packages"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Seconds, on a machine without other work.
            .limit(Duration::from_secs(300));
        let output = cmd.run()?;
        let text = fs::read_to_string(&report).unwrap_or_default();
        ensure!(output.success(), "{output}\nthe last test that ended:\n{:?}", text.lines().last());
        outcomes(&text)
    }

    fn modules(&self) -> Result<Vec<String>> {
        let files = in_folder(&self.root.join(FOLDER), ".py")?;
        let names = files.iter().filter_map(|file| file.file_stem()?.to_str());
        let ours = names.filter(|name| {
            name.starts_with("test_") && !NOT_OURS.iter().any(|other| name.starts_with(other))
        });
        Ok(ours.map(|name| format!("tests.{name}")).collect())
    }
}

/// Files of a folder whose names end so, sorted.
fn in_folder(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(end) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads what `report.py` wrote. A test with several lines has the outcome of the worst.
fn outcomes(report: &str) -> Result<BTreeMap<String, Outcome>> {
    let mut all = BTreeMap::new();
    for line in report.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(name), Some(outcome)) = (fields.next(), fields.next()) else {
            bail!("not a line of a report: {line}");
        };
        let reason = fields.next().unwrap_or_default().to_owned();
        let outcome = match outcome {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped(reason),
            _ => Outcome::Failed(reason),
        };
        let name = name.strip_prefix("tests.").unwrap_or(name).to_owned();
        let before = all.get(&name);
        if !matches!(before, Some(Outcome::Failed(_))) {
            all.insert(name, outcome);
        }
    }
    Ok(all)
}

/// When a test of the table is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// On a machine that lacks something.
    Sometimes,
}

/// The table of skipped tests.
pub struct Expected {
    rows: Vec<(String, When)>,
}

impl Expected {
    /// Finds its rows, such as ``| `test_flow.FlowTest.*` | always | no raw packets |``, in a
    /// document.
    ///
    /// # Errors
    /// When there are none.
    pub fn read(document: &str) -> Result<Self> {
        let mut rows = Vec::new();
        for line in document.lines().filter(|line| line.starts_with("| `test_")) {
            let mut cells = line.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
            let (Some(name), Some(when)) = (cells.next(), cells.next()) else {
                bail!("not a row of the table: {line}");
            };
            let when = if when == "always" { When::Always } else { When::Sometimes };
            rows.push((name.to_owned(), when));
        }
        ensure!(!rows.is_empty(), "no table of skipped tests");
        Ok(Self { rows })
    }

    /// Compares what happened with the table. Each line of the result is a difference.
    #[must_use]
    pub fn differences(&self, outcomes: &BTreeMap<String, Outcome>) -> Vec<String> {
        let mut differences = Vec::new();
        for (name, outcome) in outcomes {
            let when = self.rows.iter().find(|(row, _)| fits(row, name)).map(|(_, when)| *when);
            match (outcome, when) {
                (Outcome::Failed(why), _) => differences.push(format!("{name} fails: {why}")),
                (Outcome::Skipped(why), None) => {
                    differences.push(format!("{name} is skipped, the table has no row: {why}"));
                }
                (Outcome::Passed, Some(When::Always)) => {
                    differences.push(format!("{name} passes, the table says that it is skipped"));
                }
                _ => {}
            }
        }
        let names = || outcomes.keys();
        let unknown = self.rows.iter().filter(|(row, _)| !names().any(|name| fits(row, name)));
        differences.extend(unknown.map(|(row, _)| format!("no test fits the row {row}")));
        differences
    }
}

/// Whether a row is about a test: its name, or the beginning of it and a `*`.
fn fits(row: &str, name: &str) -> bool {
    row.strip_suffix('*').map_or(row == name, |beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| test | skipped | because |\n|---|---|---|\n\
        | `test_a.A.*` | always | no A |\n| `test_b.B.one` | without B | this machine |\n";

    fn of(report: &str) -> Vec<String> {
        Expected::read(TABLE).unwrap().differences(&outcomes(report).unwrap())
    }

    const AS_TOLD: &str = "tests.test_a.A.one\tskipped\tno\ntests.test_a.A.two\tskipped\tno\n\
        tests.test_b.B.one\tpassed\ntests.test_c.C.one\tpassed\n";

    #[test]
    fn a_report_as_the_table_says_has_no_differences() {
        assert_eq!(of(AS_TOLD), [""; 0]);
        assert_eq!(of(&AS_TOLD.replace("B.one\tpassed", "B.one\tskipped\thuge pages")), [""; 0]);
    }

    #[test]
    fn what_gets_better_or_worse_is_a_difference() {
        for (from, to, told) in [
            ("A.two\tskipped\tno", "A.two\tpassed", "test_a.A.two passes"),
            ("C.one\tpassed", "C.one\tskipped\twhy", "test_c.C.one is skipped"),
            ("A.one\tskipped\tno", "A.one\terror\twhy", "test_a.A.one fails: why"),
            (
                "C.one\tpassed",
                "C.one\tfailed\twhy\ntests.test_c.C.one\tpassed",
                "test_c.C.one fails",
            ),
            ("test_b", "test_d", "no test fits the row test_b.B.one"),
        ] {
            let differences = of(&AS_TOLD.replace(from, to));
            assert!(differences.len() == 1 && differences[0].starts_with(told), "{differences:?}");
        }
    }
}
