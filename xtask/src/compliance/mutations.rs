//! The mutations that tests must notice, each a few small edits of the engine's source.
//!
//! They are files of `crates/rnic-sim/mutations`, beside the tests that notice them. Edits of the
//! same name belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use system_tests::paths;

use super::splice::{Edit, splice};

const FOLDER: &str = "crates/rnic-sim/mutations";

/// One edit, as a file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    /// The rule of `docs/compliance.md` that it breaks, or the bug that it is.
    name: String,
    /// The same for all of a file of mutations.
    #[serde(skip)]
    file: String,
    function: String,
    find: String,
    #[serde(default)]
    within: String,
    replace: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Below `crates/rnic-core/src`.
    file: String,
    mutation: Vec<Mutation>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Mutations {
    all: Vec<Mutation>,
    /// Each name once; its place is the number of its switch.
    names: Vec<String>,
}

impl Mutations {
    pub(super) fn read() -> Result<Self> {
        let folder = paths::repository().join(FOLDER);
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
            all.extend(
                file.mutation.into_iter().map(|it| Mutation { file: file.file.clone(), ..it }),
            );
        }
        let names: BTreeSet<String> = all.iter().map(|it| it.name.clone()).collect();
        Ok(Self { all, names: names.into_iter().collect() })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Where a mutation edits, as `file.rs::function`, sorted.
    pub(super) fn places(&self, name: &str) -> Vec<String> {
        let edits = self.all.iter().filter(|it| it.name == name);
        let places: BTreeSet<String> =
            edits.map(|it| format!("{}::{}", it.file, it.function)).collect();
        places.into_iter().collect()
    }

    /// The files that any edit changes, below `crates/rnic-core/src`.
    pub(super) fn files(&self) -> BTreeSet<&str> {
        self.all.iter().map(|it| it.file.as_str()).collect()
    }

    /// `source`, the text of `file`, with each of its mutations behind a switch.
    pub(super) fn apply(&self, file: &str, source: &str) -> Result<String> {
        let numbers: BTreeMap<&str, usize> =
            self.names.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        let mut edits = Vec::new();
        for it in self.all.iter().filter(|it| it.file == file) {
            let Some(number) = numbers.get(it.name.as_str()) else { bail!("{} is new", it.name) };
            edits.push(Edit {
                number: *number,
                function: &it.function,
                find: &it.find,
                within: &it.within,
                replace: &it.replace,
            });
        }
        splice(source, &edits).with_context(|| format!("{FOLDER}: an edit of {file}"))
    }
}
