//! The control socket: SEQPACKET, so that one send is one message, with descriptors beside it.

use super::peer::{self, Credentials};
use super::{check, check_len, invalid, retry};
use crate::control::{self, Answer, MAX_DESCRIPTORS, MAX_MESSAGE, Request};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The descriptors that came with a message, in the order in which they were sent. Those that
/// the caller does not take are closed.
#[derive(Debug, Default)]
pub struct Descriptors(std::vec::IntoIter<OwnedFd>);

impl Descriptors {
    /// Takes all of them.
    ///
    /// # Errors
    /// `InvalidData` when there are not exactly `N`.
    pub fn exactly<const N: usize>(self) -> io::Result<[OwnedFd; N]> {
        let found = self.len();
        <[OwnedFd; N]>::try_from(self.0.collect::<Vec<_>>())
            .map_err(|_| invalid(format!("{N} descriptors expected, {found} received")))
    }
}

impl Iterator for Descriptors {
    type Item = OwnedFd;

    fn next(&mut self) -> Option<OwnedFd> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Descriptors {}

/// One end of a control connection, or of any SEQPACKET socket pair.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to a daemon.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused` when no daemon listens there, `PermissionDenied` when the
    /// user may not use it.
    pub fn connect(path: &Path) -> io::Result<Self> {
        connect(path, 0).map(Self)
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// What the kernel says, e.g. too many open files.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut fds: [RawFd; 2] = [-1; 2];
        // SAFETY: the kernel writes two descriptors, which are ours alone.
        unsafe {
            check(libc::socketpair(libc::AF_UNIX, KIND, 0, fds.as_mut_ptr()))?;
            Ok((Self(OwnedFd::from_raw_fd(fds[0])), Self(OwnedFd::from_raw_fd(fds[1]))))
        }
    }

    /// Sends one message, waiting while the peer's queue is full.
    ///
    /// # Errors
    /// `InvalidInput` for an empty message (it would read as the end) or too many descriptors;
    /// `BrokenPipe` when the peer is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, fds, 0)
    }

    /// As [`send`](Self::send), but never waits.
    ///
    /// # Errors
    /// Also `WouldBlock` when the peer's queue is full; nothing was sent then.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, fds, libc::MSG_DONTWAIT)
    }

    /// Receives one message, waiting for it. No bytes: the peer is gone.
    ///
    /// # Errors
    /// `InvalidData` when the message is longer than `buffer` or carries more than
    /// [`MAX_DESCRIPTORS`] descriptors; its descriptors are closed then.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, Descriptors)> {
        recv(self.0.as_fd(), buffer, 0)
    }

    /// As [`recv`](Self::recv), but never waits.
    ///
    /// # Errors
    /// Also `WouldBlock` when there is no message.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<(usize, Descriptors)> {
        recv(self.0.as_fd(), buffer, libc::MSG_DONTWAIT)
    }

    /// Encodes and sends one message, waiting while the peer's queue is full.
    ///
    /// # Errors
    /// As [`send`](Self::send), or `InvalidData` when the message is longer than [`MAX_MESSAGE`].
    pub fn send_message<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes =
            control::encode(message).map_err(|_| invalid("a control message is too long"))?;
        self.send(&bytes, fds)
    }

    /// Receives and decodes one message, waiting for it; `None` when the peer is gone.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), or `InvalidData` when the bytes are not a `T`.
    pub fn recv_message<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Descriptors)>> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, fds) = self.recv(&mut buffer)?;
        if len == 0 {
            return Ok(None);
        }
        let message = control::decode(&buffer[..len]).map_err(|_| {
            invalid("malformed control message: library and daemon are of different versions")
        })?;
        Ok(Some((message, fds)))
    }

    /// One request and the answer to it. Not for two threads at a time.
    ///
    /// # Errors
    /// `ConnectionReset` or `BrokenPipe` when the daemon is gone; else as
    /// [`recv_message`](Self::recv_message).
    pub fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Descriptors)> {
        self.send_message(request, fds)?;
        self.recv_message()?
            .ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionReset, "the daemon is gone"))
    }

    /// Who connected, as the kernel noted it then.
    ///
    /// # Errors
    /// `PermissionDenied` when the peer's process cannot be seen from this pid namespace.
    pub fn peer_credentials(&self) -> io::Result<Credentials> {
        peer::credentials(self.0.as_fd())
    }

    /// The effective user at the other end, also of a process that cannot be seen.
    ///
    /// # Errors
    /// None in practice.
    pub fn peer_user(&self) -> io::Result<u32> {
        peer::user(self.0.as_fd())
    }

    /// A pidfd of the process that connected: readable once it is dead.
    ///
    /// # Errors
    /// When the process is gone already.
    pub fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        peer::pidfd(self.0.as_fd())
    }
}

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.0
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A daemon's listening socket. Its path goes away with it.
///
/// A file with the added suffix `.lock` beside the socket, locked while the daemon lives, keeps
/// two daemons that start at once from removing each other's socket as a stale one.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    _lock: Lock,
}

impl Listener {
    /// Listens at `path`, which gets the permission bits `mode`. A socket left there by a daemon
    /// that died is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when another daemon listens there; `AlreadyExists` when something other than a
    /// socket is there; `InvalidInput` when the path is longer than 107 bytes.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let (address, len) = address_of(path)?;
        let lock = Lock::take(path)?;
        remove_stale(path)?;
        let socket = new_socket(0)?;
        let fd = socket.as_raw_fd();
        // SAFETY: `address` is a live socket address of `len` bytes.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        // From here on a failure must take the path away again.
        let listener = Self { socket, path: path.to_path_buf(), _lock: lock };
        // Before listening: until then no process can connect, whatever the mode.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        // SAFETY: a plain system call on our own descriptor.
        check(unsafe { libc::listen(fd, BACKLOG) })?;
        Ok(listener)
    }

    /// Waits for a client; never waits after [`set_nonblocking`](Self::set_nonblocking).
    ///
    /// # Errors
    /// `WouldBlock` when no connection waits; else what the kernel says.
    pub fn accept(&self) -> io::Result<Connection> {
        let fd = self.socket.as_raw_fd();
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for; a descriptor that the kernel returns is ours alone.
        let accepted = retry(|| unsafe {
            check(libc::accept4(fd, none, std::ptr::null_mut(), libc::SOCK_CLOEXEC))
                .map(|fd| OwnedFd::from_raw_fd(fd))
        })?;
        Ok(Connection(accepted))
    }

    /// Makes [`accept`](Self::accept) wait or not.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        let mut value = libc::c_int::from(nonblocking);
        // SAFETY: the kernel reads one int from a live variable.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::FIONBIO, &raw mut value) })?;
        Ok(())
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The lock is still held: what is at the path is ours. Nothing can be done about a
        // failure, and the next daemon copes with it.
        let _ = fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    fn take(socket_path: &Path) -> io::Result<Self> {
        let mut path = socket_path.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path)
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
                })?;
            // SAFETY: a plain system call on our own descriptor.
            check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
                .map_err(|_| in_use(socket_path))?;
            // The daemon that had it may have removed it between our open and our lock.
            let inode = file.metadata()?.ino();
            if fs::metadata(&path).is_ok_and(|found| found.ino() == inode) {
                return Ok(Self { _file: file, path });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while locked; a process that opened it meanwhile sees that it has gone. Closing
        // the file unlocks it.
        let _ = fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let message = format!("{} exists and is not a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => {}
    }
    match connect(path, libc::SOCK_NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A process listens, with room in its queue or without, or with another type of socket.
        _ => Err(in_use(path)),
    }
}

fn in_use(path: &Path) -> io::Error {
    let message =
        format!("a daemon listens at {} already: stop it, or use another --socket", path.display());
    io::Error::new(io::ErrorKind::AddrInUse, message)
}

const KIND: libc::c_int = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
const BACKLOG: libc::c_int = 128;

fn new_socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor that the kernel returns is ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, KIND | flags, 0))?)) }
}

fn connect(path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let (address, len) = address_of(path)?;
    let socket = new_socket(flags)?;
    let fd = socket.as_raw_fd();
    // SAFETY: `address` is a live socket address of `len` bytes.
    retry(|| check(unsafe { libc::connect(fd, (&raw const address).cast(), len) }))?;
    Ok(socket)
}

fn address_of(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let bytes = path.as_os_str().as_bytes();
    // One byte is left for the terminator; an empty or zero-led name would be an abstract one.
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        let message = format!(
            "{} cannot be a socket path: 1 to {} bytes are possible",
            path.display(),
            address.sun_path.len() - 1
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default();
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, libc::socklen_t::try_from(len).unwrap_or_default()))
}

/// Room for one control message with [`MAX_DESCRIPTORS`] descriptors and not one more.
#[repr(C, align(8))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_LEN]);

const FDS_LEN: u32 = (MAX_DESCRIPTORS * size_of::<RawFd>()) as u32;
// SAFETY: only arithmetic.
const CONTROL_LEN: usize = unsafe { libc::CMSG_SPACE(FDS_LEN) } as usize;
// SAFETY: only arithmetic.
const _: () = assert!(unsafe { libc::CMSG_LEN(FDS_LEN) } as usize == CONTROL_LEN);

impl ControlBuffer {
    const fn new() -> Self {
        Self([MaybeUninit::zeroed(); CONTROL_LEN])
    }
}

fn header(iov: &mut libc::iovec, control: &mut ControlBuffer, control_len: usize) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    if control_len > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control_len as _;
    }
    message
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<()> {
    if bytes.is_empty() || fds.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "empty, or too many descriptors"));
    }
    let mut control = ControlBuffer::new();
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_DESCRIPTORS")]
    let fds_len = size_of_val(fds) as u32;
    // SAFETY: only arithmetic.
    let space = if fds.is_empty() { 0 } else { unsafe { libc::CMSG_SPACE(fds_len) as usize } };
    let message = header(&mut iov, &mut control, space);
    if !fds.is_empty() {
        // SAFETY: the buffer is aligned and has room for one control message of `fds_len` bytes of
        // data. A `BorrowedFd` is a `RawFd` in memory.
        unsafe {
            let cmsg = libc::CMSG_FIRSTHDR(&raw const message);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(fds_len) as _;
            let data = libc::CMSG_DATA(cmsg);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), data, fds_len as usize);
        }
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the message and all it points to are alive; the kernel only reads them.
    retry(|| check_len(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }))?;
    Ok(())
}

fn recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Descriptors)> {
    let mut control = ControlBuffer::new();
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = header(&mut iov, &mut control, CONTROL_LEN);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes at most the stated lengths to live buffers.
    let len =
        retry(|| check_len(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) }))?;
    // First of all: from here on the descriptors close themselves.
    let fds = take_descriptors(&message);
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(invalid("a control message is too long or carries too many descriptors"));
    }
    Ok((len, Descriptors(fds.into_iter())))
}

fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled `msg_control` and set its length; the macros stay inside it. Each
    // SCM_RIGHTS message holds descriptors, unaligned at worst, that are ours alone.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(message);
        while !cmsg.is_null() {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                let len = (*cmsg).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for i in 0..len / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            cmsg = libc::CMSG_NXTHDR(message, cmsg);
        }
    }
    fds
}
