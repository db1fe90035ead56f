//! The folders of a checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// The repository's root.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

/// Cargo's target folder: `CARGO_TARGET_DIR`, else `target` in the repository.
#[must_use]
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => repository().join(dir),
        None => repository().join("target"),
    }
}

/// A folder under `target/cache`, made when it is not there.
///
/// # Errors
/// When it cannot be created.
pub fn cache(name: &str) -> Result<PathBuf> {
    let dir = target().join("cache").join(name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// The files and links below a folder, in the order of their paths.
///
/// # Errors
/// When a folder cannot be listed.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let list = if entry.file_type()?.is_dir() { &mut folders } else { &mut found };
            list.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// A folder that every user may read, until others clean up behind this process. The checkout may
/// be closed to them.
///
/// # Errors
/// When it cannot be created.
pub fn public(name: &str) -> Result<PathBuf> {
    static ALL: OnceLock<Option<Scratch>> = OnceLock::new();
    let all = ALL.get_or_init(|| Scratch::new("public").ok());
    let folder = all.as_ref().context("no temporary folder")?.join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// How a scratch folder's name begins; the process id of its maker follows.
const SCRATCH: &str = "rnic-test-";

/// Removes scratch folders whose maker has ended.
///
/// # Errors
/// When the temporary folder cannot be listed.
pub fn sweep() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        let maker = name.strip_prefix(SCRATCH).and_then(|rest| rest.split('-').next());
        let maker = maker.and_then(|pid| pid.parse::<u32>().ok());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Another user's folder cannot be removed, and does no harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// A folder for sockets and logs of this process that is removed on drop.
///
/// It lies in the system's temporary folder because a unix socket's path is limited to 107 bytes.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty folder that any user of the machine may traverse and write.
    ///
    /// Daemons of tests run as other users too; the sticky bit keeps them apart.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(tag: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{SCRATCH}{}-{serial}-{tag}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let scratch = Self { path };
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&scratch.path, fs::Permissions::from_mode(0o1777))?;
        Ok(scratch)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file name in the folder.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on it: a folder that stays costs a few bytes of /tmp.
        let _ = fs::remove_dir_all(&self.path);
    }
}
