//! As many objects of every kind as the daemon allows.

use crate::Attack;
use crate::client::{Client, greet};
use rnic_abi::control::Request;
use rnic_abi::verbs::AccessFlags;
use rnic_abi::verbs::QpType;
use std::io;

/// Makes objects of each kind until refused, a fresh client each time, and prints how many the
/// first client got of each.
pub(crate) fn quotas(attack: &mut Attack) -> io::Result<()> {
    let mut first = true;
    while attack.goes_on() {
        let mut client = Client::open()?;
        let pds = until_refused(attack, || client.call(&Request::AllocPd).map(drop))?;
        let qps = until_refused(attack, || client.create_qp(QpType::Rc).map(drop))?;
        let cqs = until_refused(attack, || client.create_cq(1024).map(drop))?;
        let channels = until_refused(attack, || client.call(&Request::CreateChannel).map(drop))?;
        let mr = Request::RegMr {
            pd: client.pd,
            addr: client.zone.as_ptr() as u64,
            length: client.zone.len() as u64,
            iova: 0,
            access: AccessFlags::LOCAL_WRITE,
            fd_offset: 0,
        };
        let mrs = until_refused(attack, || client.call(&mr).map(drop))?;
        let mut sessions = Vec::new();
        let count = until_refused(attack, || greet().map(|session| sessions.push(session)))?;
        // Last, because it takes what is left of the bytes that sessions need, too.
        let memory = Request::AllocDm { length: 1 << 20 };
        let dms = until_refused(attack, || client.call(&memory).map(drop))?;
        if first {
            println!(
                "got {pds} pds, {cqs} cqs, {channels} channels, {mrs} mrs, {qps} qps, \
                 {count} sessions, {dms} dms"
            );
        }
        first = false;
    }
    Ok(())
}

/// Counts how often `make` succeeds before a refusal. Every kind must have a limit.
fn until_refused(
    attack: &mut Attack,
    mut make: impl FnMut() -> io::Result<()>,
) -> io::Result<usize> {
    const ENDLESS: usize = 1_000_000;
    for count in 0..ENDLESS {
        attack.done += 1;
        if make().is_err() {
            return Ok(count);
        }
    }
    Err(io::Error::other("no quota was met"))
}
