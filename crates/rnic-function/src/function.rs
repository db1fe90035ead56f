//! One function: a satellite of the daemon, and the threads that it lives in.

use crate::descriptors;
use crate::driver::Driver;
use crate::table::Table;
use crossbeam_channel::{Sender, bounded};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Answer, Reply, Request};
use rnic_abi::os::driving::{Driving, State};
use rnic_abi::os::{Connection, Descriptor, Descriptors, signals};
use rnic_host::satellite::{Place, Satellite, receive_start};
use rnic_host::server::ClientMemory;
use rnic_host::shard::{Driven, ProgramsEngine};
use rnic_host::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Where a function gets its clients. Dropped, it gets no more.
///
/// The program may close the descriptor and use its number for a file of its own.
pub(crate) struct Door {
    number: u64,
    to: Descriptor<Connection>,
    /// Which thread turns the function's engine; `None` where it is always its own.
    driving: Option<&'static Driving>,
}

impl Door {
    pub(crate) fn new(
        number: u64,
        to: Connection,
        driving: Option<&'static Driving>,
    ) -> io::Result<Self> {
        Ok(Self { number, to: Descriptor::new(to)?, driving })
    }

    pub(crate) fn driving(&self) -> Option<&'static Driving> {
        self.driving
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Asks the function to tell the daemon what it has counted so far; false when it cannot be
    /// asked. The function must not end meanwhile: it would be a signal to this program.
    ///
    /// By a plain write, which also programs may do that allow themselves few system calls.
    pub(crate) fn ask_for_counts(&self) -> bool {
        self.to.get().is_some_and(|to| rustix::io::write(to, &[0]).is_ok())
    }

    /// Waits a moment until it has told the daemon that.
    pub(crate) fn await_counts(&self) {
        let Some(to) = self.to.get() else { return };
        let mut fds = [PollFd::new(to, PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&PATIENCE)));
    }

    /// Never waits.
    pub(crate) fn send(&self, client: BorrowedFd<'_>) -> io::Result<()> {
        let to = self.to.get().ok_or(io::ErrorKind::NotConnected)?;
        to.try_send(&[0], &[client])
    }
}

/// Starts one at the daemon with a socket at this path.
pub(crate) fn start(path: &Path, table: &'static Table) -> io::Result<Door> {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    check_size_of_files()?;
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let upstream = ask_for_one(path)?;
    // Without, the engine's thread does all.
    let driving = table.agreement().ok();
    let ((to, from), (takes, offers)) = (Connection::pair()?, Connection::pair()?);
    let [from, offers] = [OwnedFd::from(from), OwnedFd::from(offers)];
    let fds = [upstream.as_raw_fd(), from.as_raw_fd(), offers.as_raw_fd()];
    let (tell, started) = bounded(1);
    descriptors::announce_threads();
    signals::without(|| {
        let live = move || live(fds, driving, number, table, &tell);
        thread::spawn("rnic-function", thread::STACK, live)
    })
    .map_err(|error| explained(&error, "no thread for it"))?;
    let result = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    // Not before: until then the thread takes them from this table.
    drop((upstream, from, offers));
    if let (Some(driving), Some(engine)) = (driving, result?) {
        // As above.
        let _ = Driver::start(driving, engine, takes);
    }
    Door::new(number, to, driving)
}

/// Rings are files of this process. One that is larger than it may have is a signal that ends it.
fn check_size_of_files() -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < LARGEST_FILE => {
            let text = format!(
                "the size of its files is limited to {limit} bytes, and its rings may need \
                 {LARGEST_FILE} (ulimit -f)"
            );
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        }
        _ => Ok(()),
    }
}

fn explained(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The socket over which the daemon and this program's function are to talk.
fn ask_for_one(path: &Path) -> io::Result<OwnedFd> {
    let daemon = Connection::connect(path)
        .map_err(|error| explained(&error, &format!("no daemon at {}", path.display())))?;
    let ask = |request| -> io::Result<(Reply, Descriptors)> {
        let (answer, fds): (Answer, Descriptors) = daemon.call(&request, &[])?;
        Ok((answer.map_err(|refusal| io::Error::other(refusal.message))?, fds))
    };
    ask(Request::Hello { abi: ABI_VERSION })?;
    let (_, fds) = ask(Request::StartFunction)?;
    let [upstream] = fds.exactly()?;
    Ok(upstream)
}

/// The thread that does what the daemon says, until the end.
fn live(
    fds: [RawFd; 3],
    driving: Option<&'static Driving>,
    number: u64,
    table: &Table,
    tell: &Sender<io::Result<Option<ProgramsEngine>>>,
) {
    let begun = begin(fds, driving);
    let (satellite, engine, door) = match begun {
        Ok(begun) => begun,
        Err(error) => return drop(tell.send(Err(io::Error::other(format!("{error:#}"))))),
    };
    let _ = tell.send(Ok(engine));
    let mut place = Program { number, table, door: Some(door) };
    // The daemon is gone, or needs it no more: what programs see is the same.
    let _ = satellite.attend(&mut place);
    table.forget(number);
    satellite.end();
    driving.into_iter().for_each(|driving| driving.set_state(State::Stale));
    // Last: a program that ends may wait until the daemon has been told what was counted.
    drop(place);
}

fn begin(
    fds: [RawFd; 3],
    driving: Option<&'static Driving>,
) -> anyhow::Result<(Satellite, Option<ProgramsEngine>, Connection)> {
    // SAFETY: the starter keeps them open until it is told that this has begun.
    let [upstream, door, offers] = unsafe { descriptors::alone_with(fds) }?;
    let (start, fds) = receive_start(&upstream)?;
    let driven =
        driving.map(|driving| Driven { driving, offers, has_handlers: signals::are_handled });
    let satellite = Satellite::driven(start, fds, upstream, ClientMemory::Own, driven)?;
    let engine = satellite.programs_engine().cloned();
    Ok((satellite, engine, door))
}

/// The program, in which the satellite is.
struct Program<'a> {
    number: u64,
    table: &'a Table,
    door: Option<Connection>,
}

impl Place for Program<'_> {
    fn is_idle(&mut self, _: &Satellite, _: u32) -> bool {
        let door = &self.door;
        self.table.retire(self.number, || door.as_ref().is_some_and(has_mail))
    }

    fn look(&mut self, _: Instant) -> Option<Instant> {
        None
    }

    fn door(&self) -> Option<&Connection> {
        self.door.as_ref()
    }

    fn close_door(&mut self) {
        self.door = None;
    }
}

/// Bytes of the rings of very large queues.
const LARGEST_FILE: u64 = 1 << 30;

/// How long the end of a program may take.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

fn has_mail(door: &Connection) -> bool {
    let mut fds = [PollFd::new(door, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&Timespec::default()));
    ready.is_ok_and(|_| fds[0].revents().contains(PollFlags::IN))
}
