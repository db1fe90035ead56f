//! Ours and Linux rxe in one emulated machine: two devices on a veth pair, the programs pinned.
//!
//! The machine is emulated instruction by instruction, so only the ratio means something, and it
//! favours whoever executes fewer instructions. rxe of this kernel works in the initial network
//! namespace only; policy routing makes packets between two addresses of one host take the wire.

use anyhow::{Context, Result};
use system_tests::interrupt;
use system_tests::netns::Netns;
use system_tests::programs::perftest;
use system_tests::rxe::{Guest, Image, Machine};

use super::scene::Props;
use super::series::{Metric, Spread};
use super::standing::Finding;

const WIRE: &str = "
set -e
ip link add va type veth peer name vb
for device in va vb; do
    echo 1 > /proc/sys/net/ipv4/conf/$device/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/$device/rp_filter
    ip link set $device mtu 4200 up
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
ip address add 10.79.0.1/32 dev va
ip address add 10.79.0.2/32 dev vb
ip neighbour add 10.79.0.2 lladdr $(cat /sys/class/net/vb/address) dev va
ip neighbour add 10.79.0.1 lladdr $(cat /sys/class/net/va/address) dev vb
ip route add 10.79.0.2/32 dev va src 10.79.0.1 table 101
ip route add 10.79.0.1/32 dev vb src 10.79.0.2 table 102
ip rule add pref 10 iif va lookup local
ip rule add pref 11 iif vb lookup local
ip rule add pref 20 to 10.79.0.2 lookup 101
ip rule add pref 21 to 10.79.0.1 lookup 102
ip rule add pref 30 lookup local
ip rule delete pref 0
rdma link add rxea type rxe netdev va
rdma link add rxeb type rxe netdev vb
";

const OURS: &str = "
set -e
for side in a b; do
    /root/rnicd --netdev v$side --io af-packet --socket /run/$side.sock > /run/$side.log 2>&1 &
done
for try in $(seq 100); do
    if [ -S /run/a.sock ] && [ -S /run/b.sock ]; then exit 0; fi
    usleep 100000
done
cat /run/a.log /run/b.log
exit 1
";

/// Server on CPU 0, client on CPU 1; prints what the client says. `$line` is the program's,
/// `$a` and `$b` are what the sides are told.
const DIALOGUE: &str = "
(eval \"$ea\" busybox taskset 1 $line $a > /run/server 2>&1) &
usleep 1500000
eval \"$eb\" busybox taskset 2 $line $b 127.0.0.1 || { cat /run/server /run/*.log; exit 1; }
wait
";

const CASES: [(&str, &str); 3] = [
    ("WRITE 64 KiB, path MTU 4096", "ib_write_bw -F -s 65536 -m 4096 -n 500"),
    ("WRITE 1 MiB, path MTU 4096", "ib_write_bw -F -s 1048576 -m 4096 -n 40"),
    ("WRITE 8 B, latency p50", "ib_write_lat -F -s 8 -n 500"),
];

/// What fails is a finding too: the rest of a run took minutes.
pub(super) fn measure(props: &Props, quick: bool) -> Result<Vec<Finding>> {
    let outcome = all(props, quick);
    interrupt::check()?;
    outcome.or_else(|error| {
        eprintln!("the comparison with rxe: {error:#}");
        let title = "ours and rxe";
        Ok(vec![Finding {
            title,
            value: "failed".into(),
            target: "of rxe",
            met: None,
            ratio: None,
        }])
    })
}

fn all(props: &Props, quick: bool) -> Result<Vec<Finding>> {
    let netns = Netns::new("bench")?;
    netns.add_bridge("br0", 4200)?;
    let machine = Machine {
        bridge: Some("br0".into()),
        cpus: 2,
        memory: 1024,
        ..Machine::new("tap1", "10.78.0.1".parse()?)
    };
    let guest = Guest::boot(&Image::get()?, &netns, &machine)?;
    guest.check(WIRE)?;
    guest.put(&props.dist.bin("rnicd"), "/root/rnicd")?;
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        guest.put(&props.dist.lib().join(library), &format!("/root/{library}"))?;
    }
    guest.check(OURS)?;
    let rounds = if quick { 2 } else { 5 };
    CASES.iter().map(|(title, line)| compare(&guest, title, line, rounds)).collect()
}

/// Both stacks, one after the other, in every round.
fn compare(guest: &Guest, title: &'static str, line: &str, rounds: usize) -> Result<Finding> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(dialogue(guest, line, &Stack::ours())?);
        theirs.push(dialogue(guest, line, &Stack::rxe(guest)?)?);
    }
    let metric = if line.contains("_lat ") { Metric::P50 } else { Metric::Bytes };
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let ratio = Spread::of(ratios).context("no round")?.median;
    let shown = |values| Spread::of(values).map(|spread| metric.show(spread.median));
    let (ours, theirs) = (shown(ours).unwrap_or_default(), shown(theirs).unwrap_or_default());
    let value = format!("{ours}, rxe {theirs}");
    eprintln!("{title:<50} {value}");
    Ok(Finding { title, value, target: "of rxe", met: None, ratio: Some(ratio) })
}

/// What programs of a stack are told, by side.
struct Stack {
    environment: [String; 2],
    arguments: [String; 2],
}

impl Stack {
    fn ours() -> Self {
        let environment = ["a", "b"]
            .map(|side| format!("RNIC_DEBUG=1 LD_LIBRARY_PATH=/root RNIC_SOCKET=/run/{side}.sock"));
        Self { environment, arguments: ["-d rnic0 -x 0".into(), "-d rnic0 -x 0".into()] }
    }

    fn rxe(guest: &Guest) -> Result<Self> {
        let argument = |side: &str, last: u8| -> Result<String> {
            let device = format!("rxe{side}");
            let gids = format!("/sys/class/infiniband/{device}/ports/1/gids");
            let listed =
                guest.check(&format!("cd {gids}; for i in 0 1 2 3 4 5; do cat $i; done"))?;
            let wanted = format!("ffff:0a4f:000{last}");
            let at = listed.lines().position(|gid| gid.trim().ends_with(&wanted));
            Ok(format!("-d {device} -x {}", at.with_context(|| format!("no GID:\n{listed}"))?))
        };
        Ok(Self {
            environment: ["".into(), "".into()],
            arguments: [argument("a", 1)?, argument("b", 2)?],
        })
    }
}

fn dialogue(guest: &Guest, line: &str, stack: &Stack) -> Result<f64> {
    let Stack { environment: [ea, eb], arguments: [a, b] } = stack;
    let script = format!("line='{line}'; ea='{ea}'; eb='{eb}'; a='{a}'; b='{b}'\n{DIALOGUE}");
    let text = guest.check(&script)?;
    if line.contains("_lat ") {
        return Ok(perftest::latency(&text)?.pop().context("no row")?.typical);
    }
    Ok(perftest::bandwidth(&text)?.pop().context("no row")?.average)
}
