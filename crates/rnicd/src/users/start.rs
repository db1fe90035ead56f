//! Starting a user's engine process.

use super::engine::{self, EngineProcess};
use super::protocol::{EngineWire, Start, ToEngine};
use super::{User, Users};
use crossbeam_channel::{Sender, bounded};
use rnic_abi::os::{Connection, EventFd};
use rnic_host::memory;
use rnic_host::quota::Amounts;
use rnic_host::server::Ledger;
use rnic_host::shard::ShardMessage;
use rnic_host::system::random;
use rnic_host::wire::{self, NewBranch};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The argument that makes `rnicd` an engine process, which no user gives.
pub const ENGINE_PROCESS: &str = "--engine-process";

/// Starts processes with the priority that the daemon had at its start: the thread that accepts
/// clients has less.
pub(super) struct Starter {
    requests: Sender<(OwnedFd, Sender<io::Result<Child>>)>,
}

impl Starter {
    pub(super) fn new(command: Vec<OsString>) -> io::Result<Self> {
        let (requests, asked) = bounded::<(OwnedFd, Sender<io::Result<Child>>)>(0);
        rnic_host::thread::spawn("rnic-starter", rnic_host::thread::STACK, move || {
            for (socket, answer) in asked {
                let _ = answer.send(spawn(&command, socket));
            }
        })?;
        Ok(Self { requests })
    }

    fn start(&self, socket: OwnedFd) -> io::Result<Child> {
        let (answer, answered) = bounded(1);
        let ends = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.requests.send((socket, answer)).map_err(|_| ends())?;
        answered.recv().map_err(|_| ends())?
    }
}

/// This very program, also when its file was replaced since.
pub(crate) fn this_program() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), ENGINE_PROCESS.into()]
}

/// A process whose standard input is the socket. All other descriptors of the daemon are closed by
/// `exec`.
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
        let (ours, theirs) = Connection::pair()?;
        let start = self.start_message(user, number)?;
        let branch = match start.wire {
            EngineWire::HandOver => Some(wire::branch(serial, Arc::clone(&wake))?),
            EngineWire::Sockets(_) => None,
        };
        let fds = branch.iter().flat_map(|branch| branch.attachment.fds());
        let fds: Vec<_> = fds.collect();
        ours.send_message(&ToEngine::Start(Box::new(start)), &fds)?;
        drop(fds);
        let child = self.starter.start(theirs.into())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        // It is not waited for before: the number is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let stats = branch.as_ref().map(|branch| Arc::clone(&branch.stats));
        let engine = EngineProcess::new(user, (number, serial), ours, (pid, pidfd), (wake, stats));
        let engine = Arc::new(engine);
        self.tell_network(&engine);
        // First: the thread that attends to the process tells of its end.
        if let Some(NewBranch { branch, receiver, .. }) = branch {
            self.parts.own.handle().tell(ShardMessage::AddShard(number, branch, receiver));
        }
        if let Err(error) = engine::attend_to(Arc::clone(self), Arc::clone(&engine), child) {
            engine.kill();
            let _ = waitpid(Some(pid), WaitOptions::empty());
            self.parts.own.handle().tell(ShardMessage::EndShard(serial));
            return Err(error);
        }
        tracing::info!("engine process {} serves user {}", engine.pid(), user.0);
        Ok(engine)
    }

    fn start_message(&self, (uid, gid): User, shard: u8) -> io::Result<Start> {
        let parts = &self.parts;
        let mut limits = Amounts::default();
        for resource in rnic_host::quota::Resource::ALL {
            limits[resource] = parts.ledger.limit(uid, resource);
        }
        Ok(Start {
            uid,
            gid,
            log: parts.log.clone(),
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
