//! One connection: its requests, one after the other, until it hangs up or its process dies.

use super::capture::Capture;
use super::context::Context;
use super::registry::Service;
use crate::refusal::{Refused, refuse};
use crate::shard::Message;
use crate::system;
use crate::wire::{Fault, FaultChange, MAX_FAULTS};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{self, Answer, Inspect, MAX_MESSAGE, Reply, Request, decode, encode};
use rnic_abi::os::{Connection, Credentials, Descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Serves `connection` in a thread of its own.
pub(crate) fn serve(service: Arc<Service>, connection: Connection) {
    let thread = std::thread::Builder::new().name("rnic-session".into()).stack_size(STACK);
    let spawned = thread.spawn(move || {
        let peer = match connection.peer_credentials() {
            Ok(peer) => peer,
            Err(error) => return turn_away(&connection, refuse(libc::EPERM, error.to_string())),
        };
        let session = match service.registry.enter(peer, &service.quota) {
            Ok(session) => session,
            Err(refusal) => return turn_away(&connection, refusal),
        };
        let owner = rustix::process::geteuid().as_raw();
        let served = Session { service: &service, connection, peer, session, owner };
        if let Err(error) = served.run() {
            // Quietly: a hostile client must not be able to fill the log.
            tracing::debug!("session {session} of process {} ends: {error:#}", peer.pid);
        }
        service.registry.leave(session);
    });
    if let Err(error) = spawned {
        tracing::error!("cannot serve a client: {error}");
    }
}

/// Answers the first request with a refusal, so that the program can say why.
fn turn_away(connection: &Connection, refusal: Refused) {
    tracing::debug!("a client is turned away: {refusal}");
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&GREETING_PATIENCE));
    let _ = connection.try_recv(&mut vec![0; MAX_MESSAGE]);
    let answer: Answer = Err(refusal);
    let _ = connection.send_message(&answer, &[]);
}

struct Session<'a> {
    service: &'a Arc<Service>,
    connection: Connection,
    peer: Credentials,
    session: u32,
    /// The daemon's user.
    owner: u32,
}

/// What travels beside a reply.
pub(super) type Attached = Vec<OwnedFd>;

impl Session<'_> {
    fn run(self) -> anyhow::Result<()> {
        let process = self.connection.peer_pidfd()?;
        // Memory of the client is looked at with the client's rights.
        system::become_user((self.peer.uid, self.peer.gid))?;
        // A client that asks without end must not take the CPU from those that transfer.
        rustix::process::nice(NICENESS)?;
        let mut greeted = false;
        let mut context = None;
        let mut capture = None;
        let mut buffer = vec![0; MAX_MESSAGE];
        while let Some((len, fds)) = self.next(&process, &mut buffer)? {
            let request: Request = match decode(&buffer[..len]) {
                Ok(request) => request,
                Err(_) => {
                    let text = "the request makes no sense: library and daemon are of different \
                                versions";
                    self.reply(&Err(refuse(libc::EPROTO, text)), &[])?;
                    anyhow::bail!("a request that makes no sense");
                }
            };
            let answer = match request {
                Request::Capture if greeted => self.capture(fds, &mut capture),
                request => self.answer(request, fds, &mut greeted, &mut context),
            };
            let (answer, attached) = match answer {
                Ok((reply, attached)) => (Ok(reply), attached),
                Err(refusal) => {
                    tracing::debug!("refused to process {}: {refusal}", self.peer.pid);
                    (Err(refusal), Vec::new())
                }
            };
            let attached: Vec<BorrowedFd<'_>> = attached.iter().map(AsFd::as_fd).collect();
            self.reply(&answer, &attached)?;
        }
        Ok(())
    }

    fn reply(&self, answer: &Answer, attached: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let bytes = match encode(answer) {
            Ok(bytes) => bytes,
            Err(_) => encode(&Answer::Err(refuse(libc::EMSGSIZE, "the answer is too long")))
                .map_err(|_| anyhow::anyhow!("an answer cannot be encoded"))?,
        };
        // A client that does not read its answers has no right to keep a thread waiting.
        Ok(self.connection.try_send(&bytes, attached)?)
    }

    /// The next request; `None` when the session is over.
    fn next(
        &self,
        process: &OwnedFd,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, Descriptors)>> {
        loop {
            let mut fds = [
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::new(process, PollFlags::IN),
                PollFd::from_borrowed_fd(self.service.stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [connection, process, stop] = fds.map(|fd| fd.revents());
            // A child may hold a copy of the socket; the process is what counts.
            if !process.is_empty() || !stop.is_empty() {
                return Ok(None);
            }
            if connection.is_empty() {
                continue;
            }
            match self.connection.try_recv(buffer) {
                Ok((0, _)) => return Ok(None),
                Ok(received) => return Ok(Some(received)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(
        &self,
        request: Request,
        fds: Descriptors,
        greeted: &mut bool,
        context: &mut Option<Context>,
    ) -> Result<(Reply, Attached), Refused> {
        if !*greeted && !matches!(request, Request::Hello { .. }) {
            return Err(refuse(libc::EPROTO, "the first request must be a greeting"));
        }
        let reply = match request {
            Request::Hello { abi } => {
                hello(abi)?;
                *greeted = true;
                Reply::Hello {
                    abi: ABI_VERSION,
                    server: concat!("rnicd ", env!("CARGO_PKG_VERSION")).into(),
                }
            }
            Request::ListDevices => Reply::Devices(vec![self.service.device.clone()]),
            Request::QueryPort => Reply::Port(self.service.network.port()),
            Request::QueryGids { start } => {
                let mut gids = self.service.network.gids();
                gids.retain(|entry| entry.index >= start);
                Reply::Gids(gids)
            }
            Request::Inspect { what, skip } => self.inspect(what, skip)?,
            Request::Faults(change) => self.change_faults(change)?,
            Request::OpenDevice { name } => return self.open(&name, context),
            request => match context {
                Some(context) => return context.execute(request, fds),
                None => return Err(refuse(libc::EINVAL, "no device is open in this session")),
            },
        };
        Ok((reply, Vec::new()))
    }

    fn open(
        &self,
        name: &str,
        context: &mut Option<Context>,
    ) -> Result<(Reply, Attached), Refused> {
        if context.is_some() {
            return Err(refuse(libc::EBUSY, "this session has a device open already"));
        }
        if name != self.service.device.name {
            let text = format!("there is no device {name:?}, but {}", self.service.device.name);
            return Err(refuse(libc::ENODEV, text));
        }
        let (opened, attached) = Context::open(self.service, self.session, self.peer)?;
        *context = Some(opened);
        let device = self.service.device.clone();
        Ok((Reply::Opened { device, num_comp_vectors: COMP_VECTORS }, attached))
    }

    /// Capture and faults concern every user's traffic.
    fn only_the_owner(&self) -> Result<(), Refused> {
        if [0, self.owner].contains(&self.peer.uid) {
            return Ok(());
        }
        let text = "this concerns the traffic of all users: only root and the daemon's own user \
                    may do it";
        Err(refuse(libc::EPERM, text))
    }

    fn capture(
        &self,
        fds: Descriptors,
        capture: &mut Option<Capture>,
    ) -> Result<(Reply, Attached), Refused> {
        self.only_the_owner()?;
        let [fd] = fds.exactly().map_err(|error| refuse(libc::EINVAL, error.to_string()))?;
        *capture = Some(Capture::start(self.service, fd)?);
        Ok((Reply::Done, Vec::new()))
    }

    fn change_faults(&self, change: control::FaultChange) -> Result<Reply, Refused> {
        self.only_the_owner()?;
        let change = match change {
            control::FaultChange::Keep => FaultChange::Keep,
            control::FaultChange::Add { faults, seed } => {
                let faults: Result<Vec<Fault>, String> =
                    faults.iter().map(|fault| fault.parse()).collect();
                let faults = faults.map_err(|error| refuse(libc::EINVAL, error))?;
                for fault in &faults {
                    tracing::warn!("injecting {fault}");
                }
                FaultChange::Add(faults, seed)
            }
            control::FaultChange::Clear => {
                tracing::warn!("injecting no faults any more");
                FaultChange::Clear
            }
        };
        let asked = self.service.crew.first().ask(|answer| Message::Faults(change, answer));
        let found = asked.map_err(|_| refuse(libc::EIO, "the engine has stopped"))?;
        let faults = found.ok_or_else(|| {
            let text =
                format!("{MAX_FAULTS} faults at a time are enough: `rnic fault clear` first");
            refuse(libc::ENOSPC, text)
        })?;
        let json = Value::Array(faults.iter().map(Fault::describe).collect()).to_string();
        Ok(Reply::Inspected { json, more: false })
    }

    fn inspect(&self, what: Inspect, skip: u32) -> Result<Reply, Refused> {
        let mut found = self.service.crew.inspect(what);
        let whole = match what {
            Inspect::Status => {
                let totals = found.into_iter().next().unwrap_or_default();
                Some(self.service.describe(totals))
            }
            Inspect::Counters => found.first().cloned(),
            Inspect::Qps | Inspect::Mrs | Inspect::Cqs => {
                self.keep_own(&mut found);
                return Ok(page(&found, skip));
            }
        };
        Ok(Reply::Inspected { json: whole.unwrap_or_default().to_string(), more: false })
    }

    /// Keys, QP numbers and PSNs are all that it takes to reach somebody's memory: each user sees
    /// the objects of that user's clients only, root and the daemon's own user see all.
    fn keep_own(&self, objects: &mut Vec<Value>) {
        if self.only_the_owner().is_err() {
            let own = self.service.registry.clients_of(self.peer.uid);
            let is_own = |client: u64| own.iter().any(|own| u64::from(*own) == client);
            objects.retain(|object| object["client"].as_u64().is_some_and(is_own));
        }
    }
}

/// As many values as fit a message, from `skip` on.
fn page(values: &[Value], skip: u32) -> Reply {
    let mut json = String::from("[");
    let mut rest = values.iter().skip(skip as usize).peekable();
    while let Some(value) = rest.next_if(|value| json.len() + value.to_string().len() < PAGE) {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&value.to_string());
    }
    json.push(']');
    Reply::Inspected { more: rest.peek().is_some() && json.len() > 2, json }
}

fn hello(abi: u32) -> Result<(), Refused> {
    if abi == ABI_VERSION {
        return Ok(());
    }
    let text = format!(
        "the library speaks version {abi} and this daemon version {ABI_VERSION}: use the library \
         that came with the daemon, and restart a daemon that is older than its libraries"
    );
    Err(refuse(libc::EPROTO, text))
}

/// How much sessions stand back behind engines and programs, in steps of `nice`.
const NICENESS: i32 = 10;
/// Requests are handled on small stacks: there may be thousands of sessions.
const STACK: usize = 256 * 1024;
/// Bytes of JSON in one answer.
const PAGE: usize = MAX_MESSAGE - 4096;
/// How long one that is turned away may take to say something.
const GREETING_PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// All CQs are served by one engine thread.
pub(super) const COMP_VECTORS: u32 = 1;
