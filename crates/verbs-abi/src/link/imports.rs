//! An import library: what the linker needs to know about a shared library that is not built yet.

use std::{fmt::Write as _, process::Command};

use super::{Table, cdylib_link_arg, out_dir, write};

/// Compiles an empty-bodied library with the soname and versions of the table at `table_path` and
/// links against it.
///
/// The result has `DT_NEEDED soname` and versioned references, with no build order between the two
/// cdylibs and without the system's development packages. The table's path is relative to the
/// package.
///
/// # Panics
/// With a message for the person building when the table has a mistake or there is no C compiler.
pub fn import_library(table_path: &str, soname: &str) {
    let table = Table::load(table_path);
    let directory = out_dir().join("import");
    std::fs::create_dir_all(&directory).expect("create the import directory");
    let (source, map) = (directory.join("import.c"), directory.join("import.map"));
    write(&source, &empty_bodies(&table));
    write(&map, &default_versions(&table));

    let library = soname.strip_suffix(".1").expect("the soname ends in .1");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-fPIC", "-w", "-o"])
        .arg(directory.join(library))
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg(&source)
        .status()
        .unwrap_or_else(|error| {
            panic!("cannot run the C compiler `{compiler}`: {error}; install gcc or set CC")
        });
    assert!(status.success(), "`{compiler}` could not build the import library for {soname}");

    println!("cargo::rustc-link-arg=-L{}", directory.display());
    // The library is part of the interface even while nothing of it is called: programs rely on it
    // being loaded.
    cdylib_link_arg(&format!("-Wl,--push-state,--no-as-needed,-l:{library},--pop-state"));
    println!("cargo::rustc-link-arg=-l:{library}");
}

fn empty_bodies(table: &Table) -> String {
    table.exports.iter().filter(|export| export.default && !export.is_data()).fold(
        String::new(),
        |mut text, export| {
            writeln!(text, "void {}(void) {{}}", export.symbol).expect("writing to a string");
            text
        },
    )
}

/// A version script with each name in its default node only: there is one definition of each name
/// to version.
fn default_versions(table: &Table) -> String {
    Table {
        nodes: table.nodes.clone(),
        exports: table.exports.iter().filter(|export| export.default).cloned().collect(),
    }
    .version_script()
}
