//! Datagram rsockets. Their number is that of a UDP socket, by which they also find each other:
//! what goes to an address whose queue pair is not known yet goes by UDP, with the sender's queue
//! pair, and the receiver answers with its own.

use std::{
    collections::VecDeque,
    ffi::c_int,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Instant,
};

use verbs_abi::{Zeroed, ibv_ah_attr};

use super::{
    nic::{Nic, Way},
    peers::Peers,
    settings::{Settings, Wishes},
    transfer::Piece,
    udp,
    waiting::{self, Sleepers, Waits},
    wire::{Introduction, datagram_header, open_datagram},
};
use crate::{
    connect::{both_ends, owner},
    error::{Errno, Result},
    session::{self, Device, Own, gid_of},
};

pub(crate) struct Datagram {
    pub(crate) udp: OwnedFd,
    pub(crate) is_v6: bool,
    /// The process that made it: its children have no part in it.
    pub(crate) process: u32,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) descriptor_flags: AtomicI32,
    core: Mutex<Core>,
}

pub(crate) struct Core {
    nic: Option<Nic>,
    pub(crate) wishes: Wishes,
    /// Where `send` sends to.
    target: Option<SocketAddr>,
    peers: Peers<Way>,
    arrived: VecDeque<Arrived>,
    readable: bool,
    writable: bool,
    sleepers: Sleepers,
    /// For what comes by UDP.
    room: Vec<u8>,
    turns: u32,
}

struct Arrived {
    from: SocketAddr,
    data: Vec<u8>,
}

type Locked<'a> = MutexGuard<'a, Core>;

impl Datagram {
    pub(crate) fn new(is_v6: bool) -> Result<Self> {
        // Without a device there are no rsockets at all.
        session::devices()?;
        Ok(Self::around(udp::open(is_v6)?, is_v6))
    }

    pub(crate) fn around(udp: OwnedFd, is_v6: bool) -> Self {
        let core = Core {
            nic: None,
            wishes: Settings::get().wishes,
            target: None,
            peers: Peers::default(),
            arrived: VecDeque::new(),
            readable: true,
            writable: true,
            sleepers: Sleepers::default(),
            room: vec![0; udp::MOST],
            turns: 0,
        };
        Self {
            udp,
            is_v6,
            process: std::process::id(),
            nonblocking: AtomicBool::new(false),
            descriptor_flags: AtomicI32::new(0),
            core: Mutex::new(core),
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        udp::bind(&self.udp, address, self.is_v6)?;
        self.start(&mut self.lock())
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> Result<()> {
        let mut core = self.lock();
        self.start(&mut core)?;
        udp::connect(&self.udp, address, self.is_v6)?;
        core.target = Some(address);
        Ok(())
    }

    /// Makes the queue pair, and gives the socket a port.
    fn start(&self, core: &mut Core) -> Result<()> {
        if core.nic.is_none() {
            if udp::local(&self.udp)?.port() == 0 {
                let any = super::connecting::unspecified(self.is_v6);
                udp::bind(&self.udp, any, self.is_v6)?;
            }
            let device = self.device()?;
            core.nic = Some(Nic::new(device, &core.wishes)?);
        }
        Ok(())
    }

    /// The one that has the address that the socket is bound to, or the first.
    fn device(&self) -> Result<&'static Device> {
        let bound = udp::local(&self.udp)?.ip();
        let of_bound = |own: &[Own]| owner(own, bound).map(|own| own.device);
        match session::with_addresses(of_bound) {
            Err(Errno(libc::EADDRNOTAVAIL)) => session::first(),
            found => found,
        }
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sends one datagram, to where the socket is connected to unless an address is given.
    ///
    /// # Safety
    /// `data` has `len` bytes.
    pub(crate) unsafe fn send(
        &self,
        (data, len): (*const u8, usize),
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize> {
        let mut core = self.lock();
        self.start(&mut core)?;
        let to = to.or(core.target).ok_or(Errno(libc::EDESTADDRREQ))?;
        core = self.find_way(core, to)?;
        let can_send = |core: &Core| !core.writable || core.nic.as_ref().is_none_or(Nic::can_send);
        if !can_send(&core) {
            core = waiting::wait(self, core, (self.is_nonblocking(flags), None), can_send)?;
        }
        if !core.writable {
            return Err(Errno(libc::EPIPE));
        }
        let core = &mut *core;
        self.prepare_header(core, to)?;
        let peer = core.peers.at(to, core.target);
        let nic = core.nic.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        let (header, own) = peer.header.as_ref().ok_or(Errno(libc::ENETUNREACH))?;
        let fits = header.len() + len <= nic.most;
        if let (Some(way), Some(qpn), true) = (&peer.way, peer.qpn, fits) {
            // SAFETY: by contract.
            unsafe { nic.send(way, qpn, header, (data, len)) }?;
            return Ok(len);
        }
        let head = Introduction { has_data: true, qpn: nic.qpn_at(*own), ip: *own };
        // SAFETY: by contract.
        unsafe { udp::send(&self.udp, to, self.is_v6, &head.encode(), (data, len)) }?;
        Ok(len)
    }

    /// Knows what datagrams to an address begin with.
    fn prepare_header(&self, core: &mut Core, to: SocketAddr) -> Result<()> {
        let peer = core.peers.at(to, core.target);
        if peer.header.is_none() {
            let bound = udp::local(&self.udp)?;
            let own = if bound.ip().is_unspecified() { udp::source_for(to)? } else { bound.ip() };
            peer.header = Some((datagram_header(SocketAddr::new(own, bound.port())), own));
        }
        Ok(())
    }

    /// Learns what there is to know of an address: how to send there. Looking may take seconds, in
    /// which other threads go on.
    fn find_way<'a>(&'a self, mut core: Locked<'a>, to: SocketAddr) -> Result<Locked<'a>> {
        if core.peers.has_way(to) {
            return Ok(core);
        }
        // The answer may have come by now.
        self.advance(&mut core);
        let target = core.target;
        if !core.peers.at(to, target).begins_search(Instant::now()) {
            return Ok(core);
        }
        let device = core.nic.as_ref().ok_or(Errno(libc::ENOTCONN))?.device;
        drop(core);
        let bound = udp::local(&self.udp)?;
        let wanted = (!bound.ip().is_unspecified()).then_some(bound);
        // Where there is none, datagrams go by UDP.
        let found = way(device, wanted, to).ok();
        let mut core = self.lock();
        let unused = core.peers.found(to, found);
        if unused.is_none() {
            return Ok(core);
        }
        // Letting go of a way takes its time, too.
        drop(core);
        drop(unused);
        Ok(self.lock())
    }

    /// Receives one datagram; what does not fit is lost, and whether there was such.
    ///
    /// # Safety
    /// All pieces are writable.
    pub(crate) unsafe fn receive(
        &self,
        pieces: &[Piece],
        flags: c_int,
    ) -> Result<(usize, bool, Option<SocketAddr>)> {
        let mut core = self.lock();
        self.start(&mut core)?;
        let ready = |core: &Core| !core.arrived.is_empty() || !core.readable;
        let mut core = waiting::wait(self, core, (self.is_nonblocking(flags), None), ready)?;
        let Some(first) = core.arrived.front() else { return Ok((0, false, None)) };
        let mut left = first.data.as_slice();
        for piece in pieces {
            let (now, rest) = left.split_at(left.len().min(piece.len));
            // SAFETY: by contract.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), piece.at, now.len()) };
            left = rest;
        }
        let (copied, is_cut) = (first.data.len() - left.len(), !left.is_empty());
        let len = if flags & libc::MSG_TRUNC == 0 { copied } else { first.data.len() };
        let from = first.from;
        if flags & libc::MSG_PEEK == 0 {
            if core.arrived.len() >= MOST_WAITING {
                // Threads that sleep may take more by UDP again.
                core.sleepers.tell();
            }
            core.arrived.pop_front();
        }
        Ok((len, is_cut, Some(from)))
    }

    pub(crate) fn shutdown(&self, how: c_int) {
        let mut core = self.lock();
        core.readable &= how == libc::SHUT_WR;
        core.writable &= how == libc::SHUT_RD;
        core.sleepers.tell();
    }

    pub(crate) fn readiness(&self) -> i16 {
        let mut core = self.lock();
        self.advance(&mut core);
        let mut ready = 0;
        if !core.arrived.is_empty() || !core.readable {
            ready |= libc::POLLIN;
        }
        if core.nic.as_ref().is_none_or(Nic::can_send) {
            ready |= libc::POLLOUT;
        }
        ready
    }

    /// Takes what has come by UDP: others introduce themselves, or answer.
    fn take_introductions(&self, core: &mut Core) -> bool {
        let mut changed = false;
        let mut room = std::mem::take(&mut core.room);
        // Whatever comes, and however fast: other work goes on.
        for _ in 0..AT_ONCE {
            if core.arrived.len() >= MOST_WAITING {
                break;
            }
            let Some((len, from)) = udp::receive(&self.udp, &mut room) else { break };
            let Some(bytes) = room.get(..len) else { continue };
            let Some((head, data)) = Introduction::decode(bytes) else { continue };
            if head.ip.is_ipv4() != from.is_ipv4() {
                continue;
            }
            changed = true;
            // The way stays: it is that to the host, whatever queue pair it names.
            core.peers.at(from, core.target).qpn = (head.qpn != 0).then_some(head.qpn);
            if head.has_data {
                let data = data.to_vec();
                self.answer(core, from);
                core.arrived.push_back(Arrived { from, data });
            }
        }
        core.room = room;
        changed
    }

    /// Says which queue pair this socket has.
    fn answer(&self, core: &Core, to: SocketAddr) {
        let Some(nic) = &core.nic else { return };
        let bound = udp::local(&self.udp).ok().map(|local| local.ip());
        let own = bound.filter(|own| !own.is_unspecified()).or_else(|| udp::source_for(to).ok());
        let Some(ip) = own else { return };
        let head = Introduction { has_data: false, qpn: nic.qpn_at(ip), ip };
        // What is lost is asked for again.
        // SAFETY: no data.
        let _ =
            unsafe { udp::send(&self.udp, to, self.is_v6, &head.encode(), (std::ptr::null(), 0)) };
    }
}

impl Waits for Datagram {
    type Core = Core;

    fn lock(&self) -> Locked<'_> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleepers(core: &mut Core) -> &mut Sleepers {
        &mut core.sleepers
    }

    fn advance(&self, core: &mut Core) {
        let Core { nic: Some(nic), arrived, .. } = core else { return };
        let mut failed = false;
        let mut changed = nic.progress(|nic, slot, bytes| {
            if arrived.len() < MOST_WAITING
                && let Some((from, data)) = open_datagram(&bytes)
            {
                arrived.push_back(Arrived { from, data: data.to_vec() });
            }
            failed |= nic.receive_into(slot).is_err();
        });
        changed |= failed;
        // Rarely while there is other work: each look is a system call.
        core.turns = core.turns.wrapping_add(1);
        if core.arrived.is_empty() || core.turns.is_multiple_of(64) {
            changed |= self.take_introductions(core);
        }
        if changed {
            core.sleepers.tell();
        }
    }

    fn arm(&self, core: &mut Core) -> bool {
        let newly = core.nic.as_mut().is_some_and(|nic| nic.completions.arm());
        if newly {
            self.advance(core);
        }
        newly
    }

    /// Datagrams by UDP, and completions. Without room for more the former stay where they are, and
    /// would wake a thread at once, again and again.
    fn descriptors(&self, core: &Core) -> [c_int; 2] {
        let by_udp = if core.arrived.len() < MOST_WAITING { self.fd() } else { -1 };
        [by_udp, core.nic.as_ref().map_or(-1, |nic| nic.completions.fd())]
    }

    fn take(&self, core: &mut Core, [_, completion]: [bool; 2]) {
        if completion
            && let Some(nic) = &mut core.nic
            && nic.completions.take_event().is_err()
        {
            // The device is gone.
            (core.readable, core.writable) = (false, false);
        }
    }
}

/// The way to an address, as the kernel's routes and neighbours say.
fn way(device: &'static Device, wanted: Option<SocketAddr>, to: SocketAddr) -> Result<Way> {
    let own = device.addresses();
    let (local, remote) = both_ends(&own, wanted, to)?;
    let found = own.into_iter().find(|own| own.ip == local.ip());
    let index = found.ok_or(Errno(libc::EADDRNOTAVAIL))?.index;
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = gid_of(remote.ip());
    attr.grh.sgid_index = index;
    attr.grh.hop_limit = 64;
    attr.is_global = 1;
    attr.port_num = 1;
    Way::new(device, attr)
}

/// Datagrams that wait for the program, at most.
const MOST_WAITING: usize = 1024;
/// Datagrams that are taken from the UDP socket before other work is looked at.
const AT_ONCE: u32 = 64;
