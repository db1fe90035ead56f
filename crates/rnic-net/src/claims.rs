//! One daemon per address: two that receive the same packets NAK or drop each other's and so break
//! each other's connections. The kernel prevents that only if both bind its UDP port.
//!
//! A claim is a listening socket with an abstract name. The name is unique in the network namespace
//! and disappears with its process, even after SIGKILL. Connecting to it tells the owner's pid and
//! user. Any user may take such a name, so root's daemon ignores the claims of other users.

use rnic_abi::os::{Connection, process};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// What a device claims. See the [module](self).
#[derive(Debug)]
pub struct Claims {
    /// The interface named by the user: link-local addresses are one on each.
    interface: String,
    held: Mutex<BTreeMap<String, OwnedFd>>,
    /// Watches what is held.
    epoll: OwnedFd,
    /// Closes a socket to which any user may have sent something, without waiting.
    discard: fn(OwnedFd),
}

/// The claim of another daemon.
#[derive(Debug)]
struct Other {
    /// `None` when its holder cannot be asked.
    uid: Option<u32>,
    /// `None` also for a process of another pid namespace.
    pid: Option<u32>,
}

impl Claims {
    /// For a device on this interface, when the user named one. Any user may connect to a claim and
    /// send descriptors, whose closing takes long: `discard` closes its sockets.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn new(interface: Option<&str>, discard: fn(OwnedFd)) -> io::Result<Self> {
        let interface = interface.unwrap_or_default().to_owned();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { interface, held: Mutex::default(), epoll, discard })
    }

    /// Claims the addresses of a device that is to start; a device that `follows` its interface
    /// claims that too, with whatever addresses it will have.
    ///
    /// # Errors
    /// When another daemon serves one of them; the text names it.
    pub fn take(&self, follows: bool, addresses: &[IpAddr]) -> Result<(), String> {
        let interface =
            follows.then(|| (format!("{INTERFACE}{}", self.interface), &self.interface));
        let interface = interface.map(|(name, what)| (name, what.clone()));
        let addresses = addresses.iter().map(|ip| (self.name(*ip), ip.to_string()));
        for (name, what) in addresses.chain(interface) {
            self.claim(name).map_err(|other| {
                format!(
                    "{what} is served already by {other}: stop that daemon, or serve another \
                     address (--address) or interface (--netdev)"
                )
            })?;
        }
        Ok(())
    }

    /// Follows the addresses of a running device, which it cannot refuse any more.
    pub fn follow(&self, addresses: &[IpAddr]) {
        let now: BTreeMap<_, _> = addresses.iter().map(|ip| (self.name(*ip), ip)).collect();
        let stays = |name: &str| now.contains_key(name) || name.starts_with(INTERFACE);
        let mut held = self.lock();
        let (stay, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut *held).into_iter().partition(|(name, _)| stays(name));
        *held = stay;
        drop(held);
        gone.into_values().for_each(self.discard);
        for (name, ip) in now {
            if let Err(other) = self.claim(name) {
                tracing::error!("{ip} is already served by {other}: stop one of the two daemons");
            }
        }
    }

    /// Closes the connections of daemons that asked for the owner: `SO_PEERCRED` has told them.
    pub fn turn_away(&self) {
        for socket in self.lock().values() {
            // Bounded: connections that arrive meanwhile are closed by the next call.
            for _ in 0..=BACKLOG {
                let Ok(connection) = accept(socket) else { break };
                (self.discard)(connection);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, ip: IpAddr) -> String {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => format!("{v6}%{}", self.interface),
            _ => ip.to_string(),
        }
    }

    fn claim(&self, name: String) -> Result<(), Other> {
        let mut held = self.lock();
        if held.contains_key(&name) {
            return Ok(());
        }
        match self.listener(&name) {
            Ok(socket) => {
                held.insert(name, socket);
            }
            Err(Errno::ADDRINUSE) => {
                let other = Other::at(&name);
                if !other.is_ignored_by(rustix::process::geteuid().as_raw()) {
                    return Err(other);
                }
                tracing::warn!(
                    "{name} is claimed by {other}, a daemon of another user; the claim is ignored"
                );
            }
            // Out of descriptors, for one: it is no reason not to serve.
            Err(error) => tracing::warn!("cannot claim {name}: {error}"),
        }
        Ok(())
    }

    fn listener(&self, name: &str) -> Result<OwnedFd, Errno> {
        let socket = socket()?;
        bind(&socket, &address(name)?)?;
        listen(&socket, BACKLOG)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        Ok(socket)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        std::mem::take(&mut *self.lock()).into_values().for_each(self.discard);
    }
}

/// Readable when another daemon is to be [turned away](Claims::turn_away).
impl AsFd for Claims {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("soft-rnic {name}").as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl Other {
    fn at(name: &str) -> Self {
        let connection = || -> io::Result<_> {
            let socket = socket()?;
            // Never waits, whatever the holder does.
            connect(&socket, &address(name)?)?;
            Ok(Connection::from(socket))
        };
        let peer = connection().ok();
        let uid = peer.as_ref().and_then(|peer| peer.peer_user().ok());
        let pid = peer.and_then(|peer| Some(peer.peer_credentials().ok()?.pid));
        Self { uid, pid }
    }

    /// A user must not be able to keep root's daemon from an address.
    fn is_ignored_by(&self, uid: u32) -> bool {
        uid == 0 && self.uid != Some(0)
    }
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(uid) = self.uid else { return f.write_str("a process that does not answer") };
        let Some(pid) = self.pid else {
            return write!(f, "a process of user {uid} in another pid namespace");
        };
        write!(f, "process {pid} of user {uid}")?;
        let line = process::folder(pid).and_then(|own| fs::read(own.join("cmdline")));
        let line = line.unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let line: String = words.join(" ").trim().chars().take(MOST_OF_A_LINE).collect();
        if line.is_empty() { Ok(()) } else { write!(f, " (`{}`)", line.escape_default()) }
    }
}

const INTERFACE: &str = "interface ";
const BACKLOG: i32 = 128;
/// Characters of a command line that are enough to know it by.
const MOST_OF_A_LINE: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of 127.0.0.0/8 that no other test process claims.
    fn address_of_ours(last: u8) -> IpAddr {
        let [_, _, b, c] = std::process::id().to_be_bytes();
        [127, 64 + (b & 63), c, last].into()
    }

    fn claims(interface: &str) -> Claims {
        Claims::new(Some(interface), drop).unwrap()
    }

    /// A process that connects may have sent what takes long to close.
    #[test]
    fn sockets_to_which_any_user_may_send_are_discarded() {
        static DISCARDED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
        let discarded = || DISCARDED.lock().unwrap().drain(..).count();
        let claims = Claims::new(Some(""), |fd| DISCARDED.lock().unwrap().push(fd)).unwrap();
        let both = [address_of_ours(8), address_of_ours(9)];
        claims.take(false, &both).unwrap();
        let guest = socket().unwrap();
        connect(&guest, &address(&both[0].to_string()).unwrap()).unwrap();
        claims.turn_away();
        assert_eq!(discarded(), 1);
        claims.follow(&both[1..]);
        assert_eq!(discarded(), 1);
        drop(claims);
        assert_eq!(discarded(), 1);
    }

    #[test]
    fn an_address_is_claimed_once_until_its_holder_goes() {
        let (one, two) = (address_of_ours(1), address_of_ours(2));
        let first = claims("");
        first.take(false, &[one]).unwrap();
        // Again, by the same device: nothing new.
        first.take(false, &[one]).unwrap();
        let second = claims("");
        let error = second.take(false, &[two, one]).unwrap_err();
        let pid = std::process::id();
        assert!(
            error.starts_with(&format!("{one} is served already by process {pid} ")),
            "{error}"
        );
        assert!(error.contains("--address"), "{error}");
        drop(first);
        second.take(false, &[two, one]).unwrap();
    }

    #[test]
    fn an_interface_that_is_followed_has_one_daemon() {
        let name = format!("rnic{}", std::process::id());
        let first = claims(&name);
        first.take(true, &[]).unwrap();
        let error = claims(&name).take(true, &[]).unwrap_err();
        assert!(error.starts_with(&format!("{name} is served already")), "{error}");
        // One of its addresses comes and goes; the interface stays.
        let address = address_of_ours(3);
        first.follow(&[address]);
        claims(&name).take(false, &[address]).unwrap_err();
        first.follow(&[]);
        claims(&name).take(false, &[address]).unwrap();
        claims(&name).take(true, &[]).unwrap_err();
    }

    #[test]
    fn link_local_addresses_belong_to_their_interface() {
        let address: IpAddr = format!("fe80::{:x}", std::process::id() & 0xffff).parse().unwrap();
        let first = claims("eth0");
        first.take(false, &[address]).unwrap();
        claims("eth1").take(false, &[address]).unwrap();
        claims("eth0").take(false, &[address]).unwrap_err();
    }

    #[test]
    fn any_number_may_ask_whose_an_address_is() {
        let address = address_of_ours(4);
        let first = claims("");
        first.take(false, &[address]).unwrap();
        let ask = || Other::at(&first.name(address)).pid;
        for _ in 0..BACKLOG + 10 {
            ask();
        }
        assert_eq!(ask(), None);
        first.turn_away();
        assert_eq!(ask(), Some(std::process::id()));
    }

    #[test]
    fn no_user_keeps_root_from_an_address() {
        let other = |uid| Other { uid, pid: Some(1) };
        assert!(other(Some(7)).is_ignored_by(0) && other(None).is_ignored_by(0));
        assert!(!other(Some(0)).is_ignored_by(0));
        assert!(!other(Some(7)).is_ignored_by(7) && !other(Some(7)).is_ignored_by(8));
    }
}
