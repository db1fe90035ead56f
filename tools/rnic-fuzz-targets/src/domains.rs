//! XRC domains of two users, and the check that neither gets into the other's.

use crate::script::Script;
use crate::tenant::Tenant;
use crate::world::World;
use rnic_core::{ClientCommand, ClientId, Outcome, XrcFile, XrcOpen};

/// The honest client opens the domain of a file as one user, and makes a target there. The hostile
/// one, as another user, must not get at that target by the same file, nor by handle and number.
pub(crate) fn join(world: &mut World, script: &mut Script<'_>, [hostile, honest]: [ClientId; 2]) {
    let file = XrcFile { user: 1, device: 2, inode: u64::from(script.u8() & 1) };
    let theirs = XrcOpen { file: Some(file), create: true, exclusive: false };
    let own = XrcOpen { file: Some(XrcFile { user: 7, ..file }), ..theirs };
    let opened = world.command(honest, ClientCommand::OpenXrcd(theirs));
    let Ok(Outcome::Handle(xrcd)) = opened else { panic!("{opened:?}") };
    let made = world.command(honest, ClientCommand::CreateTarget { xrcd });
    let Ok(Outcome::Qp { qp, qpn }) = made else { panic!("{made:?}") };
    let same_file = world.command(hostile, ClientCommand::OpenXrcd(own));
    let same_file = match same_file {
        Ok(Outcome::Handle(own)) => Some(own),
        _ => None,
    };
    for xrcd in same_file.into_iter().chain([xrcd]) {
        let got = world.command(hostile, ClientCommand::OpenQp { xrcd, qpn });
        assert!(got.is_err(), "a target of another user was opened");
    }
    for tidy in [ClientCommand::DestroyQp { qp }, ClientCommand::CloseXrcd { xrcd }] {
        assert!(world.command(honest, tidy).is_ok(), "what it made is its own");
    }
}

/// A command about domains and targets, with a client's own handles or others. References that it
/// gives up are not the first one, which its queue pairs need.
pub(crate) fn any_command(script: &mut Script<'_>, own: &Tenant) -> ClientCommand {
    match script.below(3) {
        0 => {
            let xrcd = own.xrc.as_ref().map_or(0, |(xrcd, _)| *xrcd);
            let known = script.u8() & 1 == 0;
            let qpn = if known { own.qps[1].qpn.value() } else { script.u32() };
            ClientCommand::OpenQp { xrcd, qpn }
        }
        1 => ClientCommand::CloseXrcd { xrcd: script.u8().into() },
        _ => ClientCommand::DestroyQp { qp: (1 << 19) + 1 + u32::from(script.u8()) },
    }
}
