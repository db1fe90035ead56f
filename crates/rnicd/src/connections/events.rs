//! Events on their way to programs.

use rnic_abi::control::{CmHappening, CmNotice, CmOffer, CmSource, encode};
use rnic_core::cm::{CmEvent, Happening, Lookup, Offer, Owner, Request, Route};
use roce_wire::Gid;
use roce_wire::cm::TransportType;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

/// The event channels of all sessions.
#[derive(Default)]
pub(super) struct Events {
    channels: HashMap<Owner, Channel>,
}

/// Our end of a channel, which never waits.
struct Channel {
    socket: OwnedFd,
    pending: VecDeque<Vec<u8>>,
}

impl Channel {
    /// Sends what waits, as far as there is room.
    fn flush(&mut self) {
        while let Some(event) = self.pending.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if let Err(Errno::AGAIN | Errno::NOBUFS) = send(&self.socket, event, flags) {
                return;
            }
            // Also when the other end is closed: no thread waits for it then.
            self.pending.pop_front();
        }
    }
}

impl Events {
    /// A new channel: the end of its program.
    pub(super) fn open(&mut self, owner: Owner) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Nothing comes from there, no descriptor either.
        shutdown(&ours, Shutdown::Read)?;
        self.channels.insert(owner, Channel { socket: ours, pending: VecDeque::new() });
        Ok(theirs)
    }

    /// False when there is none.
    pub(super) fn close(&mut self, owner: Owner) -> bool {
        self.channels.remove(&owner).is_some()
    }

    pub(super) fn close_all(&mut self, of: impl Fn(Owner) -> bool) {
        self.channels.retain(|owner, _| !of(*owner));
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.channels.contains_key(&owner)
    }

    /// Some channel has no room for what waits.
    pub(super) fn any_waits(&self) -> bool {
        self.channels.values().any(|channel| !channel.pending.is_empty())
    }

    pub(super) fn flush(&mut self) {
        self.channels.values_mut().for_each(Channel::flush);
    }

    /// An event that the program itself has asked for.
    pub(super) fn post(&mut self, owner: Option<Owner>, id: u32, (what, status): (u32, i32)) {
        let what = CmHappening::Posted(what, status);
        let notice = CmNotice { id, what, private: Vec::new() };
        let _ = owner.is_some_and(|owner| self.send(owner, &notice));
    }

    /// False when the program does not read what it is told.
    pub(super) fn tell(&mut self, event: &CmEvent) -> bool {
        let private = event.private.as_slice().to_vec();
        let notice = CmNotice { id: event.id, what: happening(&event.what), private };
        self.send(event.owner, &notice)
    }

    fn send(&mut self, owner: Owner, notice: &CmNotice) -> bool {
        let Some(channel) = self.channels.get_mut(&owner) else { return false };
        let Ok(bytes) = encode(notice) else { return false };
        if channel.pending.len() >= MAX_PENDING {
            return false;
        }
        channel.pending.push_back(bytes);
        channel.flush();
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
            unreliable: transport == TransportType::Uc,
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

/// Events that wait for a program to read.
const MAX_PENDING: usize = 4096;
