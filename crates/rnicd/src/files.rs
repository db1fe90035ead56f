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
mod tree;

use anyhow::{Context, Result, ensure};
use attributes::Attributes;
use rnic_abi::os::files_beside;
use rnic_host::server::Service;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tree::{Folder, Tree};

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
        let own = Arc::new(Folder::make(&folder)?);
        let mut attributes = Attributes::new(service);
        let (tell, news) = sync_channel(1);
        // From here on, what was written is removed, whatever fails.
        let mut files = Self { folder, news: Some(tell), thread: None };
        let [mut tree, mut counters] = [(); 2].map(|()| Tree::new(&own));
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
    use std::os::unix::fs::symlink;

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
