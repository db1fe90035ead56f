//! Memory files, sockets and wake-ups, with a peer that breaks every rule.
#![cfg(all(feature = "os", not(loom)))]

use rnic_abi::control::{MAX_DESCRIPTORS, Refusal, Reply, Request};
use rnic_abi::os::{Connection, EventFd, Listener, SocketFile, futex, memory};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{ErrorKind, Read, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn errno(result: libc::c_int) -> Option<i32> {
    (result == -1).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

#[test]
fn both_sides_see_the_same_words() {
    let (fd, ours) = memory::create("both-sides", 1024).unwrap();
    memory::populate(&fd, 0..1024).unwrap();
    let theirs = memory::map(&fd, 1024).unwrap();
    drop(fd);
    ours.set(1023, 7);
    assert_eq!((theirs.get(1023), theirs.get(0), theirs.len()), (7, 0, 1024));
}

#[test]
fn a_file_that_is_mapped_for_good_keeps_its_pages() {
    let (fd, theirs) = memory::create_for_good("for-good", 1024).unwrap();
    let ours = memory::map_for_good(&fd, 1024).unwrap();
    ours.set(7, 42);
    assert_eq!(theirs.get(7), 42);
    let raw = fd.as_raw_fd();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a range of a file of this test, and of a mapping of it.
    let [hole, removed] = unsafe {
        let hole = libc::fallocate(raw, punch, 0, 4096);
        [hole, libc::madvise(ours.as_ptr().as_ptr().cast(), 4096, libc::MADV_REMOVE)]
    };
    assert!(hole == -1 && removed == -1, "{hole} {removed}");
    // SAFETY: a flag of a file of this test.
    assert_eq!(errno(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, 0) }), Some(libc::EPERM));
    assert!(memory::map(&fd, 1024).is_err(), "it can be mapped a second time");
    assert_eq!(theirs.get(7), 42);
    ours.set(7, 43);
    assert_eq!(theirs.get(7), 43);
}

#[test]
fn a_memory_file_keeps_its_size_and_its_seals() {
    let (fd, _words) = memory::create("sealed", 1024).unwrap();
    // SAFETY: plain system calls on a live descriptor.
    unsafe {
        let fd = fd.as_raw_fd();
        assert_eq!(errno(libc::ftruncate(fd, 4096)), Some(libc::EPERM));
        assert_eq!(errno(libc::ftruncate(fd, 16384)), Some(libc::EPERM));
        let seal = libc::F_SEAL_FUTURE_WRITE;
        assert_eq!(errno(libc::fcntl(fd, libc::F_ADD_SEALS, seal)), Some(libc::EPERM));
    }
    let beyond = memory::populate(&fd, 1000..2048).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn only_what_is_populated_takes_memory() {
    let (fd, _words) = memory::create("sparse", 1 << 20).unwrap();
    let file = File::from(fd);
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    memory::populate(&file, 512..1024).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 8);
    memory::populate(&file, 5..5).unwrap();
}

#[test]
fn memory_that_could_shrink_or_is_too_short_is_not_mapped() {
    // SAFETY: a descriptor that the kernel returns is ours alone.
    let unsealed = unsafe {
        let fd = libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        File::from_raw_fd(fd)
    };
    unsealed.set_len(8192).unwrap();
    assert_eq!(memory::map(&unsealed, 1024).unwrap_err().kind(), ErrorKind::InvalidData);
    let (short, _words) = memory::create("short", 100).unwrap();
    assert_eq!(memory::map(&short, 101).unwrap_err().kind(), ErrorKind::InvalidData);
    let (pipe, _other) = pipe().unwrap();
    assert_eq!(memory::map(&pipe, 1).unwrap_err().kind(), ErrorKind::InvalidData);
    for words in [0, usize::MAX / 8, usize::MAX] {
        assert_eq!(memory::create("odd", words).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_mapping_is_not_inherited_and_ends_with_its_last_user() {
    let mappings = || {
        let all = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = all.split_once("memfd:short-lived").map(|(_, rest)| rest.to_owned());
        of_file
            .map(|rest| rest.lines().find(|line| line.starts_with("VmFlags")).unwrap().to_owned())
    };
    let (fd, ours) = memory::create("short-lived", 512).unwrap();
    drop(ours);
    assert_eq!(mappings(), None);
    let words = memory::map(&fd, 512).unwrap();
    let part = words.slice(256, 256).unwrap();
    drop(words);
    assert!(mappings().unwrap().split_whitespace().any(|flag| flag == "dc"), "not for children");
    part.set(255, 1);
    drop(part);
    assert_eq!(mappings(), None);
}

#[test]
fn descriptors_arrive_in_order_and_close_on_exec() {
    let (left, right) = Connection::pair().unwrap();
    let files: Vec<OwnedFd> =
        (1..=4).map(|words| memory::create("passed", words).unwrap().0).collect();
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    left.send(b"four", &borrowed).unwrap();
    left.send(b"none", &[]).unwrap();
    let mut buffer = [0; 16];
    let (len, fds) = right.recv(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], fds.len()), (&b"four"[..], 4));
    for (words, fd) in (1..).zip(fds) {
        let file = File::from(fd);
        assert_eq!(file.metadata().unwrap().len(), words * 8);
        // SAFETY: a plain system call on a live descriptor.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
    let (len, fds) = right.recv(&mut buffer).unwrap();
    assert_eq!((len, fds.exactly::<0>().unwrap().len()), (4, 0));
    left.send(b"x", &borrowed[..2]).unwrap();
    assert!(right.recv(&mut buffer).unwrap().1.exactly::<1>().is_err());
    assert_eq!(
        left.send(b"x", &[files[0].as_fd(); 5]).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(left.send(b"", &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// Sends `count` copies of a descriptor, as our own `send` refuses to.
fn send_many(socket: &Connection, fd: &impl AsRawFd, count: usize) {
    #[repr(align(8))]
    struct Buffer([u8; 256]);
    let mut control = Buffer([0; 256]);
    let fds = vec![fd.as_raw_fd(); count];
    let len = u32::try_from(size_of_val(&fds[..])).unwrap();
    let mut byte = 1_u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the message points to live buffers, and the control buffer has room for the
    // descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(len) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(len) as _;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(header), len as usize);
        assert_eq!(libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, 0), 1);
    }
}

#[test]
fn too_many_descriptors_are_refused_and_closed() {
    for count in [MAX_DESCRIPTORS + 1, 50] {
        let (left, right) = Connection::pair().unwrap();
        let (mut reader, writer) = pipe().unwrap();
        send_many(&left, &writer, count);
        drop(writer);
        let refused = right.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "a writing end is still open");
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_and_its_descriptors_closed() {
    let (left, right) = Connection::pair().unwrap();
    let (mut reader, writer) = pipe().unwrap();
    left.send(&[1; 17], &[writer.as_fd()]).unwrap();
    drop(writer);
    assert_eq!(right.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_thread_sleeps_on_shared_memory_until_it_is_woken() {
    let (file, sleeping) = memory::create("futex", 1).unwrap();
    let waking = memory::map(&file, 1).unwrap();
    let (word, woken) = (sleeping.at(0), AtomicBool::new(false));
    let brief = Duration::from_millis(1);
    word.store(7, Ordering::Relaxed);
    assert_eq!(futex::sleep(word, 6, brief).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    assert_eq!(futex::sleep(word, 7, brief).unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Another signal may end a sleep, but nothing else.
            while futex::sleep(word, 7, Duration::from_secs(60)).is_err() {}
            woken.store(true, Ordering::Release);
        });
        while !woken.load(Ordering::Acquire) {
            // It may not sleep yet.
            futex::wake(waking.at(0), 1).unwrap();
            thread::yield_now();
        }
    });
}

#[test]
fn trying_never_waits() {
    let (left, right) = Connection::pair().unwrap();
    assert_eq!(right.try_recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let full = (0..100_000).find_map(|_| left.try_send(&[0; 8], &[]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert_eq!(right.try_recv(&mut [0; 8]).unwrap().0, 8);
}

#[test]
fn a_call_to_a_closed_peer_fails() {
    let (left, right) = Connection::pair().unwrap();
    drop(left);
    assert_eq!(right.recv(&mut [0; 8]).unwrap().0, 0);
    assert!(right.recv_message::<Request>().unwrap().is_none());
    assert_eq!(right.send(b"x", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert!(right.call(&Request::ListDevices, &[]).is_err());
}

#[test]
fn a_call_brings_the_answer_and_its_descriptors() {
    let (client, server) = Connection::pair().unwrap();
    let serving = thread::spawn(move || {
        let (fd, _words) = memory::create("answer", 3).unwrap();
        let (request, fds) = server.recv_message::<Request>().unwrap().unwrap();
        assert_eq!((request, fds.len()), (Request::AllocPd, 0));
        server.send_message(&Ok::<_, Refusal>(Reply::Handle(9)), &[fd.as_fd()]).unwrap();
        server.recv_message::<Request>().unwrap().unwrap();
        server.send(&[0xff; 40], &[]).unwrap();
    });
    let (answer, fds) = client.call(&Request::AllocPd, &[]).unwrap();
    assert_eq!(answer, Ok(Reply::Handle(9)));
    let [fd] = fds.exactly().unwrap();
    assert_eq!(File::from(fd).metadata().unwrap().len(), 24);
    let nonsense = client.call(&Request::AllocPd, &[]).unwrap_err();
    assert_eq!(nonsense.kind(), ErrorKind::InvalidData);
    serving.join().unwrap();
}

/// A directory that goes away with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-abi-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_listener_takes_clients_and_leaves_nothing_behind() {
    let directory = Directory::new("listener");
    let path = directory.path();
    let refused = Connection::connect(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let listener = Listener::bind(&path, 0o620).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
    let client = Connection::connect(&path).unwrap();
    let served = listener.accept().unwrap();
    client.send(b"hello", &[]).unwrap();
    assert_eq!(served.recv(&mut [0; 8]).unwrap().0, 5);
    let peer = served.peer_credentials().unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, fs::metadata(&path).unwrap().uid());
    served.peer_pidfd().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(listener);
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}

#[test]
fn a_socket_is_replaced_only_when_no_daemon_listens() {
    let directory = Directory::new("stale");
    let path = directory.path();
    let first = Listener::bind(&path, 0o600).unwrap();
    assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), ErrorKind::AddrInUse);
    Connection::connect(&path).expect("the first daemon still listens");
    drop(first);

    // As a daemon that was killed leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Listener::bind(&path, 0o600).unwrap());

    // A process listens that does not hold our lock.
    let other = UnixListener::bind(&path).unwrap();
    assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(other);
    fs::remove_file(&path).unwrap();

    fs::write(&path, "a file").unwrap();
    assert_eq!(Listener::bind(&path, 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
}

#[test]
fn a_link_in_the_place_of_the_socket_is_not_followed() {
    let directory = Directory::new("link");
    let (path, precious) = (directory.path(), directory.0.join("precious"));
    fs::write(&precious, "").unwrap();
    fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
    let ends = AtomicBool::new(false);
    let link = directory.0.join("link");
    thread::scope(|scope| {
        // As another user does who can write to the folder.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                symlink(&precious, &link).unwrap();
                while !ends.load(Ordering::Relaxed)
                    && !fs::symlink_metadata(&path).is_ok_and(is_socket)
                {
                    std::hint::spin_loop();
                }
                fs::rename(&link, &path).unwrap();
            }
        });
        for _ in 0..3000 {
            drop(Listener::bind(&path, 0o666));
            let _ = fs::remove_file(&path);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o600);
    let _ = fs::remove_file(&path);
    symlink(&precious, &path).unwrap();
    assert_eq!(SocketFile::at(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

fn is_socket(found: Metadata) -> bool {
    found.file_type().is_socket()
}

#[test]
fn of_many_daemons_that_start_at_once_one_listens() {
    let directory = Directory::new("race");
    let path = directory.path();
    drop(UnixListener::bind(&path).unwrap());
    let daemons: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || Listener::bind(&path, 0o600))
        })
        .collect();
    let daemons: Vec<_> = daemons.into_iter().map(|daemon| daemon.join().unwrap()).collect();
    assert_eq!(daemons.iter().filter(|daemon| daemon.is_ok()).count(), 1);
    Connection::connect(&path).unwrap();
}

#[test]
fn impossible_paths_are_refused() {
    for path in ["", &"x".repeat(108), "a\0b"] {
        let refused = Connection::connect(Path::new(path)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{path:?}");
    }
}

#[test]
fn wake_ups_add_up_to_one_and_draining_never_waits() {
    let event = EventFd::new().unwrap();
    assert!(!event.drain().unwrap());
    event.wake().unwrap();
    event.wake().unwrap();
    assert!(event.drain().unwrap());
    // The other side shares the status flags, and clears the one that keeps us from waiting.
    let shared = EventFd::from(event.as_fd().try_clone_to_owned().unwrap());
    // SAFETY: a plain system call on a live descriptor.
    assert_eq!(unsafe { libc::fcntl(shared.as_fd().as_raw_fd(), libc::F_SETFL, 0) }, 0);
    assert!(!event.drain().unwrap());
    shared.wake().unwrap();
    assert!(event.drain().unwrap());
}
