//! A folder, and the files in it as they were written last.
//!
//! In a folder like /tmp other users may take the name between the end of one daemon and the start
//! of the next. So the daemon makes the folder anew and holds it open, and everything else is
//! found from what it holds, by names below which only its own user can write.

use anyhow::{Context, Result, ensure};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fchmod, fstat, mkdir, mkdirat, open, openat, renameat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder that this process has made.
pub(super) struct Folder {
    /// Where it was made, for errors: another folder may be there now.
    path: PathBuf,
    open: OwnedFd,
}

impl Folder {
    /// Makes it. One that is there already is another user's, or was made by one just now.
    ///
    /// # Errors
    /// When something is there, or the kernel does not allow it.
    pub(super) fn make(path: &Path) -> Result<Self> {
        let what = || format!("cannot make {}", path.display());
        mkdir(path, Mode::from_bits_truncate(FOLDER)).with_context(what)?;
        let open = open(path, AS_FOLDER, Mode::empty()).with_context(what)?;
        let found = fstat(&open).with_context(what)?;
        let own = found.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        ensure!(own, "another user has put a folder in the place of {}", path.display());
        fchmod(&open, Mode::from_bits_truncate(FOLDER)).with_context(what)?;
        Ok(Self { path: path.to_path_buf(), open })
    }

    /// Makes folders below it, open to all readers whatever the umask.
    fn make_all(&self, path: &Path) -> Result<()> {
        let mut missing: Vec<&Path> = path.ancestors().collect();
        // Of no folders: this one.
        missing.retain(|path| !path.as_os_str().is_empty());
        while let Some(path) = missing.pop() {
            let mode = Mode::from_bits_truncate(FOLDER);
            let made = mkdirat(&self.open, path, mode)
                .and_then(|()| fchmod(openat(&self.open, path, AS_FOLDER, Mode::empty())?, mode));
            match made {
                Err(Errno::EXIST) => {}
                made => made.with_context(|| self.cannot("make", path))?,
            }
        }
        Ok(())
    }

    fn cannot(&self, what: &str, path: &Path) -> String {
        format!("cannot {what} {}", self.path.join(path).display())
    }
}

/// The folder, and what each file of it has.
pub(super) struct Tree {
    folder: Arc<Folder>,
    written: BTreeMap<OsString, String>,
}

impl Tree {
    /// Without files.
    pub(super) fn new(folder: &Arc<Folder>) -> Self {
        Self { folder: Arc::clone(folder), written: BTreeMap::new() }
    }

    /// Brings the files to this state. Whether one of them changed.
    pub(super) fn write(&mut self, mut files: BTreeMap<OsString, String>) -> Result<bool> {
        let before = self.written.len();
        for path in self.written.keys().filter(|path| !files.contains_key(*path)) {
            let gone = unlinkat(&self.folder.open, path, AtFlags::empty());
            gone.with_context(|| self.folder.cannot("remove", Path::new(path)))?;
        }
        self.written.retain(|path, _| files.contains_key(path));
        files.retain(|path, text| self.written.get(path) != Some(text));
        let any_gone = self.written.len() < before;
        Ok(self.update(files)? || any_gone)
    }

    /// Writes these files, and leaves the others. Whether there are any.
    pub(super) fn update(&mut self, changed: BTreeMap<OsString, String>) -> Result<bool> {
        let any = !changed.is_empty();
        for (path, text) in changed {
            let old = self.written.remove(&path);
            self.write_file(Path::new(&path), &text, old)?;
            self.written.insert(path, text);
        }
        Ok(any)
    }

    /// A program may keep a counter open over its run, so a text that grows is written in place;
    /// of one that becomes shorter a reader sees all of the old or all of the new.
    fn write_file(&self, path: &Path, text: &str, old: Option<String>) -> Result<()> {
        if old.is_none() {
            self.folder.make_all(path.parent().unwrap_or(path))?;
        }
        let written = match old.is_some_and(|old| old.len() <= text.len()) {
            true => self
                .open(path, OFlags::empty())
                .and_then(|file| file.write_all_at(text.as_bytes(), 0)),
            false => self.replace(path, text),
        };
        written.with_context(|| self.folder.cannot("write", path))
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let folder = &self.folder.open;
        // A write that failed may have left one.
        match unlinkat(folder, NEW, AtFlags::empty()) {
            Err(Errno::NOENT) => {}
            gone => gone?,
        }
        let mut file = self.open(Path::new(NEW), OFlags::CREATE | OFlags::EXCL)?;
        file.write_all(text.as_bytes())?;
        fchmod(&file, Mode::from_bits_truncate(FILE))?;
        Ok(renameat(folder, NEW, folder, path)?)
    }

    fn open(&self, path: &Path, how: OFlags) -> io::Result<File> {
        let how = how | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder.open, path, how, Mode::from_bits_truncate(FILE))?.into())
    }

    /// Makes a link.
    pub(super) fn link(&self, path: &Path, to: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            self.folder.make_all(parent)?;
        }
        let made = symlinkat(to, &self.folder.open, path);
        made.with_context(|| self.folder.cannot("make", path))
    }
}

const AS_FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What a file is written as, until it has all of its text.
const NEW: &str = ".new";
/// Permission bits.
const FOLDER: u32 = 0o755;
const FILE: u32 = 0o644;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rnicd-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_that_is_there_already_is_not_used() {
        let place = Place::new("taken");
        let (taken, link) = (place.0.join("taken"), place.0.join("link"));
        fs::create_dir(&taken).unwrap();
        symlink(&taken, &link).unwrap();
        for path in [taken, link] {
            let error = Folder::make(&path).err().unwrap();
            assert!(format!("{error:#}").contains("cannot make"), "{error:#}");
        }
    }

    #[test]
    fn links_in_the_folder_lead_no_write_elsewhere() {
        let place = Place::new("links");
        let (path, precious) = (place.0.join("files"), place.0.join("precious"));
        fs::write(&precious, "precious").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
        let mut tree = Tree::new(&Arc::new(Folder::make(&path).unwrap()));
        symlink(&precious, path.join(NEW)).unwrap();
        let file = |text: &str| BTreeMap::from([("a/b/file".into(), text.to_owned())]);
        assert!(tree.write(file("text")).unwrap());
        assert_eq!(fs::read_to_string(path.join("a/b/file")).unwrap(), "text");
        // One that grows is written in place.
        fs::remove_file(path.join("a/b/file")).unwrap();
        symlink(&precious, path.join("a/b/file")).unwrap();
        assert!(tree.write(file("longer text")).is_err());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn files_are_written_replaced_and_removed() {
        let place = Place::new("tree");
        let path = place.0.join("files");
        let mut tree = Tree::new(&Arc::new(Folder::make(&path).unwrap()));
        let files = |all: &[(&str, &str)]| -> BTreeMap<OsString, String> {
            all.iter().map(|(path, text)| ((*path).into(), (*text).to_owned())).collect()
        };
        assert!(tree.write(files(&[("a/one", "1234"), ("two", "2")])).unwrap());
        assert!(!tree.write(files(&[("a/one", "1234"), ("two", "2")])).unwrap());
        assert!(tree.write(files(&[("a/one", "12")])).unwrap());
        assert_eq!(fs::read_to_string(path.join("a/one")).unwrap(), "12");
        assert!(!path.join("two").exists() && !path.join(NEW).exists());
        let mode = |name| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("a"), mode("a/one")), (0o755, 0o755, 0o644));
        tree.link(Path::new("b/link"), Path::new("../a")).unwrap();
        assert!(path.join("b/link/one").exists());
    }
}
