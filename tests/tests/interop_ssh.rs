//! The suite of `cargo xtask interop`, with a guest instead of a host with a card: the suite learns
//! everything about it over ssh.

use anyhow::{Result, ensure};
use system_tests::interop::card::{self, Options};
use system_tests::interop::peers::{INTERFACE, RxePeer, addresses};
use system_tests::interop::{WIRES, all_well, cases};
use system_tests::lab::{Lab, Need};
use system_tests::paths::Scratch;
use system_tests::process::Cmd;
use system_tests::rxe::Guest;
use system_tests::ssh::Target;

#[test]
fn a_peer_over_ssh() -> Result<()> {
    let programs = ["ibv_rc_pingpong", "ib_write_bw", "ssh", "ssh-keygen"];
    let Some(lab) = Lab::open("a_peer_over_ssh", Need::Guest, &programs)? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let keys = Scratch::new("keys")?;
    let key = keys.join("key");
    Cmd::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).check()?;
    let target = |key: &str| -> Result<Target> {
        let mut target = Target::parse(&format!("ssh://root@{}", addresses(2)[0].0))?;
        // The guest is made for this run, and so is its host key.
        let options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"];
        target.options.extend(options.iter().flat_map(|o| ["-o".to_owned(), (*o).to_owned()]));
        target.options.extend(["-o", "IdentitiesOnly=yes", "-i", key].map(str::to_owned));
        target.netns = Some(peer.netns().name().to_owned());
        Ok(target)
    };
    serve_ssh(&peer.guest, &keys)?;
    let options = Options {
        target: target(&key.display().to_string())?,
        device: "rxe0".into(),
        interface: Some(INTERFACE.into()),
        wires: vec![WIRES[3]],
    };
    what_is_missing_is_named(&options, &target("/dev/null")?)?;
    let outcomes = card::run(&options)?;
    // Each program has two: it calls, and it serves.
    let cases = 2 * cases::PROGRAMS.len() + cases::CHECKER.len();
    ensure!(outcomes.len() == cases, "{} cases of {cases}", outcomes.len());
    let left = peer.guest.check("ls -d /tmp/rnic-interop.* 2>/dev/null || true")?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    all_well(&outcomes)
}

fn serve_ssh(guest: &Guest, keys: &Scratch) -> Result<()> {
    guest.check("mkdir -p /root/.ssh /etc/dropbear && chmod 700 /root /root/.ssh")?;
    guest.put(&keys.join("key.pub"), "/root/.ssh/authorized_keys")?;
    guest.check("chmod 600 /root/.ssh/authorized_keys && dropbear -R -s -p 22")?;
    Ok(())
}

fn what_is_missing_is_named(good: &Options, stranger: &Target) -> Result<()> {
    let error = |options: &Options| format!("{:#}", card::run(options).map(|_| ()).unwrap_err());
    let no_device = error(&Options { device: "mlx5_0".into(), ..good.clone() });
    ensure!(no_device.contains("no RDMA device mlx5_0"), "{no_device}");
    let refused = error(&Options { target: stranger.clone(), ..good.clone() });
    ensure!(refused.contains("without a password"), "{refused}");
    Ok(())
}
