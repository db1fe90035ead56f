//! Things asked of the operating system that belong nowhere else.

use rustix::rand::GetRandomFlags;
use std::io;

/// Whether the calling thread has an ordinary policy, so that [slices](request_slice) mean
/// something. One that its program has given real-time priority is to keep that.
#[allow(unsafe_code, reason = "no library wraps sched_getscheduler")]
pub fn is_scheduled_fairly() -> bool {
    // SAFETY: asks about the calling thread and touches no memory.
    unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK == libc::SCHED_OTHER }
}

/// Asks the scheduler for slices of so many nanoseconds for the calling thread, which [has them](
/// is_scheduled_fairly): the shorter they are, the sooner it gets a CPU when it wakes (Linux 6.12
/// and later; earlier ones ignore it).
///
/// # Errors
/// What the kernel says.
#[allow(unsafe_code, reason = "no library wraps sched_setattr")]
pub fn request_slice(nanos: u64) -> io::Result<()> {
    /// `struct sched_attr`, first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SCHED_OTHER: u32 = 0;
    let attr = SchedAttr {
        size: 48,
        policy: SCHED_OTHER,
        flags: 0,
        nice: rustix::process::nice(0).unwrap_or(0),
        priority: 0,
        runtime: nanos,
        deadline: 0,
        period: 0,
    };
    // SAFETY: thread 0 is the calling one, and the kernel reads `size` bytes of a live structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The scheduling group of the process with this name in `/proc`: its control group and its
/// session's autogroup. `sched_yield` yields only to threads of the same group.
pub fn scheduling_group(process: &str) -> (String, String) {
    let read =
        |file| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    // "number:controllers:path"; version 2 has one line without controllers.
    let is_cpu = |line: &&str| {
        line.split(':')
            .nth(1)
            .is_some_and(|all| all.is_empty() || all.split(',').any(|c| c == "cpu"))
    };
    let control_groups = read("cgroup").lines().filter(is_cpu).collect();
    (control_groups, read("autogroup"))
}

/// What the calling thread has had of its CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUse {
    /// For how many nanoseconds it has run.
    pub nanos: u64,
    /// How often it has left its CPU by itself, to sleep.
    pub sleeps: u64,
    /// How often another thread was given its CPU.
    pub losses: u64,
}

impl CpuUse {
    /// Until now.
    #[allow(unsafe_code, reason = "no library wraps getrusage of a thread")]
    pub fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: all zeroes are a valid value, which the call may write over.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let nanos = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1000;
        Self {
            nanos: (nanos(usage.ru_utime) + nanos(usage.ru_stime)).cast_unsigned(),
            sleeps: usage.ru_nvcsw.cast_unsigned(),
            losses: usage.ru_nivcsw.cast_unsigned(),
        }
    }
}

/// Whether a thread of this process may make the system calls that the calling one may, and gets
/// the signals that its own faults cause. A thread behind a filter of its own (seccomp) would be
/// ended by the first call that it may not make.
pub fn may_do_as_this(thread: u32) -> bool {
    let status = |name: &str| std::fs::read_to_string(format!("/proc/{name}/status"));
    let (Ok(own), Ok(other)) = (status("thread-self"), status(&format!("self/task/{thread}")))
    else {
        return false;
    };
    // Before Linux 5.9 the number of filters is not told: then there must be none.
    let filters = |status| match (field(status, "Seccomp:"), field(status, "Seccomp_filters:")) {
        (Some("0"), _) => Some(0),
        (Some(_), Some(number)) => number.parse::<u32>().ok(),
        _ => None,
    };
    let is_filtered_alike = filters(&own).is_some() && filters(&own) == filters(&other);
    let blocked = field(&other, "SigBlk:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let bit = |signal: i32| 1u64 << (signal - 1);
    let is_told = |mask: u64| mask & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)) == 0;
    is_filtered_alike && blocked.is_some_and(is_told)
}

/// The value of a line of a `status` file, which an older kernel may not have.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Random words, not to be guessed.
///
/// # Errors
/// What the kernel says.
pub fn random() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    // So few come all at once.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    let word = u128::from_ne_bytes(bytes);
    Ok([word as u64, (word >> 64) as u64])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// What is found of a thread that has prepared itself like this.
    fn found(prepare: fn()) -> bool {
        let ((tell, told), (end, ended)) = (channel(), channel::<()>());
        let thread = std::thread::spawn(move || {
            prepare();
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
        });
        let number = told.recv().unwrap().as_raw_nonzero().get().cast_unsigned();
        let found = may_do_as_this(number);
        drop(end);
        thread.join().unwrap();
        found
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_real_time_thread_is_found() {
        assert!(is_scheduled_fairly());
        let thread = std::thread::spawn(|| {
            let fifo = libc::sched_param { sched_priority: 1 };
            // SAFETY: changes the calling thread, which ends soon.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const fifo) };
            (set == 0).then(is_scheduled_fairly)
        });
        match thread.join().unwrap() {
            None => println!("SKIPPED: this user may not have real-time threads"),
            Some(found) => assert!(!found),
        }
    }

    #[test]
    fn a_thread_that_sleeps_has_no_cpu() {
        let (before, since) = (CpuUse::now(), std::time::Instant::now());
        while since.elapsed() < std::time::Duration::from_millis(5) {}
        let worked = CpuUse::now();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = CpuUse::now();
        assert!(worked.nanos > before.nanos && slept.nanos - worked.nanos < 10_000_000);
        assert!(slept.sleeps > worked.sleeps);
    }

    #[test]
    fn a_thread_that_shares_its_cpu_loses_it() {
        let cpu = rustix::thread::sched_getcpu();
        let until = std::time::Instant::now() + std::time::Duration::from_millis(200);
        let lost = move || {
            let mut one = rustix::thread::CpuSet::new();
            one.set(cpu);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let before = CpuUse::now();
            while std::time::Instant::now() < until {}
            CpuUse::now().losses - before.losses
        };
        let both = [(); 2].map(|()| std::thread::spawn(lost)).map(|one| one.join().unwrap());
        assert!(both.iter().all(|lost| *lost > 0), "{both:?}");
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_thread_that_may_less_is_found() {
        assert!(found(|| {}));
        assert!(!found(|| {
            // SAFETY: a local set; the thread ends soon.
            unsafe {
                let mut set = std::mem::MaybeUninit::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            }
        }));
        assert!(!found(|| {
            // One instruction: everything is allowed.
            let mut allow = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 };
            let program = libc::sock_fprog { len: 1, filter: &raw mut allow };
            // SAFETY: a filter of this thread alone, which lives during the call.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let set = libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program);
                assert_eq!(set, 0, "{}", io::Error::last_os_error());
            }
        }));
        assert!(!may_do_as_this(u32::MAX));
    }
}
