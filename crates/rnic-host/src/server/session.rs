//! One connection: its requests, one after the other, until it hangs up or its process dies.

use super::accounts::{Account, Charge};
use super::context::Context;
use super::inspect::{inspect, inspected};
use super::plane::ConnectionSession;
use super::reply::{Attached, COMP_VECTORS, engine_gone};
use super::service::{Place, Service};
use super::turned_away::{Admitted, TurnedAway};
use super::watching::Watching;
use crate::memory;
use crate::observe::Wants;
use crate::quota::Resource;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::thread;
use crate::wire::{Fault, FaultChange, MAX_FAULTS, NoChange};
use crossbeam_channel::{Sender, bounded};
use rnic_abi::ABI_VERSION;
use rnic_abi::control::{
    self, Answer, CmRequest, DeviceInfo, MAX_MESSAGE, Reply, Request, decode, encode,
};
use rnic_abi::os::{Connection, Credentials, Descriptors};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Serves `connection` in a thread of its own. The client's greeting is answered already when it is
/// `opening` the device of this name.
///
/// # Errors
/// The connection, and why it is not served.
pub fn serve(service: &Arc<Service>, connection: Connection, opening: Option<String>) -> Admitted {
    let admitted = connection
        .peer_credentials()
        .map_err(|error| refuse(libc::EPERM, error.to_string()))
        .and_then(|peer| {
            let place = Place::take(service, peer)?;
            // Here, and not in the thread: a client that is not served is told so.
            let process = connection.peer_pidfd().map_err(refused_by_kernel("no session"))?;
            Ok((peer, process, place))
        });
    let (peer, process, place) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => return Err((connection, why)),
    };
    let why = match start(Arc::clone(service), (peer, process), place, opening) {
        Ok(session) => match session.send(connection) {
            Ok(()) => return Ok(()),
            Err(back) => return Err((back.0, no_memory())),
        },
        Err(error) => {
            tracing::error!("cannot serve a client: {error}");
            refuse(libc::EAGAIN, format!("the daemon cannot start a thread for it: {error}"))
        }
    };
    Err((connection, why))
}

/// Starts the thread of a session, which begins once it is given the connection.
fn start(
    service: Arc<Service>,
    (peer, process): (Credentials, OwnedFd),
    place: Place,
    opening: Option<String>,
) -> io::Result<Sender<Connection>> {
    // What is left is for sessions that are served already.
    if memory::is_short() || !memory::has_room(ROOM) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let (sender, receiver) = bounded(1);
    thread::spawn("rnic-session", STACK, move || {
        let Ok(connection) = receiver.recv() else { return };
        let account = service.account(peer.uid);
        let process = Arc::new(process);
        let session = Session { service: &service, connection, peer, process, account, place };
        if let Err(error) = session.run(opening) {
            // Quietly: a hostile client must not be able to fill the log.
            tracing::debug!("a session of process {} ends: {error:#}", peer.pid);
        }
    })?;
    Ok(sender)
}

fn no_memory() -> Refused {
    refuse(libc::ENOMEM, "the daemon has no memory left for more")
}

/// What a session has of the connection manager.
struct CmPart {
    session: Box<dyn ConnectionSession>,
    /// What its event channels cost.
    channels: HashMap<u32, [Charge; 2]>,
}

struct Session<'a> {
    service: &'a Arc<Service>,
    connection: Connection,
    peer: Credentials,
    /// Its pidfd, which the engine has, too, where it copies by the number of the process.
    process: Arc<OwnedFd>,
    account: Account,
    /// The last to go.
    place: Place,
}

impl Session<'_> {
    fn run(self, opening: Option<String>) -> anyhow::Result<()> {
        let mut greeted = opening.is_some();
        let mut context = None;
        if let Some(name) = opening {
            self.answer_with(self.open(&name, &mut context))?;
        }
        let mut watching = None;
        let mut connections = None;
        let mut buffer = vec![0; MAX_MESSAGE];
        while let Some((len, fds)) = self.next(&mut buffer)? {
            let request: Request = match decode(&buffer[..len]) {
                Ok(request) => request,
                Err(_) => {
                    let text = "malformed request: library and daemon are of different \
                                versions";
                    self.reply(&Err(refuse(libc::EPROTO, text)), &[])?;
                    anyhow::bail!("a malformed request");
                }
            };
            // What it has here already stays here, and it too.
            if let Request::OpenDevice { name } = &request
                && greeted
                && (context.is_none() && watching.is_none() && connections.is_none())
                && let Some(engine) = self.less_busy_engine()
            {
                self.hand_over(engine, name);
                return Ok(());
            }
            let answer = match request {
                Request::Observe { frames, events } if greeted => {
                    self.observe(Wants { frames, events }, fds, &mut watching)
                }
                Request::Connections(request) if greeted => self.connect(request, &mut connections),
                Request::StartFunction if greeted => self.start_function(),
                request if takes_memory(&request) && memory::is_short() => Err(no_memory()),
                request => self.answer(request, fds, &mut greeted, &mut context),
            };
            self.answer_with(answer)?;
        }
        Ok(())
    }

    fn answer_with(&self, answer: Result<(Reply, Attached), Refused>) -> anyhow::Result<()> {
        let (answer, attached) = match answer {
            Ok((reply, attached)) => (Ok(reply), attached),
            Err(refusal) => {
                tracing::debug!("refused to process {}: {refusal}", self.peer.pid);
                (Err(refusal), Vec::new())
            }
        };
        let attached: Vec<BorrowedFd<'_>> = attached.iter().map(AsFd::as_fd).collect();
        self.reply(&answer, &attached)
    }

    /// Another engine of this process that is to have the client. These engines serve the daemon's
    /// own user only, to whom everything that they serve is charged.
    fn less_busy_engine(&self) -> Option<usize> {
        let more = self.service.more.as_ref().filter(|_| self.peer.uid == self.service.owner)?;
        more.least_busy(self.service.registry.contexts())
    }

    /// The session goes on there.
    fn hand_over(self, engine: usize, device: &str) {
        let Self { service, connection, place, .. } = self;
        // First: the other session takes the same of the user's quota.
        drop(place);
        let more = service.more.as_ref();
        if !more.is_some_and(|more| more.serve(engine, &connection, device)) {
            let why =
                refuse(libc::EAGAIN, format!("engine {engine} of the daemon takes no client"));
            TurnedAway::tell(connection, &why);
        }
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
    fn next(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Descriptors)>> {
        loop {
            let mut fds = [
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::from_borrowed_fd(self.process.as_fd(), PollFlags::IN),
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
            Request::ListDevices => Reply::Devices(vec![self.device()]),
            Request::QueryPort => Reply::Port(self.service.network.port()),
            Request::QueryGids { start } => {
                let mut gids = self.service.network.gids();
                gids.retain(|entry| entry.index >= start);
                Reply::Gids(gids)
            }
            Request::Inspect { what, from } => {
                let user = self.only_the_owner().err().map(|_| self.peer.uid);
                inspect(self.service, user, what, from)
            }
            Request::Faults(change) => self.change_faults(change)?,
            Request::OpenDevice { name } => return self.open(&name, context),
            request => match context {
                Some(context) => return context.execute(request, fds),
                None => return Err(refuse(libc::EINVAL, "no device is open in this session")),
            },
        };
        Ok((reply, Vec::new()))
    }

    /// The engine of this program is to be in the program itself.
    fn start_function(&self) -> Result<(Reply, Attached), Refused> {
        let Some(functions) = &self.service.functions else {
            let text = "this daemon has no sockets to give to programs: it needs --io udp";
            return Err(refuse(libc::EOPNOTSUPP, text));
        };
        let process = self.connection.peer_pidfd();
        let process = process.map_err(refused_by_kernel("the process cannot be watched"))?;
        let socket = functions.start(self.peer, process)?;
        Ok((Reply::Done, vec![socket]))
    }

    fn connect(
        &self,
        request: CmRequest,
        session: &mut Option<CmPart>,
    ) -> Result<(Reply, Attached), Refused> {
        let part = match session {
            Some(part) => part,
            None => session.insert(CmPart {
                session: self.service.connections.open(),
                channels: HashMap::new(),
            }),
        };
        let charges = match request {
            CmRequest::OpenChannel => {
                let wanted = [(Resource::Channels, 1), (Resource::Descriptors, 1)];
                Some(self.account.take_all(wanted)?)
            }
            _ => None,
        };
        let closed = match request {
            CmRequest::CloseChannel { channel } => Some(channel),
            _ => None,
        };
        let (reply, fd) = part.session.execute(request)?;
        if let (Reply::Handle(channel), Some(charges)) = (&reply, charges) {
            part.channels.insert(*channel, charges);
        }
        if let Some(closed) = closed {
            part.channels.remove(&closed);
        }
        Ok((reply, fd.into_iter().collect()))
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
        let peer = (self.peer, &self.process);
        let (opened, attached) =
            Context::open(self.service, self.place.session, peer, self.account.clone())?;
        *context = Some(opened);
        let device = self.device();
        Ok((Reply::Opened { device, num_comp_vectors: COMP_VECTORS }, attached))
    }

    /// The device as this user may use it.
    fn device(&self) -> DeviceInfo {
        let mut device = self.service.device.clone();
        let may = |resource| self.service.ledger.limit(self.peer.uid, resource);
        let count = |limit: u32, resource| limit.min(may(resource).try_into().unwrap_or(u32::MAX));
        let limits = &mut device.limits;
        limits.max_qp = count(limits.max_qp, Resource::Qps);
        // They are charged as queue pairs.
        limits.max_srq = count(limits.max_srq, Resource::Qps);
        limits.max_cq = count(limits.max_cq, Resource::Cqs);
        limits.max_mr = count(limits.max_mr, Resource::Mrs);
        // They are charged as memory regions.
        limits.max_mw = count(limits.max_mw, Resource::Mrs);
        limits.max_pd = count(limits.max_pd, Resource::Pds);
        limits.max_ah = count(limits.max_ah, Resource::Ahs);
        // Whole pages: device memory takes no others.
        let page = rustix::param::page_size() as u64;
        let most = limits.max_dm_size.min(may(Resource::DeviceMemoryBytes));
        limits.max_dm_size = most - most % page;
        // Each attached queue pair is charged as an address handle and a descriptor.
        for limit in [&mut limits.max_groups, &mut limits.max_members] {
            *limit = count(count(*limit, Resource::Ahs), Resource::Descriptors);
        }
        limits.max_mr_size = limits.max_mr_size.min(may(Resource::RegisteredBytes));
        device
    }

    /// What is observed, and faults, concern every user's traffic.
    fn only_the_owner(&self) -> Result<(), Refused> {
        if [0, self.service.owner].contains(&self.peer.uid) {
            return Ok(());
        }
        let text = "this concerns the traffic of all users: only root and the daemon's own user \
                    may do it. Start a daemon of your own for your programs (`rnicd --address \
                    127.0.0.2 --socket PATH`) and set RNIC_SOCKET=PATH";
        Err(refuse(libc::EPERM, text))
    }

    fn observe(
        &self,
        wants: Wants,
        fds: Descriptors,
        watching: &mut Option<Watching>,
    ) -> Result<(Reply, Attached), Refused> {
        self.only_the_owner()?;
        let [fd] = fds.exactly().map_err(|error| refuse(libc::EINVAL, error.to_string()))?;
        *watching = Some(Watching::start(self.service, wants, fd)?);
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
            control::FaultChange::Remove(numbers) => {
                tracing::warn!("injecting no faults {numbers:?} any more");
                FaultChange::Remove(numbers)
            }
            control::FaultChange::Clear => {
                tracing::warn!("injecting no faults any more");
                FaultChange::Clear
            }
        };
        let found = self.service.engines.change_faults(change).map_err(engine_gone)?;
        let faults = found.map_err(|no| match no {
            NoChange::TooMany => {
                let text =
                    format!("{MAX_FAULTS} faults at a time are enough: `rnic fault clear` first");
                refuse(libc::ENOSPC, text)
            }
            NoChange::NoSuch(number) => {
                let text = format!("there is no fault {number}: `rnic fault list` shows them");
                refuse(libc::ENOENT, text)
            }
            NoChange::NoWire => refuse(libc::EPERM, "this engine has no wire of its own"),
        })?;
        let faults: Vec<_> = faults.iter().map(Fault::report).collect();
        Ok(inspected(serde_json::to_string(&faults)))
    }
}

/// Requests that make the daemon hold more.
fn takes_memory(request: &Request) -> bool {
    use Request as R;
    matches!(
        request,
        R::OpenDevice { .. }
            | R::AllocPd
            | R::RegMr { .. }
            | R::AllocDm { .. }
            | R::RegDmMr { .. }
            | R::RegNullMr { .. }
            | R::ReregMr { .. }
            | R::AllocMw { .. }
            | R::CreateChannel
            | R::CreateCq { .. }
            | R::ResizeCq { .. }
            | R::CreateQp(_)
            | R::OpenQp { .. }
            | R::OpenXrcd { .. }
            | R::CreateSrq { .. }
            | R::CreateAh { .. }
            | R::Multicast { attach: true, .. }
            | R::StartFunction
            | R::Inspect { .. }
            | R::Observe { .. }
    )
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

/// Requests are handled on small stacks: there may be thousands of sessions.
const STACK: usize = 256 * 1024;
/// Bytes that a session takes at its start, and more than others take meanwhile.
const ROOM: usize = 4 << 20;
