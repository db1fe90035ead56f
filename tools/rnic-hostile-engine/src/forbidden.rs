//! What an engine process must not be able to do, whatever it runs.

use crate::report::Report;
use libc::{c_int, c_long, c_void};
use rnic_abi::os::Connection;
use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::parent_id;
use std::ptr::{null, null_mut};

/// Tries everything.
pub(crate) fn attempt(report: &Report, socket: &Connection, udp: Option<BorrowedFd<'_>>) {
    report.did("Forbidden");
    filtered(report, udp.unwrap_or(socket.as_fd()).as_raw_fd());
    against_the_daemon(report);
    rights(report);
}

/// A result that is no error is a breach; with the filter, so is another error.
struct Tried<'a>(&'a Report);

impl Tried<'_> {
    fn filtered(&self, what: &str, result: c_long) {
        if result >= 0 || Error::last_os_error().raw_os_error() != Some(libc::EPERM) {
            self.0.breach(what);
        }
    }

    fn refused(&self, what: &str, result: c_long) {
        if result >= 0 {
            self.0.breach(what);
        }
    }
}

/// By the filter of system calls.
fn filtered(report: &Report, fd: c_int) {
    let tried = Tried(report);
    const DETACH_REUSEPORT_BPF: c_int = 68;
    let (one, len): (c_int, u32) = (1, 4);
    let option = (&raw const one).cast::<c_void>();
    // SAFETY: the filter refuses these calls before their arguments matter; where it does not, the
    // arguments are impossible, or live.
    unsafe {
        for (what, number) in [
            ("bpf", libc::SYS_bpf),
            ("perf_event_open", libc::SYS_perf_event_open),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("setns", libc::SYS_setns),
            ("mount", libc::SYS_mount),
            ("keyctl", libc::SYS_keyctl),
            ("execve", libc::SYS_execve),
            ("execveat", libc::SYS_execveat),
            ("accept4", libc::SYS_accept4),
            ("listen", libc::SYS_listen),
            ("kexec_load", libc::SYS_kexec_load),
        ] {
            tried.filtered(what, libc::syscall(number, 0, 0, 0, 0, 0));
        }
        let new = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        tried.filtered("socket", new.into());
        tried.filtered("unshare", libc::unshare(libc::CLONE_NEWUSER).into());
        tried.filtered("connect", libc::connect(fd, null(), 0).into());
        tried.filtered("bind", libc::bind(fd, null(), 0).into());
        for (what, option_of) in [
            ("SO_DETACH_REUSEPORT_BPF", DETACH_REUSEPORT_BPF),
            ("SO_ATTACH_REUSEPORT_CBPF", libc::SO_ATTACH_REUSEPORT_CBPF),
            ("SO_REUSEPORT", libc::SO_REUSEPORT),
            ("SO_MARK", libc::SO_MARK),
        ] {
            let set = libc::setsockopt(fd, libc::SOL_SOCKET, option_of, option, len);
            tried.filtered(what, set.into());
        }
        tried.filtered("PR_SET_DUMPABLE", libc::prctl(libc::PR_SET_DUMPABLE, 1).into());
        tried.filtered("ptrace", libc::ptrace(libc::PTRACE_SEIZE, parent_id(), 0, 0));
        #[cfg(target_arch = "x86_64")]
        tried.filtered("x32", libc::syscall(0x4000_0000 | libc::SYS_connect, fd, 0, 0));
    }
}

/// By the kernel: the daemon is another user's.
fn against_the_daemon(report: &Report) {
    let (tried, daemon) = (Tried(report), parent_id().cast_signed());
    for file in ["mem", "maps", "environ", "fd/0"] {
        if File::open(format!("/proc/{daemon}/{file}")).is_ok() {
            report.breach(file);
        }
    }
    // SAFETY: signal 0 does nothing; the structures are live.
    unsafe {
        tried.refused("kill", libc::kill(daemon, 0).into());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let limit = libc::prlimit(daemon, libc::RLIMIT_NOFILE, &raw const none, null_mut());
        tried.refused("prlimit", limit.into());
        let nice = libc::setpriority(libc::PRIO_PROCESS, daemon.unsigned_abs(), 19);
        tried.refused("setpriority", nice.into());
        let cpus = 1u64;
        let moved = libc::sched_setaffinity(daemon, size_of_val(&cpus), (&raw const cpus).cast());
        tried.refused("sched_setaffinity", moved.into());
        let pidfd = libc::syscall(libc::SYS_pidfd_open, daemon, 0);
        if pidfd >= 0 {
            tried.refused("pidfd_getfd", libc::syscall(libc::SYS_pidfd_getfd, pidfd, 0, 0));
            libc::close(pidfd as c_int);
        }
        let mut byte = 0u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: 0x40_0000 as *mut c_void, iov_len: 1 };
        let read = libc::process_vm_readv(daemon, &raw const local, 1, &raw const remote, 1, 0);
        let reached = read < 0 && Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
        tried.refused("process_vm_readv", if reached { 0 } else { read as c_long });
    }
}

/// It stays what it is.
fn rights(report: &Report) {
    let tried = Tried(report);
    // SAFETY: numbers only.
    unsafe {
        tried.refused("setresuid", libc::setresuid(0, 0, 0).into());
        tried.refused("setgroups", libc::setgroups(0, null()).into());
        tried.refused("no_new_privs", libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0).into());
    }
    if OpenOptions::new()
        .write(true)
        .open("/proc/self/oom_score_adj")
        .is_ok_and(|mut file| std::io::Write::write_all(&mut file, b"-1000").is_ok())
    {
        report.breach("oom_score_adj");
    }
    if File::open("/dev/tty").is_ok() {
        report.breach("/dev/tty");
    }
}

/// The file that only the daemon writes: every way to write it.
pub(crate) fn write_to(report: &Report, file: BorrowedFd<'_>) {
    let (tried, fd) = (Tried(report), file.as_raw_fd());
    // SAFETY: the descriptor is open, and a mapping that succeeds is not used.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0);
        if map != libc::MAP_FAILED {
            report.breach("mmap");
        }
        let map = libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        if map != libc::MAP_FAILED {
            tried.refused("mprotect", libc::mprotect(map, 4096, protection).into());
            tried.refused("MADV_REMOVE", libc::madvise(map, 4096, libc::MADV_REMOVE).into());
        }
        tried.refused("pwrite", libc::pwrite(fd, [1u8].as_ptr().cast(), 1, 0) as c_long);
        tried.refused("ftruncate", libc::ftruncate(fd, 0).into());
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        tried.refused("fallocate", libc::fallocate(fd, punch, 0, 4096).into());
        let seals = libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE);
        tried.refused("F_ADD_SEALS", seals.into());
    }
    let again = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"));
    if let Ok(again) = again
        && std::os::unix::fs::FileExt::write_at(&again, &[1], 0).is_ok()
    {
        report.breach("a second descriptor");
    }
}
