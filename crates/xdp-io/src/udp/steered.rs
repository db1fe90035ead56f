//! One UDP port for several receivers, which a byte of each datagram tells apart.
//!
//! Every receiver has a socket of its own on the same address and port (SO_REUSEPORT). The kernel
//! asks a program which of them gets a datagram, or a train of them by its first. As C it would
//! read:
//!
//! ```c
//! struct { __uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY); ... } receivers;
//!
//! SEC("sk_reuseport")
//! int choose(struct sk_reuseport_md *ctx)
//! {
//!     __u32 receiver = 0;
//!     __u8 byte;
//!     if (bpf_skb_load_bytes(ctx, 8 + OFFSET, &byte, 1) == 0) {      // behind the UDP header
//!         receiver = byte >> SHIFT;
//!         if (bpf_sk_select_reuseport(ctx, &receivers, &receiver, 0) == 0) {
//!             __sync_fetch_and_add(&arrivals[receiver], 1);
//!             return SK_PASS;
//!         }
//!         receiver = 0;
//!     }
//!     bpf_sk_select_reuseport(ctx, &receivers, &receiver, 0);
//!     __sync_fetch_and_add(&arrivals[0], 1);
//!     return SK_PASS;
//! }
//! ```
//!
//! So receiver 0 gets what has no receiver. Sockets are named in a map. Without the privilege to
//! load such a program they are named by the [`order`] in which they were bound.

mod order;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arrivals::STRIDE_BITS;
use super::socket;
use crate::packet::filter::from_this_host;
use crate::program::asm::Condition::NotEqual;
use crate::program::asm::Register::{R0, R1, R2, R3, R4, R6, R7, R10};
use crate::program::asm::Width::{U8, U32};
use crate::program::asm::{Assembler, Helper};
use crate::sys::bpf::{self, Instruction, MapKind, ProgramKind};
use crate::{Error, Result, address, multicast, sys};
use order::Order;

/// Which byte of a datagram names its receiver, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteerBy {
    /// Offset in the UDP payload.
    pub offset: u8,
    /// The receiver is the byte shifted right by this, 0..=7.
    pub shift: u8,
}

/// What a receiver has of an address. It sends from another port than it receives at, and than
/// others send from: a host joins the datagrams of a flow that follow each other, and leads them to
/// one receiver.
#[derive(Debug)]
pub struct ReceiverSockets {
    /// Where its datagrams arrive.
    pub receives: OwnedFd,
    /// What it sends with.
    pub sends: OwnedFd,
    /// Where the kernel counts what arrives for each receiver, where it does; and which receiver
    /// this is.
    pub arrivals: Option<(OwnedFd, u8)>,
}

/// A port for several receivers. See the [module](self). Any thread may use it.
#[derive(Debug)]
pub struct SteeredPort {
    port: u16,
    scope_id: AtomicU32,
    buffer_bytes: usize,
    by: SteerBy,
    /// The kernel loads a program that finds receivers in a map.
    mapped: bool,
    /// Receiver 0 hears only what comes from this host; it gets the rest elsewhere.
    first_is_local: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: Vec<Group>,
    /// Addresses that were ours at any time: a process that was stopped may still have a socket.
    known: Vec<IpAddr>,
    /// Owner -> the port that all its sockets send from.
    sources: BTreeMap<u64, u16>,
}

/// The sockets of one address.
#[derive(Debug)]
struct Group {
    address: IpAddr,
    receivers: Receivers,
    /// That of receiver 0.
    first: OwnedFd,
    /// The owner of each other receiver.
    owners: Vec<(u32, u64)>,
    /// The address is gone, but the sockets are kept.
    waits: bool,
}

/// How the sockets of an address are found.
#[derive(Debug)]
enum Receivers {
    /// By a map of receivers and sockets; with that of what arrives for them.
    Map(OwnedFd, Option<OwnedFd>),
    /// By their order.
    Order(Order),
}

impl SteeredPort {
    /// For sockets on `port`. With `first_is_local` those of receiver 0 hear only what comes from
    /// this host: it receives the rest as frames. `scope_id` and `buffer_bytes` are those of a
    /// [`UdpConfig`](super::UdpConfig).
    ///
    /// # Errors
    /// [`Error::Privilege`] without CAP_BPF and CAP_NET_ADMIN, [`Error::ProgramRejected`].
    pub fn new(
        port: u16,
        scope_id: u32,
        buffer_bytes: usize,
        by: SteerBy,
        first_is_local: bool,
    ) -> Result<SteeredPort> {
        // The first use must not be the one that finds out what the kernel lets us do.
        load(by)?;
        let (mapped, state, scope_id) = (true, Mutex::default(), scope_id.into());
        Ok(SteeredPort { port, scope_id, buffer_bytes, by, mapped, first_is_local, state })
    }

    /// The same without any privilege. What names a receiver that has no socket now is lost; an
    /// address that had other receivers than the first stays taken for as long as this lives.
    #[must_use]
    pub fn in_order(port: u16, scope_id: u32, buffer_bytes: usize, by: SteerBy) -> SteeredPort {
        let (mapped, first_is_local) = (false, false);
        let (state, scope_id) = (Mutex::default(), scope_id.into());
        SteeredPort { port, scope_id, buffer_bytes, by, mapped, first_is_local, state }
    }

    /// The interface of link-local addresses.
    #[must_use]
    pub fn scope_id(&self) -> u32 {
        self.scope_id.load(Ordering::Relaxed)
    }

    /// Goes on with the interface of this index, as when the other one was deleted and made anew:
    /// as if all addresses were gone. A port without interface stays without.
    pub fn move_to(&self, interface: u32) {
        if [0, interface].contains(&self.scope_id()) {
            return;
        }
        self.scope_id.store(interface, Ordering::Relaxed);
        // A socket of a link-local address is one of the interface that went.
        let stays = |group: &mut Group| group.wait() && !address::is_link_local(group.address);
        self.state().groups.retain_mut(stays);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket of receiver 0 for `address`, and where what arrives for it is counted, if it is;
    /// the first one of an address, which it gets only if no other socket has the port.
    ///
    /// # Errors
    /// As [`UdpPort::bind`](super::UdpPort::bind).
    pub fn first_socket(&self, address: IpAddr) -> Result<(OwnedFd, Option<(OwnedFd, u8)>)> {
        self.with_group(address, |group| {
            let first = group.first.try_clone().map_err(Error::os("dup"))?;
            // It may have been another one's before, and of another interface.
            socket::make_new(first.as_fd(), address)?;
            multicast::send_from(first.as_fd(), self.scope_id(), address)?;
            Ok((first, group.arrivals().map(|counts| (counts, 0))))
        })
    }

    /// Sockets of `receiver`, which is not 0, for `address`, in place of those that it had.
    ///
    /// # Errors
    /// As [`UdpPort::bind`](super::UdpPort::bind).
    pub fn sockets(&self, receiver: u8, owner: u64, address: IpAddr) -> Result<ReceiverSockets> {
        let source = self.source_port(owner);
        let (sockets, source) = self.with_group(address, |group| {
            let receives = match &mut group.receivers {
                Receivers::Map(..) => self.open(address, self.port, join)?,
                Receivers::Order(order) => {
                    let open =
                        |before: fn(BorrowedFd<'_>) -> _| self.open(address, self.port, before);
                    order.socket(receiver, group.first.as_fd(), self.by, open)?
                }
            };
            let sends = self.open(address, source.unwrap_or(0), |socket| {
                // Nothing reads what is sent to its port. When an address comes back, the socket
                // that it had before may still be open.
                sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &0)?;
                sys::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)
            })?;
            let source = socket::port_of(&sends)?;
            group.set(receiver.into(), owner, receives.as_fd())?;
            let arrivals = group.arrivals().map(|counts| (counts, receiver));
            Ok((ReceiverSockets { receives, sends, arrivals }, source))
        })?;
        self.state().sources.insert(owner, source);
        Ok(sockets)
    }

    /// The port that all sockets of an owner send from; none if it has no sockets.
    #[must_use]
    pub fn source_port(&self, owner: u64) -> Option<u16> {
        self.state().sources.get(&owner).copied()
    }

    fn with_group<T>(
        &self,
        address: IpAddr,
        work: impl FnOnce(&mut Group) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state();
        if let Some(group) = state.groups.iter_mut().find(|group| group.address == address) {
            group.come_back().map_err(Error::os("giving a UDP socket its datagrams"))?;
            return work(group);
        }
        let is_known = state.known.contains(&address);
        state.groups.push(self.group(address, is_known)?);
        if !is_known {
            state.known.push(address);
        }
        let last = state.groups.len() - 1;
        work(&mut state.groups[last])
    }

    fn group(&self, address: IpAddr, is_known: bool) -> Result<Group> {
        if !self.mapped {
            let first = self.open_first(address, |socket| {
                found(socket, |socket| order::steer(socket, self.by, 1))
            })?;
            join(first.as_fd()).map_err(Error::os("sharing the UDP port"))?;
            let receivers = Receivers::Order(Order::default());
            return Ok(Group { address, receivers, first, owners: Vec::new(), waits: false });
        }
        let (receivers, arrivals, program) = load(self.by)?;
        let attach = |socket: BorrowedFd<'_>| attach(socket, program.as_fd());
        let first = match is_known {
            true => self.open_first(address, join)?,
            false => self.open_first(address, |socket| found(socket, attach))?,
        };
        let shared = match is_known {
            true => attach(first.as_fd()),
            false => join(first.as_fd()),
        };
        shared.map_err(Error::os("sharing the UDP port"))?;
        put(&receivers, 0, first.as_fd())?;
        let receivers = Receivers::Map(receivers, arrivals);
        Ok(Group { address, receivers, first, owners: Vec::new(), waits: false })
    }

    fn open_first(
        &self,
        address: IpAddr,
        before_bind: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Result<OwnedFd> {
        self.open(address, self.port, |socket| {
            if self.first_is_local {
                sys::attach_filter(socket, &from_this_host())?;
            }
            before_bind(socket)
        })
    }

    fn open(
        &self,
        address: IpAddr,
        port: u16,
        before_bind: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Result<OwnedFd> {
        let interface = self.scope_id();
        let wanted = address::scoped(address, port, interface);
        socket::open(wanted, interface, self.buffer_bytes, before_bind)
    }

    /// Leads nothing to the receivers of `owner` any more.
    pub fn close(&self, owner: u64) {
        let mut state = self.state();
        state.groups.iter_mut().for_each(|group| group.close(owner));
        state.sources.remove(&owner);
    }

    /// Whether what names this receiver is led to a socket of this owner.
    #[must_use]
    pub fn serves(&self, receiver: u8, owner: u64, address: IpAddr) -> bool {
        let known = (u32::from(receiver), owner);
        let addresses = self.state();
        let mut groups = addresses.groups.iter().filter(|group| group.address == address);
        groups.any(|group| group.owners.contains(&known))
    }

    /// Other addresses are gone. Their sockets get nothing any more, and when such an address comes
    /// back, all need new ones.
    pub fn retain(&self, addresses: &[IpAddr]) {
        let stays = |group: &mut Group| addresses.contains(&group.address) || group.wait();
        self.state().groups.retain_mut(stays);
    }
}

impl Group {
    fn arrivals(&self) -> Option<OwnedFd> {
        match &self.receivers {
            Receivers::Map(_, counts) => counts.as_ref()?.try_clone().ok(),
            Receivers::Order(_) => None,
        }
    }

    fn set(&mut self, receiver: u32, owner: u64, socket: BorrowedFd<'_>) -> Result<()> {
        if let Receivers::Map(map, _) = &self.receivers {
            put(map, receiver, socket)?;
        }
        self.owners.retain(|(other, _)| *other != receiver);
        self.owners.push((receiver, owner));
        Ok(())
    }

    /// Its address is gone. True when its sockets wait for the address to come back: receivers may
    /// still have copies, beside which new sockets would be in another order.
    ///
    /// They hear nothing meanwhile. The host may still take what is sent to the address for its
    /// own, by a local route, and all that would be delivered when the address comes back.
    fn wait(&mut self) -> bool {
        let Receivers::Order(order) = &self.receivers else { return false };
        self.owners.drain(..).for_each(|(receiver, _)| order.close(receiver));
        // If it fails, the same is done before its next use.
        let _ = order::mute(self.first.as_fd());
        self.waits = true;
        order.has_sockets()
    }

    /// Its address is there, again or still.
    fn come_back(&mut self) -> std::io::Result<()> {
        if self.waits {
            order::unmute(self.first.as_fd())?;
            self.waits = false;
        }
        Ok(())
    }

    fn close(&mut self, owner: u64) {
        let receivers = &self.receivers;
        self.owners.retain(|(receiver, other)| {
            match receivers {
                _ if *other != owner => {}
                // Absent when the socket is closed already.
                Receivers::Map(map, _) => {
                    drop(bpf::delete_element(map.as_fd(), &receiver.to_ne_bytes()));
                }
                Receivers::Order(order) => order.close(*receiver),
            }
            *other != owner
        });
    }
}

/// The maps and the program of one address: that of receivers, and that of what arrives, if there
/// is one that only the program can change.
fn load(by: SteerBy) -> Result<(OwnedFd, Option<OwnedFd>, OwnedFd)> {
    let receivers = bpf::create_map(MapKind::ReuseportSockArray, 4, 4, RECEIVERS)
        .map_err(|error| refused("creating a BPF map", error, String::new()))?;
    let counts = bpf::create_map(MapKind::Array, 4, RECEIVERS << STRIDE_BITS, 1);
    // Or receivers could write to those of others. (One that may load programs of its own still
    // can, by them; then the others ask in vain or now and then, as without counts.)
    let counts = counts.and_then(|map| bpf::freeze(map.as_fd()).map(|()| map)).ok();
    let program = |counts: Option<BorrowedFd<'_>>| {
        let code = assemble(by, receivers.as_fd(), counts);
        bpf::load_program(ProgramKind::SkReuseport, b"udp_io_steer", &code)
            .map_err(|(error, log)| refused("loading the program of a UDP port", error, log))
    };
    // Counts are an aid: a kernel that refuses them still steers.
    if let Some(counts) = counts
        && let Ok(program) = program(Some(counts.as_fd()))
    {
        return Ok((receivers, Some(counts), program));
    }
    let program = program(None)?;
    Ok((receivers, None, program))
}

fn put(receivers: &OwnedFd, receiver: u32, socket: BorrowedFd<'_>) -> Result<()> {
    let value = socket.as_raw_fd().to_ne_bytes();
    bpf::update_element(receivers.as_fd(), &receiver.to_ne_bytes(), &value)
        .map_err(Error::os("giving a UDP socket its datagrams"))
}

/// Before it is bound: it joins those that share its port, with their program.
fn join(socket: BorrowedFd<'_>) -> std::io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)
}

/// Before it is bound: others may join it, but it is bound only where no other socket is.
fn found(
    socket: BorrowedFd<'_>,
    attach: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    join(socket)?;
    attach(socket)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &0)
}

/// The program of all that share the port.
fn attach(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> std::io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &program.as_raw_fd())
}

fn refused(operation: &'static str, error: std::io::Error, log: String) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM) => Error::Privilege { operation, needs: "CAP_BPF and CAP_NET_ADMIN" },
        _ if !log.is_empty() => Error::ProgramRejected { log },
        _ => Error::Os { operation, source: error },
    }
}

/// The program in the [module](self)'s documentation.
fn assemble(
    by: SteerBy,
    receivers: BorrowedFd<'_>,
    arrivals: Option<BorrowedFd<'_>>,
) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    let [first, done] = std::array::from_fn(|_| asm.label());
    let choose = |asm: &mut Assembler| {
        asm.copy(R1, R6);
        asm.map(R2, receivers);
        asm.copy(R3, R10);
        asm.add(R3, RECEIVER.into());
        asm.set(R4, 0);
        asm.call(Helper::SkSelectReuseport);
    };
    asm.copy(R6, R1);
    asm.set(R2, UDP_HEADER + i32::from(by.offset));
    asm.copy(R3, R10);
    asm.add(R3, BYTE.into());
    asm.set(R4, 1);
    asm.call(Helper::SkbLoadBytes);
    asm.jump_if(NotEqual, R0, 0, first);
    asm.load(U8, R7, R10, BYTE);
    asm.shift_right(R7, by.shift.into());
    asm.store(U32, R10, RECEIVER, R7);
    choose(&mut asm);
    asm.jump_if(NotEqual, R0, 0, first);
    if let Some(arrivals) = arrivals {
        asm.shift_left(R7, STRIDE_BITS.into());
        asm.map_value(R1, arrivals);
        asm.add_register(R1, R7);
        asm.set(R2, 1);
        asm.add_atomically(R1, R2);
    }
    asm.jump(done);
    asm.place(first);
    asm.set(R3, 0);
    asm.store(U32, R10, RECEIVER, R3);
    choose(&mut asm);
    // One place for both could add numbers of different bounds to the address, which the verifier
    // grants only to programs with CAP_PERFMON.
    if let Some(arrivals) = arrivals {
        asm.map_value(R1, arrivals);
        asm.set(R2, 1);
        asm.add_atomically(R1, R2);
    }
    asm.place(done);
    asm.set(R0, SK_PASS);
    asm.exit();
    asm.finish()
}

/// `asm-generic/socket.h`.
const SO_ATTACH_REUSEPORT_EBPF: i32 = 52;
const SK_PASS: i32 = 1;
const UDP_HEADER: i32 = 8;
/// On the program's stack.
const BYTE: i16 = -8;
const RECEIVER: i16 = -4;
/// As many as a byte can name.
pub(super) const RECEIVERS: u32 = 256;
