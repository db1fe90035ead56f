//! Registered memory that the daemon maps, so that it copies without system calls: opt-in.
//!
//! The pages of a registration are replaced by pages of a memory file, at the same addresses and
//! with the same content, and remain so after the registration ends. A later registration of the
//! same pages uses the same file. This module asks the kernel about the address space each time
//! instead of remembering it: programs free memory, get other memory at the same address, move it
//! and let it grow.
//!
//! Replacing pages of a running program is correct only if no thread writes to them meanwhile and
//! nothing depends on the kind of mapping. Where that is not certain, the pages stay as they are
//! and the registration is an ordinary one.

mod fork;
mod maps;

use std::{
    env, fs, io,
    ops::Range,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
};

use rnic_abi::{
    os::{Descriptor, memory, signals},
    verbs::AccessFlags,
};

use crate::report;
use maps::Area;

/// The memory of a registration.
pub(crate) enum Memory {
    /// Private memory, which the daemon accesses through the process.
    Ordinary(Option<Held>),
    /// A part of a memory file, which the daemon can map.
    File { file: Arc<Descriptor<OwnedFd>>, offset: u64 },
}

impl Memory {
    /// Determines the kind of a new registration's memory, and replaces its pages by shared ones
    /// where that was asked for and is safe.
    pub(crate) fn of(address: usize, length: usize, access: AccessFlags) -> Self {
        // The program may replace on-demand memory itself while it is registered.
        if !wanted() || length == 0 || access.contains(AccessFlags::ON_DEMAND) {
            return Self::Ordinary(None);
        }
        fork::watch();
        let mut shares = lock();
        match shares.place(address, length) {
            Ok((file, offset)) => Self::File { file, offset },
            Err(reason) => {
                say(&reason);
                Self::Ordinary(shares.hold(address, length))
            }
        }
    }

    /// The same memory as an ordinary registration, when the daemon does not accept the file.
    pub(crate) fn without_file(address: usize, length: usize) -> Self {
        say("the daemon does not map it (RNIC_DEBUG=1 tells why)");
        Self::Ordinary(lock().hold(address, length))
    }

    /// What must last as long as a registration that moved here, which is an ordinary one.
    pub(crate) fn hold(address: usize, length: usize) -> Option<Held> {
        if wanted() { lock().hold(address, length) } else { None }
    }

    /// What must last as long as the registration.
    pub(crate) fn into_held(self) -> Option<Held> {
        match self {
            Self::Ordinary(held) => held,
            Self::File { .. } => None,
        }
    }
}

/// Pages of an ordinary registration: the daemon may write to them at any time.
pub(crate) struct Held(Range<usize>);

impl Drop for Held {
    fn drop(&mut self) {
        let mut shares = lock();
        if let Some(at) = shares.held.iter().position(|range| *range == self.0) {
            shares.held.swap_remove(at);
        }
    }
}

/// Tells the user why memory is not shared, once: registrations of one program are much alike.
fn say(reason: &str) {
    static ONCE: Once = Once::new();
    let text = "memory is registered, but not as shared memory";
    report::debug(format_args!("{text}: {reason}"));
    if !report::debug_wanted() {
        report::say_once(&ONCE, format_args!("{text}: {reason} (said once)"));
    }
}

fn wanted() -> bool {
    env::var_os("RNIC_SHARED_MEMORY").is_some_and(|value| !value.is_empty() && value != "0")
}

fn lock() -> MutexGuard<'static, Shares> {
    static SHARES: Mutex<Shares> = Mutex::new(Shares { files: Vec::new(), held: Vec::new() });
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A memory file, and an offset in it.
type Place = (Arc<Descriptor<OwnedFd>>, u64);

/// The memory files of this process, and its ordinary registrations.
struct Shares {
    files: Vec<Arc<Descriptor<OwnedFd>>>,
    held: Vec<Range<usize>>,
}

impl Shares {
    /// The file that holds a range and the offset in it. Moves the pages into a file when
    /// necessary.
    fn place(&mut self, address: usize, length: usize) -> Result<Place, String> {
        let pages = pages(address, length).ok_or("it wraps around")?;
        let areas = maps::read("maps").map_err(|error| error.to_string())?;
        self.forget_unused(&areas);
        let into = (address - pages.start) as u64;
        for file in &self.files {
            if let Some(offset) = maps::offset_in(&areas, file.inode(), &pages) {
                return Ok((Arc::clone(file), offset + into));
            }
        }
        self.check(&pages)?;
        let file = exchange(&pages).map_err(|error| format!("it cannot be moved: {error}"))?;
        let file = Arc::new(Descriptor::new(file).map_err(|error| error.to_string())?);
        self.files.push(Arc::clone(&file));
        Ok((file, into))
    }

    /// Closes the files that this process has no mapping of, which frees their memory.
    fn forget_unused(&mut self, areas: &[Area]) {
        let in_use = |file: &Descriptor<_>| areas.iter().any(|area| area.inode == file.inode());
        self.files.retain(|file| file.get().is_some() && in_use(file));
    }

    /// Whether pages may be replaced.
    fn check(&self, pages: &Range<usize>) -> Result<(), String> {
        let overlaps = |held: &Range<usize>| held.start < pages.end && pages.start < held.end;
        if self.files.len() >= MAX_FILES {
            return Err(format!("there are {MAX_FILES} pieces of shared memory already"));
        }
        if self.held.iter().any(overlaps) {
            return Err("another registration has the same pages".into());
        }
        if stack().is_none_or(|stack| overlaps(&stack)) {
            return Err("it is the stack".into());
        }
        let threads = fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?.count();
        if threads != 1 {
            return Err("the program has several threads".into());
        }
        if file_size_is_limited() {
            return Err("the size of files is limited (ulimit -f)".into());
        }
        let areas = maps::read("smaps").map_err(|error| error.to_string())?;
        maps::check_exchangeable(&areas, pages)
    }

    fn hold(&mut self, address: usize, length: usize) -> Option<Held> {
        let pages = pages(address, length)?;
        self.held.push(pages.clone());
        Some(Held(pages))
    }
}

/// The pages of a range.
fn pages(address: usize, length: usize) -> Option<Range<usize>> {
    // SAFETY: a plain query.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let end = address.checked_add(length)?.checked_next_multiple_of(page)?;
    Some(address / page * page..end)
}

/// The stack of this thread. In a child of a thread it is plain memory to the kernel.
fn stack() -> Option<Range<usize>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are written before they are read, and destroyed once.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut length);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    Some(lowest.addr()..lowest.addr() + length)
}

fn file_size_is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    result != 0 || limit.rlim_cur != libc::RLIM_INFINITY
}

/// Copies pages into a new memory file and maps the file in their place.
fn exchange(pages: &Range<usize>) -> io::Result<OwnedFd> {
    let length = pages.len();
    let file = memory::reserve("rnic-registered", length as u64 + ROOM_TO_GROW)?;
    // Between the copy and the mapping nothing may write to the pages: no handler of a signal, and
    // since they can be heap, no allocation.
    signals::without(|| replace(pages, &file))?;
    Ok(file)
}

fn replace(pages: &Range<usize>, file: &OwnedFd) -> io::Result<()> {
    let length = pages.len();
    let mut done = 0;
    while done < length {
        let from = ptr::with_exposed_provenance(pages.start + done);
        let offset = libc::off_t::try_from(done).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel reads the memory, and says when it is not there.
        let copied = unsafe { libc::pwrite(file.as_raw_fd(), from, length - done, offset) };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(copied) => done += copied,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    // SAFETY: replaces pages that `check` found to be ordinary memory by others with the same
    // content and rights; no thread wrote to them since they were copied.
    let map = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(pages.start),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE,
            file.as_raw_fd(),
            0,
        )
    };
    if map == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Each file takes one of the program's descriptors, of which it may have only 1024.
const MAX_FILES: usize = 256;
/// Bytes of each file beyond the pages, which take no memory: `realloc` lets a mapping grow in
/// place, and an access beyond the end of its file raises SIGBUS.
const ROOM_TO_GROW: u64 = 1 << 40;
