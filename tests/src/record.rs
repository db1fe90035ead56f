//! Which programs the tests of a run started: what docs/programs.md says is compared with it.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

/// A file that every test program adds its lines to.
pub const ENV: &str = "RNIC_TEST_PROGRAMS";

/// Adds the line `TEST PROGRAM` to the record, if there is one.
pub(crate) fn add(program: &str) {
    let (Some(path), Ok(own)) = (env::var_os(ENV), env::current_exe()) else { return };
    let own = own.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // Cargo adds a hash to the test's name.
    let test = own.rsplit_once('-').map_or(own.as_str(), |(test, _)| test);
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        // One call for each line: lists of tests run beside each other.
        let _ = file.write_all(format!("{test} {program}\n").as_bytes());
    }
}
