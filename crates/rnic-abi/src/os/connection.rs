//! A control connection: SEQPACKET, so that one send is one message, with descriptors beside it.

use super::address::{self, KIND};
use super::invalid;
use super::peer::{self, Credentials};
use crate::ABI_VERSION;
use crate::control::{self, Answer, CmRequest, MAX_DESCRIPTORS, MAX_MESSAGE, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, recvmsg, sendmsg,
    shutdown, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

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

/// Whether a socket has no other end any more. By a system call of our own: the C library's would
/// be a place where a thread is cancelled, with the locks that it has.
pub fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let ready = poll(&mut polled, Some(&Timespec::default()));
    ready.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// One end of a control connection, or of any SEQPACKET socket pair.
#[derive(Debug)]
pub struct Connection(pub(super) OwnedFd);

impl Connection {
    /// Connects to a daemon.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused` when no daemon listens there, `PermissionDenied` when the
    /// user may not use it.
    pub fn connect(path: &Path) -> io::Result<Self> {
        address::connect(path, SocketFlags::empty()).map(Self)
    }

    /// As [`connect`](Self::connect), where the daemon may take so long for that and for each
    /// answer, until [`wait_for_ever`](Self::wait_for_ever).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `WouldBlock` when it took longer, here and in each call.
    pub fn connect_within(path: &Path, limit: Duration) -> io::Result<Self> {
        let this = Self(address::new_socket(SocketFlags::empty())?);
        this.set_limit(Some(limit))?;
        address::connect_socket(&this.0, path)?;
        Ok(this)
    }

    /// Answers may take any time from now on.
    ///
    /// # Errors
    /// None in practice.
    pub fn wait_for_ever(&self) -> io::Result<()> {
        self.set_limit(None)
    }

    fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Send, limit)?;
        Ok(set_socket_timeout(&self.0, Timeout::Recv, limit)?)
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// What the kernel says, e.g. too many open files.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(AddressFamily::UNIX, KIND, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one message, waiting while the peer's queue is full.
    ///
    /// # Errors
    /// `InvalidInput` for an empty message (it would read as the end) or too many descriptors;
    /// `BrokenPipe` when the peer is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, fds, SendFlags::empty())
    }

    /// As [`send`](Self::send), but never waits.
    ///
    /// # Errors
    /// Also `WouldBlock` when the peer's queue is full; nothing was sent then.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, fds, SendFlags::DONTWAIT)
    }

    /// Receives one message, waiting for it. No bytes: the peer is gone.
    ///
    /// # Errors
    /// `InvalidData` when the message is longer than `buffer` or carries more than
    /// [`MAX_DESCRIPTORS`] descriptors; its descriptors are closed then.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, Descriptors)> {
        recv(self.0.as_fd(), buffer, RecvFlags::empty())
    }

    /// As [`recv`](Self::recv), but never waits.
    ///
    /// # Errors
    /// Also `WouldBlock` when there is no message.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<(usize, Descriptors)> {
        recv(self.0.as_fd(), buffer, RecvFlags::DONTWAIT)
    }

    /// As [`try_recv`](Self::try_recv), for a peer that may want to keep this thread: a message
    /// with descriptors is not taken, as closing them may take as long as its sender likes.
    ///
    /// # Errors
    /// `InvalidData` also when descriptors came along; the message stays where it is then.
    pub fn try_recv_plain(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (mut none, flags) = (RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT);
        let look = || recvmsg(&self.0, &mut [], &mut none, flags | RecvFlags::PEEK);
        if retry_on_intr(look)?.flags.contains(ReturnFlags::CTRUNC) {
            return Err(invalid("descriptors came along with a message that needs none"));
        }
        self.try_recv(buffer).map(|(len, _)| len)
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
    /// After an error other than EMFILE the connection is at its end also for a daemon that lives:
    /// it lets go of what the session has, which the caller takes for gone.
    ///
    /// # Errors
    /// EMFILE when this process has no room for the descriptors that the answer may bring, and then
    /// nothing was asked; `ConnectionReset` or `BrokenPipe` when the daemon is gone; else as
    /// [`recv_message`](Self::recv_message).
    pub fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Descriptors)> {
        // An answer without room for its descriptors is lost, and with it what the request made.
        let room = (0..brought_by(request)).map(|_| self.0.try_clone());
        drop(room.collect::<io::Result<Vec<_>>>()?);
        let asked = self.send_message(request, fds).and_then(|()| self.recv_message());
        if asked.is_err() {
            // Fails only where the connection is at its end already.
            let _ = shutdown(&self.0, Shutdown::Both);
        }
        asked?.ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionReset, "the daemon is gone"))
    }

    /// Agrees with the daemon on the version of what they say to each other.
    ///
    /// # Errors
    /// `Unsupported` with a text for the user, when theirs differ or the daemon refuses; else as
    /// [`call`](Self::call).
    pub fn greet(&self) -> io::Result<()> {
        let text = match self.call(&Request::Hello { abi: ABI_VERSION }, &[])?.0 {
            Ok(Reply::Hello { abi: ABI_VERSION, .. }) => return Ok(()),
            Ok(Reply::Hello { abi, server }) => format!(
                "{server} speaks version {abi} and this library version {ABI_VERSION}: install \
                 library and daemon from the same release"
            ),
            Ok(_) => return Err(invalid("the daemon does not greet")),
            Err(refusal) => refusal.message,
        };
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Process and user of the peer when it connected, as the kernel noted them.
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

/// Most descriptors that the answer to a request brings. Rings come with that of new memory.
fn brought_by(request: &Request) -> usize {
    match request {
        Request::OpenDevice { .. } => 3,
        Request::CreateQp(_) => 2,
        Request::CreateCq { .. }
        | Request::ResizeCq { .. }
        | Request::CreateSrq { .. }
        | Request::CreateChannel
        | Request::AllocDm { .. }
        | Request::Connections(CmRequest::OpenChannel) => 1,
        _ => 0,
    }
}

/// Room for one control message with [`MAX_DESCRIPTORS`] descriptors and not one more. Aligned as
/// the kernel's header is, so that none of it is lost to alignment.
#[repr(align(8))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_LEN]);

const CONTROL_LEN: usize = rustix::cmsg_aligned_space!(ScmRights(MAX_DESCRIPTORS));
// An odd number of descriptors would leave room for one more behind them.
const _: () = assert!(MAX_DESCRIPTORS.is_multiple_of(2));

impl ControlBuffer {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); CONTROL_LEN])
    }
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut room = ControlBuffer::new();
    let mut control = SendAncillaryBuffer::new(&mut room.0);
    let fit = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
    if bytes.is_empty() || !fit {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "empty, or too many descriptors"));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

fn recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Descriptors)> {
    let mut room = ControlBuffer::new();
    let mut control = RecvAncillaryBuffer::new(&mut room.0);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut iov = [IoSliceMut::new(buffer)];
    let received = retry_on_intr(|| recvmsg(socket, &mut iov, &mut control, flags))?;
    // First of all: from here on the descriptors close themselves.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(invalid("a control message is too long or carries too many descriptors"));
    }
    Ok((received.bytes, Descriptors(fds.into_iter())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Refusal;

    #[test]
    fn a_daemon_of_another_version_is_told_from_one_of_ours() {
        let hello = |abi| Ok(Reply::Hello { abi, server: "rnicd 9".into() });
        let refusal = Refusal { errno: libc::EPROTO, message: "it is too old".into() };
        let greet = |answer: Answer| {
            let (library, daemon) = Connection::pair().unwrap();
            daemon.send_message(&answer, &[]).unwrap();
            library.greet()
        };
        greet(hello(ABI_VERSION)).unwrap();
        for (answer, words) in [
            (hello(ABI_VERSION + 1), "rnicd 9 speaks version"),
            (Err(refusal), "it is too old"),
            (Ok(Reply::Devices(Vec::new())), "does not greet"),
        ] {
            let error = greet(answer).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
