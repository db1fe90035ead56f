//! Events on their way to programs.

use rnic_abi::control::{CmHappening, CmNotice, CmOffer, CmService, CmSource, encode};
use rnic_core::cm::{CmEvent, Happening, Lookup, Offer, Owner, Request, Route};
use roce_wire::Gid;
use roce_wire::cm::TransportType;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

/// The event channels of all sessions.
#[derive(Default)]
pub(super) struct Events {
    channels: BTreeMap<Owner, Channel>,
    /// Those without room for what waits.
    full: BTreeSet<Owner>,
    users: BTreeMap<u8, Held>,
}

/// What is held for one user.
#[derive(Clone, Copy, Default)]
struct Held {
    channels: u64,
    events: usize,
}

/// Our end of a channel, which never waits.
struct Channel {
    socket: OwnedFd,
    pending: VecDeque<Vec<u8>>,
}

impl Channel {
    /// Sends what waits, as far as there is room: how much that was.
    fn flush(&mut self) -> usize {
        let before = self.pending.len();
        while let Some(event) = self.pending.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if let Err(Errno::AGAIN | Errno::NOBUFS) = send(&self.socket, event, flags) {
                break;
            }
            // Also when the other end is closed: no thread waits for it then.
            self.pending.pop_front();
        }
        before - self.pending.len()
    }
}

impl Events {
    /// A new channel, of so many that its user may have: the end of its program.
    pub(super) fn open(&mut self, owner: Owner, most: u64) -> io::Result<OwnedFd> {
        let held = self.users.entry(owner.user).or_default();
        if held.channels >= most {
            return Err(Errno::MFILE.into());
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Nothing comes from there, no descriptor either.
        shutdown(&ours, Shutdown::Read)?;
        held.channels += 1;
        self.channels.insert(owner, Channel { socket: ours, pending: VecDeque::new() });
        Ok(theirs)
    }

    /// False when there is none.
    pub(super) fn close(&mut self, owner: Owner) -> bool {
        let Some(channel) = self.channels.remove(&owner) else { return false };
        self.full.remove(&owner);
        if let Some(held) = self.users.get_mut(&owner.user) {
            held.channels = held.channels.saturating_sub(1);
            held.events = held.events.saturating_sub(channel.pending.len());
        }
        true
    }

    pub(super) fn close_all(&mut self, of: RangeInclusive<Owner>) {
        let all: Vec<Owner> = self.channels.range(of).map(|(owner, _)| *owner).collect();
        for owner in all {
            self.close(owner);
        }
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.channels.contains_key(&owner)
    }

    /// Some channel has no room for what waits.
    pub(super) fn any_waits(&self) -> bool {
        !self.full.is_empty()
    }

    pub(super) fn flush(&mut self) {
        for owner in std::mem::take(&mut self.full) {
            self.flush_one(owner);
        }
    }

    fn flush_one(&mut self, owner: Owner) {
        let Some(channel) = self.channels.get_mut(&owner) else { return };
        let sent = channel.flush();
        if !channel.pending.is_empty() {
            self.full.insert(owner);
        }
        if let Some(held) = self.users.get_mut(&owner.user) {
            held.events = held.events.saturating_sub(sent);
        }
    }

    /// The way to a peer is found, or is not; false when the program does not read.
    pub(super) fn resolved(&mut self, owner: Owner, id: u32, errno: i32) -> bool {
        let what = CmHappening::Resolved(errno);
        self.send(owner, &CmNotice { id, what, private: Vec::new() })
    }

    /// False when the program does not read what it is told.
    pub(super) fn tell(&mut self, event: &CmEvent) -> bool {
        let private = event.private.as_slice().to_vec();
        let notice = CmNotice { id: event.id, what: happening(&event.what), private };
        self.send(event.owner, &notice)
    }

    /// As [`tell`](Self::tell).
    pub(super) fn send(&mut self, owner: Owner, notice: &CmNotice) -> bool {
        let Some(channel) = self.channels.get_mut(&owner) else { return false };
        let Ok(bytes) = encode(notice) else { return false };
        let Some(held) = self.users.get_mut(&owner.user) else { return false };
        if channel.pending.len() >= MAX_PENDING || held.events >= MAX_PENDING_OF_USER {
            return false;
        }
        held.events += 1;
        channel.pending.push_back(bytes);
        self.flush_one(owner);
        true
    }
}

fn happening(what: &Happening) -> CmHappening {
    match *what {
        Happening::Request(Request {
            listener,
            ref route,
            ports,
            transport,
            ref offer,
            starting_psn,
            psn,
            retry_count,
            mtu_code,
            ack_timeout,
            ..
        }) => CmHappening::Request {
            from: source(listener, route, ports),
            service: service(transport),
            offer: told(offer),
            starting_psn: starting_psn.value(),
            psn: psn.value(),
            retry_count,
            mtu_code,
            ack_timeout,
        },
        Happening::Lookup(Lookup { listener, ref route, ports, .. }) => {
            CmHappening::Lookup { from: source(listener, route, ports) }
        }
        Happening::Response(ref response) => CmHappening::Response {
            offer: told(&response.offer),
            starting_psn: response.starting_psn.value(),
        },
        Happening::Established => CmHappening::Established,
        Happening::Found { qpn, qkey } => CmHappening::Found { qpn: qpn.value(), qkey: qkey.0 },
        Happening::Rejected(reason) => CmHappening::Rejected(reason),
        Happening::Unreachable => CmHappening::Unreachable,
        Happening::Disconnected => CmHappening::Disconnected,
        Happening::TimewaitExit => CmHappening::TimewaitExit,
    }
}

fn service(transport: TransportType) -> CmService {
    match transport {
        TransportType::Uc => CmService::Unreliable,
        TransportType::Extended => CmService::Extended,
        // Of others no program hears.
        TransportType::Rc | TransportType::Rd => CmService::Reliable,
    }
}

fn source(listener: u32, route: &Route, (local_port, remote_port): (u16, u16)) -> CmSource {
    CmSource {
        listener,
        local: Gid::from_ip(route.local).0,
        remote: Gid::from_ip(route.remote).0,
        local_port,
        remote_port,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
    }
}

fn told(offer: &Offer) -> CmOffer {
    CmOffer {
        qpn: offer.qpn.value(),
        srq: offer.srq,
        responder_resources: offer.responder_resources,
        initiator_depth: offer.initiator_depth,
        flow_control: offer.flow_control,
        rnr_retry_count: offer.rnr_retry_count,
    }
}

/// Events that wait for a program to read, beside those that its socket has.
const MAX_PENDING: usize = 4096;
/// And for all programs of a user.
const MAX_PENDING_OF_USER: usize = 8192;
