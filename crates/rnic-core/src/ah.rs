//! Address handles: where datagrams go, resolved once.

use crate::command::{ClientId, Path};
use crate::owned::Owned;
use crate::profile::Profile;
use roce_wire::flow::udp_source_port;

/// An address handle. A work request names it by a handle that is checked each time, so a program
/// reaches only what the control plane resolved for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) client: ClientId,
    pub(crate) pd: u32,
    pub(crate) path: Path,
}

impl Owned for AddressHandle {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

impl AddressHandle {
    pub(crate) fn new(client: ClientId, pd: u32, profile: Profile, path: Path) -> Self {
        Self { client, pd, path: settled(profile, path) }
    }
}

/// The path of datagrams, with what the device decides.
pub(crate) fn settled(profile: Profile, mut path: Path) -> Path {
    path.flow.tos = profile.tos(path.flow.tos);
    // Two queue pairs may use it, so the port follows from the flow label alone, as ConnectX has
    // it.
    if path.flow.sport == 0 {
        path.flow.sport = udp_source_port(path.attr.flow_label);
    }
    path
}
