//! Streams that end badly, and programs that are short of something.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::paths;
use system_tests::place::{Node, Place};
use system_tests::programs::next_port;

use super::{Duration, LIMIT, listening, no_listener};

/// Both ends of streams that end badly: the end, the case, the address, the port, and `rnic`.
const ENDING: &str = "
import ctypes, os, socket, struct, subprocess, sys, threading, time
lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
end, case, address, port, rnic = sys.argv[1:]
at = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton(address))
room = ctypes.create_string_buffer(65536)
new = lambda: lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
fault = lambda *line: subprocess.run([rnic, 'fault', *line], check=True, capture_output=True)
def serve():
    listener = new()
    assert lib.rbind(listener, at, 16) == 0 and lib.rlisten(listener, 8) == 0
    return [lib.raccept(listener, None, None) for _ in range(8 if case == 'exit' else 1)]
def dial():
    stream = new()
    assert lib.rconnect(stream, at, 16) == 0, ctypes.get_errno()
    return stream
if end == 'server':
    stream = serve()[0]
    if case == 'half closed':
        time.sleep(0.5)
        lib.rshutdown(stream, socket.SHUT_WR)
        got = 0
        while (now := lib.rrecv(stream, room, 65536, 0)) > 0: got += now
        assert got == 100000, got
    elif case == 'dead peer':
        # The other end is connected, too.
        assert lib.rrecv(stream, room, 1, 0) == 1
        os.kill(os.getpid(), 9)
    else:
        time.sleep(60)
elif case == 'half closed':
    stream = dial()
    # Some of the tries, but not all, however late the end of the fault comes.
    fault('add', 'drop,dir=sent,count=130')
    lib.rsend(stream, room, 60000, 0)
    lib.rsend(stream, room, 40000, 0)
    lib.rshutdown(stream, socket.SHUT_WR)
    time.sleep(0.7)
    threading.Timer(0.2, fault, ['clear']).start()
    lib.rclose(stream)
elif case == 'dead peer':
    stream = dial()
    assert lib.rsend(stream, room, 1, 0) == 1
    until, got, errno = time.time() + 15, -1, 11
    while got == -1 and errno == 11 and time.time() < until:
        time.sleep(0.01)
        got = lib.rrecv(stream, room, 10, socket.MSG_DONTWAIT)
        errno = ctypes.get_errno()
    assert got == 0 or errno == 104, (got, errno)
else:
    streams = [dial() for _ in range(8)]
    fault('add', 'drop,dir=sent')
    for stream in streams: assert lib.rsend(stream, room, 100, 0) == 100
    print(time.time())
";

/// What was sent arrives although both ends have said that they send no more; a program that never
/// sleeps hears of a dead peer; a program ends soon, however many peers it has.
#[test]
fn streams_end_in_order_though_peers_or_packets_are_lost() -> Result<()> {
    let name = "streams_end_in_order_though_peers_or_packets_are_lost";
    let Some(lab) = Lab::open(name, Need::Root, &["python3"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let address = pair.left.address().to_string();
    let rnic = Dist::get()?.bin("rnic").display().to_string();
    for case in ["half closed", "dead peer", "exit"] {
        let port = next_port().to_string();
        let start = |node: &Node, end: &str| {
            let args = ["-c", ENDING, end, case, &address, &port, &rnic].map(str::to_owned);
            node.start("python3", &args, LIMIT)
        };
        no_listener(&pair.left)?;
        let server = start(&pair.left, "server")?;
        listening(&pair.left).with_context(|| server.said())?;
        let client = start(&pair.right, "client")?.wait()?;
        ensure!(client.success(), "{case}: {client}\n{}", server.said());
        if case == "half closed" {
            let server = server.wait()?;
            ensure!(server.success(), "{case}: {server}");
        }
        if case == "exit" {
            let last = Duration::from_secs_f64(client.stdout.trim().parse()?);
            let took = SystemTime::now().duration_since(UNIX_EPOCH + last)?;
            ensure!(took < Duration::from_secs(20), "it ends after {took:?}");
        }
    }
    pair.stop()
}

/// Runs a script at both ends of a new pair, at the client once the server listens:
/// `script END ADDRESS PORT MORE`. Both come to a good end.
fn ends_well(name: &str, script: &str, more: &[&str]) -> Result<()> {
    let Some(lab) = Lab::open(name, Need::Root, &["python3"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (address, port) = (pair.left.address().to_string(), next_port().to_string());
    let start = |node: &Node, end: &str| {
        let args = ["-c", script, end, &address, &port].into_iter().chain(more.iter().copied());
        let args: Vec<_> = args.map(str::to_owned).collect();
        // Not every script leaves room for an engine in the program.
        let engine = if node.in_program { "auto" } else { "daemon" };
        node.cmd("python3")?.args(args).env("RNIC_ENGINE", engine).limit(LIMIT).start()
    };
    let server = start(&pair.left, "server")?;
    listening(&pair.left).with_context(|| server.stderr())?;
    let client = start(&pair.right, "client")?.wait()?;
    let server = server.wait()?;
    ensure!(client.success() && server.success(), "client: {client}\nserver: {server}");
    pair.stop()
}

/// Both ends of a stream whose queue pair breaks at one of them: the client writes to a buffer that
/// the server has given back. The last argument is a file that says that the server has heard it.
const BROKEN: &str = "
import ctypes, os, socket, struct, sys, time
lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
lib.riomap.restype = lib.riowrite.restype = lib.rrecv.restype = ctypes.c_ssize_t
end, address, port, over = sys.argv[1:]
at = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton(address))
room = ctypes.create_string_buffer(4096)
offset = ctypes.c_int64(0)
stream = lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
places = ctypes.c_int(4)
assert lib.rsetsockopt(stream, 0x10000, 3, ctypes.byref(places), 4) == 0
if end == 'server':
    assert lib.rbind(stream, at, 16) == 0 and lib.rlisten(stream, 1) == 0
    stream = lib.raccept(stream, None, None)
    assert lib.riomap(stream, room, ctypes.c_size_t(4096), 2, 0, offset) == 0, ctypes.get_errno()
    assert lib.rsend(stream, b'1', 1, 0) == 1
    assert lib.rrecv(stream, ctypes.create_string_buffer(1), 1, 0) == 1
    assert lib.riounmap(stream, room, ctypes.c_size_t(4096)) == 0, ctypes.get_errno()
    assert lib.rsend(stream, b'2', 1, 0) == 1
    got = lib.rrecv(stream, ctypes.create_string_buffer(1), 1, 0)
    assert (got, ctypes.get_errno()) == (-1, 104), (got, ctypes.get_errno())
    open(over, 'w').close()
else:
    assert lib.rconnect(stream, at, 16) == 0, ctypes.get_errno()
    assert lib.rrecv(stream, room, 1, 0) == 1 and lib.rsend(stream, b'k', 1, 0) == 1
    assert lib.rrecv(stream, room, 1, 0) == 1
    # Nothing that the server has sent is under way any more: only its receives tell it.
    time.sleep(0.3)
    assert lib.riowrite(stream, room, ctypes.c_size_t(10), offset, 0) == 10
    until = time.time() + 20
    while not os.path.exists(over) and time.time() < until: time.sleep(0.05)
";

/// A program that only reads hears that its queue pair receives no more, although no message says
/// so.
#[test]
fn a_reader_hears_that_its_queue_pair_is_broken() -> Result<()> {
    let over = paths::public("rsockets-broken")?.join("over").display().to_string();
    ends_well("a_reader_hears_that_its_queue_pair_is_broken", BROKEN, &[&over])
}

/// A server that has no descriptors left for a while, and a client. Neither may make large files.
const SHORT: &str = "
import ctypes, os, resource, socket, struct, sys, threading, time
lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
end, address, port = sys.argv[1:]
at = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton(address))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
def limit(number): resource.setrlimit(resource.RLIMIT_NOFILE, (number, 1024))
def new(kind=socket.SOCK_STREAM): return lib.rsocket(socket.AF_INET, kind, 0)
def hear(stream, wanted):
    room = ctypes.create_string_buffer(len(wanted))
    got = lib.rrecv(stream, room, len(wanted), socket.MSG_WAITALL)
    assert room.raw == wanted, (got, room.raw, ctypes.get_errno())
def say(stream, text): assert lib.rsend(stream, text, len(text), 0) == len(text)
def dial():
    stream = new()
    return stream if lib.rconnect(stream, at, 16) == 0 else -ctypes.get_errno()
if end == 'server':
    listener = new()
    assert lib.rbind(listener, at, 16) == 0 and lib.rlisten(listener, 4) == 0
    first = lib.raccept(listener, None, None)
    taken = []
    limit(100)
    try:
        while True: taken.append(os.open('/dev/null', os.O_RDONLY))
    except OSError: pass
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        failed = new(kind)
        assert (failed, ctypes.get_errno()) == (-1, 24), (failed, ctypes.get_errno())
    say(first, b'full')
    # A thread that has no descriptor to be woken by.
    reader = threading.Thread(target=hear, args=(first, b'refused'))
    reader.start()
    reader.join()
    for fd in taken: os.close(fd)
    say(first, b'free')
    second = lib.raccept(listener, None, None)
    hear(second, b'at last' * 100000)
    say(second, b'good')
    hear(first, b'bye')
else:
    first = dial()
    hear(first, b'full')
    refused = dial()
    assert refused == -111, refused
    say(first, b'refused')
    hear(first, b'free')
    second = dial()
    assert second >= 0, second
    say(second, b'at last' * 100000)
    hear(second, b'good')
    say(first, b'bye')
    lib.rclose(first)
    lib.rclose(second)
";

/// Both ends of a stream whose client has sent and closed before the server knows that the
/// connection is up: the message that says so is lost. The last argument is `rnic`.
const LOST_RTU: &str = "
import ctypes, os, socket, struct, subprocess, sys
lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
lib.rrecv.restype = ctypes.c_ssize_t
end, address, port, rnic = sys.argv[1:]
at = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton(address))
room = ctypes.create_string_buffer(64)
stream = lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
if end == 'server':
    assert lib.rbind(stream, at, 16) == 0 and lib.rlisten(stream, 1) == 0
    stream = lib.raccept(stream, None, None)
    got = b''
    while (now := lib.rrecv(stream, room, 64, 0)) > 0: got += room.raw[:now]
    assert now == 0 and got == b'hello', (now, ctypes.get_errno(), got)
else:
    # The first is the REQ.
    subprocess.run([rnic, 'fault', 'add', 'drop,dir=sent,qp=1,nth=2'], check=True, capture_output=True)
    assert lib.rconnect(stream, at, 16) == 0, ctypes.get_errno()
    assert lib.rsend(stream, b'hello', 5, 0) == 5
    lib.rclose(stream)
";

#[test]
fn what_was_sent_arrives_though_the_last_message_of_connecting_is_lost() -> Result<()> {
    let rnic = Dist::get()?.bin("rnic").display().to_string();
    let name = "what_was_sent_arrives_though_the_last_message_of_connecting_is_lost";
    ends_well(name, LOST_RTU, &[&rnic])
}

/// A program without a descriptor left hears so, and goes on with what it has, and so does one that
/// may not make large files.
#[test]
fn programs_go_on_where_descriptors_and_files_are_limited() -> Result<()> {
    ends_well("programs_go_on_where_descriptors_and_files_are_limited", SHORT, &[])
}
