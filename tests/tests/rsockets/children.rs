//! Servers that hand each connection to a child.

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::paths;
use system_tests::place::{Node, Place};
use system_tests::process::{Running, wait_until};
use system_tests::programs::next_port;

use super::{Duration, LIMIT, TCP_PROGRAMS, connected};

/// Hands each connection to a child, which turns round what it hears.
const FORKING_SERVER: &str = "
import socketserver, sys, threading
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        # The child of a stranger finds that it cannot talk to it.
        try: self.talk()
        except OSError: pass
    def talk(self):
        # Any of the descriptors of a connection becomes an rsocket, and with it all.
        import os, socket
        other = socket.socket(fileno=os.dup(self.request.fileno()))
        # Two threads that use it at once use the same one.
        greeting = threading.Thread(target=other.sendall, args=(b'>',))
        greeting.start()
        heard = self.request.recv(100)
        greeting.join()
        if heard: other.sendall(heard[::-1])
        self.request.close()
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
with Server((sys.argv[1], int(sys.argv[2])), Handler) as server:
    for _ in range(int(sys.argv[3])): server.handle_request()
";

const CLIENT: &str = "
import socket, sys
for turn in range(2):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
    s.sendall(b'abc%d' % turn)
    heard = b''
    while True:
        some = s.recv(100)
        if not some: break
        heard += some
    assert heard == b'>%dcba' % turn, heard
";

const STRANGER: &str = "
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
time.sleep(1.5)
";

/// Python, whose TCP sockets become rsockets also in children of a server.
fn forking(node: &Node, args: &[&str]) -> Result<Running> {
    let rnic = Dist::get()?.bin("rnic").display().to_string();
    let python = node.host.tools.program("python3")?.display().to_string();
    let own = ["run", "--rsockets", "--no-view", "--", &python];
    let cmd = node.cmd(&rnic)?.args(own).args(args).env("RDMAV_FORK_SAFE", "1");
    cmd.limit(LIMIT).start()
}

/// With `RDMAV_FORK_SAFE` a server's children have its connections.
#[test]
fn children_of_a_server_have_rsockets() -> Result<()> {
    let name = "children_of_a_server_have_rsockets";
    let Some(lab) = Lab::open(name, Need::Root, &TCP_PROGRAMS)? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (address, port) = (pair.left.address().to_string(), next_port());
    let port_text = port.to_string();
    let server = forking(&pair.left, &["-c", FORKING_SERVER, &address, &port_text, "3"])?;
    wait_until("a server", Duration::from_secs(20), || pair.left.listens(port))?;
    // A client that never becomes an rsocket keeps the port only while it is there.
    let args = ["-c", STRANGER, &address, &port.to_string()].map(str::to_owned);
    let stranger = pair.right.start("python3", &args, LIMIT)?;
    std::thread::sleep(Duration::from_millis(500));
    let before = connected(&pair.right)?;
    let client = forking(&pair.right, &["-c", CLIENT, &address, &port_text])?.wait()?;
    ensure!(client.success(), "{client}");
    stranger.wait()?;
    let server = server.wait()?;
    ensure!(server.success(), "{server}");
    ensure!(connected(&pair.right)? > before, "data went by TCP");
    pair.stop()
}

/// An rsocket of the server's own host, and one of the client's, at the port where a child waits
/// for its client. The last argument is a file that says that the first one is through.
const OTHERS: &str = "
import ctypes, os, socket, struct, sys, time
lib = ctypes.CDLL('librdmacm.so.1', use_errno=True)
who, address, port, over = sys.argv[1:]
at = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton(address))
room = ctypes.create_string_buffer(100)
def dial():
    stream = lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
    if lib.rconnect(stream, at, 16) == 0: return stream
    lib.rclose(stream)
if who == 'stranger':
    while not (stream := dial()): time.sleep(0.05)
    lib.rsend(stream, b'abc', 3, 0)
    got = lib.rrecv(stream, room, 100, 0)
    assert got <= 0, (got, room.raw)
    open(over, 'w').close()
else:
    called = socket.create_connection((address, int(port)), timeout=50)
    assert called.recv(4, socket.MSG_WAITALL) == bytes(4)
    while not os.path.exists(over): time.sleep(0.05)
    stream = dial()
    assert stream, ctypes.get_errno()
    lib.rsend(stream, b'abc', 3, 0)
    heard = b''
    while (got := lib.rrecv(stream, room, 100, 0)) > 0: heard += room.raw[:got]
    assert heard == b'>cba', heard
";

/// The port where a child waits for its client is open to all, but only the client is heard.
#[test]
fn other_hosts_do_not_get_the_connection_of_a_client() -> Result<()> {
    let name = "other_hosts_do_not_get_the_connection_of_a_client";
    let Some(lab) = Lab::open(name, Need::Root, &["python3"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let (address, port) = (pair.left.address().to_string(), next_port());
    let port_text = port.to_string();
    let server = forking(&pair.left, &["-c", FORKING_SERVER, &address, &port_text, "1"])?;
    wait_until("a server", Duration::from_secs(20), || pair.left.listens(port))?;
    let over = paths::public("rsockets-stranger")?.join("over").display().to_string();
    let start = |node: &Node, who: &str| {
        let args = ["-c", OTHERS, who, &address, &port_text, &over].map(str::to_owned);
        node.start("python3", &args, LIMIT)
    };
    let stranger = start(&pair.left, "stranger")?;
    let client = start(&pair.right, "client")?.wait()?;
    let (stranger, server) = (stranger.wait()?, server.wait()?);
    let all = client.success() && stranger.success() && server.success();
    ensure!(all, "client: {client}\nstranger: {stranger}\nserver: {server}");
    pair.stop()
}
