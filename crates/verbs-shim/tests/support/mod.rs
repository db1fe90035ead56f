//! The libraries under test as cargo built them, and what readelf says about ELF files.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The directory with this build's `libibverbs.so.1` and `librdmacm.so.1`: that of the test itself.
pub(crate) fn library_dir() -> PathBuf {
    let executable = env::current_exe().expect("the test has a path");
    executable.parent().expect("a file lies in a directory").to_path_buf()
}

/// The lines that readelf prints for a file; none when it is not an ELF file.
pub(crate) fn readelf(option: &str, file: &Path) -> Vec<String> {
    let output = Command::new("readelf").args(["-W", option]).arg(file).output();
    let output = output.unwrap_or_else(|error| panic!("readelf: {error}; install binutils"));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Values of one tag of the dynamic section, such as `NEEDED` or `SONAME`.
pub(crate) fn dynamic(file: &Path, tag: &str) -> Vec<String> {
    let tag = format!("({tag})");
    let lines = readelf("-d", file).into_iter().filter(|line| line.contains(&tag));
    lines
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}
