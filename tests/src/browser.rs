//! A real browser without a window: Debian's chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::packages::Toolbox;
use crate::paths::Scratch;
use crate::process::{Cmd, Output};

/// The program that a [`Browser`] needs.
pub const PROGRAM: &str = "chromium-headless-shell";

/// The file that says where letters are.
const FONTS: &str = "fonts.conf";

/// A browser.
pub struct Browser {
    program: PathBuf,
    libraries: Vec<PathBuf>,
    profile: Scratch,
}

/// Width and height of a window.
pub type Size = (u32, u32);

impl Browser {
    /// The browser of a toolbox that provides [`PROGRAM`].
    ///
    /// # Errors
    /// When it has none.
    pub fn new(tools: &Toolbox) -> Result<Self> {
        let program = tools.program(PROGRAM)?;
        let profile = Scratch::new("browser")?;
        // Letters that were unpacked are where no program looks for them.
        let unpacked = tools.unpacked().map(|root| root.join("usr/share/fonts"));
        let folders = unpacked.into_iter().chain([PathBuf::from("/usr/share/fonts")]);
        let folders: String =
            folders.map(|folder| format!("<dir>{}</dir>", folder.display())).collect();
        let cache = profile.join("fonts");
        let fonts = format!(
            "<?xml version=\"1.0\"?><fontconfig>\
             <include ignore_missing=\"yes\">/etc/fonts/fonts.conf</include>\
             <alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>\
             {folders}<cachedir>{}</cachedir></fontconfig>",
            cache.display()
        );
        fs::write(profile.join(FONTS), fonts)?;
        Ok(Self { program, libraries: tools.library_dirs(), profile })
    }

    fn run(&self, size: Size, tasks: &[&str], page: &str) -> Result<Output> {
        let libraries = std::env::join_paths(&self.libraries)?;
        // Root may run it only without its sandbox. The pages are our own.
        let output = Cmd::new(&self.program)
            .args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .arg("--enable-logging=stderr")
            .arg(format!("--user-data-dir={}", self.profile.path().display()))
            .arg(format!("--window-size={},{}", size.0, size.1))
            .args(tasks)
            .arg(page)
            .env("LD_LIBRARY_PATH", libraries)
            .env("HOME", self.profile.path())
            .env("FONTCONFIG_FILE", self.profile.join(FONTS))
            .limit(Duration::from_secs(60))
            .run()?;
        ensure!(output.success(), "the browser fails: {output}");
        Ok(output)
    }

    /// Loads a page, runs its scripts, and returns what it has become as HTML, and what its scripts
    /// said to the console.
    ///
    /// # Errors
    /// When the browser fails.
    pub fn load(&self, page: &Path, size: Size) -> Result<(String, Vec<String>)> {
        let output = self.run(size, &["--dump-dom"], &format!("file://{}", page.display()))?;
        Ok(result_of(output))
    }

    /// The same of a page of a server, after so much time by the clock of the page, which stands
    /// still while the page waits for the server.
    ///
    /// # Errors
    /// When the browser fails.
    pub fn visit(&self, url: &str, time: Duration, size: Size) -> Result<(String, Vec<String>)> {
        let time = format!("--virtual-time-budget={}", time.as_millis());
        Ok(result_of(self.run(size, &[&time, "--dump-dom"], url)?))
    }

    /// Takes a picture of a page of a server, after so much time by the clock of the page.
    ///
    /// # Errors
    /// When the browser fails.
    pub fn picture_of(&self, url: &str, time: Duration, size: Size, file: &Path) -> Result<()> {
        let time = format!("--virtual-time-budget={}", time.as_millis());
        let task = format!("--screenshot={}", file.display());
        self.run(size, &[&time, &task], url)?;
        ensure!(file.is_file(), "the browser took no picture {}", file.display());
        Ok(())
    }

    /// Takes a picture of a page, whose format follows from the name of the file. `part` is what
    /// the address of the page has behind `#`.
    ///
    /// # Errors
    /// When the browser fails.
    pub fn picture(&self, page: &Path, part: &str, size: Size, file: &Path) -> Result<()> {
        // A page that has scrolled is pictured wrongly, unless it is inside another page.
        let frame = self.profile.join("frame.html");
        let (width, height) = size;
        let text = format!(
            "<!DOCTYPE html><body style=\"margin:0\"><iframe src=\"file://{}#{part}\" \
             width=\"{width}\" height=\"{height}\" style=\"border:0;display:block\"></iframe>",
            page.display()
        );
        fs::write(&frame, text).with_context(|| frame.display().to_string())?;
        let task = format!("--screenshot={}", file.display());
        self.run(size, &[&task], &format!("file://{}", frame.display()))?;
        ensure!(file.is_file(), "the browser took no picture {}", file.display());
        Ok(())
    }
}

/// HTML, and what was said to the console.
fn result_of(output: Output) -> (String, Vec<String>) {
    let said = output.stderr.lines().filter(|line| line.contains("CONSOLE"));
    (output.stdout, said.map(str::to_owned).collect())
}
