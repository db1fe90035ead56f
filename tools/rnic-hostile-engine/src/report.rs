//! What hostile engine processes did, and what they should not have been able to do, for the test
//! that started the daemon: lines of the file `hostile-report` beside the program.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the file is. The test has made it, for all users to write to.
pub(crate) fn place() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("hostile-report"))
}

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct Report(Arc<File>);

impl Report {
    pub(crate) fn open(place: &Path) -> Result<Self> {
        let file = File::options().read(true).append(true).open(place);
        Ok(Self(Arc::new(file.context("no report file")?)))
    }

    /// The number of this process among all hostile ones.
    pub(crate) fn number(&self) -> Result<usize> {
        self.did("Process");
        let mut text = String::new();
        (&*self.0).rewind()?;
        (&*self.0).read_to_string(&mut text)?;
        Ok(text.lines().filter(|line| *line == "did Process").count())
    }

    /// This was done.
    pub(crate) fn did(&self, what: &str) {
        self.write(&format!("did {what}\n"));
    }

    /// This was not refused.
    pub(crate) fn breach(&self, what: &str) {
        self.write(&format!("BREACH {what}\n"));
    }

    /// A line is one write, so that those of several processes do not mix.
    fn write(&self, line: &str) {
        let _ = (&*self.0).write_all(line.as_bytes());
    }
}
