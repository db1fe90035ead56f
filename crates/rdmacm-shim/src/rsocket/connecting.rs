//! How stream rsockets come into being, on the side that connects, and how they end.

use std::{
    ffi::c_int,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use rnic_abi::control::CmRequest;
use verbs_abi::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE,
    rdma_cm_event_type, rdma_conn_param,
};

use super::{
    link::Link,
    stream::{Core, Locked, Phase, Stream},
    waiting::Waits,
    wire::{CONNECT_LEN, Control},
};
use crate::{
    connect::{private_data, rdma_bind_addr, rdma_connect, rdma_resolve_addr, rdma_resolve_route},
    error::{Errno, Result, done},
    events,
    id::{no_address, write_address},
};

impl Stream {
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut core = self.core();
        if core.phase != Phase::Fresh {
            return Err(Errno(libc::EINVAL));
        }
        self.prepare(&mut core);
        let mut storage = no_address();
        write_address(&mut storage, address);
        // SAFETY: the identifier is the stream's, the address a local variable.
        done(unsafe { rdma_bind_addr(self.raw_id(), (&raw mut storage).cast()) })?;
        core.phase = Phase::Bound;
        Ok(())
    }

    /// Hands the options that matter to the identifier.
    pub(crate) fn prepare(&self, core: &mut Core) {
        let options = core.options;
        let mut inner = self.id(core).inner();
        inner.options.reuse = options.reuse;
        inner.options.one_family = options.one_family;
        inner.options.tos = options.tos as u8;
    }

    /// Connects, or goes on with it.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<()> {
        let mut core = self.core();
        match core.phase {
            Phase::Fresh | Phase::Bound => self.resolve(&mut core, address)?,
            Phase::Open => return Err(Errno(libc::EISCONN)),
            Phase::Listening => return Err(Errno(libc::EINVAL)),
            Phase::Failed => return Err(Errno(libc::ECONNREFUSED)),
            _ => {
                self.advance(&mut core);
                if core.phase.is_opening() && self.is_nonblocking(0) {
                    return Err(Errno(libc::EALREADY));
                }
            }
        }
        match self.opened(core, self.is_nonblocking(0)) {
            Ok(_) => Ok(()),
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            Err(error) => Err(error),
        }
    }

    fn resolve(&self, core: &mut Core, address: SocketAddr) -> Result<()> {
        self.prepare(core);
        let mut storage = no_address();
        // As with TCP, the unspecified address is this host.
        write_address(&mut storage, super::this_host(address));
        core.target = Some(address);
        let (id, to) = (self.raw_id(), (&raw mut storage).cast());
        // SAFETY: the identifier is the stream's, the address a local variable.
        done(unsafe { rdma_resolve_addr(id, std::ptr::null_mut(), to, PATIENCE) })?;
        core.phase = Phase::ResolvingAddress;
        Ok(())
    }

    /// Waits for the end of opening.
    pub(crate) fn opened<'a>(&'a self, core: Locked<'a>, nonblocking: bool) -> Result<Locked<'a>> {
        let mut core = match core.phase {
            Phase::Open => return Ok(core),
            phase if phase.is_opening() => {
                self.wait(core, (nonblocking, None), |core| !core.phase.is_opening())?
            }
            _ => core,
        };
        match core.phase {
            Phase::Open => Ok(core),
            Phase::Failed => Err(Errno(match std::mem::take(&mut core.error) {
                0 => libc::ENOTCONN,
                errno => errno,
            })),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Takes the events of the connection manager that have come.
    pub(crate) fn handle_events(&self, core: &mut Core) {
        loop {
            let event = match events::next(self.raw_channel()) {
                Ok(event) => event,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                Err(Errno(errno)) => return self.broken(core, errno),
            };
            // SAFETY: just made, and its parameters are those of a connection; private data is as
            // long as it says.
            let (what, status, private) = unsafe {
                let conn = (*event).param.conn;
                let private = private_data(conn.private_data, conn.private_data_len);
                ((*event).event, (*event).status, private)
            };
            // SAFETY: not used any more.
            unsafe { events::rdma_ack_cm_event(event) };
            if let Err(Errno(errno)) = self.handle(core, what, status, &private) {
                self.broken(core, errno);
            }
        }
    }

    fn handle(
        &self,
        core: &mut Core,
        what: rdma_cm_event_type,
        status: c_int,
        private: &[u8],
    ) -> Result<()> {
        match (core.phase, what) {
            (Phase::ResolvingAddress, RDMA_CM_EVENT_ADDR_RESOLVED) => {
                core.phase = Phase::ResolvingRoute;
                // SAFETY: the identifier is the stream's.
                done(unsafe { rdma_resolve_route(self.raw_id(), PATIENCE) })
            }
            (Phase::ResolvingRoute, RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                core.phase = Phase::Connecting;
                self.ask(core)
            }
            (Phase::Connecting, RDMA_CM_EVENT_ESTABLISHED) => {
                core.link.as_mut().ok_or(Errno(libc::EPROTO))?.meet(private)?;
                core.phase = Phase::Open;
                Ok(())
            }
            (Phase::Accepting, RDMA_CM_EVENT_ESTABLISHED) => {
                core.phase = Phase::Open;
                Ok(())
            }
            // Where the message was lost that says that the connection is up, the other end may
            // have sent and closed before it is known here.
            (Phase::Open | Phase::Accepting, RDMA_CM_EVENT_DISCONNECTED) => {
                core.phase = Phase::Open;
                if let Some(link) = &mut core.link {
                    // What came before is in the completion queue.
                    link.progress();
                    link.flow.disconnect();
                    link.stop();
                }
                Ok(())
            }
            (Phase::Open | Phase::Listening | Phase::Failed, _) => Ok(()),
            (_, RDMA_CM_EVENT_REJECTED) => Err(Errno(libc::ECONNREFUSED)),
            (_, RDMA_CM_EVENT_UNREACHABLE) => Err(Errno(libc::ETIMEDOUT)),
            (_, RDMA_CM_EVENT_DISCONNECTED) => Err(Errno(libc::ECONNRESET)),
            _ if status < 0 => Err(Errno(-status)),
            _ => Ok(()),
        }
    }

    /// Asks the other end for the connection.
    fn ask(&self, core: &mut Core) -> Result<()> {
        let options = core.options;
        let link = Link::new(self.id(core), options.wishes.sizes(), options.wishes.inline)?;
        let private = link.introduce();
        core.link = Some(link);
        let mut param = parameters(&private);
        // SAFETY: the identifier is the stream's, the parameters are local variables.
        done(unsafe { rdma_connect(self.raw_id(), &raw mut param) })
    }

    /// The stream has ended, or never began.
    fn broken(&self, core: &mut Core, errno: c_int) {
        match &mut core.link {
            Some(link) if core.phase == Phase::Open => link.fail(errno),
            _ => {
                core.link = None;
                core.error = errno;
                core.phase = Phase::Failed;
            }
        }
    }

    /// Ends one direction, or both.
    pub(crate) fn shutdown(&self, how: c_int) -> Result<()> {
        let until = self.limit();
        match self.say_end(how, until)? {
            Some(Control::Disconnect) => self.settle(until),
            _ => Ok(()),
        }
    }

    /// Until when closing that begins now may take.
    fn limit(&self) -> Instant {
        let linger = self.core().options.linger;
        let linger = linger.map_or(LINGER, |secs| Duration::from_secs(secs.into()));
        Instant::now() + linger.max(LEAST_LINGER)
    }

    /// Ends one direction, or both, and tells the other end, how; but for its own reading.
    fn say_end(&self, how: c_int, until: Instant) -> Result<Option<Control>> {
        let mut core = self.core();
        self.advance(&mut core);
        let phase = core.phase;
        let flow = match &mut core.link {
            Some(link) if phase == Phase::Open => &mut link.flow,
            _ if phase == Phase::Listening => return Ok(None),
            _ => return Err(Errno(libc::ENOTCONN)),
        };
        if how != libc::SHUT_RD {
            flow.stop_writing();
        }
        let control = match how {
            libc::SHUT_RDWR => Control::Disconnect,
            libc::SHUT_WR if flow.is_readable() => Control::Shutdown,
            libc::SHUT_WR => Control::Disconnect,
            _ if flow.is_writable() => {
                flow.stop_reading();
                Self::changed(&mut core);
                return Ok(None);
            }
            _ => Control::Disconnect,
        };
        if how != libc::SHUT_WR {
            flow.stop_reading();
        }
        Self::changed(&mut core);
        let is_free = |core: &Core| {
            core.link.as_ref().is_none_or(|link| !link.flow.is_up() || link.flow.can_control())
        };
        let mut core = patient(|| self.wait(self.core(), (false, Some(until)), is_free), core)?;
        if let Some(link) = &mut core.link
            && let Err(Errno(errno)) = link.control(control)
        {
            link.fail(errno);
        }
        Ok(Some(control))
    }

    /// Waits until all has arrived that was sent, also where both ends have said already that they
    /// send no more. What has not arrived by then does not arrive.
    fn settle(&self, until: Instant) -> Result<()> {
        let is_done = |core: &Core| core.link.as_ref().is_none_or(|link| link.flow.is_settled());
        let core = self.core();
        match patient(|| self.wait(self.core(), (false, Some(until)), is_done), core) {
            Ok(mut core) => self.part(&mut core),
            Err(_) => self.part(&mut self.core()),
        }
        Ok(())
    }

    /// The connection is over on this side.
    fn part(&self, core: &mut Core) {
        if let Some(link) = &mut core.link {
            link.flow.disconnect();
            link.stop();
            Self::changed(core);
            // Fails only where the other end was first.
            let place = self.id(core).place();
            let _ = place.and_then(|place| place.done(|id| CmRequest::Disconnect { id }));
        }
    }

    /// The program closes it.
    pub(crate) fn close(&self) {
        let until = self.limit();
        self.begin_close(until);
        self.finish_close(until);
    }

    /// Says to the other end that this one closes.
    pub(crate) fn begin_close(&self, until: Instant) {
        let core = self.core();
        let core = match core.phase {
            // The other end does not know yet that it is connected; it may have sent already.
            Phase::Accepting => {
                let until = until.min(Instant::now() + LEAST_PATIENCE);
                let opened = |core: &Core| !core.phase.is_opening();
                patient(|| self.wait(self.core(), (false, Some(until)), opened), core)
            }
            _ => Ok(core),
        };
        let is_up = core.is_ok_and(|core| {
            core.phase == Phase::Open && core.link.as_ref().is_some_and(|link| link.flow.is_up())
        });
        if is_up {
            // The stream is gone, whatever comes of it.
            let _ = self.say_end(libc::SHUT_RDWR, until);
        }
    }

    /// Waits until all has arrived.
    pub(crate) fn finish_close(&self, until: Instant) {
        if self.core().phase == Phase::Open {
            // The stream is gone, whatever comes of it.
            let _ = self.settle(until);
        }
        Self::changed(&mut self.core());
    }

    pub(crate) fn local(&self) -> SocketAddr {
        let mut core = self.core();
        let nothing = unspecified(core.options.is_v6);
        self.id(&mut core).local().unwrap_or(nothing)
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        let mut core = self.core();
        let target = core.target;
        (core.phase == Phase::Open || core.phase.is_opening())
            .then(|| self.id(&mut core).remote().or(target))?
    }
}

/// Waits on through signals.
fn patient<'a>(wait: impl Fn() -> Result<Locked<'a>>, core: Locked<'a>) -> Result<Locked<'a>> {
    drop(core);
    loop {
        match wait() {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

pub(crate) fn unspecified(is_v6: bool) -> SocketAddr {
    let ip: IpAddr = if is_v6 { [0_u16; 8].into() } else { [0_u8; 4].into() };
    SocketAddr::new(ip, 0)
}

/// With which streams connect and accept.
pub(crate) fn parameters(private: &[u8; CONNECT_LEN]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: CONNECT_LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// Milliseconds.
const PATIENCE: c_int = 2000;
/// How long closing may take.
const LINGER: Duration = Duration::from_secs(10);
/// How long closing waits for the end of connecting.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);
/// Where a program wants to lose what has not arrived yet, it still says that it closes.
const LEAST_LINGER: Duration = Duration::from_millis(100);
