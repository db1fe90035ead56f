//! What the suite runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Kind, Role};
use crate::native;
use crate::programs::{Dialogue, Transcript, perftest, pingpong};

const LIMIT: Duration = Duration::from_secs(90);
pub(super) const BOTH: &[Role] = &[Role::Client, Role::Server];

/// One dialogue and its expected result.
pub enum Case {
    /// A third-party program. `-m PATH_MTU` is added.
    Program(&'static str),
    /// One that sends datagrams, which have no path MTU of their own.
    Datagrams(&'static str),
    /// One that connects by IP address, through librdmacm and the connection manager on the wire.
    ByAddress(&'static str),
    /// The checker, which sends and receives at once; which side opens the connection is a
    /// parameter of its own.
    Checker {
        /// Its arguments beside path MTU and seed.
        line: &'static str,
        /// Our part in the connection.
        role: [Role; 1],
    },
    /// An operation that the responder refuses, or serves late.
    Refusal(&'static Refusal),
}

/// Programs that others wrote. perftest asks for as many outstanding READs and atomics as the
/// *peer's* device has at most (rxe: 128), which a device that has fewer must refuse, as cards do:
/// `-o` names what both have.
pub const PROGRAMS: &[Case] = &[
    Case::Program("ibv_rc_pingpong -c -s 30001 -n 50"),
    Case::Program("ib_send_bw -s 65536 -n 40"),
    Case::Program("ib_write_bw -s 65536 -n 40"),
    Case::Program("ib_read_bw -s 65536 -n 40 -o 16"),
    Case::Program("ib_atomic_bw -A FETCH_AND_ADD -n 50 -o 16"),
    Case::Program("ib_atomic_bw -A CMP_AND_SWAP -n 50 -o 16"),
    Case::Program("ib_send_lat -s 64 -n 50"),
    Case::Program("ib_write_lat -s 64 -n 50"),
    Case::Program("ib_read_lat -s 64 -n 50 -o 16"),
    Case::Program("ib_atomic_lat -A FETCH_AND_ADD -n 50 -o 16"),
    Case::Program("ib_atomic_lat -A CMP_AND_SWAP -n 50 -o 16"),
    Case::Program("ibv_uc_pingpong -c -s 30001 -n 50"),
    Case::Program("ib_write_bw -c UC -s 65536 -n 40"),
    Case::Program("ib_send_lat -c UC -s 64 -n 50"),
    Case::Program("ib_write_lat -c UC -s 64 -n 50"),
    Case::Program("ibv_srq_pingpong -s 30001 -n 50"),
    Case::Datagrams("ibv_ud_pingpong -c -s 999 -n 50"),
    Case::Datagrams("ib_send_bw -c UD -s 1000 -n 40"),
    Case::Datagrams("ib_send_lat -c UD -s 64 -n 50"),
];

/// Programs that connect by IP address, IPv4 or IPv6, and compare their data.
pub const BY_ADDRESS: &[Case] = &[
    Case::ByAddress("rping -C 10 -V -S 4000"),
    Case::ByAddress("ucmatose -c 4 -C 10 -S 1000"),
    Case::ByAddress("udaddy -c 2 -C 10 -S 1000"),
    Case::ByAddress("rstream -S 30000 -C 40 -T v"),
    Case::ByAddress("riostream -S 3000 -C 20 -T v"),
];

/// Those of perftest, whose address is always IPv4.
pub const PERFTEST_BY_ADDRESS: &[Case] = &[
    Case::ByAddress("ib_write_bw -R -s 65536 -n 40"),
    Case::ByAddress("ib_send_bw -R -c UD -s 1000 -n 40"),
    Case::ByAddress("ib_read_lat -R -s 64 -n 50 -o 16"),
];

/// Every opcode and size with every byte, completion and their order checked: 0, 1, around the
/// path MTU and its multiples, up to 1 MiB; with 1, 4 and 16 outstanding READs and atomics.
pub const CHECKER: &[Case] = &[
    Case::Checker { line: "-n 100 -T 16 -R 1", role: [Role::Client] },
    Case::Checker { line: "-n 100 -T 16 -R 4", role: [Role::Server] },
    Case::Checker { line: "-n 100 -T 16 -R 16 --events", role: [Role::Client] },
];

/// Programs for a link that loses and reorders. Going back N resends a window for every fault, so
/// few messages are in flight. The timeout of 268 ms is long enough for a busy machine.
pub const ROUGH_PROGRAMS: &[Case] = &[
    Case::Program("ib_send_bw -s 16384 -n 30 -t 4 -u 16"),
    Case::Program("ib_write_bw -s 16384 -n 30 -t 4 -u 16"),
    Case::Program("ib_read_bw -s 16384 -n 30 -t 4 -o 4 -u 16"),
    Case::Program("ib_send_lat -s 64 -n 30 -u 16"),
    Case::Program("ib_write_lat -s 64 -n 30 -u 16"),
    Case::Program("ib_read_lat -s 64 -n 30 -o 4 -u 16"),
    Case::Program("ib_atomic_lat -A FETCH_AND_ADD -n 30 -o 4 -u 16"),
];

/// The checker for such a link.
pub const ROUGH_CHECKER: &[Case] = &[
    Case::Checker {
        line: "-n 200 -T 15 -q 8 -s 0,1,1023,1024,1025,3000,16391",
        role: [Role::Client],
    },
    Case::Checker { line: "-n 200 -T 15 -q 8 -s 0,1,4095,4096,4097,20000", role: [Role::Server] },
];

/// Messages over unreliable connections of such a link: some are lost, and those are lost whole.
pub const ROUGH_MESSAGES: &[Case] =
    &[Case::Refusal(&Refusal { receive: "some", ..refusal("unreliable", "SUCCESS") })];

/// An operation of `tests/refusals` and its completion statuses.
pub struct Refusal {
    name: &'static str,
    /// At the requester.
    send: &'static str,
    /// At the responder, when it posted a receive.
    receive: &'static str,
    /// The same when rxe is the responder, where that differs.
    rxe: Option<(&'static str, &'static str)>,
    /// At the requester when that is rxe, where that differs.
    asked_by_rxe: Option<&'static str>,
}

const fn refusal(name: &'static str, send: &'static str) -> Refusal {
    Refusal { name, send, receive: "none", rxe: None, asked_by_rxe: None }
}

/// The completion status of everything that can be refused.
pub const REFUSALS: &[Refusal] = &[
    refusal("nothing", "SUCCESS"),
    refusal("wrong_key_write", "REM_ACCESS_ERR"),
    refusal("wrong_key_read", "REM_ACCESS_ERR"),
    refusal("wrong_key_atomic", "REM_ACCESS_ERR"),
    refusal("wrong_key_empty_write", "SUCCESS"),
    refusal("write_behind_the_end", "REM_ACCESS_ERR"),
    refusal("read_behind_the_end", "REM_ACCESS_ERR"),
    refusal("write_without_right", "REM_ACCESS_ERR"),
    refusal("read_without_right", "REM_ACCESS_ERR"),
    refusal("atomic_without_right", "REM_ACCESS_ERR"),
    refusal("qp_without_write", "REM_INV_REQ_ERR"),
    refusal("qp_without_read", "REM_INV_REQ_ERR"),
    Refusal {
        receive: "LOC_LEN_ERR",
        // Linux 6.1 detects it only when it scatters the data.
        rxe: Some(("REM_OP_ERR", "LOC_QP_OP_ERR")),
        ..refusal("send_too_long", "REM_INV_REQ_ERR")
    },
    Refusal {
        receive: "LOC_PROT_ERR",
        rxe: Some(("REM_OP_ERR", "LOC_QP_OP_ERR")),
        ..refusal("receive_key_wrong", "REM_OP_ERR")
    },
    Refusal { receive: "SUCCESS", ..refusal("receiver_late", "SUCCESS") },
    refusal("receiver_never", "RNR_RETRY_EXC_ERR"),
    refusal("peer_gone", "RETRY_EXC_ERR"),
    refusal("window_1_write", "SUCCESS"),
    refusal("window_2_write", "SUCCESS"),
    refusal("window_2_read", "SUCCESS"),
    refusal("window_2_without_right", "REM_ACCESS_ERR"),
    Refusal {
        // Linux 6.1 compares with the end of the region, not of the window.
        rxe: Some(("SUCCESS", "none")),
        ..refusal("window_2_behind_the_end", "REM_ACCESS_ERR")
    },
    refusal("window_2_after_local_inv", "REM_ACCESS_ERR"),
    Refusal {
        receive: "SUCCESS",
        // It invalidates the window, and its completion does not say so.
        rxe: Some(("REM_ACCESS_ERR", "without the key")),
        ..refusal("window_2_after_send_inv", "REM_ACCESS_ERR")
    },
    // The receiver compares the IP header in front of the data too.
    Refusal { receive: "SUCCESS", ..refusal("datagram_with_imm", "SUCCESS") },
    Refusal { receive: "all", ..refusal("unreliable", "SUCCESS") },
    // Without an answer; rxe makes no queue pair of XRC.
    Refusal { asked_by_rxe: Some("EOPNOTSUPP"), ..refusal("xrc_to_rc", "RETRY_EXC_ERR") },
];

/// All of [`REFUSALS`] as cases.
#[must_use]
pub fn refusals() -> Vec<Case> {
    REFUSALS.iter().map(Case::Refusal).collect()
}

impl Case {
    /// What the report calls it.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Program(line) | Self::Datagrams(line) | Self::ByAddress(line) => {
                (*line).to_owned()
            }
            Self::Checker { line, .. } => format!("checker {line}"),
            Self::Refusal(refusal) => format!("{}: {}", refusal.name, refusal.send),
        }
    }

    pub(super) fn roles(&self) -> &[Role] {
        match self {
            Self::Program(_) | Self::Datagrams(_) | Self::ByAddress(_) | Self::Refusal(_) => BOTH,
            Self::Checker { role, .. } => role,
        }
    }

    pub(super) fn dialogue(&self, path_mtu: u32) -> Dialogue {
        let line = match self {
            Self::Program(line) => format!("{line} -m {path_mtu}"),
            Self::Datagrams(line) | Self::ByAddress(line) => (*line).to_owned(),
            Self::Checker { line, .. } => format!("checker {line} -m {path_mtu} -x {path_mtu}"),
            Self::Refusal(refusal) => format!("{} -T 17 {}", native::REFUSALS, refusal.name),
        };
        Dialogue::new(&line).limit(LIMIT)
    }

    /// Further arguments of the peer's end.
    ///
    /// After Linux 6.1's rxe has gone back N, it counts READs and atomics *behind* a fenced WQE,
    /// which it had sent already, as before the fence, and never sends anything again. So nothing
    /// that rxe sends is fenced. (Its queue pair then shows a `sq-psn` behind what it has sent.)
    pub(super) fn peer_args(&self, peer: Kind) -> &'static str {
        match (self, peer) {
            (Self::Checker { .. }, Kind::Rxe) => "--no-fence",
            _ => "",
        }
    }

    /// Whether the output is right. That both ends succeeded is already known.
    pub(super) fn check(&self, said: &Transcript, peer: Kind, ours: Role) -> Result<()> {
        match self {
            Self::Program(line) | Self::Datagrams(line) if line.starts_with("ibv_") => {
                pingpong::result(&said.client.stdout)?;
            }
            Self::Program(line) | Self::Datagrams(line) if line.contains("_lat") => {
                perftest::latency(&said.client.stdout)?;
            }
            Self::Program(_) | Self::Datagrams(_) => {
                perftest::bandwidth(&said.client.stdout)?;
            }
            Self::ByAddress(line) if line.contains("_bw ") => {
                perftest::bandwidth(&said.client.stdout)?;
            }
            Self::Checker { .. } | Self::ByAddress(_) => {}
            Self::Refusal(refusal) => refusal.check(said, peer, ours)?,
        }
        Ok(())
    }
}

impl Refusal {
    fn check(&self, said: &Transcript, peer: Kind, ours: Role) -> Result<()> {
        let served = said.server.as_ref().context("the responder printed nothing")?;
        let by_rxe = peer == Kind::Rxe && ours == Role::Client;
        let spec = (self.send, self.receive);
        let (send, receive) = if by_rxe { self.rxe.unwrap_or(spec) } else { spec };
        let asks = peer == Kind::Rxe && ours == Role::Server;
        let send = self.asked_by_rxe.filter(|_| asks).unwrap_or(send);
        let expected = format!("send {send}, receive {receive}");
        let found = format!("{}, {}", said.client.stdout.trim(), served.stdout.trim());
        ensure!(found == expected, "{found}, not {expected}");
        Ok(())
    }
}
