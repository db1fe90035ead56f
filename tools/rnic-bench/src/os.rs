//! System calls that none of our libraries wraps: fork, namespaces, pinning, memory of other
//! processes.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Runs `work` in a child process that dies with its parent, and returns its process id.
///
/// The caller must have one thread only: a fork copies no other.
pub(crate) fn fork(work: impl FnOnce() -> i32) -> Result<libc::pid_t> {
    // SAFETY: the process has a single thread, so the child finds no lock held by a thread that it
    // does not have.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        0 => {
            // SAFETY: prctl and _exit take integers. The child leaves without running destructors
            // of its parent's values.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let code = work();
                libc::_exit(code)
            }
        }
        pid => Ok(pid),
    }
}

/// Kills and reaps a child.
pub(crate) fn end(pid: libc::pid_t) {
    // SAFETY: both take integers; the child was not reaped before, so the id is still its own.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// Whether a child has ended. It stays unreaped.
pub(crate) fn has_ended(pid: libc::pid_t) -> bool {
    // SAFETY: siginfo_t consists of integers and is only written by waitid.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, options) == 0 && info.si_pid() != 0
    }
}

/// Sleeps until killed.
pub(crate) fn sleep_for_ever() -> ! {
    loop {
        // SAFETY: pause has no arguments.
        unsafe { libc::pause() };
    }
}

/// Moves the calling process into a named network namespace.
pub(crate) fn enter_netns(name: &str) -> Result<()> {
    let file = File::open(format!("/run/netns/{name}"))?;
    // SAFETY: an open descriptor and a flag.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } as isize).map(drop)
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    // SAFETY: cpu_set_t is an array of integers; CPU_SET indexes it with a bound check.
    let outcome = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    check(outcome as isize).map(drop)
}

/// A mapping that is shared with children (`MAP_SHARED`) or private to each process.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    pub(crate) fn new(len: usize, shared: bool) -> Result<Self> {
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                kind | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes. Only for private mappings.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` readable and writable bytes for as long as `self` lives,
        // and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `new`, and no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Local memory for the calls below.
pub(crate) fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Reads from `address` of another process into writable local pieces, and returns the bytes.
///
/// # Safety
/// The pieces must be exclusively ours and writable.
pub(crate) unsafe fn read_from(
    pid: libc::pid_t,
    address: usize,
    pieces: &[libc::iovec],
) -> Result<usize> {
    let remote = remote(address, pieces);
    // SAFETY: the caller vouches for the local pieces; the kernel checks the remote one.
    check(unsafe {
        libc::process_vm_readv(pid, pieces.as_ptr(), pieces.len() as libc::c_ulong, &remote, 1, 0)
    })
}

/// Writes local pieces to `address` of another process, and returns the bytes.
pub(crate) fn write_to(pid: libc::pid_t, address: usize, pieces: &[libc::iovec]) -> Result<usize> {
    let remote = remote(address, pieces);
    // SAFETY: the kernel only reads the local pieces and checks all addresses itself; a wrong one
    // is an error code.
    check(unsafe {
        libc::process_vm_writev(pid, pieces.as_ptr(), pieces.len() as libc::c_ulong, &remote, 1, 0)
    })
}

fn remote(address: usize, pieces: &[libc::iovec]) -> libc::iovec {
    let len = pieces.iter().map(|piece| piece.iov_len).sum();
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }
}

fn check(outcome: isize) -> Result<usize> {
    usize::try_from(outcome).map_err(|_| Error::last_os_error())
}
