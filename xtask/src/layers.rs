//! Which crate may depend on which: the architecture, checked.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use system_tests::dist::cargo;
use system_tests::paths;

/// Each crate of the workspace and the crates of ours that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("roce-wire", &[]),
    ("rnic-abi", &[]),
    ("verbs-abi", &[]),
    ("xdp-io", &[]),
    ("rnic-explain", &["roce-wire", "rnic-page"]),
    ("rnic-core", &["roce-wire", "rnic-abi"]),
    ("rnic-sim", &["rnic-core", "roce-wire", "rnic-abi"]),
    ("rnic-page", &["roce-wire"]),
    ("rnic-lab", &["rnic-sim", "rnic-core", "rnic-page", "roce-wire", "rnic-abi"]),
    (
        "rnic-fuzz-targets",
        &["rnic-sim", "rnic-core", "rnic-explain", "rnic-host", "roce-wire", "rnic-abi"],
    ),
    ("verbs-shim", &["rnic-abi", "verbs-abi"]),
    ("rdmacm-shim", &["rnic-abi", "verbs-abi"]),
    ("rspreload", &["rnic-abi", "verbs-abi"]),
    ("rnic-net", &["roce-wire", "rnic-abi", "rnic-core"]),
    ("rnic-host", &["roce-wire", "rnic-abi", "rnic-core", "rnic-net", "xdp-io"]),
    ("rnic-function", &["rnic-abi", "rnic-host"]),
    (
        "rnicd",
        &[
            "roce-wire",
            "rnic-explain",
            "rnic-lab",
            "rnic-page",
            "rnic-abi",
            "rnic-core",
            "rnic-net",
            "rnic-host",
            "xdp-io",
        ],
    ),
    ("rnic-bench", &["roce-wire", "xdp-io"]),
    ("rnic-hostile", &["rnic-abi"]),
    ("rnic-hostile-engine", &["rnicd", "rnic-host", "rnic-abi"]),
    ("manual", &["rnicd"]),
    ("system-tests", &[]),
    ("testbed", &[]),
    ("xtask", &["system-tests"]),
];

/// The modules of a crate, from the bottom to the top: each may use those of earlier rows only, so
/// that it can be read without those above it.
struct Rows {
    source: &'static str,
    rows: &'static [&'static [&'static str]],
}

const ENGINE: Rows = Rows {
    source: "crates/rnic-core/src",
    rows: &[
        &["counting", "groups", "ids", "profile", "secret", "slab", "time", "transport"],
        &["cm", "command", "permutation", "ports", "wheel"],
        &["owned", "qpn"],
        &["ah", "by_reference", "clients", "cq", "modify_qp", "mr"],
        &["active", "batch", "config", "event", "outbox", "recv_queue"],
        &["counters", "srq"],
        &["xrc"],
        &["shared"],
        &["management", "qp"],
        &["delivery"],
        &["egress", "ingress", "view"],
        &["engine"],
        &["commands", "leap"],
    ],
};

const HOST: Rows = Rows {
    source: "crates/rnic-host/src",
    rows: &[
        &["counters", "memory", "refusal", "report", "settings", "system"],
        &["thread"],
        &["discard", "observe"],
        &["dma", "quota", "wire"],
        &["inspect", "pcapng"],
        &["shard"],
        &["server"],
        &["satellite"],
    ],
};

const DAEMON: Rows = Rows {
    source: "crates/rnicd/src",
    rows: &[
        &["config", "counted", "http", "log", "resolver", "system"],
        &["connections", "control_socket", "metrics"],
        &["users"],
        &["cli", "device", "engine_process", "files"],
        &["check"],
        &["daemon"],
        &["bin"],
    ],
};

/// Crates that must work without an operating system, with their default features.
const SANS_IO: [&str; 3] = ["roce-wire", "rnic-abi", "rnic-core"];

/// Crates that speak to an operating system; none of [`SANS_IO`] may reach one of them.
const OPERATING_SYSTEM: [&str; 5] = ["libc", "rustix", "nix", "memmap2", "mio"];

/// Crates without a line of unsafe code.
const SAFE: [&str; 7] = [
    "roce-wire",
    "rnic-explain",
    "rnic-core",
    "rnic-sim",
    "rnic-page",
    "rnic-lab",
    "rnic-fuzz-targets",
];

pub(crate) fn check() -> Result<()> {
    let metadata = metadata()?;
    let mut faults = arrow_faults(&metadata)?;
    for name in SANS_IO {
        faults.extend(system_faults(name)?);
    }
    for name in SAFE {
        let file = folder(&metadata, name)?.join("src/lib.rs");
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        if !text.contains("#![forbid(unsafe_code)]") {
            faults.push(format!("{name} must forbid unsafe code in its lib.rs"));
        }
    }
    for crate_rows in [ENGINE, HOST, DAEMON] {
        faults.extend(module_faults(&crate_rows)?);
    }
    if !faults.is_empty() {
        bail!("the layering is broken:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Modules of a crate that use one that is not below them.
fn module_faults(of: &Rows) -> Result<Vec<String>> {
    let root = paths::repository().join(of.source);
    let mut faults = Vec::new();
    for path in paths::files_below(&root)? {
        let name = path.strip_prefix(&root)?.display().to_string();
        if name != "lib.rs" {
            faults.extend(upward(of, &name, &fs::read_to_string(&path)?));
        }
    }
    Ok(faults)
}

/// What a file of a crate uses that is not below it.
fn upward(of: &Rows, file: &str, text: &str) -> Vec<String> {
    let row = |module: &str| of.rows.iter().position(|row| row.contains(&module));
    let module = file.split(['/', '.']).next().unwrap_or_default();
    let Some(own) = row(module) else {
        return vec![format!("{}/{file} has no place in xtask/src/layers.rs", of.source)];
    };
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let uses = lines.flat_map(|line| line.split("crate::").skip(1));
    let names = uses.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
    let mut faults: Vec<String> = names
        .flatten()
        .filter(|name| *name != module && row(name).is_some_and(|other| other >= own))
        .map(|name| format!("{}/{file} must not use {name}", of.source))
        .collect();
    faults.sort();
    faults.dedup();
    faults
}

/// The folder of one of our crates.
fn folder(metadata: &Value, name: &str) -> Result<PathBuf> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let package = packages.iter().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("there is no crate {name}"))?;
    Ok(PathBuf::from(manifest).with_file_name(""))
}

fn metadata() -> Result<Value> {
    let text = cargo().args(["metadata", "--format-version", "1", "--no-deps"]).check()?;
    serde_json::from_str(&text).context("cargo metadata printed no JSON")
}

/// Dependencies between our crates that [`ARROWS`] does not have, and arrows that no dependency
/// uses. Dev-dependencies are free: they are no part of what is shipped.
fn arrow_faults(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let name_of = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let ours: Vec<_> = packages.iter().map(name_of).collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = name_of(package);
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            faults.push(format!("{name} has no place in xtask/src/layers.rs"));
            continue;
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let shipped = dependencies.filter(|dependency| dependency["kind"] != "dev").map(name_of);
        let used: Vec<_> = shipped.filter(|target| ours.contains(target)).collect();
        for target in used.iter().filter(|target| !allowed.contains(&target.as_str())) {
            faults.push(format!("{name} must not depend on {target}"));
        }
        let is_unused = |target: &&&str| {
            ours.iter().any(|our| our == **target) && !used.iter().any(|used| used == **target)
        };
        for target in allowed.iter().filter(is_unused) {
            faults.push(format!("{name} does not use {target}: xtask/src/layers.rs allows it"));
        }
    }
    Ok(faults)
}

/// Crates of the operating system among everything that a crate is built from.
fn system_faults(name: &str) -> Result<Vec<String>> {
    let tree = cargo().args(["tree", "-p", name, "-e", "normal", "--prefix", "none"]).check()?;
    let reached = tree.lines().filter_map(|line| line.split_whitespace().next());
    let mut found: Vec<_> = reached.filter(|dep| OPERATING_SYSTEM.contains(dep)).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found.into_iter().map(|dep| format!("{name} must not reach {dep}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_module_that_uses_one_above_it_is_a_fault() {
        let text = "use crate::shared::Ctx;\nuse crate::slab::Slab;\n// crate::engine is above\n";
        assert_eq!(
            upward(&ENGINE, "cq.rs", text),
            ["crates/rnic-core/src/cq.rs must not use shared"]
        );
        assert_eq!(upward(&ENGINE, "qp/mod.rs", text), [""; 0]);
        assert_eq!(upward(&ENGINE, "new.rs", text).len(), 1);
    }

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({"name": name, "dependencies": dependencies})
    }

    #[test]
    fn an_arrow_against_the_architecture_is_a_fault() {
        let metadata = json!({"packages": [
            package("roce-wire", &[("rnic-core", None)]),
            package("rnic-core", &[("roce-wire", None), ("proptest", Some("dev"))]),
        ]});
        let faults = arrow_faults(&metadata).unwrap();
        assert_eq!(faults, ["roce-wire must not depend on rnic-core"]);
    }

    #[test]
    fn an_arrow_that_no_dependency_uses_is_a_fault() {
        let metadata = json!({"packages": [
            package("roce-wire", &[]),
            package("rnic-core", &[("roce-wire", Some("dev"))]),
        ]});
        let faults = arrow_faults(&metadata).unwrap();
        assert_eq!(faults, ["rnic-core does not use roce-wire: xtask/src/layers.rs allows it"]);
    }

    #[test]
    fn dev_dependencies_are_free() {
        let metadata = json!({"packages": [
            package("roce-wire", &[("rnic-core", Some("dev"))]),
            package("rnic-core", &[("roce-wire", None)]),
        ]});
        assert!(arrow_faults(&metadata).unwrap().is_empty());
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        let metadata = json!({"packages": [package("novelty", &[])]});
        assert_eq!(arrow_faults(&metadata).unwrap().len(), 1);
    }
}
