//! Optimized binaries and drop-in libraries, laid out as a user would install them:
//! `bin/rnicd`, `bin/rnic`, `lib/libibverbs.so.1`, `lib/librdmacm.so.1`,
//! `lib/librnic_function.so`, `lib/rsocket/librspreload.so`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::lab::long_form;
use crate::paths;
use crate::process::{Cmd, User, tail};

/// Names a finished dist folder for child processes, so that they do not build again.
pub const DIST_ENV: &str = "RNIC_DIST";

/// Cargo's profile of what a user gets.
pub const RELEASE: &str = "release";

/// Cargo's profile of what the tests run: optimized, and built soon rather than at its fastest.
pub const TEST: &str = "test-dist";

/// Where each artifact of the build goes.
const LAYOUT: [(&str, &str); 6] = [
    ("rnicd", "bin/rnicd"),
    ("rnic", "bin/rnic"),
    ("libibverbs.so", "lib/libibverbs.so.1"),
    ("librdmacm.so", "lib/librdmacm.so.1"),
    ("librnic_function.so", "lib/librnic_function.so"),
    ("librspreload.so", "lib/rsocket/librspreload.so"),
];

/// A finished dist folder.
#[derive(Clone, Debug)]
pub struct Dist {
    root: PathBuf,
}

type Once = OnceLock<Result<Dist, String>>;

impl Dist {
    /// What the tests of this process run: `RNIC_DIST`, else built once, in the long form as a
    /// user gets it.
    ///
    /// # Errors
    /// When the build fails or the folder is incomplete.
    pub fn get() -> Result<&'static Self> {
        static DIST: Once = Once::new();
        if long_form() {
            return Self::release();
        }
        Self::once(&DIST, TEST, &paths::target().join(TEST).join("dist"))
    }

    /// What a user gets: `RNIC_DIST`, else built once into `target/dist`.
    ///
    /// # Errors
    /// As [`Dist::get`].
    pub fn release() -> Result<&'static Self> {
        static DIST: Once = Once::new();
        Self::once(&DIST, RELEASE, &paths::target().join("dist"))
    }

    fn once(dist: &'static Once, profile: &str, root: &Path) -> Result<&'static Self> {
        let dist = dist.get_or_init(|| {
            match std::env::var_os(DIST_ENV) {
                Some(root) => Self::open(Path::new(&root)),
                None => Self::build(profile, root),
            }
            .and_then(|dist| match User::of_tests() {
                Some(_) => dist.copy_to(&paths::public("dist")?),
                None => Ok(dist),
            })
            .map_err(|error| format!("{error:#}"))
        });
        dist.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// Builds everything with one of cargo's profiles and copies it to `root`.
    ///
    /// # Errors
    /// When cargo fails, or a package does not produce what [`LAYOUT`] expects of it.
    pub fn build(profile: &str, root: &Path) -> Result<Self> {
        Self::build_with(profile, &[], root)
    }

    /// The same with more arguments for cargo.
    ///
    /// # Errors
    /// As [`Dist::build`].
    pub fn build_with(profile: &str, more: &[&str], root: &Path) -> Result<Self> {
        Self::of(compiler(profile, paths::repository(), &paths::target()).args(more), root)
    }

    /// The same from another checkout, with a target folder of its own.
    ///
    /// # Errors
    /// As [`Dist::build`].
    pub fn build_in(source: &Path, target: &Path, profile: &str, root: &Path) -> Result<Self> {
        Self::of(compiler(profile, source, target).dir(source), root)
    }

    /// What a user gets, with more flags for the compiler and with a target folder of its own.
    ///
    /// # Errors
    /// As [`Dist::build`].
    pub fn build_flagged(flags: &[String], target: &Path, root: &Path) -> Result<Self> {
        let all = [&[without_places(paths::repository(), target)], flags].concat().join("\x1f");
        let build = compiler(RELEASE, paths::repository(), target);
        Self::of(build.env("CARGO_ENCODED_RUSTFLAGS", all), root)
    }

    fn of(build: Cmd, root: &Path) -> Result<Self> {
        let build = build.limit(Duration::from_secs(1800)).run()?;
        // Standard output has cargo's messages for us, standard error those for the user.
        ensure!(build.success(), "the build failed:\n{}", tail(&build.stderr, 60));
        let artifacts = artifacts(&build.stdout);
        for (name, place) in LAYOUT {
            let built = artifacts
                .iter()
                .find(|path| path.file_name().is_some_and(|file| file == name))
                .with_context(|| format!("the build made no {name}"))?;
            install(built, &root.join(place))?;
        }
        Self::open(root)
    }

    /// Its files, as named from [`Dist::root`].
    pub fn files() -> impl Iterator<Item = &'static str> {
        LAYOUT.iter().map(|(_, place)| *place)
    }

    /// A dist folder that was built before.
    ///
    /// # Errors
    /// When a file of it is missing.
    pub fn open(root: &Path) -> Result<Self> {
        for (_, place) in LAYOUT {
            if !root.join(place).is_file() {
                bail!("{} is incomplete: no {place}", root.display());
            }
        }
        Ok(Self { root: root.to_owned() })
    }

    /// The same in another folder: for users who may not enter the checkout.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn copy_to(&self, root: &Path) -> Result<Self> {
        for (_, place) in LAYOUT {
            install(&self.root.join(place), &root.join(place))?;
        }
        Self::open(root)
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `bin/NAME`.
    #[must_use]
    pub fn bin(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// The folder of the drop-in libraries.
    #[must_use]
    pub fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }
}

/// Cargo, about to compile everything of a checkout.
fn compiler(profile: &str, source: &Path, target: &Path) -> Cmd {
    let build = cargo()
        .args(["build", "--profile", profile, "--quiet"])
        .arg("--message-format=json-render-diagnostics")
        .args(["-p", "rnicd", "-p", "verbs-shim", "-p", "rdmacm-shim", "-p", "rspreload"])
        .args(["-p", "rnic-function"])
        .env("CARGO_TARGET_DIR", target);
    if profile == RELEASE {
        build.env("CARGO_ENCODED_RUSTFLAGS", without_places(source, target))
    } else {
        build
    }
}

/// Flags with which no place of this machine gets into what is compiled: else a build in another
/// folder has other bytes.
fn without_places(source: &Path, target: &Path) -> String {
    let home = std::env::home_dir().unwrap_or_default().join(".cargo");
    let cargo = std::env::var_os("CARGO_HOME").map_or(home, PathBuf::from);
    let given = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut flags: Vec<_> = given.split_whitespace().map(str::to_owned).collect();
    for (place, name) in [(&*cargo, "/cargo"), (source, "/soft-rnic"), (target, "/target")] {
        flags.push(format!("--remap-path-prefix={}={name}", place.display()));
    }
    flags.join("\x1f")
}

/// Runs cargo in the repository.
#[must_use]
pub fn cargo() -> Cmd {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Cmd::new(program).dir(paths::repository())
}

/// The files that cargo's JSON messages name.
pub(crate) fn artifacts(messages: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        if message["reason"] == "compiler-artifact" {
            let files = message["filenames"].as_array().into_iter().flatten();
            paths.extend(files.filter_map(Value::as_str).map(PathBuf::from));
        }
    }
    paths
}

/// Replaces a file in one step: a library that a running program has mapped must not change.
pub(crate) fn install(from: &Path, to: &Path) -> Result<()> {
    let dir = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let staged = to.with_extension("new");
    fs::copy(from, &staged).with_context(|| format!("cannot write {}", staged.display()))?;
    fs::rename(&staged, to).with_context(|| format!("cannot write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_read_from_cargo_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","filenames":["/t/release/libibverbs.so"]}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\nnot json\n"
        );
        assert_eq!(artifacts(messages), [PathBuf::from("/t/release/libibverbs.so")]);
    }
}
