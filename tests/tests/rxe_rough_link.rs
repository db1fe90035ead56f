//! Programs and checker against Linux's rxe over a link that loses and reorders packets in both
//! directions: everything completes, no byte is wrong, no completion is lost or duplicated.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::daemon::{Daemon, Io};
use system_tests::dist::Dist;
use system_tests::emulator::{EmulatedLink, Faults, LEFT, LinkReport, Plan, RIGHT};
use system_tests::inspect::counter;
use system_tests::interop::peers::MTU;
use system_tests::interop::{InteropRun, all_well, cases, equip, programs, wires};
use system_tests::lab::{Lab, Need, at_end, long_form};
use system_tests::netns::End;
use system_tests::paths::Scratch;
use system_tests::place::{Host, Node};
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
    // The checker verifies every byte and completion. The programs, each as server and as client,
    // only have to end, so one kind of packets is enough for them.
    for (nth, wire) in wires().into_iter().enumerate() {
        outcomes.extend(interop.run(cases::ROUGH_CHECKER, wire)?);
        if nth == 0 || long_form() {
            outcomes.extend(interop.run(cases::ROUGH_PROGRAMS, wire)?);
        }
    }
    let report = path.link.finish(Duration::from_millis(300))?;
    all_well(&outcomes).with_context(|| format!("{report:?}\n{}", path.guest.console()))?;
    the_link_was_rough(&nic, &report)?;
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
