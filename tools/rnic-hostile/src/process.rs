//! Attacks on the engine process of this user: whatever a user may do to a process with its ids,
//! and attempts to look into it, each of which must fail. It stays on the CPUs of this program: how
//! CPUs are shared is the kernel's, and no attack on a daemon.

use crate::Attack;
use crate::client::Client;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Stops of a process before it is disturbed in another way, which most often is its end: the next
/// one is long in coming.
const STOPS: u32 = 4;
/// How long the device may take to open.
const PATIENCE: Duration = Duration::from_millis(200);

/// Opens the device, stops the engine process some times, disturbs it in one way, and comes again
/// when it is dead.
pub(crate) fn process(attack: &mut Attack) -> io::Result<()> {
    let mut kind = 0;
    while attack.goes_on() {
        let Ok(client) = open_again()? else {
            sleep(Duration::from_millis(5));
            continue;
        };
        for pid in engine_processes()? {
            for way in (0..STOPS).map(|stop| stop % 2).chain([kind]) {
                look_into(pid)?;
                disturb(pid, way);
                attack.done += 1;
            }
        }
        kind += 1;
        drop(client);
    }
    Ok(())
}

/// Opens the device. A process that this attack has starved of its CPU does not answer: it is
/// killed, and gets a CPU to die.
fn open_again() -> io::Result<io::Result<Client>> {
    thread::scope(|threads| {
        let opening = threads.spawn(Client::open);
        let patience = Instant::now() + PATIENCE;
        while !opening.is_finished() {
            sleep(Duration::from_millis(1));
            if Instant::now() > patience {
                for pid in engine_processes()? {
                    // SAFETY: a signal to another process, and the CPUs of its threads.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                    threads_of(pid).iter().for_each(|thread| put_on(*thread, &own_cpus()));
                }
            }
        }
        Ok(opening.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// The engine processes of this user.
fn engine_processes() -> io::Result<Vec<libc::pid_t>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let text = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        // SAFETY: reads this process's own user id.
        let own = format!("Uid:\t{}\t", unsafe { libc::getuid() });
        if text("cmdline").contains("--engine-process") && text("status").contains(&own) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Everything that would show what is in the process, or take a descriptor of it.
fn look_into(pid: libc::pid_t) -> io::Result<()> {
    let place = PathBuf::from(format!("/proc/{pid}"));
    for file in ["mem", "maps", "environ", "auxv"] {
        if fs::read(place.join(file)).is_ok() {
            return Err(reached(file));
        }
    }
    for folder in ["fd", "map_files"] {
        if fs::read_dir(place.join(folder)).is_ok() {
            return Err(reached(folder));
        }
    }
    // SAFETY: these calls change nothing of this process when they fail; what they would open is
    // left to the end of this process.
    unsafe {
        if libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) == 0 {
            return Err(reached("ptrace"));
        }
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        for fd in 0..16 {
            if pidfd >= 0 && libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) >= 0 {
                return Err(reached("pidfd_getfd"));
            }
        }
        if pidfd >= 0 {
            libc::close(pidfd as i32);
        }
        let mut byte = 0u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: 0x40_0000 as *mut libc::c_void, iov_len: 1 };
        let read = libc::process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if read >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
            return Err(reached("process_vm_readv"));
        }
    }
    Ok(())
}

fn reached(what: &str) -> io::Error {
    io::Error::other(format!("the engine process is open to its user: {what}"))
}

fn threads_of(pid: libc::pid_t) -> Vec<libc::pid_t> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The CPUs of this program.
fn own_cpus() -> libc::cpu_set_t {
    // SAFETY: the set is a plain value of bits, and the kernel writes no more than its size.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus);
        cpus
    }
}

/// One of the CPUs of this program.
fn one_cpu() -> libc::cpu_set_t {
    let own = own_cpus();
    // SAFETY: the set is a plain value of bits, and the numbers are within its size.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &own));
        libc::CPU_SET(first.unwrap_or(0), &mut one);
        one
    }
}

fn put_on(thread: libc::pid_t, cpus: &libc::cpu_set_t) {
    // SAFETY: the kernel reads as many bytes as are said.
    unsafe { libc::sched_setaffinity(thread, size_of_val(cpus), cpus) };
}

/// Lets a thread run only while no other wants its CPU.
fn starve(thread: libc::pid_t) {
    put_on(thread, &one_cpu());
    // SAFETY: priorities of another thread; the structure is live.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, thread.unsigned_abs(), 19);
        let none = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(thread, libc::SCHED_IDLE, &raw const none);
    }
}

/// Something that a user may do to a process of its own; the last kind kills it.
fn disturb(pid: libc::pid_t, kind: u32) {
    let threads = threads_of(pid);
    // SAFETY: signals, limits and priorities of another process; the structures are live.
    unsafe {
        match kind % 6 {
            0 => {
                libc::kill(pid, libc::SIGSTOP);
                sleep(Duration::from_millis(60));
                libc::kill(pid, libc::SIGCONT);
            }
            1 => {
                for thread in &threads {
                    libc::syscall(libc::SYS_tgkill, pid, *thread, libc::SIGSTOP);
                }
                // Others come meanwhile, and find it stopped.
                let until = Instant::now() + Duration::from_millis(60);
                while Instant::now() < until {
                    let _ = fs::metadata("/proc/self");
                }
                libc::kill(pid, libc::SIGCONT);
            }
            2 => {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                for limit in [libc::RLIMIT_NOFILE, libc::RLIMIT_AS, libc::RLIMIT_MEMLOCK] {
                    libc::prlimit(pid, limit, &none, std::ptr::null_mut());
                }
            }
            3 => {
                threads.iter().for_each(|thread| starve(*thread));
            }
            4 => {
                let thread = threads.last().copied().unwrap_or(pid);
                libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGSEGV);
            }
            _ => {
                libc::kill(pid, libc::SIGKILL);
            }
        }
    }
}
