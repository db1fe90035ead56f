//! Programs with handlers of their own.

use super::super::machine::begin_of_copies;
use super::super::{Fault, load, store};
use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicUsize;

const PAGE: usize = 4096;

/// What the program's handler found, and how often it was called.
static FOUND: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn handler_of(signal: libc::c_int) -> usize {
    // SAFETY: an action is plain data, and only read.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action.sa_sigaction
    }
}

/// The program's: calls the one that it found, as crash handlers do, and ends the program.
extern "C" fn of_the_program(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
        // SAFETY: ends the process. Two handlers that call each other would come here.
        unsafe { libc::_exit(9) };
    }
    // SAFETY: what was found is an entry of ours, which is such a handler.
    unsafe {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        std::mem::transmute::<usize, Handler>(FOUND.load(Ordering::Relaxed))(signal, info, context);
        libc::_exit(7);
    }
}

fn install() {
    FOUND.store(handler_of(libc::SIGSEGV), Ordering::Relaxed);
    // SAFETY: the handler does only what handlers may.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = of_the_program as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
    }
}

/// A page without any access.
fn no_memory() -> usize {
    // SAFETY: a fresh anonymous mapping.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) as usize
    }
}

/// Without the test harness's handlers, as a program begins.
fn begin() {
    // SAFETY: there is no handler that anything here needs.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}

/// How a test ends that is run in a process of its own.
fn end_of(helper: &str) -> ExitStatus {
    let name = format!("dma::own::guarded::handlers::tests::{helper}");
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", &name, "--ignored"]).output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    output.status
}

#[test]
#[ignore = "helper of a_program_keeps_its_own_handler"]
fn a_program_with_handlers() {
    begin();
    let hole = no_memory();
    let fault = |missing| Err(Fault { missing });
    assert!(is_ready());
    assert_eq!(load(hole, &mut [0; 100]), fault(100));
    install();
    assert!(is_ready() && handler_of(libc::SIGSEGV) != of_the_program as *const () as usize);
    // Not by turns for ever new entries.
    for _ in 0..100 {
        install_again();
        assert!(is_ready());
    }
    assert_eq!(store([1; 8].as_ptr(), 8, hole), fault(8));
    assert_eq!(store([1; 5].as_ptr(), 5, hole), fault(5));
    assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    // SAFETY: it is meant to fail.
    unsafe { (hole as *mut u8).write_volatile(1) };
}

/// As a program does that has its handler only for a while.
fn install_again() {
    let found = FOUND.load(Ordering::Relaxed);
    install();
    FOUND.store(found, Ordering::Relaxed);
}

#[test]
fn a_program_keeps_its_own_handler() {
    assert_eq!(end_of("a_program_with_handlers").code(), Some(7));
}

/// One that looks whether its handler is the first, and installs it again where it is not.
#[test]
#[ignore = "helper of a_program_that_insists_on_its_handler_does_not_meet_itself"]
fn a_program_that_insists() {
    begin();
    for _ in 0..100 {
        assert!(is_ready());
        install();
    }
    assert!(is_ready());
    // SAFETY: it is meant to fail.
    unsafe { (no_memory() as *mut u8).write_volatile(1) };
}

#[test]
fn a_program_that_insists_on_its_handler_does_not_meet_itself() {
    assert_eq!(end_of("a_program_that_insists").code(), Some(7));
}

extern "C" fn counts(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn install_counting(flags: c_int) {
    // SAFETY: the handler only counts.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = counts as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGSEGV, &raw const action, null_mut());
    }
}

#[test]
#[ignore = "helper of a_handler_that_comes_while_an_entry_is_installed_is_kept"]
fn a_program_with_a_thread_that_installs_a_handler() {
    begin();
    let put_in_front =
        |of: libc::sigaction| INSTALLED.lock().unwrap()[0].put_in_front(0, libc::SIGSEGV, of);
    let stood = action_of(libc::SIGSEGV).unwrap();
    install_counting(0);
    assert!(put_in_front(stood));
    let ours = action_of(libc::SIGSEGV).unwrap();
    assert!(is_entry(&ours));
    // SAFETY: the handler counts it.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    // One that is taken away again: an entry stands there already, and stays.
    let stood = libc::sigaction { sa_sigaction: of_the_program as *const () as usize, ..stood };
    assert!(put_in_front(stood));
    assert!(is_same(&action_of(libc::SIGSEGV).unwrap(), &ours));
    // Entries come to an end, with one left for what is believed to stand there.
    let kinds = [libc::SA_NODEFER, libc::SA_RESTART, libc::SA_ONSTACK];
    let kinds = [kinds[0], kinds[1], kinds[2], kinds[0] | kinds[1]];
    for flags in kinds {
        install_counting(flags);
        assert!(is_ready());
    }
    let stood = libc::sigaction { sa_flags: libc::SA_NOCLDWAIT, ..stood };
    install_counting(kinds[1] | kinds[2]);
    assert!(!put_in_front(stood));
    assert_eq!(handler_of(libc::SIGSEGV), counts as *const () as usize);
    std::process::exit(7);
}

#[test]
fn a_handler_that_comes_while_an_entry_is_installed_is_kept() {
    let end = end_of("a_program_with_a_thread_that_installs_a_handler");
    assert_eq!(end.code(), Some(7));
}

#[test]
#[ignore = "helper of a_handler_for_once_is_called_once"]
fn a_program_with_a_handler_for_once() {
    begin();
    install_counting(libc::SA_RESETHAND);
    assert!(is_ready() && handler_of(libc::SIGSEGV) != counts as *const () as usize);
    // SAFETY: the handler counts it.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    assert_eq!(handler_of(libc::SIGSEGV), libc::SIG_DFL);
    assert!(is_ready());
    assert_eq!(load(no_memory(), &mut [0; 9]), Err(Fault { missing: 9 }));
    // SAFETY: it is meant to end the process.
    unsafe { libc::raise(libc::SIGSEGV) };
}

#[test]
fn a_handler_for_once_is_called_once() {
    let end = end_of("a_program_with_a_handler_for_once");
    assert_eq!(end.signal(), Some(libc::SIGSEGV), "{end:?}");
}

#[test]
#[ignore = "helper of handlers_keep_their_stack_and_signals_that_were_sent"]
fn a_program_with_a_stack_for_signals() {
    begin();
    for flags in [0, libc::SA_ONSTACK, 0, libc::SA_ONSTACK] {
        install_counting(flags);
        assert!(is_ready());
        let ours = action_of(libc::SIGSEGV).unwrap().sa_flags;
        assert_eq!(ours & libc::SA_ONSTACK, flags);
    }
    // One that was sent meets a thread in a copy.
    let inside = begin_of_copies();
    assert!(way_out(inside).is_some());
    for (code, calls, at) in
        [(libc::SI_USER, 1, inside), (libc::SI_TKILL, 2, inside), (1, 2, way_out(inside).unwrap())]
    {
        // SAFETY: all-zero bytes are valid.
        let (mut info, mut context): (libc::siginfo_t, libc::ucontext_t) =
            unsafe { std::mem::zeroed() };
        info.si_code = code;
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = inside;
        let number = ENTRIES.iter().position(|one| handler_of(libc::SIGSEGV) == *one as usize);
        ENTRIES[number.unwrap()](libc::SIGSEGV, &raw mut info, (&raw mut context).cast());
        assert_eq!(CALLS.load(Ordering::Relaxed), calls);
        assert_eq!(context.uc_mcontext.gregs[libc::REG_RIP as usize], at);
    }
    std::process::exit(7);
}

#[test]
fn handlers_keep_their_stack_and_signals_that_were_sent() {
    assert_eq!(end_of("a_program_with_a_stack_for_signals").code(), Some(7));
}
