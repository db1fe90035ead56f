//! System calls that the process never needs, and that would do the most harm in the hands of a
//! client that got hold of it.
//!
//! Its sockets share a port with those of all other users. A socket that is connected gets all that
//! comes from its peer, also what is for other users, and one that takes the port's program away
//! changes which socket gets what: so no socket is connected, made or changed here. Nor does the
//! process start programs, look into others or use the parts of the kernel that are attacked most.

use anyhow::{Context, Result};
use libc::{c_int, c_long};
use seccompiler::SeccompCmpOp::{Eq, Ne};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};
use std::collections::BTreeMap;

/// Refuses them from now on, to this thread and to those that it starts.
///
/// # Errors
/// When the kernel has no filters for system calls.
pub(super) fn confine() -> Result<()> {
    let program = filter().context("the filter of system calls")?;
    seccompiler::apply_filter(&program)
        .context("the kernel does not filter system calls (CONFIG_SECCOMP_FILTER)")
}

fn filter() -> Result<BpfProgram> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_setsockopt, other_options()?);
    // Dumpable, it could be looked into by other processes of its user.
    let dumpable = when(&[(0, Eq, libc::PR_SET_DUMPABLE)])?;
    rules.insert(libc::SYS_prctl, vec![dumpable]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    let filter: BpfProgram = filter.try_into()?;
    Ok(without_x32().into_iter().chain(filter).collect())
}

/// When these arguments of a call compare so.
fn when(conditions: &[(u8, SeccompCmpOp, c_int)]) -> Result<SeccompRule> {
    let conditions = conditions.iter().map(|(argument, compare, value)| {
        let value = u64::from(value.unsigned_abs());
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, compare.clone(), value)
    });
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}

/// All options but those that say how a datagram is treated on its way.
fn other_options() -> Result<Vec<SeccompRule>> {
    const LEVEL: u8 = 1;
    const OPTION: u8 = 2;
    let (v4, v6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    Ok(vec![
        when(&[(LEVEL, Ne, v4), (LEVEL, Ne, v6)])?,
        when(&[(LEVEL, Eq, v4), (OPTION, Ne, libc::IP_TOS), (OPTION, Ne, libc::IP_TTL)])?,
        when(&[
            (LEVEL, Eq, v6),
            (OPTION, Ne, libc::IPV6_TCLASS),
            (OPTION, Ne, libc::IPV6_UNICAST_HOPS),
        ])?,
    ])
}

/// On x86-64 each call has a second number, which the rules would not find.
fn without_x32() -> [sock_filter; 3] {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ]
}

const X32: u32 = 0x4000_0000;

const REFUSED: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_add_key,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_connect,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_listen,
    libc::SYS_mount,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

#[cfg(test)]
#[allow(unsafe_code, reason = "no library makes calls that are refused")]
mod tests {
    use super::*;
    use std::io;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    fn set(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let (pointer, len) = (std::ptr::from_ref(&value).cast(), 4);
        // SAFETY: pointer and length describe `value`.
        let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, len) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[track_caller]
    fn refused<T>(result: io::Result<T>) {
        assert_eq!(result.err().and_then(|error| error.raw_os_error()), Some(libc::EPERM));
    }

    #[test]
    fn sockets_that_were_given_work_and_are_not_changed() {
        std::thread::spawn(|| {
            let (socket, peer) =
                (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            rustix::thread::set_no_new_privs(true).unwrap();
            confine().unwrap();
            socket.send_to(b"datagram", peer.local_addr().unwrap()).unwrap();
            assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 8);
            set(&socket, libc::IPPROTO_IP, libc::IP_TOS, 4).unwrap();
            set(&socket, libc::IPPROTO_IP, libc::IP_TTL, 9).unwrap();
            UnixDatagram::pair().unwrap();
            const SO_DETACH_REUSEPORT_BPF: c_int = 68;
            const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
            for option in [SO_DETACH_REUSEPORT_BPF, SO_ATTACH_REUSEPORT_CBPF, libc::SO_REUSEPORT] {
                refused(set(&socket, libc::SOL_SOCKET, option, 1));
            }
            refused(set(&socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1));
            refused(set(&socket, libc::IPPROTO_IPV6, libc::IP_TOS, 1));
            let dumpable = rustix::process::DumpableBehavior::Dumpable;
            refused(rustix::process::set_dumpable_behavior(dumpable).map_err(io::Error::from));
            refused(socket.connect(peer.local_addr().unwrap()));
            refused(UdpSocket::bind("127.0.0.1:0"));
            // SAFETY: the arguments do not matter to a call that is refused.
            let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, 0) };
            refused(if ring < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
            assert!(std::process::Command::new("/bin/true").status().is_err());
            #[cfg(target_arch = "x86_64")]
            {
                let number = i64::from(X32) | libc::SYS_connect;
                // SAFETY: as above.
                let x32 = unsafe { libc::syscall(number, socket.as_raw_fd(), 0, 0) };
                refused(if x32 < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
            }
        })
        .join()
        .unwrap();
    }
}
