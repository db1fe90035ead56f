//! Whose rights the process has.

use anyhow::{Context, Result, ensure};
use rnic_abi::os::Connection;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The socket to the daemon, which is this process's standard input.
///
/// # Errors
/// When it is none: another program than the daemon started this.
pub(super) fn take_socket() -> Result<Connection> {
    close_inherited();
    leave_terminal().context("cannot leave the daemon's terminal")?;
    let stdin = io::stdin();
    let kind = rustix::net::sockopt::socket_type(stdin.as_fd());
    ensure!(
        kind.is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET),
        "this is started by rnicd itself: run it without arguments"
    );
    let socket = stdin.as_fd().try_clone_to_owned().context("too many open files")?;
    let null = std::fs::File::open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(Connection::from(socket))
}

/// A process that has the daemon's terminal can type into it. Nor do the keys of that terminal end
/// this process, which is the daemon's to do.
///
/// It stays in the daemon's session: with one of its own it would have a scheduling group of its
/// own (autogroup), and could not yield a CPU to programs.
#[allow(unsafe_code, reason = "no library wraps TIOCNOTTY")]
fn leave_terminal() -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    if let Ok(terminal) = std::fs::File::open("/dev/tty") {
        // SAFETY: without an argument.
        if unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes what the daemon itself was started with and left open, if anything.
#[allow(unsafe_code, reason = "no library wraps close_range")]
fn close_inherited() {
    // SAFETY: the first thing that this process does: it has opened none of these.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Makes this process act as this user and no other, for good and without capabilities. It has one
/// thread.
///
/// Until the ids change the user cannot trace it. From then on the kernel calls it undumpable,
/// unless the host has changed `fs.suid_dumpable`: then there is a moment in which its user could,
/// and would find nothing that is not that user's.
///
/// # Errors
/// What the kernel says, also when it did not do what it was asked for.
pub(super) fn become_user(uid: u32, gid: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // The kernel takes a user's engine before it takes the daemon when memory is short.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // Its memory holds keys of clients.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::thread::set_thread_groups(&groups_of(uid, gid))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let empty = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    rustix::thread::set_capabilities(None, nothing)?;
    // Stopped by its user it would outlive a daemon that is killed, with sockets on its port. A
    // change of ids takes this back, so not before.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let rights = rustix::thread::capabilities(None)?;
    ensure!(rights.permitted.is_empty() && rights.effective.is_empty(), "it keeps capabilities");
    let ids = (rustix::process::getuid(), rustix::process::geteuid(), rustix::process::getegid());
    ensure!(ids == (uid, uid, gid), "it has other ids");
    ensure!(uid.is_root() || rustix::process::geteuid() != Uid::ROOT, "it is still root");
    Ok(())
}

/// The supplementary groups of the user, by the host's name service; none for an unknown user.
fn groups_of(uid: Uid, gid: Gid) -> Vec<Gid> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.as_raw()));
    let Ok(Some(user)) = user else { return Vec::new() };
    let Ok(name) = std::ffi::CString::new(user.name) else { return Vec::new() };
    let group = nix::unistd::Gid::from_raw(gid.as_raw());
    let groups = nix::unistd::getgrouplist(&name, group).unwrap_or_default();
    groups.into_iter().map(|group| Gid::from_raw(group.as_raw())).collect()
}

const OOM_SCORE: &str = "300";
