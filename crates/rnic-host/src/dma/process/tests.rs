//! A client whose threads have ended, and were not waited for.

use super::*;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

pub(crate) fn pidfd_of(child: &Child) -> Arc<OwnedFd> {
    Arc::new(pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap())
}

const HELPER: &str = "dma::process::tests::end_all_threads";

extern "C" fn end_thread(_signal: libc::c_int) {
    // SAFETY: ends this thread alone, and touches no memory.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Run by the next test in a process of its own: tells two of its threads and a byte, and when it
/// is told to, or the other end of its pipe is closed, all its threads end.
#[test]
#[ignore = "helper of a_client_without_a_living_thread_is_a_fault"]
fn end_all_threads() {
    let byte = Box::leak(Box::new(7u8));
    let (tell, told) = channel();
    let ends: Vec<Sender<()>> = (0..2)
        .map(|_| {
            let tell = tell.clone();
            let (end, ended): (_, Receiver<()>) = channel();
            thread::spawn(move || {
                // SAFETY: no arguments, no effects.
                tell.send(unsafe { libc::gettid() }).unwrap();
                let _ = ended.recv();
                end_thread(0);
            });
            end
        })
        .collect();
    let threads: Vec<i32> = told.iter().take(2).collect();
    println!("\nthreads {} {} {:p}", threads[0], threads[1], byte);
    let _ = std::io::stdin().lines().next();
    drop(ends);
    // SAFETY: the main thread, which waits for this test, ends as the others do.
    unsafe {
        let handler = end_thread as extern "C" fn(libc::c_int);
        libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
        let pid = libc::getpid();
        libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGUSR1);
    }
    end_thread(0);
}

fn states(pid: libc::pid_t) -> Vec<bool> {
    let folder = Path::new("/proc").join(pid.to_string()).join("task");
    let Ok(threads) = std::fs::read_dir(&folder) else { return Vec::new() };
    let threads = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    threads.map(|thread| is_alive(&folder, thread)).collect()
}

#[test]
fn a_client_without_a_living_thread_is_a_fault() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", HELPER, "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.starts_with("threads ")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let held: Vec<libc::pid_t> = words[1..3].iter().map(|word| word.parse().unwrap()).collect();
    let byte = u64::from_str_radix(words[3].trim_start_matches("0x"), 16).unwrap();
    for thread in &held {
        // SAFETY: seizing a child's thread touches no memory of ours.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, *thread, 0, 0) };
        assert_eq!(seized, 0, "{}", io::Error::last_os_error());
    }
    let mut process = Process::of_client(child.id(), pidfd_of(&child)).unwrap();
    let read = move |process: &mut Process| {
        let (mut arena, mut scratch) = ([0], Scratch::new());
        let from = [MemRange { addr: byte, len: 1 }];
        process.read(&from, &mut arena, &[Range { offset: 0, len: 1 }], &mut scratch)?;
        Ok(arena[0])
    };
    assert_eq!(read(&mut process), Ok(7));
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    // Three zombies: the main thread and those that are held.
    while states(pid) != [false; 3] {
        thread::sleep(Duration::from_millis(1));
    }
    let (tell, told) = channel();
    thread::spawn(move || tell.send([read(&mut process), read(&mut process)]));
    let results = told.recv_timeout(Duration::from_secs(5));
    for thread in held {
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    }
    child.wait().unwrap();
    assert_eq!(results, Ok([Err(NOTHING); 2]), "the search for a thread goes on for ever");
}

/// The number of a process that has exited belongs to another one: nothing of that one is reached.
#[test]
fn the_number_of_a_dead_client_reaches_nothing() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let pidfd = pidfd_of(&child);
    let word = Box::new(7u64);
    let at = (&raw const *word) as u64;
    let (mut arena, mut scratch) = ([1; 8], Scratch::new());
    let (to, range) = ([MemRange { addr: at, len: 8 }], [Range { offset: 0, len: 8 }]);
    // A stranger with its number: this process.
    let mut process = Process::of_client(std::process::id(), Arc::clone(&pidfd)).unwrap();
    let first = Instant::from_nanos(1_000_000);
    process.look(first).unwrap().read(&to, &mut arena, &range, &mut scratch).unwrap();
    assert_eq!(u64::from_ne_bytes(arena), 7);
    assert!(!process.life.as_ref().unwrap().is_over());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(process.life.as_ref().unwrap().is_over());
    assert!(process.look(first.after(BELIEVED / 2)).is_ok(), "it looks at every transfer");
    for now in [first.after(BELIEVED), first.after(BELIEVED), first, Instant::ZERO] {
        // Once seen, it is remembered, whatever time it is.
        let written = process
            .look(now)
            .and_then(|process| process.write(&[1; 8], &range, &to, &[], &mut scratch));
        assert_eq!(written, Err(NOTHING));
    }
    assert_eq!(process.atomic(at, &mut |old| old + 1), Err(NOTHING));
    assert_eq!(*word, 7);
}

#[test]
fn a_thread_of_another_process_is_not_the_clients() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let own = libc::pid_t::try_from(std::process::id()).unwrap();
    assert!(belongs(pid, pid) && belongs(own, own) && !belongs(pid, own));
    let mut process = Process::of_client(child.id(), pidfd_of(&child)).unwrap();
    process.thread = Some(own);
    assert!(process.look(Instant::ZERO).is_ok());
    assert_eq!(process.thread, Some(pid));
    child.kill().unwrap();
    child.wait().unwrap();
}
