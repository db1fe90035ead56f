//! A copy of the engine and of its tests, with every mutation in it.
//!
//! The copy is a workspace of its own below `target/`. Its engine reads the name of one mutation
//! from the environment; the engine itself knows of none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use system_tests::paths;
use toml::{Table, Value};

use super::mutations::Mutations;

/// The crates that the tests of the engine are built from.
const CRATES: [&str; 4] = ["roce-wire", "rnic-abi", "rnic-core", "rnic-sim"];
const ENGINE: &str = "crates/rnic-core/src";
/// Names the mutation of one run.
pub(super) const SWITCH: &str = "RNIC_MUTATION";

/// Updates the copy. Unchanged files keep their time stamp, so that cargo does not build them
/// again.
pub(super) fn write(mutations: &Mutations) -> Result<PathBuf> {
    let (from, to) = (paths::repository(), paths::target().join("mutated/source"));
    let mut written = BTreeSet::new();
    for name in CRATES {
        copy(from, &to, &Path::new("crates").join(name), mutations, &mut written)?;
    }
    for file in mutations.files() {
        if !written.contains(&Path::new(ENGINE).join(file)) {
            bail!("a mutation is for {ENGINE}/{file}, which does not exist");
        }
    }
    let lock = fs::read_to_string(from.join("Cargo.lock"))?;
    // Cargo removes from the lock file what the copy does not need, so only a changed lock file is
    // copied.
    let seen = to.join("Cargo.lock.seen");
    if fs::read_to_string(&seen).ok().as_ref() != Some(&lock) {
        fs::write(to.join("Cargo.lock"), &lock)?;
        fs::write(&seen, &lock)?;
    }
    update(&to.join("Cargo.toml"), &manifest(&fs::read_to_string(from.join("Cargo.toml"))?)?)?;
    remove_others(&to.join("crates"), &to, &written)?;
    Ok(to)
}

fn copy(
    from: &Path,
    to: &Path,
    below: &Path,
    mutations: &Mutations,
    written: &mut BTreeSet<PathBuf>,
) -> Result<()> {
    let folder = from.join(below);
    fs::create_dir_all(to.join(below))?;
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(from, to, &path, mutations, written)?;
            continue;
        }
        let bytes = fs::read(entry.path())?;
        let target = to.join(&path);
        match path.strip_prefix(ENGINE).ok().and_then(Path::to_str) {
            Some(file) => update(&target, &engine(file, &String::from_utf8(bytes)?, mutations)?)?,
            None if fs::read(&target).ok().as_ref() != Some(&bytes) => fs::write(&target, bytes)?,
            None => {}
        }
        written.insert(path);
    }
    Ok(())
}

/// A file of the engine with its mutations; the crate's root gets the switch too.
fn engine(file: &str, source: &str, mutations: &Mutations) -> Result<String> {
    let text = mutations.apply(file, source)?;
    if file != "lib.rs" {
        return Ok(text);
    }
    let names = mutations.names();
    Ok(format!(
        "{text}
/// Whether this process runs with the mutation of this number.
pub(crate) fn mutated(number: usize) -> bool {{
    static NAMES: &[&str] = &{names:?};
    static CHOSEN: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    let chosen = *CHOSEN.get_or_init(|| {{
        let name = std::env::var({SWITCH:?}).ok()?;
        let number = NAMES.iter().position(|known| *known == name);
        assert!(number.is_some(), \"{SWITCH}={{name}} is no mutation\");
        number
    }});
    chosen == Some(number)
}}
"
    ))
}

/// The workspace's manifest without the crates that the copy lacks.
fn manifest(text: &str) -> Result<String> {
    let mut manifest: Table = toml::from_str(text)?;
    let workspace = manifest.get_mut("workspace").and_then(Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml is no workspace")?;
    for key in ["exclude", "default-members"] {
        workspace.remove(key);
    }
    workspace.insert("members".into(), Value::Array(vec!["crates/*".into()]));
    let dependencies = workspace.get_mut("dependencies").and_then(Value::as_table_mut);
    let dependencies = dependencies.context("Cargo.toml has no workspace dependencies")?;
    let is_missing = |value: &Value| value.get("path").is_some();
    dependencies.retain(|name, value| CRATES.contains(&name) || !is_missing(value));
    Ok(toml::to_string(&manifest)?)
}

fn update(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Removes files that were copied once and no longer exist.
fn remove_others(folder: &Path, root: &Path, written: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, root, written)?;
        } else if !written.contains(path.strip_prefix(root)?) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
