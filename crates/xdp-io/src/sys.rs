//! System calls. With `sys/*`, `ring.rs` and `umem.rs` the only place with unsafe code.

pub(crate) mod bpf;
pub(crate) mod mmsg;

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Turns the result of a system call into a `Result`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which file a descriptor refers to: its device and its inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId(u64, u64);

/// The file that this number refers to in the calling thread's table of descriptors.
pub(crate) fn file_id(number: RawFd) -> io::Result<FileId> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: written where the call succeeds, and read only then.
    let status = unsafe {
        check(libc::fstat(number, status.as_mut_ptr()))?;
        status.assume_init()
    };
    Ok(FileId(status.st_dev, status.st_ino))
}

/// The descriptor of a number that was [found](file_id) to be the right file. A thread that closes
/// the descriptor meanwhile races with every use of descriptors in this process.
pub(crate) fn borrow<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: not -1, which is no file; nothing else depends on what it refers to.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// A structure of integers that the kernel reads or writes as bytes.
///
/// # Safety
/// `repr(C)`, no padding, every bit pattern valid.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for i32 {}
// SAFETY: nine integers.
unsafe impl Plain for [u32; 9] {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: one integer.
unsafe impl Plain for libc::xdp_options {}
// SAFETY: two integers.
unsafe impl Plain for [u32; 2] {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::ip_mreqn {}
// SAFETY: integers without padding.
unsafe impl Plain for libc::ipv6_mreq {}

/// Opens a socket, closed on exec.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor returned is new and ours.
    unsafe {
        let fd = check(libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Binds to an encoded socket address.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length describe the slice; the kernel copies it.
    let result =
        unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), address.len() as u32) };
    check(result).map(drop)
}

/// Binds an AF_XDP socket.
pub(crate) fn bind_xdp(fd: BorrowedFd<'_>, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    let mut address = [0u8; 16];
    address[..2].copy_from_slice(&(libc::AF_XDP as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&flags.to_ne_bytes());
    address[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    address[8..12].copy_from_slice(&queue.to_ne_bytes());
    bind(fd, &address)
}

/// Binds an AF_PACKET socket to all protocols of an interface, which starts reception.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let mut address = [0u8; 20];
    address[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&(libc::ETH_P_ALL as u16).to_be_bytes());
    address[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    bind(fd, &address)
}

/// Sets a socket option.
pub(crate) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let pointer = ptr::from_ref(value).cast();
    // SAFETY: pointer and length describe `value`, which the kernel copies.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, size_of::<T>() as u32) };
    check(result).map(drop)
}

/// Reads a socket option; a shorter answer leaves the rest of `initial` as it was.
pub(crate) fn option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    initial: T,
) -> io::Result<T> {
    let mut value = initial;
    let mut len = size_of::<T>() as u32;
    let pointer = ptr::from_mut(&mut value).cast();
    // SAFETY: pointer and length describe `value`; every bit pattern the kernel writes is valid.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &mut len) };
    check(result)?;
    Ok(value)
}

/// Sets the send and receive buffer, past the system's limit where that is allowed.
pub(crate) fn set_buffers(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    let pairs = [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (forced, limited) in pairs {
        if set_option(fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
            // Never fails: the kernel takes as much as net.core.{r,w}mem_max allows.
            let _ = set_option(fd, libc::SOL_SOCKET, limited, &bytes);
        }
    }
}

/// Attaches a classic BPF filter.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, filter: &[libc::sock_filter]) -> io::Result<()> {
    attach_program(fd, libc::SO_ATTACH_FILTER, filter)
}

/// Gives a classic program to a socket, for what `option` says.
pub(crate) fn attach_program(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    filter: &[libc::sock_filter],
) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program points to `filter`, which the kernel only reads, during this call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            ptr::from_ref(&program).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    check(result).map(drop)
}

/// Takes a datagram that waits in a socket away.
pub(crate) fn take_away(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an empty buffer, in which there is room for nothing.
    let taken = unsafe { libc::recv(fd.as_raw_fd(), ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    check(taken as i32).map(drop)
}

/// Makes the kernel process the TX ring of an AF_XDP socket.
pub(crate) fn kick_tx(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an empty buffer; only the side effect on the ring is wanted.
    let sent =
        unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    check(sent as i32).map(drop)
}

/// Makes the kernel process the fill ring of an AF_XDP socket.
pub(crate) fn kick_rx(fd: BorrowedFd<'_>) {
    // SAFETY: an empty buffer; only the side effect is wanted, so the result does not matter.
    unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        );
    }
}

/// The kernel's release, e.g. `6.1.0-56-amd64`; empty where the kernel does not tell.
pub(crate) fn kernel_release() -> String {
    // SAFETY: utsname consists of byte arrays, for which zero is valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes terminated strings into the structure that it is given.
    if unsafe { libc::uname(&mut names) } < 0 {
        return String::new();
    }
    // SAFETY: terminated: by the kernel, as above.
    unsafe { CStr::from_ptr(names.release.as_ptr()) }.to_string_lossy().into_owned()
}

/// Index of a named interface.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Name of an interface.
pub(crate) fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    // SAFETY: the buffer has the required IF_NAMESIZE bytes and is terminated on success.
    unsafe {
        if libc::if_indextoname(index, name.as_mut_ptr()).is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// An interface property by `ioctl`: the 16 bytes of `ifreq` after the name.
pub(crate) fn interface_request(name: &str, request: libc::c_ulong) -> io::Result<[u8; 16]> {
    #[repr(C, align(8))]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        value: [u8; 24],
    }
    const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());
    let mut argument = Request { name: [0; libc::IFNAMSIZ], value: [0; 24] };
    let slot = argument.name[..libc::IFNAMSIZ - 1].get_mut(..name.len());
    slot.ok_or(io::Error::from_raw_os_error(libc::ENODEV))?.copy_from_slice(name.as_bytes());
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: the argument has the size and alignment of `struct ifreq`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, ptr::from_mut(&mut argument)) })?;
    let mut value = [0; 16];
    value.copy_from_slice(&argument.value[..16]);
    Ok(value)
}
