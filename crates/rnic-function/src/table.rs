//! The functions of this process: one for each daemon.
//!
//! A function starts with its first client and ends some time after its last one. A child made by
//! fork has none of its parent's, whose threads it does not have.

use crate::driver::{self, Agreements};
use crate::function::{self, Door};
use rnic_abi::os::Connection;
use rnic_abi::os::driving::Driving;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Table {
    process: u32,
    agreements: Mutex<Agreements>,
    functions: Mutex<Vec<Known>>,
    /// Daemons that have refused one, whose engine this program has then. A later one would not
    /// know the queue pairs that are there.
    without: Mutex<Vec<PathBuf>>,
    /// Told when one has been started, or could not be.
    started: Condvar,
}

struct Known {
    path: PathBuf,
    /// None while a thread starts it, without the lock: the daemon may not answer.
    door: Option<Arc<Door>>,
    /// The function has ended, or does so. It says that in a thread that has a table of descriptors
    /// of its own, where the door's number is another file's: only the program's threads close it.
    is_over: bool,
}

/// That of this process, or of the one that it was forked from.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// A lock of the parent may have been held during the fork: a child has a new table.
fn table() -> &'static Table {
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        TABLE.store(null_mut(), Ordering::Release);
        driver::close_in_child();
    }
    // SAFETY: the library is never unloaded. If it fails, the end of a child asks for the counts of
    // its parent's functions.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    // Not every child is made by the C library.
    let process = std::process::id();
    loop {
        let now = TABLE.load(Ordering::Acquire);
        // SAFETY: a table is never freed.
        if let Some(table) = unsafe { now.as_ref() }
            && table.process == process
        {
            return table;
        }
        let new = Box::into_raw(Box::new(Table { process, ..Table::default() }));
        if TABLE.compare_exchange(now, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above, and nothing else knows it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// A client of the function at this daemon. `or_daemon`: once there cannot be one there never is.
pub(crate) fn connect(path: &Path, or_daemon: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = Connection::pair()?;
    let table = table();
    loop {
        let door = table.door(path, or_daemon)?;
        match table.send(&door, theirs.as_fd()) {
            Ok(()) => return Ok(ours.into()),
            // Without the lock: the function may want it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(FULL),
            Err(_) => table.forget(door.number()),
        }
    }
}

/// Which thread turns the engine of this process's function at this daemon.
pub(crate) fn driving(path: &Path) -> Option<&'static Driving> {
    let functions = table().functions();
    let mut live = functions.iter().filter(|known| !known.is_over);
    live.find(|known| known.path == path)?.door.as_ref()?.driving()
}

/// Has the daemons told what functions have counted. At the very end of the program: destructors
/// and functions of `atexit`, which have run before, may still use verbs, and other threads do.
pub(crate) extern "C" fn have_counts_told() {
    // In a child there is none. The number of the process is not asked for: there are programs that
    // forbid themselves that call.
    // SAFETY: a table is never freed.
    let Some(table) = (unsafe { TABLE.load(Ordering::Acquire).as_ref() }) else { return };
    // A handler of a signal may end the program in a thread that holds the lock.
    let Ok(functions) = table.functions.try_lock() else { return };
    // With the lock, as a function needs it to end.
    let doors = functions.iter().filter(|known| !known.is_over);
    let doors = doors.filter_map(|known| known.door.clone());
    let asked: Vec<_> = doors.filter(|door| door.ask_for_counts()).collect();
    drop(functions);
    asked.iter().for_each(|door| door.await_counts());
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = have_counts_told;

impl Table {
    fn functions(&self) -> MutexGuard<'_, Vec<Known>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn without(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a function that is about to start.
    pub(crate) fn agreement(&self) -> io::Result<&'static Driving> {
        self.agreements.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// That of the function at this daemon, which is started where there is none.
    fn door(&'static self, path: &Path, or_daemon: bool) -> io::Result<Arc<Door>> {
        driver::tidy();
        let mut functions = self.functions();
        loop {
            functions.retain(|known| !known.is_over);
            let Some(known) = functions.iter().find(|known| known.path == path) else { break };
            if let Some(door) = &known.door {
                return Ok(Arc::clone(door));
            }
            functions = self.started.wait(functions).unwrap_or_else(PoisonError::into_inner);
        }
        if or_daemon && self.without().iter().any(|known| known == path) {
            return Err(io::Error::other("the daemon's has served this program before"));
        }
        functions.push(Known { path: path.to_owned(), door: None, is_over: false });
        drop(functions);
        let door = function::start(path, self).map(Arc::new);
        if or_daemon && door.is_err() {
            self.without().push(path.to_owned());
        }
        let mut functions = self.functions();
        functions.retain(|known| known.path != path || known.door.is_some());
        if let Ok(door) = &door {
            let (path, door) = (path.to_owned(), Some(Arc::clone(door)));
            functions.push(Known { path, door, is_over: false });
        }
        self.started.notify_all();
        door
    }

    /// Sends a client to a function, unless that ends. With the lock: before its end the function
    /// looks for clients once more, with the lock.
    fn send(&self, door: &Door, client: BorrowedFd<'_>) -> io::Result<()> {
        let functions = self.functions();
        let is_it = |known: &Arc<Door>| known.number() == door.number();
        let mut doors = functions.iter().filter(|known| !known.is_over).flat_map(|it| &it.door);
        match doors.any(is_it) {
            true => door.send(client),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The function of this number has no client, and ends unless one has just been sent to it.
    pub(crate) fn retire(&self, number: u64, has_mail: impl FnOnce() -> bool) -> bool {
        let mut functions = self.functions();
        if has_mail() {
            return false;
        }
        mark(&mut functions, number);
        true
    }

    /// It has ended.
    pub(crate) fn forget(&self, number: u64) {
        mark(&mut self.functions(), number);
    }
}

fn mark(functions: &mut [Known], number: u64) {
    let is_it =
        |known: &&mut Known| known.door.as_ref().is_some_and(|door| door.number() == number);
    functions.iter_mut().filter(is_it).for_each(|known| known.is_over = true);
}

/// How soon to try again when a function has many new clients.
const FULL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::alone;

    #[test]
    fn no_client_is_sent_to_a_function_that_ends() {
        let _one = alone();
        let (to, _from) = Connection::pair().unwrap();
        let (client, _) = Connection::pair().unwrap();
        let door = Arc::new(Door::new(u64::MAX, to, None).unwrap());
        let (path, known) = (PathBuf::from("/daemon"), Some(Arc::clone(&door)));
        let table = Table::default();
        table.functions().push(Known { path, door: known, is_over: false });
        assert!(!table.retire(door.number(), || true), "it has mail");
        table.send(&door, client.as_fd()).unwrap();
        assert!(table.retire(door.number(), || false));
        // By a thread that found the door before.
        assert!(table.send(&door, client.as_fd()).is_err());
    }
}
