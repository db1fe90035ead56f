//! Build-script helper: turns an exports table into a cdylib with a soname and symbol versions.
//!
//! rustc gives every cdylib its own anonymous version script, so `#[no_mangle]` functions can never
//! carry a version. Each exported name is therefore a one-instruction trampoline written in
//! assembly whose `.symver` names the version; a second version script, made from the same table,
//! defines the nodes. This needs LLD, which refuses neither script; GNU ld refuses to combine the
//! two.

mod imports;
mod table;

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

pub use imports::import_library;
pub use table::{Export, Node, Table};

/// Emits everything cargo needs to link the package's cdylib as `soname` with the versions of the
/// table at `table_path`.
///
/// Writes `exports.map` and `exports.rs` into `OUT_DIR`; the library's root module includes the
/// latter with `include!(concat!(env!("OUT_DIR"), "/exports.rs"));`. The table's path is relative
/// to the package.
///
/// # Panics
/// With a message for the person building when the table has a mistake or the environment
/// is not a build script's.
pub fn cdylib(table_path: &str, soname: &str) {
    let table = Table::load(table_path);
    let out_dir = out_dir();
    let map = out_dir.join("exports.map");
    write(&map, &table.version_script());
    write(
        &out_dir.join("exports.rs"),
        &table.trampolines(&env_var("CARGO_CFG_TARGET_ARCH"), &label_prefix(soname)),
    );

    cdylib_link_arg(&format!("-Wl,--version-script={}", map.display()));
    cdylib_link_arg(&format!("-Wl,-soname,{soname}"));
    // Applications dlclose modules that load us, and our threads and thread-local destructors must
    // survive that.
    cdylib_link_arg("-Wl,-z,nodelete");
    cdylib_link_arg("-fuse-ld=lld");
    if let Some(directory) = bundled_lld() {
        cdylib_link_arg(&format!("-B{}", directory.display()));
    }
    println!("cargo::rerun-if-changed=build.rs");
    soname_symlinks(&out_dir, soname);
}

/// The directory with the `ld.lld` wrapper that rustup toolchains carry, if this toolchain has one.
fn bundled_lld() -> Option<PathBuf> {
    let output = Command::new(env_var("RUSTC")).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    let directory = sysroot.join("lib/rustlib").join(env_var("HOST")).join("bin/gcc-ld");
    directory.join("ld.lld").exists().then_some(directory)
}

/// Makes `libX.so.1 -> libX.so` where cargo puts the library, so that `LD_LIBRARY_PATH` needs no
/// install step.
///
/// `cargo build` copies it to the profile directory; for a test's dependency it stays in `deps`.
fn soname_symlinks(out_dir: &Path, soname: &str) {
    let file_name = soname.strip_suffix(".1").expect("the soname ends in .1");
    // OUT_DIR is <profile>/build/<package>-<hash>/out.
    let profile =
        out_dir.ancestors().nth(3).expect("OUT_DIR lies three levels below the profile directory");
    for directory in [profile.to_path_buf(), profile.join("deps")] {
        fs::create_dir_all(&directory).expect("create the output directory");
        let link = directory.join(soname);
        if fs::read_link(&link).is_ok_and(|target| target == Path::new(file_name)) {
            continue;
        }
        // Absent on a first build; anything else that is in the way shows as an error of the next
        // line.
        let _ = fs::remove_file(&link);
        symlink(file_name, &link)
            .unwrap_or_else(|error| panic!("cannot make the link {}: {error}", link.display()));
    }
}

/// `libibverbs.so.1` gives `__ibverbs_v`: labels of two libraries must differ when one test links
/// both.
fn label_prefix(soname: &str) -> String {
    let stem = soname
        .strip_prefix("lib")
        .and_then(|rest| rest.split('.').next())
        .expect("the soname starts with lib");
    format!("__{stem}_v")
}

fn cdylib_link_arg(arg: &str) {
    println!("cargo::rustc-cdylib-link-arg={arg}");
}

fn out_dir() -> PathBuf {
    PathBuf::from(env_var("OUT_DIR"))
}

fn env_var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: call this from a build script"))
}

fn write(path: &Path, text: &str) {
    fs::write(path, text)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}
