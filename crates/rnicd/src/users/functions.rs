//! Functions: engines in programs of the daemon's own user.
//!
//! A function is in the hands of its program, as an engine process is in those of its user if it
//! is taken over: nothing that it says is believed. It gets a slice of the QP numbers and UDP
//! sockets, whose source address and port the kernel writes, and serves its program alone. What it
//! could do to others of its user, they can do to each other anyway, with a debugger. A process in
//! a container, which could not, gets none.

use super::engine::{self, EngineProcess, Place};
use super::{ENGINES, Users, number_of};
use rnic_abi::os::{Connection, Credentials, EventFd, process};
use rnic_host::memory;
use rnic_host::refusal::{Refused, refuse, refused_by_kernel};
use rnic_host::satellite::protocol::ToEngine;
use rnic_host::server::Functions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// Starts functions. See the [module](self).
pub(crate) struct FunctionStarter(pub(crate) Arc<Users>);

impl Functions for FunctionStarter {
    fn start(&self, peer: Credentials, process: OwnedFd) -> Result<OwnedFd, Refused> {
        let users = &self.0;
        may_have_one(peer, &process)?;
        if users.parts.shared_port.is_none() {
            let text = "this daemon has no sockets to give to programs";
            return Err(refuse(libc::EOPNOTSUPP, text));
        }
        let mut table = users.table();
        if table.stopping {
            return Err(refuse(libc::EAGAIN, "the daemon is stopping"));
        }
        let Some(place) = table.vacant() else {
            let text = format!("{ENGINES} programs and users have engines already");
            return Err(refuse(libc::EUSERS, text));
        };
        let begun = users.begin(peer, process, number_of(place), table.started);
        let (engine, theirs) = begun.map_err(refused_by_kernel("no engine for this program"))?;
        users.enter(&mut table, place, &engine);
        table.functions.push(engine);
        table.clients += 1;
        Ok(theirs)
    }
}

/// What gets sockets of the daemon's port can send from its addresses, and change how the port is
/// shared. The kernel lets every process do that which has the daemon's user and network namespace:
/// only those have functions, and no root of a container.
fn may_have_one(peer: Credentials, process: &OwnedFd) -> Result<(), Refused> {
    let own = rustix::process::geteuid();
    if peer.uid != own.as_raw() {
        let own = own.as_raw();
        let text = format!("only programs of user {own}, as the daemon is, have engines");
        return Err(refuse(libc::EPERM, text));
    }
    let is_ours = |kind: &str| -> io::Result<bool> {
        let of = |folder: &Path| fs::metadata(folder.join("ns").join(kind));
        let (theirs, ours) = (of(&process::folder(peer.pid)?)?, of(Path::new("/proc/self"))?);
        Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
    };
    // An ordinary user's programs may have user namespaces of their own, as `rnic run` makes them.
    for kind in ["net", "user"].into_iter().take(if own.is_root() { 2 } else { 1 }) {
        let found = is_ours(kind);
        if !found.map_err(refused_by_kernel("the program's namespaces cannot be seen"))? {
            let name = if kind == "net" { "network" } else { kind };
            let text = format!(
                "the program is in another {name} namespace than the daemon, whose sockets its \
                 engine would have"
            );
            return Err(refuse(libc::EPERM, text));
        }
    }
    // Only now: what was seen was of this process, and not of one that has got its number.
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(0) => Ok(()),
        _ => Err(refuse(libc::ESRCH, "the program that asked for an engine is gone")),
    }
}

impl Users {
    /// A function of this number, and its end of the socket.
    fn begin(
        self: &Arc<Self>,
        peer: Credentials,
        process: OwnedFd,
        number: u8,
        serial: u64,
    ) -> io::Result<(Arc<EngineProcess>, OwnedFd)> {
        if memory::is_short() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let user = (peer.uid, peer.gid);
        let wake = Arc::new(EventFd::new()?);
        let (ours, theirs) = Connection::pair()?;
        let start = self.start_message(user, number)?;
        ours.send_message(&ToEngine::Start(Box::new(start)), &[])?;
        let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
        let process = (Place::Program, pid.ok_or(io::ErrorKind::NotFound)?, process);
        let engine = EngineProcess::new(user, (number, serial), ours, process, (wake, None));
        let engine = Arc::new(engine);
        self.tell_network(&engine);
        engine::attend_to(Arc::clone(self), Arc::clone(&engine), None)?;
        tracing::info!("{engine} is engine {number}");
        Ok((engine, theirs.into()))
    }
}
