//! Dialogues: a program as server in one place and as client in another.
//!
//! A [`Dialogue`] is data. How a program is told the device, the GID index, the port and the
//! server's address depends on its [`Family`]; readers of what programs print are in [`perftest`],
//! [`pingpong`], [`iperf3`], [`qperf`] and [`rstream`].

pub mod iperf3;
pub mod perftest;
pub mod pingpong;
pub mod qperf;
pub mod rstream;

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::place::{Job, Place};
use crate::process::{Output, wait_until};

/// How a program is told its device and the address of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `ib_*` of perftest: `-d DEVICE -x GID -p PORT [ADDRESS]`.
    Perftest,
    /// `ibv_*_pingpong`, those of other languages and our checker:
    /// `-d DEVICE -g GID -p PORT [ADDRESS]`.
    Pingpong,
    /// `rping`: `-s|-c -a ADDRESS -p PORT`.
    Rping,
    /// Other programs of rdmacm-utils: `-b|-s ADDRESS -p PORT`, udaddy without a port.
    RdmaCm,
    /// `qperf`: `-lp PORT [ADDRESS TESTS]`; arguments of the client are its tests.
    Qperf,
    /// `iperf3`: `-s -1|-c ADDRESS -p PORT`.
    Iperf3,
    /// `fio`: `--port=PORT --rw=read|--rw=write --hostname=ADDRESS`; the end that reads serves.
    Fio,
}

/// A program's server and client and what they are told beyond the place.
#[derive(Clone, Debug)]
pub struct Dialogue {
    /// How it is told where it is.
    pub family: Family,
    /// The program, the same at both ends.
    pub program: String,
    /// Arguments of both ends.
    pub args: Vec<String>,
    /// Arguments of the server alone.
    pub server_args: Vec<String>,
    /// Arguments of the client alone.
    pub client_args: Vec<String>,
    /// How long either end may run.
    pub limit: Duration,
}

/// What both ends of a dialogue printed.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The server's end; nothing where the server does not end by itself.
    pub server: Option<Output>,
    /// The client's end.
    pub client: Output,
}

/// How long either end may run, unless a dialogue says otherwise. Only a hang takes so long, or a
/// machine whose other work leaves a program that spins on memory one message per time slice.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a server takes until the RDMA CM knows it.
const CM_LISTENS: Duration = Duration::from_secs(1);
/// How long it may take, with other work on the machine, while clients are refused.
const CM_PATIENCE: Duration = Duration::from_secs(15);
/// How programs tell of `RDMA_CM_EVENT_REJECTED`, which is event 8; of datagrams the kernel says
/// that the peer is unreachable, with the status of its SIDR_REP.
const REJECTED: [&str; 4] = [
    "REJECTED",
    "Unexpected CM event bl blka 8",
    "RDMA_CM_EVENT_UNREACHABLE; error: 1.",
    "Event rejected",
];
/// How long a client may go on after its server failed.
const ORPHANED: Duration = Duration::from_secs(3);

impl Dialogue {
    /// A dialogue from a command line, like `ib_write_bw -s 65536 -m 4096`.
    ///
    /// # Panics
    /// When the line is empty or its program belongs to no known family.
    #[must_use]
    pub fn new(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        let program = words.next().expect("a dialogue names a program");
        let family = match program.as_str() {
            "rping" => Family::Rping,
            "ucmatose" | "udaddy" | "rstream" | "riostream" | "udpong" => Family::RdmaCm,
            "qperf" => Family::Qperf,
            "iperf3" => Family::Iperf3,
            "fio" => Family::Fio,
            crate::checker::PROGRAM | crate::native::VICTIM | crate::native::REFUSALS => {
                Family::Pingpong
            }
            name if name.starts_with("ibv_") || name.starts_with("rc_") => Family::Pingpong,
            name if name.starts_with("ib_") => Family::Perftest,
            name => panic!("{name} belongs to no known family of programs"),
        };
        let limit = LIMIT;
        let (server_args, client_args) = (Vec::new(), Vec::new());
        Self { family, program, args: words.collect(), server_args, client_args, limit }
    }

    /// Adds arguments of the server alone.
    #[must_use]
    pub fn server(mut self, line: &str) -> Self {
        self.server_args.extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds arguments of the client alone.
    #[must_use]
    pub fn client(mut self, line: &str) -> Self {
        self.client_args.extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Limits how long either end may run.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs server and client to their ends.
    ///
    /// # Errors
    /// When either fails; the error shows what both printed.
    pub fn run(&self, server: &dyn Place, client: &dyn Place) -> Result<Transcript> {
        let deadline = Instant::now() + CM_PATIENCE;
        let (serving, asked) = loop {
            // A port may stay in use for a while behind a server.
            let port = next_port();
            let mut serving = self.serve(server, port)?;
            let args = self.client_line(client, server, port);
            let calling = client.start(&self.program, &args, self.limit)?;
            match self.attend(calling, &mut *serving, Instant::now() < deadline) {
                Ok(Some(asked)) => break (serving, Ok(asked)),
                // It came too early. What it did may have ended its server.
                Ok(None) => {
                    // Kills it.
                    drop(serving);
                    std::thread::sleep(CM_LISTENS);
                }
                Err(error) => break (serving, Err(error)),
            }
        };
        let asked = match asked {
            Ok(asked) if asked.success() => asked,
            Ok(asked) => bail!("{self}\nclient: {asked}\nserver: {}", serving.said()),
            Err(error) => {
                return Err(error.context(format!("{self}\nserver: {}", serving.said())));
            }
        };
        if !self.server_ends() {
            return Ok(Transcript { server: None, client: asked });
        }
        let served = serving.wait().with_context(|| format!("{self}: server\nclient: {asked}"))?;
        ensure!(served.success(), "{self}\nserver: {served}\nclient: {asked}");
        Ok(Transcript { server: Some(served), client: asked })
    }

    /// Runs a server that waits for several clients, and these at the same time.
    ///
    /// # Errors
    /// When any fails.
    pub fn run_several(
        &self,
        server: &dyn Place,
        client: &dyn Place,
        clients: usize,
    ) -> Result<()> {
        let port = next_port();
        let serving = self.serve(server, port)?;
        let args = self.client_line(client, server, port);
        let start = |_| client.start(&self.program, &args, self.limit);
        let calling: Vec<_> = (0..clients).map(start).collect::<Result<_>>()?;
        for job in calling {
            let asked = job.wait()?;
            ensure!(asked.success(), "{self}\nclient: {asked}");
        }
        let served = serving.wait()?;
        ensure!(served.success(), "{self}\nserver: {served}");
        Ok(())
    }

    /// Waits for the client, but only for a limited time after its server failed. `None` when the
    /// RDMA CM has refused it and it may try again: a server of perftest listens twice, the second
    /// time after it has told its client to go on, and a client that is refused then uses what it
    /// has freed. A server of qperf 0.4.11 tells its client the port before it listens.
    fn attend(
        &self,
        mut calling: Box<dyn Job>,
        serving: &mut dyn Job,
        may_again: bool,
    ) -> Result<Option<Output>> {
        let mut failed: Option<Instant> = None;
        let limit = self.limit + ORPHANED;
        let may_again = may_again && (self.listens_by_cm() || self.calls_by_cm());
        let is_refusal = |said: &str| may_again && REJECTED.iter().any(|word| said.contains(word));
        let mut refused = false;
        wait_until("end of the client", limit, || {
            refused = is_refusal(&calling.said());
            if refused {
                return Ok(true);
            }
            if serving.exit_code()?.is_some_and(|code| code != 0) {
                let since = *failed.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < ORPHANED,
                    "the server failed, client: {}",
                    calling.said()
                );
            }
            Ok(calling.exit_code()?.is_some())
        })?;
        if refused {
            return Ok(None);
        }
        // Its last words may be read only after its end.
        let asked = calling.wait()?;
        Ok((!is_refusal(&asked.said())).then_some(asked))
    }

    /// Starts the server and waits until a client can call it.
    fn serve(&self, place: &dyn Place, port: u16) -> Result<Box<dyn Job>> {
        let by_cm = self.listens_by_cm();
        let before = if by_cm { place.cm_listeners()? } else { None };
        let mut job = place.start(&self.program, &self.server_line(place, port), self.limit)?;
        if by_cm {
            wait_for_listener(place, before, &mut *job)?;
            return Ok(job);
        }
        // udpong, whose datagrams come by UDP.
        if self.family == Family::RdmaCm {
            wait_for_udp_port(place, port, &mut *job)?;
            return Ok(job);
        }
        let mut ended = false;
        let listening = wait_until("listening server", Duration::from_secs(10), || {
            ended = job.exit_code()?.is_some();
            Ok(ended || place.listens(port)?)
        });
        if ended {
            bail!("the server of {self} ended too early: {}", job.wait()?);
        }
        listening.with_context(|| format!("server of {self}"))?;
        Ok(job)
    }

    /// Whether client and server meet by the RDMA CM.
    fn listens_by_cm(&self) -> bool {
        let by_option = self.family == Family::Perftest && self.args.iter().any(|arg| arg == "-R");
        // Its rsocket is found by UDP.
        let by_udp = self.program == "udpong";
        let always = matches!(self.family, Family::Rping | Family::RdmaCm | Family::Fio);
        by_option || (always && !by_udp)
    }

    /// Whether client and server meet by TCP, and then connect by the RDMA CM.
    fn calls_by_cm(&self) -> bool {
        self.family == Family::Qperf && self.client_args.iter().any(|arg| arg == "-cm")
    }

    /// Whether the server ends with its client.
    fn server_ends(&self) -> bool {
        self.family != Family::Qperf && self.program != "udpong"
    }

    fn server_line(&self, at: &dyn Place, port: u16) -> Vec<String> {
        let mut line = self.common(at, port);
        match self.family {
            Family::Rping => line.extend(["-s".into(), "-a".into(), at.rdma_address().to_string()]),
            Family::RdmaCm => line.extend(["-b".into(), at.rdma_address().to_string()]),
            Family::Iperf3 => line.extend(["-s".into(), "-1".into()]),
            Family::Fio => line.push("--rw=read".into()),
            Family::Perftest | Family::Pingpong | Family::Qperf => {}
        }
        line.extend(self.server_args.iter().cloned());
        line
    }

    fn client_line(&self, at: &dyn Place, server: &dyn Place, port: u16) -> Vec<String> {
        let mut line = self.common(at, port);
        let (address, by_cm) = (server.address().to_string(), server.rdma_address().to_string());
        match self.family {
            Family::Rping => line.extend(["-c".into(), "-a".into(), by_cm]),
            Family::RdmaCm => line.extend(["-s".into(), by_cm]),
            Family::Iperf3 => line.extend(["-c".into(), address]),
            Family::Fio => line.extend(["--rw=write".into(), format!("--hostname={by_cm}")]),
            Family::Perftest | Family::Pingpong | Family::Qperf => line.push(address),
        }
        line.extend(self.client_args.iter().cloned());
        line
    }

    fn common(&self, at: &dyn Place, port: u16) -> Vec<String> {
        let (device, gid) = (at.device(), at.gid_index());
        let place = match self.family {
            // -F: do not complain about a CPU whose frequency changes.
            Family::Perftest => format!("-F -d {device} -x {gid} -p {port}"),
            Family::Pingpong => format!("-d {device} -g {gid} -p {port}"),
            Family::Qperf => format!("-lp {port}"),
            Family::Fio => format!("--name=fio --ioengine=rdma --port={port}"),
            // It always has the same port.
            Family::RdmaCm if self.program == "udaddy" => String::new(),
            Family::Rping | Family::RdmaCm | Family::Iperf3 => format!("-p {port}"),
        };
        place.split_whitespace().map(str::to_owned).chain(self.args.iter().cloned()).collect()
    }
}

/// Waits until a server has its UDP port.
fn wait_for_udp_port(place: &dyn Place, port: u16, job: &mut dyn Job) -> Result<()> {
    if place.has_udp_port(port)?.is_none() {
        std::thread::sleep(CM_LISTENS);
    }
    let deadline = Instant::now() + CM_PATIENCE;
    while place.has_udp_port(port)? == Some(false)
        && Instant::now() < deadline
        && job.exit_code()?.is_none()
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until one more identifier listens than `before`. Not every client that comes too early
/// says that it was refused.
fn wait_for_listener(place: &dyn Place, before: Option<u64>, job: &mut dyn Job) -> Result<()> {
    let Some(mut fewest) = before else {
        // The RDMA CM of the kernel has no table of listeners.
        std::thread::sleep(CM_LISTENS);
        return Ok(());
    };
    let deadline = Instant::now() + CM_PATIENCE;
    while Instant::now() < deadline && job.exit_code()?.is_none() {
        let now = place.cm_listeners()?.unwrap_or(0);
        if now > fewest {
            break;
        }
        // That of an earlier program may be about to go.
        fewest = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl fmt::Display for Dialogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args
            .iter()
            .chain(&self.server_args)
            .chain(&self.client_args)
            .try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// A TCP port that no earlier dialogue of this process used, so that none waits for old sockets,
/// and of which another test program on this machine has others. The kernel gives higher ones to
/// programs that connect.
#[must_use]
pub fn next_port() -> u16 {
    const EACH: u16 = 500;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = u16::try_from(std::process::id() % 40).unwrap_or_default();
    10_000 + EACH * block + NEXT.fetch_add(1, Ordering::Relaxed) % EACH
}
