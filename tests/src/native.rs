//! Helper programs for what a test's own code cannot do: an application that dies, misbehaves or
//! passes nonsense to library and daemon. Most are in C, against the public verbs header.
//!
//! Those in C have a folder each under `tests/`; `tests/common` is shared by all. Programs are
//! built where their sources have changed, and made part of the toolbox, so that a place starts
//! them like any other program.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::packages::Apt;
use crate::process::{Cmd, User, is_root};
use crate::{dist, paths};

/// An application that dies, forks, replaces itself or waits: `tests/victim`.
pub const VICTIM: &str = "victim";
/// An application that makes every mistake: `tests/errors`.
pub const ERRORS: &str = "errors";
/// Two processes, one operation that is refused: `tests/refusals`.
pub const REFUSALS: &str = "refusals";
/// A program that watches a page of its own memory: `tests/watch`.
pub const WATCH: &str = "watch";
/// Calls of librdmacm, right and wrong ones: `tests/cm`.
pub const CM: &str = "cm";
/// A program that knows only sockets, preloaded: `tests/sockets`.
pub const SOCKETS: &str = "sockets";
/// One end of a connection, which is killed in any state: `tests/ends`.
pub const ENDS: &str = "ends";
/// A program that receives from a core that only sends: `tests/sink`.
pub const SINK: &str = "sink";
/// Connections that come up and go down again: `tests/cycles`.
pub const CYCLES: &str = "cycles";
/// A program that makes as many objects as a device claims to support: `tests/promise`.
pub const PROMISE: &str = "promise";
/// Threads that share a context, and children that inherit it: `tests/crowd`.
pub const CROWD: &str = "crowd";
/// One of many programs that have queue pairs with each other: `tests/mesh`.
pub const MESH: &str = "mesh";
/// Two processes that move data by UCX: `tests/ucp`.
pub const UCP: &str = "ucp";
/// Threads that spin: `tests/spinners`.
pub const SPINNERS: &str = "spinners";
/// Runs a program where no process may reach another one's memory: `tests/sandbox`.
pub const SANDBOX: &str = "sandbox";
/// A client that attacks the daemon: the crate of this name, in Rust.
pub const HOSTILE: &str = "rnic-hostile";
/// A daemon whose engine processes for some users attack it: the crate of this name, in Rust.
pub const HOSTILE_ENGINE: &str = "rnic-hostile-engine";

/// Compiles [`VICTIM`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn victim() -> Result<PathBuf> {
    build(VICTIM, &["common", "victim"])
}

/// Compiles [`ERRORS`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn errors() -> Result<PathBuf> {
    build(ERRORS, &["common", "errors"])
}

/// Compiles [`REFUSALS`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn refusals() -> Result<PathBuf> {
    build(REFUSALS, &["common", "refusals"])
}

/// Compiles [`CM`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn cm() -> Result<PathBuf> {
    build(CM, &["cm"])
}

/// Compiles [`SOCKETS`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn sockets() -> Result<PathBuf> {
    build(SOCKETS, &["sockets"])
}

/// Compiles [`ENDS`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn ends() -> Result<PathBuf> {
    build(ENDS, &["ends"])
}

/// Compiles [`SINK`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn sink() -> Result<PathBuf> {
    build(SINK, &["common", "sink"])
}

/// Compiles [`CYCLES`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn cycles() -> Result<PathBuf> {
    build(CYCLES, &["cycles"])
}

/// Compiles [`PROMISE`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn promise() -> Result<PathBuf> {
    build(PROMISE, &["common", "promise"])
}

/// Compiles [`WATCH`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn watch() -> Result<PathBuf> {
    build(WATCH, &["watch"])
}

/// Compiles [`CROWD`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn crowd() -> Result<PathBuf> {
    build(CROWD, &["common", "crowd"])
}

/// Compiles [`MESH`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn mesh() -> Result<PathBuf> {
    build(MESH, &["common", "mesh"])
}

/// Compiles [`SPINNERS`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn spinners() -> Result<PathBuf> {
    build(SPINNERS, &["common", "spinners"])
}

/// Compiles [`UCP`], with UCX's headers, and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn ucp() -> Result<PathBuf> {
    provide_headers(&[("/usr/include/ucp/api/ucp.h", "libucx-dev")])?;
    build_with(UCP, &["common", "ucp"], &["-lucp", "-lucs"])
}

/// Compiles [`SANDBOX`] and returns the folder it is in.
///
/// # Errors
/// As [`build`].
pub fn sandbox() -> Result<PathBuf> {
    build(SANDBOX, &["sandbox"])
}

/// Builds [`HOSTILE`] and returns the folder it is in, which every user may enter.
///
/// # Errors
/// When cargo fails.
pub fn hostile() -> Result<PathBuf> {
    tool(HOSTILE)
}

/// Builds [`HOSTILE_ENGINE`], as [`hostile`].
///
/// # Errors
/// When cargo fails.
pub fn hostile_engine() -> Result<PathBuf> {
    tool(HOSTILE_ENGINE)
}

fn tool(name: &'static str) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut built_before = BUILT.lock().map_err(|_| anyhow!("an earlier build panicked"))?;
    if built_before.contains(name) {
        return folder();
    }
    let build = dist::cargo()
        .args(["build", "--profile", dist::TEST, "--quiet", "-p", name])
        .arg("--message-format=json-render-diagnostics")
        .limit(Duration::from_secs(600))
        .run()?;
    ensure!(build.success(), "{build}");
    let built = dist::artifacts(&build.stdout);
    let program = built.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    let folder = folder()?;
    dist::install(program.context("cargo made no program")?, &folder.join(name))?;
    built_before.insert(name);
    Ok(folder)
}

/// Compiles the program whose sources are the given folders under `tests/` and returns the folder
/// it is in. Needs a C compiler; the verbs header is installed (root) when it is missing.
///
/// # Errors
/// When header or compiler cannot be had, or the source does not compile without a warning.
pub fn build(program: &str, folders: &[&str]) -> Result<PathBuf> {
    build_with(program, folders, &[])
}

fn build_with(program: &str, folders: &[&str], libraries: &[&str]) -> Result<PathBuf> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().map_err(|_| anyhow!("an earlier build panicked"))?;
    let home = paths::repository().join("tests");
    let folder = folder()?;
    provide_headers(&HEADERS)?;
    let mut files = Vec::new();
    for source in folders {
        files.extend(sources(&home.join(source))?);
    }
    let cmd = Cmd::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(home.join("common"))
        .args(&files)
        .args(["-Wl,--as-needed", "-lrdmacm", "-libverbs"])
        .args(libraries)
        .limit(Duration::from_secs(60));
    // What it was built from, beside it.
    let made_of = folder.join(format!("{program}.made-of"));
    let key = key(&cmd, folders.iter().chain(&["common"]).map(|source| home.join(source)))?;
    let is_there = folder.join(program).is_file();
    if is_there && fs::read_to_string(&made_of).is_ok_and(|before| before == key) {
        return Ok(folder);
    }
    // Another test program may be running the old one: replace, do not overwrite.
    let fresh = folder.join(format!("{program}.{}", std::process::id()));
    cmd.arg("-o").arg(&fresh).check()?;
    let _ = fs::remove_file(&made_of);
    fs::rename(&fresh, folder.join(program))?;
    fs::write(&made_of, key)?;
    Ok(folder)
}

/// A text that changes with a compiler's command, with a file of these folders, and with a header
/// of [`HEADERS`].
fn key(cmd: &Cmd, folders: impl Iterator<Item = PathBuf>) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    cmd.to_string().hash(&mut hasher);
    let mut files = HEADERS.map(|(header, _)| PathBuf::from(header)).to_vec();
    for folder in folders {
        files.extend(paths::files_below(&folder)?);
    }
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).with_context(|| file.display().to_string())?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Where the programs are. The user of the tests can run them.
fn folder() -> Result<PathBuf> {
    match User::of_tests() {
        Some(_) => paths::public("native"),
        None => paths::cache("native"),
    }
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| format!("no sources at {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    Ok(files)
}

/// Headers that our C interface is compared with, and the packages that bring them.
pub const HEADERS: [(&str, &str); 2] = [
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
];

fn provide_headers(headers: &[(&str, &'static str)]) -> Result<()> {
    let missing = headers.iter().filter(|(header, _)| !Path::new(header).exists());
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    ensure!(is_root(), "the helper programs need {names}: only root installs packages");
    Apt::system().install(&packages)
}
