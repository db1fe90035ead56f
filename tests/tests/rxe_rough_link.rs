//! Programs and checker against Linux's rxe over a link that loses and reorders packets in both
//! directions: everything completes, no byte is wrong, no completion is lost or duplicated.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::emulator::{EmulatedLink, Faults, LEFT, LinkReport, Plan, RIGHT};
use system_tests::inspect::counter;
use system_tests::interop::peers::{MTU, RxePeer};
use system_tests::interop::{InteropRun, all_well, cases, equip, programs, wires};
use system_tests::lab::{Lab, Need, at_end};
use system_tests::netns::End;
use system_tests::observer::Observer;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node};
use system_tests::programs::Dialogue;
use system_tests::rxe::{Guest, Image, Machine};

const FAULTS: Faults = Faults { loss: 0.01, reorder: 0.03, ..Faults::NONE };

/// Our host on the left of the link, and the guest on the right.
struct LossyPath {
    left: End,
    guest: Guest,
    link: EmulatedLink,
}

impl LossyPath {
    fn build(captures: &Scratch) -> Result<Self> {
        let mut link = EmulatedLink::new()?;
        let left = link.add_host(LEFT, "l", 1, MTU)?;
        let theirs: [(IpAddr, u8); 2] =
            [(IpAddr::from([10, 77, 0, 2]), 24), ("fd77::2".parse()?, 64)];
        let machine = Machine {
            mtu: MTU,
            addresses: theirs.to_vec(),
            offloads: false,
            ..Machine::new(RIGHT, theirs[0].0)
        };
        let guest = Guest::boot(&Image::get()?, link.middle(), &machine)?;
        equip(&guest)?;
        let plan = Plan { faults: FAULTS, seed: 79, mtu: MTU };
        link.start(plan, [&left.mac, &guest.mac()], captures.path())?;
        Ok(Self { left, guest, link })
    }
}

#[test]
fn nothing_is_lost_or_doubled_between_rxe_and_us() -> Result<()> {
    let name = "nothing_is_lost_or_doubled_between_rxe_and_us";
    let programs_used = ["ibv_devinfo", "ib_write_bw", "ethtool"];
    let Some(mut lab) = Lab::open(name, Need::Guest, &programs_used)? else { return Ok(()) };
    lab.tools = lab.tools.clone().with_built(programs()?);
    let captures = Scratch::new("link")?;
    let mut path = LossyPath::build(&captures)?;
    let daemon = Daemon::start(Dist::get()?, &at_end(&path.left, Io::AfPacket))?;
    let nic = Node::new(daemon, Host::at_end(&path.left, &lab.tools), Dist::get()?);
    let interop = InteropRun::new(&nic, &path.guest)?.over_a_lossy_link();
    let mut outcomes = Vec::new();
    // The checker verifies every byte and completion. The programs only have to end, so one kind of
    // packets and one role are enough for them.
    let wires = wires();
    for wire in &wires {
        outcomes.extend(interop.run(cases::ROUGH_CHECKER, *wire)?);
    }
    outcomes.extend(interop.run_in_turn("rough_messages", cases::ROUGH_MESSAGES, &wires)?);
    outcomes.extend(interop.run_in_turn("rough_programs", cases::ROUGH_PROGRAMS, &wires)?);
    let report = path.link.finish(Duration::from_millis(300))?;
    all_well(&outcomes).with_context(|| format!("{report:?}\n{}", path.guest.console()))?;
    the_link_was_rough(&nic, &report)?;
    nic.stop()?;
    Ok(())
}

/// How often Linux's requester has gone back.
const RETURNS: &str = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err";

/// What a trace says of the request packets that arrive at its node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Truth {
    /// Packets, also those that the faults dropped.
    requests: u64,
    /// Those whose PSN was there before.
    repeated: u64,
    /// Those that the faults dropped.
    dropped: u64,
    /// NAKs that ask for what is missing.
    naks: u64,
}

/// The faults dropped this packet.
fn is_drop(event: &Value) -> bool {
    event["event"] == "fault" && event["kind"] == "drop"
}

/// A request packet arrived, whether or not the faults dropped it then.
fn is_request(event: &Value) -> bool {
    event["opcode"].as_str().is_some_and(|name| name.starts_with("RC_WRITE"))
        && (is_drop(event) || event["event"] == "received")
}

impl Truth {
    fn of(trace: &[Value]) -> Self {
        let (mut truth, mut seen) = (Self::default(), HashSet::new());
        for event in trace {
            if is_request(event) {
                let packet = (event["dest_qpn"].as_u64(), event["psn"].as_u64());
                truth.requests += 1;
                truth.repeated += u64::from(!seen.insert(packet));
                truth.dropped += u64::from(is_drop(event));
            }
            truth.naks += u64::from(event["event"] == "nak" && event["reason"] == "sequence");
        }
        truth
    }
}

/// Each time that requests began anew at an earlier PSN, and how long before that the last request
/// and the last answer were.
fn times_it_went_back(trace: &[Value]) -> Result<String> {
    let (mut told, mut request, mut answer) = (String::new(), None::<(u64, u64)>, 0);
    for event in trace {
        let (time, psn) = (event["time_ns"].as_u64(), event["psn"].as_u64());
        let (Some(time), Some(psn)) = (time, psn) else { continue };
        if is_request(event) {
            if let Some((last, at)) = request.filter(|(last, _)| *last >= psn) {
                let since = [at, answer].map(|before| time.saturating_sub(before) / 1000);
                writeln!(told, "from {last} to {psn}, {since:?} us behind request and answer")?;
            }
            request = Some((psn, time));
        } else if event["event"] == "sent" {
            answer = time;
        }
    }
    Ok(told)
}

/// Linux sends, and faults in our daemon drop some of it: its log, not what `rnic explain` reads,
/// tells what happened.
#[test]
fn what_is_explained_of_rxe_is_what_was_done_to_it() -> Result<()> {
    let name = "what_is_explained_of_rxe_is_what_was_done_to_it";
    let Some(lab) = Lab::open(name, Need::Guest, &["ib_write_bw"])? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let nic = peer.nic(Io::AfPacket, &[])?;
    let scratch = Scratch::new("explained")?;
    let capture = Observer::start(&nic, &["capture"], scratch.join("x.pcapng"))?;
    let trace = Observer::start(&nic, &["trace"], scratch.join("x.json"))?;
    nic.rnic(&["fault", "add", "--seed", "7", "drop=1%"]).check()?;
    let dialogue = Dialogue::new("ib_write_bw -n 300 -s 8192 -m 1024 -Q 1");
    dialogue.limit(Duration::from_secs(120)).run(&nic, &peer.guest)?;
    let list: Value = serde_json::from_str(&nic.rnic(&["fault", "list", "--json"]).check()?)?;
    let ((trace, said), (capture, other)) = (trace.stop()?, capture.stop()?);
    ensure!(!said.contains("lost") && !other.contains("lost"), "{said}{other}");
    let trace = std::fs::read_to_string(trace)?;
    let trace: Vec<Value> =
        trace.lines().skip(1).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let truth = Truth::of(&trace);
    let file = capture.to_str().context("a name of ours")?;
    let report: Value = serde_json::from_str(&nic.rnic(&["explain", "--json", file]).check()?)?;
    let ends = report["connections"].as_array().into_iter().flatten();
    let sent = ends.flat_map(|connection| connection["sent"].as_array().into_iter().flatten());
    let both: Vec<_> = sent.collect();
    let rxe = both.iter().find(|sent| sent["messages"] != 0).context("no messages")?;
    let ours = both.iter().find(|sent| sent["acks"] != 0).context("no acknowledgements")?;
    let number =
        |of: &Value, pointer: &str| of.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let explained = Truth {
        requests: number(rxe, "/requests"),
        repeated: number(rxe, "/repeated"),
        dropped: number(&list, "/0/struck"),
        naks: number(ours, "/sequence_naks"),
    };
    eprintln!("{truth:?}, {}", rxe["went_back"]);
    ensure!(truth == explained && truth.dropped > 10, "{truth:?}\n{explained:?}\n{report:#}");
    // Each NAK makes Linux go back; what was dropped without one, a timeout. A guest whose CPU
    // stood still may find that its timer has run out as well, and go back twice: nothing on the
    // wire says why, but its own count does.
    let [naks, silence, others] = ["after_sequence_nak", "after_silence", "unexplained"]
        .map(|name| number(&rxe["went_back"], &format!("/{name}")));
    let counted: u64 = peer.guest.check(RETURNS)?.trim().parse()?;
    eprintln!("Linux counts {counted}");
    let is_explained = naks == truth.naks && silence + others <= truth.dropped;
    ensure!(
        is_explained && (others == 0 || naks + silence + others <= counted),
        "{counted}, {report:#}\n{}",
        times_it_went_back(&trace)?
    );
    ensure!(number(rxe, "/messages") == 300 && number(rxe, "/lost_before_capture") == 0, "{rxe}");
    nic.stop()?;
    Ok(())
}

fn the_link_was_rough(nic: &Node, report: &LinkReport) -> Result<()> {
    for tally in [report.to_left, report.to_right] {
        ensure!(tally.lost > 0 && tally.reordered > 0, "the link was no rough one: {report:?}");
        ensure!(tally.failed == 0, "the link lost more than it was told to: {report:?}");
    }
    for name in ["retransmitted_packets", "out_of_sequence", "duplicate_request"] {
        let count = counter(nic, name)?;
        eprintln!("{name} {count}");
        ensure!(count > 0, "no {name}: {report:?}");
    }
    eprintln!("{report:?}");
    Ok(())
}
