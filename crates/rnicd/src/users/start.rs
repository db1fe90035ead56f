//! Starting a user's engine process.

use super::engine::{self, EngineProcess, Place};
use super::{User, Users};
use crossbeam_channel::{Sender, bounded};
use rnic_abi::os::{Connection, EventFd};
use rnic_host::memory;
use rnic_host::quota::Amounts;
use rnic_host::satellite::protocol::{EngineWire, Start, ToEngine};
use rnic_host::server::Ledger;
use rnic_host::shard::ShardMessage;
use rnic_host::system::random;
use rnic_host::wire::{self, NewBranch};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// The argument that makes `rnicd` an engine process, which no user gives.
pub const ENGINE_PROCESS: &str = "--engine-process";

/// Starts processes with the priority that the daemon had at its start: the thread that accepts
/// clients has less.
///
/// The thread that does it has a table of descriptors of its own. Until `exec` a new process has
/// copies of that table's, and closes for good what the daemon closes meanwhile: with the daemon's
/// table that would take as long as a user likes who [sent it](rnic_host::discard) descriptors.
pub(super) struct Starter(Mutex<Way>);

/// The way to the thread.
struct Way {
    /// For the socket of a process.
    sockets: Connection,
    requests: Sender<Sender<io::Result<Child>>>,
}

impl Starter {
    pub(super) fn new(command: Vec<OsString>) -> io::Result<Self> {
        let (requests, asked) = bounded::<Sender<io::Result<Child>>>(0);
        let (sockets, theirs) = Connection::pair()?;
        let (number, (tell, ready)) = (theirs.as_fd().as_raw_fd(), bounded(1));
        rnic_host::thread::spawn("rnic-starter", rnic_host::thread::STACK, move || {
            let sockets = match alone_with(number) {
                Ok(sockets) => Connection::from(sockets),
                Err(error) => return drop(tell.send(Err(error))),
            };
            let _ = tell.send(Ok(()));
            for answer in asked {
                let _ = answer.send(take(&sockets).and_then(|socket| spawn(&command, socket)));
            }
        })?;
        ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self(Mutex::new(Way { sockets, requests })))
    }

    fn start(&self, socket: &OwnedFd) -> io::Result<Child> {
        let way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        way.sockets.try_send(&[0], &[socket.as_fd()])?;
        let (answer, answered) = bounded(1);
        let ends = || io::Error::from(io::ErrorKind::BrokenPipe);
        way.requests.send(answer).map_err(|_| ends())?;
        answered.recv().map_err(|_| ends())?
    }
}

/// Gives the calling thread a table of descriptors of its own, with the standard ones and this one,
/// or a copy of this one where the kernel has no such call.
#[allow(unsafe_code, reason = "no library wraps close_range")]
fn alone_with(number: RawFd) -> io::Result<OwnedFd> {
    let number_in_table = number.unsigned_abs();
    // SAFETY: the caller has it open until this returns. In its own table this thread uses none of
    // those that are closed.
    unsafe {
        let (next, end) = (number_in_table + 1, libc::c_uint::MAX);
        let unshare = libc::CLOSE_RANGE_UNSHARE;
        if libc::syscall(libc::SYS_close_range, next, end, unshare) != 0 {
            return BorrowedFd::borrow_raw(number).try_clone_to_owned();
        }
        if number_in_table > 3 {
            libc::syscall(libc::SYS_close_range, 3, number_in_table - 1, 0);
        }
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// The socket of a process, which was sent before.
fn take(sockets: &Connection) -> io::Result<OwnedFd> {
    let (_, fds) = sockets.try_recv(&mut [0])?;
    let [socket] = fds.exactly()?;
    Ok(socket)
}

/// This very program, also when its file was replaced since.
pub(crate) fn this_program() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), ENGINE_PROCESS.into()]
}

/// A process whose standard input is the socket. `exec` closes all others but the standard ones.
fn spawn(command: &[OsString], socket: OwnedFd) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    Command::new(program)
        .arg0(OsStr::new("rnicd"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .spawn()
}

impl Users {
    /// Starts the process, and the thread that attends to it.
    pub(super) fn start(
        self: &Arc<Self>,
        user: User,
        number: u8,
        serial: u64,
    ) -> io::Result<Arc<EngineProcess>> {
        if memory::is_short() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let wake = Arc::new(EventFd::new()?);
        let ([ours, theirs], branch) = self.tie(user, number, serial, &wake)?;
        let starter = self.starter.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let child = starter.start(&theirs.into())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        // It is not waited for before: the number is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let stats = branch.as_ref().map(|branch| Arc::clone(&branch.stats));
        let place = Place::Process;
        let engine =
            EngineProcess::new(user, (number, serial), ours, (place, pid, pidfd), (wake, stats));
        let engine = Arc::new(engine);
        self.tell_network(&engine);
        // First: the thread that attends to the process tells of its end.
        if let Some(NewBranch { branch, receiver, .. }) = branch {
            self.parts.own.handle().tell(ShardMessage::AddShard(
                number,
                Box::new(branch),
                receiver,
            ));
        }
        if let Err(error) = engine::attend_to(Arc::clone(self), Arc::clone(&engine), Some(child)) {
            engine.kill();
            let _ = waitpid(Some(pid), WaitOptions::empty());
            self.parts.own.handle().tell(ShardMessage::EndShard(serial));
            return Err(error);
        }
        tracing::info!("engine process {} serves user {}", engine.pid(), user.0);
        Ok(engine)
    }

    /// Both ends of the socket of a new engine, to which the first message is on its way, and its
    /// part of the wire, if it has no sockets of its own.
    pub(super) fn tie(
        &self,
        user: User,
        number: u8,
        serial: u64,
        wake: &Arc<EventFd>,
    ) -> io::Result<([Connection; 2], Option<NewBranch>)> {
        let (ours, theirs) = Connection::pair()?;
        let start = self.start_message(user, number)?;
        let branch = match start.wire {
            EngineWire::HandOver => Some(wire::branch(serial, Arc::clone(wake))?),
            EngineWire::Sockets(_) => None,
        };
        let fds: Vec<_> = branch.iter().flat_map(|branch| branch.attachment.fds()).collect();
        ours.send_message(&ToEngine::Start(Box::new(start)), &fds)?;
        drop(fds);
        Ok(([ours, theirs], branch))
    }

    pub(super) fn start_message(&self, (uid, gid): User, shard: u8) -> io::Result<Start> {
        let parts = &self.parts;
        let mut limits = Amounts::default();
        for resource in rnic_host::quota::Resource::ALL {
            limits[resource] = parts.ledger.limit(uid, resource);
        }
        Ok(Start {
            uid,
            gid,
            log: parts.log.text(),
            settings: parts.settings,
            profile: parts.profile,
            shard,
            secret: random()?,
            device: parts.device.clone(),
            io: parts.io.clone(),
            owner: rustix::process::geteuid().as_raw(),
            daemon: std::process::id(),
            limits,
            network: self.network_state(false),
            wire: match &parts.shared_port {
                Some(port) => EngineWire::Sockets(port.scope_id()),
                None => EngineWire::HandOver,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn processes_are_started_with_few_descriptors() {
        let _files: Vec<_> = (0..20).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let starter = Starter::new(vec!["/bin/true".into()]).unwrap();
        for _ in 0..3 {
            let (_ours, theirs) = Connection::pair().unwrap();
            assert!(starter.start(&theirs.into()).unwrap().wait().unwrap().success());
        }
        // The standard ones, and the way here; what another test's has in hand just now.
        let of = |task: &std::path::Path| {
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let fds = fs::read_dir(task.join("fd")).ok()?.count();
            (name.trim_end() == "rnic-starter").then_some(fds)
        };
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let most = tasks.filter_map(|task| of(&task.unwrap().path())).max();
        assert!(most.is_some_and(|most| most <= 8), "{most:?}");
    }
}
