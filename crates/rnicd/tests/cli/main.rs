//! What `rnic` and `rnicd` say: to people who make a mistake, and to programs that read JSON.

mod check;
mod endings;
mod sessions;

use rnic_abi::ABI_VERSION;
use rnic_abi::control::{CreateQp, Reply, Request};
use rnic_abi::os::{Connection, Listener};
use rnic_abi::verbs::{AccessFlags, QpCaps, QpType};
use rnic_host::counters::GAUGES;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnicd-cli-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon without a network.
struct Daemon {
    process: Child,
    folder: Folder,
}

impl Daemon {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, args: &[&str]) -> Self {
        let folder = Folder::new(name);
        let process = Command::new(env!("CARGO_BIN_EXE_rnicd"))
            .args(["--io", "loopback", "--log", "error", "--socket"])
            .arg(folder.0.join("socket"))
            .args(args)
            .args(["--metrics", &format!("unix:{}", folder.0.join("metrics").display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Self { process, folder };
        let started = Instant::now();
        while Connection::connect(&daemon.socket()).is_err() {
            assert!(started.elapsed() < Duration::from_secs(20), "no daemon");
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.0.join("socket")
    }

    fn rnic(&self, args: &[&str]) -> Output {
        let mut rnic = Command::new(env!("CARGO_BIN_EXE_rnic"));
        rnic.args(args).env("RNIC_SOCKET", self.socket()).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn shown(&self, args: &[&str]) -> String {
        let output = self.rnic(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.shown(args)).unwrap()
    }

    /// What is answered to a request for metrics.
    fn metrics(&self, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.folder.0.join("metrics")).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program with one object of each kind.
struct Client {
    connection: Connection,
    /// What is registered.
    memory: Vec<u8>,
}

impl Client {
    fn open(daemon: &Daemon) -> Self {
        let connection = Connection::connect(&daemon.socket()).unwrap();
        let client = Self { connection, memory: vec![0; 4096] };
        client.call(&Request::Hello { abi: ABI_VERSION });
        client.call(&Request::OpenDevice { name: "rnic0".into() });
        let Reply::Handle(pd) = client.call(&Request::AllocPd) else { panic!() };
        let cq = Request::CreateCq { cqe: 10, channel: None, comp_vector: 0 };
        let Reply::Cq { cq, .. } = client.call(&cq) else { panic!() };
        client.call(&Request::CreateQp(CreateQp {
            pd,
            qp_type: QpType::Rc,
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            caps: QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() },
            sq_sig_all: false,
        }));
        let addr = client.memory.as_ptr() as u64;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let length = client.memory.len() as u64;
        client.call(&Request::RegMr { pd, addr, length, iova: addr, access, fd_offset: 0 });
        client
    }

    fn call(&self, request: &Request) -> Reply {
        self.connection.call(request, &[]).unwrap().0.unwrap()
    }
}

/// `number`, `string`, `null` and so on, of each key, in order.
fn shape(object: &Value) -> String {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let object = object.as_object().unwrap_or_else(|| panic!("no object: {object}"));
    object.iter().map(|(key, value)| format!("{key}:{}", kind(value))).collect::<Vec<_>>().join(" ")
}

/// Scripts depend on it: keys are added, never renamed, and a number is a number.
#[test]
fn the_shape_of_json_is_this() {
    let daemon = Daemon::start("json");
    let _client = Client::open(&daemon);
    daemon.shown(&["fault", "add", "delay:3ms=1%,qp=17,opcode=4,psn=1-2,count=5"]);
    for (args, pointer, expected) in [
        (
            &["status"][..],
            "",
            "device:string gids:array io:string netdev:null pid:number port:object private:bool \
             profile:string sessions:array socket:string totals:object uptime_seconds:number \
             users:array version:string",
        ),
        (&["status"], "/gids/0", "address:string index:number"),
        (&["status"], "/totals", "cqs:number mrs:number qps:number"),
        (&["status"], "/port", "active:bool active_mtu:number netdev_mtu:number speed_mbps:number"),
        (
            &["status"],
            "/sessions/0",
            "client:number command:string pid:number session:number uid:number",
        ),
        (
            &["devices"],
            "/0",
            "device:string fw_version:string netdev:null node_guid:string profile:string \
             socket:string",
        ),
        (
            &["qp"],
            "/0",
            "client:number command:string counters:object dest_qpn:null dgid:null \
             expected_psn:number free_psn:number max_send_wr:number next_psn:number \
             outstanding:number path_mtu:null pid:number posted:number qp:number qpn:number \
             receive_queue:object recv_cq:number retries_left:number retry_cnt:number \
             rnr_retries_left:number rnr_retry:number send_cq:number sent_psn:number \
             state:string timeout:number timer:null type:string una:number",
        ),
        (
            &["mr"],
            "/0",
            "access:array client:number command:string iova:number key:number length:number \
             memory:string mr:number pd:number pid:number windows:number",
        ),
        (
            &["cq"],
            "/0",
            "broken:bool capacity:number client:number command:string cq:number pid:number \
             polled:number queues:number written:number",
        ),
        (
            &["fault", "list"],
            "/0",
            "after:number delay_us:number every:number fault:number kind:string left:number \
             matched:number opcode:number probability:number psn_first:number psn_last:number \
             qpn:number sent:bool struck:number syndrome:null",
        ),
    ] {
        let found = daemon.json(&[args, &["--json"]].concat());
        let object =
            found.pointer(pointer).unwrap_or_else(|| panic!("{args:?} {pointer}: {found}"));
        assert_eq!(shape(object), expected, "{args:?} {pointer}");
    }
}

#[test]
fn a_picture_of_the_view_needs_no_terminal() {
    let daemon = Daemon::start("picture");
    let _client = Client::open(&daemon);
    let said = daemon.rnic(&["watch"]);
    assert!(!said.status.success());
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("are no terminal: `rnic watch --picture FILE` needs none, nor"),
        "{said}"
    );
    let file = std::env::temp_dir().join(format!("rnic-picture-{}.svg", std::process::id()));
    let name = file.to_str().unwrap();
    let drawn = daemon.rnic(&["watch", "--picture", name, "--size", "200x50", "--after", "0.6"]);
    let text = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    assert!(drawn.status.success(), "{drawn:?}");
    let qpn = daemon.json(&["qp", "--json"])[0]["qpn"].as_u64().unwrap();
    assert!(text.unwrap().contains(&format!("{qpn:#08x}")), "the queue pair");
}

#[test]
fn counters_are_shown_of_a_queue_pair_and_as_they_change() {
    let daemon = Daemon::start("counters");
    let _client = Client::open(&daemon);
    let counters = daemon.json(&["counters", "--json"]);
    assert!(counters.as_object().unwrap().values().all(Value::is_u64), "{counters}");
    let qp = daemon.json(&["qp", "--json"])[0].clone();
    assert_eq!(shape(&qp["receive_queue"]), "max_wr:number posted:number srq:null");
    let qpn = qp["qpn"].to_string();
    let counters = daemon.json(&["counters", "--json", "--qp", &qpn]);
    assert_eq!(counters["retransmitted_packets"], 0, "{counters}");
    let unknown = daemon.rnic(&["counters", "--qp", "0xffffff"]);
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.contains("there is no queue pair 0xffffff, or it is not yours"), "{said}");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_rnic"))
        .args(["counters", "--watch", "0.1", "--json"])
        .env("RNIC_SOCKET", daemon.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for line in lines.take(3) {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(line["tx_packets"].is_u64(), "{line}");
    }
    // Its reader has gone, so it ends.
    assert!(watch.wait().unwrap().success());
}

#[test]
fn metrics_are_those_that_rnic_shows() {
    let daemon = Daemon::start("metrics");
    let _client = Client::open(&daemon);
    let text = daemon.metrics(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert!(body.contains("soft_rnic_objects{device=\"rnic0\",kind=\"qp\"} 1\n"), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let counters = daemon.json(&["counters", "--json"]);
    for name in counters.as_object().unwrap().keys() {
        let end = if GAUGES.iter().any(|(gauge, _)| gauge == name) { "" } else { "_total" };
        let metric = format!("\nsoft_rnic_{name}{end}{{device=\"rnic0\"}} ");
        assert!(body.contains(&metric), "no {name} in {body}");
    }
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\0\xff\r\n\r\n", "400"),
    ] {
        let answer = daemon.metrics(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    // One that says nothing keeps others waiting for a second at most.
    let silent = UnixStream::connect(daemon.folder.0.join("metrics")).unwrap();
    let asked = Instant::now();
    assert!(daemon.metrics(b"GET /metrics HTTP/1.0\r\n\r\n").contains("# EOF"));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    drop(silent);
}

#[test]
fn tables_show_names_in_hexadecimal_and_processes() {
    let daemon = Daemon::start("tables");
    let client = Client::open(&daemon);
    let found = daemon.json(&["qp", "--json"]);
    let (qpn, psn) = (found[0]["qpn"].as_u64().unwrap(), found[0]["una"].as_u64().unwrap());
    let key = daemon.json(&["mr", "--json"])[0]["key"].as_u64().unwrap();
    let (pid, comm) = (std::process::id(), found[0]["command"].as_str().unwrap());
    let address = client.memory.as_ptr() as u64;
    for (command, titles, row) in [
        (
            "qp",
            "QPN TYPE STATE DEST-QPN DGID MTU OUTSTANDING UNACKED-PSN NEXT-PSN EXPECTED-PSN PID \
             COMMAND",
            format!("0x{qpn:06x} RC RESET - - - 0 0x{psn:06x} 0x{psn:06x} 0x000000 {pid} {comm}"),
        ),
        (
            "mr",
            "MR KEY ADDRESS LENGTH ACCESS MEMORY WINDOWS PD PID COMMAND",
            format!(
                "0 0x{key:08x} 0x{address:012x} 4096 local_write,remote_read process 0 0 {pid} {comm}"
            ),
        ),
        (
            "cq",
            "CQ CQES WRITTEN POLLED QUEUES BROKEN PID COMMAND",
            format!("0 16 0 0 2 false {pid} {comm}"),
        ),
    ] {
        let shown = daemon.shown(&[command]);
        let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(lines.next().unwrap().join(" "), titles, "{shown}");
        assert!(lines.any(|line| line.join(" ") == row), "no {row:?} in:\n{shown}");
    }
    let status = daemon.shown(&["status"]);
    assert!(status.contains("resources: qp 1, cq 1, mr 1\n"), "{status}");
}

#[test]
fn faults_are_added_listed_and_cleared() {
    let daemon = Daemon::start("faults");
    let list = || daemon.shown(&["fault", "list"]);
    assert_eq!(list(), "no faults are injected\n");
    daemon.shown(&["fault", "add", "drop=10%,qp=0x11", "delay:250us"]);
    let both = daemon.shown(&["fault", "add", "mark,opcode=RC_SEND_ONLY,psn=16,count=2"]);
    assert_eq!(both, list());
    let lines: Vec<_> = both.lines().collect();
    assert_eq!(lines.len(), 4, "{both}");
    for (line, expected) in lines[1..].iter().zip([
        "1 drop received - - 0.1 0x000011 - - - 0 1 - 0 0",
        "2 delay received 250us - 1.0 - - - - 0 1 - 0 0",
        "3 mark received - - 1.0 - RC_SEND_ONLY 0x000010 0x000010 0 1 2 0 0",
    ]) {
        assert_eq!(line.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{both}");
    }
    let left = daemon.shown(&["fault", "remove", "1", "3"]);
    assert_eq!(left.lines().count(), 2, "{left}");
    let nak = daemon.shown(&["fault", "add", "nak:access,nth=9,dir=sent"]);
    assert!(nak.contains("nak") && nak.contains("0x62") && nak.contains("sent"), "{nak}");
    assert_eq!(daemon.shown(&["fault", "clear"]), "no faults are injected\n");
    assert_eq!(list(), "no faults are injected\n");
}

/// Each fails, names the culprit, says what to do, fits on a screen, and shows no debug text.
#[test]
fn mistakes_are_explained() {
    let daemon = Daemon::start("mistakes");
    let folder = Folder::new("nothing");
    let nothing = folder.0.join("nothing");
    let nothing = nothing.to_str().unwrap();
    let (rnic, rnicd) = (env!("CARGO_BIN_EXE_rnic"), env!("CARGO_BIN_EXE_rnicd"));
    let socket = daemon.socket();
    let socket = socket.to_str().unwrap();
    for (program, args, words) in [
        (rnic, &["nosuch"][..], &["nosuch", "--help"][..]),
        (rnic, &[], &["Usage: rnic <COMMAND>", "Run RDMA programs on soft-rnic", "status"]),
        (rnic, &["qps"], &["'qps'", "'qp'"]),
        (rnic, &["qp", "--socket", nothing], &["--socket", "no such socket", "rnicd"]),
        (rnic, &["qp", "--socket", "/etc/passwd"], &["/etc/passwd", "rnicd"]),
        (rnic, &["run"], &["PROGRAM", "--help"]),
        (rnic, &["run", "--nosuch", "true"], &["--nosuch"]),
        (rnic, &["fault"], &["add", "list", "clear"]),
        (rnic, &["fault", "drop=0.1"], &["'drop=0.1'", "Usage: rnic fault <COMMAND>"]),
        (rnic, &["fault", "add"], &["FAULT"]),
        (rnic, &["fault", "add", "dorp"], &["dorp", "drop, duplicate"]),
        (rnic, &["fault", "add", "drop=2"], &["drop=2", "0% to 100%"]),
        (rnic, &["fault", "add", "drop,qp=fb2446"], &["0xfb2446"]),
        (rnic, &["fault", "add", "delay:5"], &["delay:250us"]),
        (rnic, &["capture", "-w", "/nosuch/file"], &["/nosuch/file", "No such file"]),
        (rnic, &["capture", "-c", "x"], &["'x'", "--count"]),
        (rnicd, &["--nosuch"], &["--nosuch", "--help"]),
        (rnicd, &["--io", "pigeon"], &["pigeon", "af-xdp", "udp"]),
        (rnicd, &["--io", "af-packet"], &["--netdev IFACE", "ip -br link"]),
        (rnicd, &["--io", "udp", "--netdev", "nosuch0"], &["nosuch0", "lo"]),
        (rnicd, &["--io", "udp", "--address", "192.0.2.77"], &["192.0.2.77", "127.0.0.1"]),
        (rnicd, &["--address", "0.0.0.0"], &["0.0.0.0", "unicast"]),
        (rnicd, &["--address", "here"], &["'here'", "--address"]),
        (rnicd, &["--device", "a b"], &["a b", "rnic0"]),
        (rnicd, &["--mode", "999"], &["999", "0660"]),
        (rnicd, &["--group", "no such"], &["no such", "getent group"]),
        (rnicd, &["--log", "=="], &["==", "info"]),
        (rnicd, &["--config", nothing], &[nothing, "configuration"]),
        (rnicd, &["--io", "loopback", "--socket", socket], &[socket, "another --socket"]),
        (rnicd, &["--io", "loopback", "--socket", "/nosuch/x"], &["/nosuch", "--socket"]),
    ] {
        explained(program, args, words, if program == rnic { socket } else { nothing });
    }
}

/// As a stopped daemon: the kernel connects, and nothing answers.
#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let daemon = Daemon::start("silent");
    let silent = daemon.folder.0.join("silent");
    let _listener = Listener::bind(&silent, 0o600).unwrap();
    let both = std::env::join_paths([&silent, &daemon.socket()]).unwrap();
    let asked = Instant::now();
    for (args, sockets, expected) in [
        (["status", "--json"], silent.as_os_str(), None),
        (["status", "--json"], &both, Some("rnic0")),
        (["devices", "--json"], &both, Some("rnic0")),
    ] {
        let mut rnic = Command::new(env!("CARGO_BIN_EXE_rnic"));
        let said = rnic.args(args).env("RNIC_SOCKET", sockets).output().unwrap();
        let (shown, told) =
            [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text)).into();
        assert_eq!(said.status.success(), expected.is_some(), "{said:?}");
        assert!(expected.is_none_or(|device| shown.contains(device)), "{shown}");
        let is_told = args[0] == "devices" || expected.is_none();
        assert_eq!(told.contains("does not answer"), is_told, "{told}");
    }
    assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());
}

#[test]
fn mistakes_about_faults_and_captures_are_explained() {
    let daemon = Daemon::start("observers");
    let socket = daemon.socket();
    let rnic = env!("CARGO_BIN_EXE_rnic");
    for (args, words) in [
        (&["fault", "add", "nak:rights"][..], &["nak:CODE", "access"][..]),
        (&["fault", "remove", "9"], &["no fault 9", "rnic fault list"]),
        (&["fault", "run", "/nosuch"], &["/nosuch", "cannot open"]),
        (&["fault", "run", "/etc/passwd"], &["/etc/passwd", "line 1"]),
        (&["trace", "--events", "sent,nosuch"], &["nosuch", "wqe_fetched"]),
        (&["trace", "-w", "/nosuch/file"], &["/nosuch/file", "No such file"]),
        (&["capture", "--last", "5", "-w", "-"], &["1s to 1h"]),
        (&["capture", "--last", "5s"], &["--write"]),
        (&["capture", "--qp", "0x1000000"], &["0xffffff"]),
    ] {
        explained(rnic, args, words, socket.to_str().unwrap());
    }
}

/// The command fails and says these words, shortly, and without debug text.
fn explained(program: &str, args: &[&str], words: &[&str], socket: &str) {
    let mut command = Command::new(program);
    // What is not named on the command line.
    command.env("RNIC_SOCKET", socket);
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let context = format!("{program} {args:?} said:\n{said}");
    assert!(matches!(output.status.code(), Some(1 | 2)), "{context}");
    assert!(said.lines().count() <= 24 && said.len() < 1500, "{context}");
    let debug = ["panicked", "Some(", "Err(", "os error", " { ", "kind:"];
    assert!(debug.iter().all(|text| !said.contains(text)), "{context}");
    for word in words {
        assert!(said.contains(word), "no {word:?}: {context}");
    }
}

#[test]
fn help_is_about_the_command() {
    let help = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).arg("--help").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let (rnic, rnicd) = (env!("CARGO_BIN_EXE_rnic"), env!("CARGO_BIN_EXE_rnicd"));
    for (program, args, words) in [
        (rnic, &[][..], &["Run RDMA programs", "fault", "capture"][..]),
        (rnic, &["run"], &["rnic run [OPTIONS] <PROGRAM>", "--shared-memory", "private"]),
        (rnic, &["status"], &["--json", "RNIC_SOCKET"]),
        (rnic, &["fault"], &["add", "list", "clear"]),
        (rnic, &["fault", "add"], &["drop=1%", "delay:TIME", "0% to 100%", "--seed"]),
        (rnic, &["fault", "list"], &["--json"]),
        (rnic, &["capture"], &["pcapng", "--count"]),
        (rnicd, &[], &["on a network interface", "--netdev", "--io", "privilege"]),
    ] {
        let text = help(program, args);
        for word in words {
            assert!(text.contains(word), "no {word:?} in {program} {args:?}:\n{text}");
        }
    }
}
