//! Threads that clients cause to exist.
//!
//! The standard library gives each thread of its own a second stack, for the message about an
//! overflow of the first, and ends the process when there is no memory for it: after the thread
//! has started, where no earlier check helps. These threads have none, and need nothing at their
//! beginning that was not there when they were started. An overflow meets the guard page all the
//! same.

#![allow(unsafe_code, reason = "no library starts threads without a second stack")]

use std::ffi::{CString, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A stack for whatever a thread may do.
pub const STACK: usize = 2 << 20;

/// Makes the priority of the calling thread, and of those that it starts, lower than that of
/// engines and programs: clients that connect and ask without end must not take the CPU from those
/// that transfer data.
pub fn lower_priority() {
    // The kernel lets every thread lower its own.
    let _ = rustix::process::nice(NICENESS);
}

/// In steps of `nice`.
const NICENESS: i32 = 10;

/// Has threads that are started from now on call this first. Once in a process.
pub fn begin_with(first: fn()) {
    let _ = FIRST.set(first);
}

static FIRST: OnceLock<fn()> = OnceLock::new();

type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread, with rights and priority of the calling one. It is detached.
///
/// # Errors
/// When there is no memory for its stack, or no thread left.
pub fn spawn(name: &str, stack: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let name = CString::new(name)?;
    let work: Work = Box::new(move || {
        // For `ps` and debuggers only: a failure changes nothing else.
        let _ = rustix::thread::set_name(&name);
        work();
    });
    let work = Box::into_raw(Box::new(work));
    let error = create(stack, work.cast());
    if error == 0 {
        return Ok(());
    }
    // SAFETY: from `into_raw`, and no thread was started that would take it.
    drop(unsafe { Box::from_raw(work) });
    Err(io::Error::from_raw_os_error(error))
}

/// Returns 0 or what is wrong.
fn create(stack: usize, work: *mut c_void) -> i32 {
    let mut attributes = std::mem::MaybeUninit::uninit();
    // SAFETY: it is initialized here, and used only if that succeeds.
    let error = unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
    if error != 0 {
        return error;
    }
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes live until they are destroyed, and `run` takes the work.
    unsafe {
        let mut error = libc::pthread_attr_setstacksize(attributes, stack + thread_locals());
        if error == 0 {
            error = libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        }
        let mut thread = 0;
        if error == 0 {
            error = libc::pthread_create(&raw mut thread, attributes, run, work);
        }
        libc::pthread_attr_destroy(attributes);
        error
    }
}

/// Bytes of a stack that the C library takes for the variables that each thread has of its own:
/// those of a program with an engine may be many, and leave nothing of a small stack.
fn thread_locals() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    type MinStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    *BYTES.get_or_init(|| {
        // SAFETY: asks for a symbol of the C library, which other libraries may not have: it is a
        // function of that type, which only reads the attributes, and they are initialized.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
            let mut attributes = std::mem::MaybeUninit::uninit();
            if symbol.is_null() || libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                return 0;
            }
            let least = std::mem::transmute::<*mut c_void, MinStack>(symbol)(attributes.as_ptr());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            least.saturating_sub(libc::PTHREAD_STACK_MIN)
        }
    })
}

extern "C" fn run(work: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` gave it away for this one call.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    FIRST.get().into_iter().for_each(|first| first());
    // A panic has printed its message; it ends this thread and no other.
    let _ = catch_unwind(AssertUnwindSafe(work));
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::{in_little_memory, take_all_but};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_thread_whose_stack_was_the_last_memory_works() {
        in_little_memory("thread::tests::a_thread_whose_stack_was_the_last_memory_works", || {
            let (sender, receiver) = mpsc::channel();
            // Its stack and guard page.
            let page = rustix::param::page_size();
            let all = take_all_but((STACK + thread_locals()).next_multiple_of(page) + page);
            spawn("last", STACK, move || sender.send(7).unwrap()).unwrap();
            assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(7));
            drop(all);
        });
    }

    #[test]
    fn a_thread_without_memory_for_its_stack_is_an_error() {
        in_little_memory(
            "thread::tests::a_thread_without_memory_for_its_stack_is_an_error",
            || {
                let (sender, receiver) = mpsc::channel::<()>();
                let all = take_all_but(STACK / 2);
                let refused = spawn("none", STACK, move || drop(sender)).is_err();
                drop(all);
                assert!(refused);
                // What it would have worked with is gone.
                assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Disconnected));
            },
        );
    }

    #[test]
    fn a_panic_ends_its_thread_only() {
        let (sender, receiver) = mpsc::channel::<()>();
        spawn("panics", STACK, move || {
            let _sender = sender;
            // Without the hook, which would print a backtrace.
            std::panic::resume_unwind(Box::new("as it should"));
        })
        .unwrap();
        assert_eq!(
            receiver.recv_timeout(Duration::from_secs(20)),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}
