//! Unmodified fio, whose engine `rdma` connects by address.

use anyhow::{Result, ensure};
use system_tests::daemon::Io;
use system_tests::lab::{Lab, Need, long_form};
use system_tests::programs::Dialogue;

/// The server posts a receive for each block at once: its engine has no flow control, and it has
/// the connection manager end a connection after two messages that come too early.
const SERVER: &str = "--iodepth=32";
const CLIENT: &str = "--iodepth=4";
/// Blocks of each run.
const BLOCKS: u32 = 16;

#[test]
fn blocks_are_sent_written_and_read() -> Result<()> {
    let name = "blocks_are_sent_written_and_read";
    let Some(lab) = Lab::open(name, Need::Root, &["fio"])? else { return Ok(()) };
    let pair = lab.pair(Io::Udp, 4200)?;
    let common = "fio --bs=64k --size=1m --verify_state_save=0";
    // Only a server that receives sees the blocks, and compares them with the checksums in them.
    let verbs = [
        ("send", "--verify=crc32c", "--verify=crc32c --do_verify=0"),
        ("write", "", ""),
        ("read", "", ""),
    ];
    let count = if long_form() { verbs.len() } else { 1 };
    for (verb, server, client) in verbs.into_iter().take(count) {
        let both = Dialogue::new(common).server(SERVER).server(server);
        let both = both.client(CLIENT).client(&format!("--verb={verb}")).client(client);
        let said = both.run(&pair.left, &pair.right)?.client;
        let issued = format!("issued rwts: total=0,{BLOCKS},0,0");
        ensure!(said.stdout.contains(&issued), "{verb}: {said}");
    }
    pair.stop()
}
