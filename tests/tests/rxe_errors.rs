//! Requests that are refused, between our NIC and Linux's rxe: the completion status on either
//! side. Which of the two refuses, the commit says; in the long form each does.

use anyhow::Result;
use system_tests::daemon::Io;
use system_tests::interop::peers::RxePeer;
use system_tests::interop::{InteropRun, Wire, all_well, cases};
use system_tests::lab::{Lab, Need};

#[test]
fn every_refusal_has_its_status_on_both_sides() -> Result<()> {
    let name = "every_refusal_has_its_status_on_both_sides";
    let Some(lab) = Lab::open(name, Need::Guest, &["ibv_devinfo"])? else { return Ok(()) };
    let peer = RxePeer::boot(&lab)?;
    let nic = peer.nic(Io::AfPacket, &[])?;
    let interop = InteropRun::new(&nic, &peer.guest)?;
    let wire = Wire { v6: false, path_mtu: 1024 };
    let outcomes = interop.run_in_turn(name, &cases::refusals(), &[wire])?;
    nic.stop()?;
    all_well(&outcomes)
}
