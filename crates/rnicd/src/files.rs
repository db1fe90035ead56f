//! The files in which Linux shows an RDMA device, for programs that look at them.
//!
//! A process cannot add to `/sys`, so the daemon writes the same tree beside its control socket:
//! `rnic run` shows it to programs in its place, and a container may be given it as a volume.
//!
//! | path under the folder | what |
//! |---|---|
//! | `sys/class/infiniband/DEVICE` | attributes, GIDs and counters |
//! | `sys/class/infiniband_verbs/uverbs0` | which device that file is |
//! | `dev/infiniband/uverbs0` | a character device, which is all that programs check |
//!
//! Counters follow the engines a moment later. They never go down.

mod attributes;

use anyhow::{Context, Result, ensure};
use attributes::Attributes;
use rnic_abi::os::files_beside;
use rnic_host::server::Service;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The files of the device while it lives; dropped, they are gone.
pub(crate) struct Files {
    folder: PathBuf,
    /// Tells the thread of clients. Dropped, it ends it.
    news: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Files {
    /// Writes the files and begins to follow the device.
    ///
    /// # Errors
    /// When the folder of the socket cannot be written to, or another user took the name.
    pub(crate) fn publish(socket: &Path, service: &Arc<Service>) -> Result<Self> {
        let folder = files_beside(socket);
        remove_own(&folder)?;
        let [mut tree, mut counters] =
            [(); 2].map(|()| Tree { folder: folder.clone(), written: BTreeMap::new() });
        let mut attributes = Attributes::new(service);
        let (tell, news) = sync_channel(1);
        // From here on, what was written is removed, whatever fails.
        let mut files = Self { folder, news: Some(tell), thread: None };
        tree.make_folder(Path::new(""))?;
        for (path, to) in attributes.links() {
            tree.link(&path, &to)?;
        }
        tree.write(attributes.now())?;
        counters.update(attributes.changed_counters())?;
        let (now, pause) = (Instant::now(), LIFESPAN);
        let mut follower =
            Follower { counters, tree, attributes, looked: now, expecting: now, pause };
        let follow = move || {
            loop {
                match news.recv_timeout(follower.pause) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => {
                        follower.expecting = Instant::now() + START;
                        // However many clients come.
                        thread::sleep(LIFESPAN);
                    }
                }
                follower.update();
            }
        };
        files.thread = Some(thread::Builder::new().name("rnic-files".into()).spawn(follow)?);
        Ok(files)
    }

    /// Follows the device no longer. Dropping the files then waits less.
    pub(crate) fn finish(&mut self) {
        self.news = None;
    }

    /// A program came, and what it does should soon be seen.
    pub(crate) fn expect_changes(&self) {
        if let Some(news) = &self.news {
            let _ = news.try_send(());
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.finish();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = remove_own(&self.folder) {
            tracing::warn!("{}", crate::for_people(&error));
        }
    }
}

/// Removes what an earlier daemon left, which may be a folder of the daemon's own user only: in a
/// folder that others can write to, the name may lead to a place of their choice.
fn remove_own(folder: &Path) -> Result<()> {
    let what = || format!("cannot replace {}", folder.display());
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(what)?,
    };
    let own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    ensure!(own, "{} is not a folder of this daemon's user", folder.display());
    fs::remove_dir_all(folder).with_context(what)
}

/// What the thread has.
struct Follower {
    /// The counters.
    counters: Tree,
    /// All others, which take longer and seldom change.
    tree: Tree,
    attributes: Attributes,
    /// When these were looked at last.
    looked: Instant,
    /// Until when changes are likely.
    expecting: Instant,
    /// How long until the next update.
    pause: Duration,
}

impl Follower {
    /// Writes what changed. The longer nothing does, the longer the pause: each look wakes the
    /// engines.
    fn update(&mut self) {
        let started = Instant::now();
        let mut changed = self.counters.update(self.attributes.changed_counters());
        if changed.is_err() {
            self.attributes.tell_all_again();
        }
        if started >= self.looked + IDLE {
            self.looked = started;
            changed = self.tree.write(self.attributes.now()).and(changed);
        }
        let changed = changed.unwrap_or_else(|error| {
            tracing::warn!("the files of the device: {}", crate::for_people(&error));
            false
        });
        let wanted = if changed || started < self.expecting { LIFESPAN } else { self.pause * 2 };
        self.pause = wanted.min(IDLE).max(started.elapsed() * PAUSES_PER_UPDATE);
    }
}

/// The folder, and what each file has.
struct Tree {
    folder: PathBuf,
    written: BTreeMap<OsString, String>,
}

impl Tree {
    /// Brings the files to this state. Whether one of them changed.
    fn write(&mut self, mut files: BTreeMap<OsString, String>) -> Result<bool> {
        let before = self.written.len();
        for path in self.written.keys().filter(|path| !files.contains_key(*path)) {
            let gone = self.folder.join(path);
            fs::remove_file(&gone).with_context(|| format!("cannot remove {}", gone.display()))?;
        }
        self.written.retain(|path, _| files.contains_key(path));
        files.retain(|path, text| self.written.get(path) != Some(text));
        let any_gone = self.written.len() < before;
        Ok(self.update(files)? || any_gone)
    }

    /// Writes these files, and leaves the others. Whether there are any.
    fn update(&mut self, changed: BTreeMap<OsString, String>) -> Result<bool> {
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
            self.make_folder(path.parent().unwrap_or(path))?;
        }
        let path = self.folder.join(path);
        let written = match old.is_some_and(|old| old.len() <= text.len()) {
            true => File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.write_all_at(text.as_bytes(), 0)),
            false => {
                let new = self.folder.join(".new");
                fs::write(&new, text)
                    .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o644)))
                    .and_then(|()| fs::rename(&new, &path))
            }
        };
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    fn link(&self, path: &Path, to: &Path) -> Result<()> {
        let path = self.folder.join(path);
        if let Some(parent) = path.parent() {
            self.make_folder(parent)?;
        }
        symlink(to, &path).with_context(|| format!("cannot make {}", path.display()))
    }

    /// Makes the folder with those above it, open to all readers whatever the umask.
    fn make_folder(&self, path: &Path) -> Result<()> {
        let path = self.folder.join(path);
        let mut missing: Vec<&Path> =
            path.ancestors().take_while(|path| path.starts_with(&self.folder)).collect();
        while let Some(path) = missing.pop() {
            match DirBuilder::new().mode(0o755).create(path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => {
                    made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
                }
            }
            .with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(())
    }
}

/// How old counters are at most while they change, told as `lifespan`: programs read them at the
/// end of a run.
const LIFESPAN: Duration = Duration::from_millis(20);
/// How long a program that came may take until it sends.
const START: Duration = Duration::from_millis(500);
/// How old while nothing changes.
const IDLE: Duration = Duration::from_secs(1);
/// So that many engines do not spend their time on it.
const PAUSES_PER_UPDATE: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn only_a_folder_of_ones_own_is_replaced() {
        let place = env::temp_dir().join(format!("rnicd-files-{}", std::process::id()));
        let (theirs, name) = (place.join("theirs"), place.join("socket.files"));
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("precious"), "").unwrap();
        symlink(&theirs, &name).unwrap();
        assert!(remove_own(&name).unwrap_err().to_string().contains("is not a folder of this"));
        fs::remove_file(&name).unwrap();
        fs::write(&name, "").unwrap();
        assert!(remove_own(&name).is_err());
        fs::remove_file(&name).unwrap();
        // What lies in it may lead elsewhere.
        fs::create_dir(&name).unwrap();
        symlink(&theirs, name.join("link")).unwrap();
        remove_own(&name).unwrap();
        remove_own(&name).unwrap();
        assert!(!name.exists() && theirs.join("precious").exists());
        fs::remove_dir_all(&place).unwrap();
    }
}
