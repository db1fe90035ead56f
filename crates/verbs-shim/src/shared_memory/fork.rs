//! fork(): a child gets pages of its own, also where the parent's pages are those of a memory file.
//!
//! While the parent waits, the child copies every such page into private memory at the same
//! address. `vfork` and `posix_spawn` need none of this: their children use the parent's memory
//! anyway.

use std::{
    cell::RefCell,
    io,
    ops::Range,
    os::fd::AsRawFd,
    ptr,
    sync::{MutexGuard, Once},
};

use super::{Shares, lock, maps, report};

/// State of a fork in progress in this thread, made before it.
struct Fork {
    /// Held across the fork: no other thread registers memory meanwhile, and the child inherits no
    /// mutex held by a thread that it does not have.
    shares: MutexGuard<'static, Shares>,
    pages: Vec<Range<usize>>,
    /// The child closes its end when it has its own pages, or dies.
    done: Option<(io::PipeReader, io::PipeWriter)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Installs the fork handlers.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions live as long as the library, with which the C library forgets them.
        let result =
            unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        if result != 0 {
            report::say("children made by fork() will share registered memory with this program");
        }
    });
}

extern "C" fn prepare() {
    let shares = lock();
    let (pages, done) = match shared_pages(&shares).and_then(|pages| Ok((pages, io::pipe()?))) {
        Ok((pages, _)) if pages.is_empty() => (pages, None),
        Ok((pages, pipe)) => (pages, Some(pipe)),
        Err(error) => {
            report::say(format_args!("a child shares registered memory with its parent: {error}"));
            (Vec::new(), None)
        }
    };
    let _ = FORK.try_with(|fork| fork.replace(Some(Fork { shares, pages, done })));
}

extern "C" fn in_parent() {
    let Ok(Some(fork)) = FORK.try_with(RefCell::take) else { return };
    if let Some((reader, writer)) = fork.done {
        drop(writer);
        let mut byte = 0u8;
        // SAFETY: the kernel writes at most one byte.
        while unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Allocates nothing until the heap belongs to the child alone.
extern "C" fn in_child() {
    let Ok(Some(mut fork)) = FORK.try_with(RefCell::take) else { return };
    if !fork.pages.iter().all(make_own) {
        const TEXT: &[u8] = b"libibverbs (soft-rnic): no memory for a child of this program\n";
        // SAFETY: a live buffer; a child without its memory cannot go on.
        unsafe {
            libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len());
            libc::abort();
        }
    }
    // The daemon writes to the parent's memory.
    fork.shares.forget_unused(&[]);
    fork.shares.held.clear();
}

fn shared_pages(shares: &Shares) -> io::Result<Vec<Range<usize>>> {
    if shares.files.is_empty() {
        return Ok(Vec::new());
    }
    let ours = |inode| shares.files.iter().any(|file| file.inode() == inode);
    let areas = maps::read("maps")?.into_iter().filter(|area| ours(area.inode));
    Ok(areas.filter(maps::Area::is_writable).map(|area| area.pages).collect())
}

/// Replaces pages by private memory with the same content.
fn make_own(pages: &Range<usize>) -> bool {
    let here = ptr::with_exposed_provenance_mut::<libc::c_void>(pages.start);
    let length = pages.len();
    // SAFETY: copies memory that is there into a new mapping, which then takes its place.
    unsafe {
        let copy = libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if copy == libc::MAP_FAILED {
            return false;
        }
        ptr::copy_nonoverlapping(here.cast_const().cast::<u8>(), copy.cast(), length);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(copy, length, length, flags, here) != libc::MAP_FAILED
    }
}
