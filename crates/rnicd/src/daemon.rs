//! The daemon from start to end.

mod company;
mod reload;

use crate::config::{Args, Config};
use crate::control_socket::listen;
use crate::device::Device;
use crate::files::Files;
use crate::log;
use crate::system::{self, notify};
use anyhow::{Context, Result, bail};
use company::{Company, Process};
use reload::Reloading;
use rnic_abi::os::Connection;
use rnic_host::discard::discard;
use rnic_host::memory;
use rnic_host::refusal::refuse;
use rnic_host::server::{Admitted, Door, Service, serve};
use rnic_net::Claims;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Checks what this host can do, or runs until SIGTERM, SIGINT or, where asked for, until the last
/// client has gone.
///
/// # Errors
/// When it cannot start; the text says what to do.
pub fn run(args: Args) -> Result<()> {
    if args.check {
        return crate::check::run(args);
    }
    system::raise_descriptor_limit();
    let config = Config::resolve(args.clone())?;
    let filter = log::start(&config.log)?;
    system::prepare_for_little_memory();
    memory::keep_reserve(RESERVE);
    let signals = Signals::new()?;
    // First of all: a second daemon must not disturb the first one's traffic.
    let listener = listen(&config)?;
    system::keep_needed_capabilities().context("cannot give up capabilities")?;
    let claims = Arc::new(Claims::new(config.netdev.as_deref(), discard)?);
    let device = Device::start(&config, &filter, &claims)?;
    let service = device.service(&config)?;
    // They are a convenience: a daemon without them serves.
    let files = Files::publish(&config.socket, &service)
        .inspect_err(|error| tracing::warn!("no files in the form of /sys: {error:#}"));
    let mut reloading = Reloading::new(args, config, filter, &device, &service)?;
    announce(reloading.config(), &service);
    notify(NotifyState::Ready);
    let mut doors = Doors { clients: Door::new(listener)?, claims: &claims, files: files.ok() };
    accept_until_told(&mut reloading, &device, &service, &mut doors, &signals)?;
    notify(NotifyState::Stopping);
    drop(reloading);
    doors.clients.close();
    // Its thread may be waiting for an engine that does not answer.
    doors.files.iter_mut().for_each(Files::finish);
    stop(&device, &service);
    Ok(())
}

/// Signals as something to poll.
struct Signals {
    end: UnixStream,
    reload: UnixStream,
}

impl Signals {
    fn new() -> Result<Self> {
        let pipe = |signals: &[i32]| -> Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair().context("too many open files")?;
            ours.set_nonblocking(true)?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, theirs.try_clone()?)
                    .context("cannot handle signals")?;
            }
            Ok(ours)
        };
        Ok(Self { end: pipe(&[SIGTERM, SIGINT])?, reload: pipe(&[SIGHUP])? })
    }
}

fn announce(config: &Config, service: &Service) {
    let port = service.network.port();
    let gids: Vec<String> = service
        .network
        .gids()
        .iter()
        .map(|e| format!("{}: {}", e.index, Ipv6Addr::from(e.gid).to_canonical()))
        .collect();
    tracing::info!(
        "device {} ({}), GIDs [{}], path MTU {}, socket {}",
        service.device.name,
        service.io,
        gids.join(", "),
        128u32 << port.active_mtu,
        config.socket.display()
    );
    if gids.is_empty() {
        let name = config.netdev.as_deref().unwrap_or("the interface");
        tracing::warn!("{name} has no address yet: `ip address add ... dev {name}`");
    }
}

/// Where clients and other daemons connect.
struct Doors<'a> {
    clients: Door,
    claims: &'a Claims,
    files: Option<Files>,
}

fn accept_until_told(
    reloading: &mut Reloading<'_>,
    device: &Device,
    service: &Arc<Service>,
    doors: &mut Doors<'_>,
    signals: &Signals,
) -> Result<()> {
    let mut company = reloading.config().exit_with_last_client.then(Company::default);
    loop {
        let (sessions, opened) = clients(device, service);
        let now = Instant::now();
        let lonely_until =
            company.as_mut().and_then(|company| company.lonely_until(sessions, opened > 0, now));
        if lonely_until.is_some_and(|until| until <= now) {
            tracing::info!("the last client has gone");
            return Ok(());
        }
        let deadlines = [lonely_until, doors.clients.deadline(), log::tell_of_the_rest(now)];
        let timeout =
            deadlines.into_iter().flatten().min().and_then(|until| patience_until(until, now));
        let ended = service.registry.ended();
        let idle = device.users.as_ref().map(|users| users.idle());
        let own =
            [doors.claims.as_fd(), signals.end.as_fd(), signals.reload.as_fd(), ended.as_fd()];
        let own = own.into_iter().chain(idle.map(AsFd::as_fd));
        let own = own.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let processes = company.iter().flat_map(Company::fds);
        let mut fds: Vec<PollFd<'_>> = own.chain(doors.clients.fds()).chain(processes).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => bail!("poll: {error}"),
        }
        let [rival, end, reload, session_ended] =
            [0, 1, 2, 3].map(|at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
        if end {
            return Ok(());
        }
        if reload {
            drain(&signals.reload);
            reloading.reload();
        }
        if session_ended {
            let _ = ended.drain();
        }
        if let Some(idle) = idle {
            let _ = idle.drain();
        }
        if rival {
            doors.claims.turn_away();
        }
        let files = doors.files.as_ref();
        doors.clients.attend(Instant::now(), |client| {
            files.inspect(|files| files.expect_changes());
            let_in(device, service, company.as_mut(), client)
        });
    }
}

/// Admits a client, and remembers its process in a daemon that waits for its last client.
fn let_in(
    device: &Device,
    service: &Arc<Service>,
    company: Option<&mut Company>,
    client: Connection,
) -> Admitted {
    // Afterwards the connection is the session's.
    let process = company.as_ref().and_then(|_| Process::of(&client));
    admit(device, service, client)?;
    if let (Some(company), Some(process)) = (company, process) {
        company.add(process);
    }
    Ok(())
}

/// Clients of the daemon's own user are served here, those of other users in engine processes. A
/// daemon that is not root has no other rights to give, and the kernel then checks for itself.
fn admit(device: &Device, service: &Arc<Service>, connection: Connection) -> Admitted {
    let users = device.users.as_ref().filter(|users| users.have_processes());
    let Some(users) = users else { return serve(service, connection, None) };
    match connection.peer_credentials() {
        Ok(peer) if peer.uid == service.owner => serve(service, connection, None),
        Ok(peer) => users.admit((peer.uid, peer.gid), connection),
        Err(error) => Err((connection, refuse(libc::EPERM, error.to_string()))),
    }
}

/// Sessions now, and contexts opened or clients handed over ever.
fn clients(device: &Device, service: &Service) -> (usize, u64) {
    let (sessions, opened) = service.registry.counts();
    let (busy, ever) = device.users.as_ref().map_or((0, 0), |users| users.counts());
    (sessions + busy, opened + ever)
}

/// A little longer than until then: what is due then is due when the wait is over.
fn patience_until(until: Instant, now: Instant) -> Option<Timespec> {
    let left = until.saturating_duration_since(now) + Duration::from_millis(1);
    Timespec::try_from(left).ok()
}

fn drain(mut pipe: &UnixStream) {
    use std::io::Read;
    let mut bytes = [0; 64];
    while pipe.read(&mut bytes).is_ok_and(|len| len > 0) {}
}

/// Ends all sessions, then the engines.
fn stop(device: &Device, service: &Service) {
    // They end while the sessions of this process do.
    if let Some(users) = &device.users {
        users.end();
    }
    if let Err(error) = service.stop.wake() {
        tracing::error!("cannot end the sessions: {error}");
    }
    let deadline = Instant::now() + DRAIN_PATIENCE;
    while service.registry.counts().0 > 0 && Instant::now() < deadline {
        let ended = service.registry.ended();
        let mut fds = [PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut fds, Some(&wait));
        let _ = ended.drain();
    }
    if let Some(users) = &device.users {
        users.stop(deadline);
    }
    device.own.stop();
}

/// Bytes that keep the daemon alive when there are no others.
const RESERVE: usize = 8 << 20;
/// How long sessions and engine processes may take to end: a session may wait for a neighbour that
/// does not answer or for an engine that its own memory keeps, and an engine process may be
/// stopped. With the half second that the daemon's own engine has, the end stays well below two
/// seconds, also where others use the CPU.
const DRAIN_PATIENCE: Duration = Duration::from_millis(800);
