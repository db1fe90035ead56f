//! The checker program: built from C against the public verbs header, run against any device.
//!
//! Its source says what it checks. Here it is compiled once per run and made part of the toolbox,
//! so that a [`Dialogue`](crate::programs::Dialogue) can name it like any other program.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::native;

/// The program's name.
pub const PROGRAM: &str = "checker";

/// Compiles the checker and returns the folder it is in.
///
/// # Errors
/// As [`native::build`].
pub fn build() -> Result<PathBuf> {
    native::build(PROGRAM, &["checker"])
}

/// The rate in MB/s, both directions together, that one end of a checker printed at its end.
///
/// # Errors
/// When it printed none.
pub fn megabytes_per_second(printed: &str) -> Result<f64> {
    let line = printed.lines().find(|line| line.starts_with("checker: ok"));
    let rate = line.and_then(|line| line.strip_suffix(" MB/s")?.rsplit(' ').next()?.parse().ok());
    rate.with_context(|| format!("no rate in what the checker printed:\n{printed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_last_number_of_the_line() {
        let line =
            "checker: ok, 9 messages out, 7 noticed in, 1.5 MB out, 1.5 MB in, 0.500 s, 6.0 MB/s\n";
        assert_eq!(megabytes_per_second(line).unwrap(), 6.0);
        assert!(megabytes_per_second("checker: no progress").is_err());
    }
}
