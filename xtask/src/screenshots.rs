//! docs/images: pictures of the page of `rnic lab` and of `rnic watch`, for the README and the
//! documents.

mod watch;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::browser::{Browser, PROGRAM, Size};
use system_tests::dist::cargo;
use system_tests::packages::Toolbox;
use system_tests::paths::{self, Scratch};

const LIMIT: Duration = Duration::from_secs(1200);

/// A picture that is larger costs every reader of the README too much, bytes.
const MOST: u64 = 150 << 10;

/// Name, story, what the page's address has behind `#`, and the size of the window.
const PICTURES: [(&str, &str, &str, Size); 3] = [
    ("lab-loss-light", "loss", "theme=light&step=9", (1280, 800)),
    ("lab-atomic-dark", "atomic", "theme=dark&step=8", (1280, 800)),
    ("lab-loss-telephone", "loss", "theme=dark&step=20", (390, 844)),
];

/// Takes all pictures anew.
pub(crate) fn take() -> Result<()> {
    let browser = Browser::new(&Toolbox::provide(&[PROGRAM])?)?;
    let scratch = Scratch::new("screenshots")?;
    let folder = paths::repository().join("docs/images");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (name, story, part, size) in PICTURES {
        let page = scratch.join(&format!("{story}.html"));
        let run = ["run", "--quiet", "-p", "rnicd", "--bin", "rnic", "--", "lab", story, "--html"];
        cargo().args(run).arg(&page).limit(LIMIT).check()?;
        let picture = folder.join(format!("{name}.webp"));
        browser.picture(&page, part, size, &picture)?;
    }
    watch::take(&browser, &folder)?;
    for picture in paths::files_below(&folder)? {
        let length = fs::metadata(&picture)?.len();
        ensure!(length <= MOST, "{} has {length} bytes, more than {MOST}", picture.display());
        println!("{}: {length} bytes", picture.display());
    }
    Ok(())
}
