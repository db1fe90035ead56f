//! `cargo xtask sbom`: what the packages are made of, as CycloneDX 1.5 in JSON.
//!
//! The list has the crates that are compiled into the programs and libraries of the package, with
//! the checksums of `Cargo.lock`. What only builds or tests them is not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use system_tests::dist::cargo;
use system_tests::paths;

/// The crates that the package's programs and libraries are made of.
const PRODUCT: [&str; 5] = ["rnicd", "verbs-shim", "rdmacm-shim", "rspreload", "rnic-function"];

/// What of `cargo metadata` is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// Nothing for a dependency of the program itself, else `dev` or `build`.
    kind: Option<String>,
}

/// What of `Cargo.lock` is read.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Prints the list.
pub(crate) fn run() -> Result<()> {
    println!("{}", text()?);
    Ok(())
}

/// The list, the same for every build of one commit.
pub(crate) fn text() -> Result<String> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let options = ["--format-version", "1", "--locked", "--filter-platform", &target];
    let told = cargo().arg("metadata").args(options).check()?;
    let metadata: Metadata = serde_json::from_str(&told).context("cargo metadata")?;
    let lock = fs::read_to_string(paths::repository().join("Cargo.lock"))?;
    let lock: Lock = toml::from_str(&lock).context("Cargo.lock")?;
    Ok(serde_json::to_string_pretty(&list(&metadata, &lock)?)?)
}

fn list(metadata: &Metadata, lock: &Lock) -> Result<Value> {
    let links = links(metadata);
    let roots = metadata.packages.iter().filter(|package| PRODUCT.contains(&package.name.as_str()));
    let roots: Vec<&str> = roots.map(|package| package.id.as_str()).collect();
    let parts = reached(&roots, &links);
    let reference = |id: &str| -> Result<String> {
        let package = metadata.packages.iter().find(|package| package.id == id);
        package.map(purl).with_context(|| format!("cargo metadata has no package {id}"))
    };
    let mut packages: Vec<_> =
        metadata.packages.iter().filter(|package| parts.contains(package.id.as_str())).collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    let components: Vec<Value> = packages.iter().map(|package| component(package, lock)).collect();
    let mut dependencies = Vec::new();
    for package in &packages {
        let needed = links.get(package.id.as_str()).into_iter().flatten();
        let needed = needed.map(|id| reference(id)).collect::<Result<BTreeSet<_>>>()?;
        dependencies.push(json!({ "ref": purl(package), "dependsOn": needed }));
    }
    let version = packages.iter().find(|package| package.name == "rnicd").context("no rnicd")?;
    let product = json!({
        "type": "application", "bom-ref": "soft-rnic", "name": "soft-rnic",
        "version": version.version, "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    });
    let roots = roots.iter().map(|id| reference(id)).collect::<Result<BTreeSet<_>>>()?;
    dependencies.push(json!({ "ref": "soft-rnic", "dependsOn": roots }));
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": product },
        "components": components, "dependencies": dependencies,
    }))
}

/// Which packages each one is compiled with.
fn links(metadata: &Metadata) -> BTreeMap<&str, Vec<&str>> {
    fn of(node: &Node) -> (&str, Vec<&str>) {
        let is_part = |dep: &&Dependency| dep.dep_kinds.iter().any(|kind| kind.kind.is_none());
        let parts = node.deps.iter().filter(is_part).map(|dep| dep.pkg.as_str());
        (node.id.as_str(), parts.collect())
    }
    metadata.resolve.nodes.iter().map(of).collect()
}

/// The packages that some are made of, themselves too.
fn reached<'a>(roots: &[&'a str], links: &BTreeMap<&str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next = roots.to_vec();
    while let Some(id) = next.pop() {
        if found.insert(id) {
            next.extend(links.get(id).into_iter().flatten());
        }
    }
    found
}

fn component(package: &Package, lock: &Lock) -> Value {
    let mut part = json!({
        "type": "library", "bom-ref": purl(package), "purl": purl(package),
        "name": package.name, "version": package.version,
    });
    if let Some(license) = &package.license {
        // An older way to write OR.
        part["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(description) = &package.description {
        part["description"] = json!(description.trim());
    }
    let is_it = |locked: &&Locked| locked.name == package.name && locked.version == package.version;
    let checksum = lock.package.iter().find(is_it).and_then(|locked| locked.checksum.as_ref());
    if let (Some(_), Some(checksum)) = (&package.source, checksum) {
        part["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    part
}

/// The name of a crate in such lists.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_compiled_in_and_nothing_else() {
        let list: Value = serde_json::from_str(&text().unwrap()).unwrap();
        let parts = list["components"].as_array().unwrap();
        let part = |name: &str| parts.iter().find(|part| part["name"] == name);
        for ours in PRODUCT.iter().chain(&["rnic-core", "roce-wire"]) {
            assert!(part(ours).unwrap().get("hashes").is_none(), "{ours}");
        }
        let rustix = part("rustix").unwrap();
        assert_eq!(rustix["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(parts.iter().all(|part| part["licenses"][0]["expression"].is_string()));
        for other in ["system-tests", "xtask", "proptest", "loom"] {
            assert!(part(other).is_none(), "{other}");
        }
        let known: BTreeSet<_> = parts.iter().filter_map(|part| part["bom-ref"].as_str()).collect();
        assert_eq!(known.len(), parts.len());
        for entry in list["dependencies"].as_array().unwrap() {
            let mut needed = entry["dependsOn"].as_array().unwrap().iter();
            assert!(needed.all(|one| known.contains(one.as_str().unwrap())), "{entry}");
        }
    }
}
