//! A file system of one file whose contents never come: pages of it are memory for which the kernel
//! waits, for as long as its server likes, even when the process that waits is killed.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Mounted until it is dropped; then all that wait for it get an error.
pub struct Silence {
    folder: PathBuf,
    device: Option<File>,
    asked: Arc<AtomicBool>,
}

impl Silence {
    /// Mounts it on a folder, for all users.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn mount(folder: &Path) -> Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.context("/dev/fuse")?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = std::ffi::CString::new(options)?;
        mount("rnic-test", folder, "fuse", MountFlags::NODEV, &*options)
            .with_context(|| format!("cannot mount {}", folder.display()))?;
        let asked = Arc::new(AtomicBool::new(false));
        let (mut server, seen) = (device.try_clone()?, Arc::clone(&asked));
        std::thread::spawn(move || while serve(&mut server, &seen).is_ok() {});
        Ok(Self { folder: folder.to_owned(), device: Some(device), asked })
    }

    /// The file, a page long.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("file")
    }

    /// Its contents were asked for, which is not answered.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // The server's thread has the device open, too: an unmount ends it.
        let _ = unmount(&self.folder, UnmountFlags::FORCE | UnmountFlags::DETACH);
        drop(self.device.take());
    }
}

/// Answers one request (`linux/fuse.h`).
fn serve(device: &mut File, asked: &AtomicBool) -> std::io::Result<()> {
    let mut request = vec![0; 128 * 1024];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&*device, &mut request[..]))?;
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let (opcode, unique) = (word(4), &request[8..16]);
    let node = word(16);
    let (error, answer) = match opcode {
        FORGET | BATCH_FORGET => return Ok(()),
        READ => {
            asked.store(true, Ordering::Relaxed);
            return Ok(());
        }
        INIT => (0, init()),
        LOOKUP if request[40..len].starts_with(b"file\0") => (0, entry()),
        LOOKUP => (-ENOENT, Vec::new()),
        GETATTR => (0, [&[0; 16][..], &attributes(node)].concat()),
        OPEN | OPENDIR => (0, vec![0; 16]),
        FLUSH | RELEASE | RELEASEDIR => (0, Vec::new()),
        _ => (-ENOSYS, Vec::new()),
    };
    let total = u32::try_from(16 + answer.len()).expect("short answers");
    let head = [&total.to_ne_bytes()[..], &i32::to_ne_bytes(error), unique].concat();
    device.write_all(&[head, answer].concat())
}

/// The oldest protocol that the kernel speaks.
fn init() -> Vec<u8> {
    [7u32, 22, 0, 0, 0, 4096].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The file, with names and attributes that are asked for each time.
fn entry() -> Vec<u8> {
    let numbers = [FILE, 0, 0, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes());
    numbers.chain(attributes(FILE as u32)).collect()
}

fn attributes(node: u32) -> Vec<u8> {
    let is_file = u64::from(node) == FILE;
    let (mode, size) = if is_file { (0o100_666, 4096) } else { (0o040_755, 0) };
    let longs = [u64::from(node), size, 8, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes);
    let words = [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0].into_iter().flat_map(u32::to_ne_bytes);
    longs.chain(words).collect()
}

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
/// The file's number; that of the folder is 1.
const FILE: u64 = 2;
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const BATCH_FORGET: u32 = 42;
