//! Unmodified qperf, which connects through the connection manager (`-cm 1`).
//!
//! Only its tests of reliable connections can run on RoCE: it connects UC and UD queue pairs
//! itself, by LIDs and without a global route, whatever `-cm` says.

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need};
use system_tests::programs::{Dialogue, qperf};

/// All there are.
const TESTS: &str = "rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat \
                     rc_rdma_write_bw rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr \
                     ver_rc_compare_swap ver_rc_fetch_add";

#[test]
fn every_test_of_reliable_connections() -> Result<()> {
    let name = "every_test_of_reliable_connections";
    let Some(lab) = Lab::open(name, Need::Root, &["qperf"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    for test in TESTS.split(' ') {
        let line = format!("-t 1 -cm 1 {test}");
        let said = Dialogue::new("qperf").client(&line).run(&pair.left, &pair.right)?.client;
        eprintln!("{}", said.stdout.trim());
        let quantity = match test {
            _ if test.ends_with("_lat") => "latency",
            _ if test.ends_with("_bw") => "bw",
            _ => "msg_rate",
        };
        ensure!(qperf::value(&said.stdout, quantity)? > 0.0, "{said}");
    }
    pair.stop()
}
