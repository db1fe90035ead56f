//! Links of frames go on where their interface was deleted and made anew.

use super::frames::Ethernet;
use rnic_net::{Change, Incarnation};

/// Which interface a link uses, and whether it should use another one. A socket of an interface
/// that was deleted, or went to another network namespace, never hears anything again, though
/// another one has its name and addresses, or the same one has come back.
pub(super) struct Reopening {
    used: Incarnation,
    /// The link could not be opened on the interface that there is now.
    is_lost: bool,
    /// How often not.
    pub(super) failed: u64,
}

impl Reopening {
    /// Of a link on this interface.
    pub(super) fn new(used: Incarnation) -> Self {
        Self { used, is_lost: false, failed: 0 }
    }

    /// Whether the interface is still the one that the link was opened on.
    pub(super) fn uses(&self, change: &Change) -> bool {
        change.interface == self.used
    }

    /// Whether the link is to be opened on another interface now. Not before that is up: drivers
    /// may refuse until then, and nothing leaves anyway.
    pub(super) fn is_due(&self, change: &Change) -> bool {
        !self.uses(change) && change.port.active
    }

    /// It was, or could not be.
    pub(super) fn note(
        &mut self,
        interface: Incarnation,
        ethernet: &Ethernet,
        opened: xdp_io::Result<()>,
    ) {
        match opened {
            Ok(()) => {
                tracing::info!("packet I/O uses interface number {} now", interface.index);
                self.used = interface;
            }
            Err(ref error) => {
                self.failed += 1;
                tracing::error!(
                    "cannot open packet I/O on the interface that was made anew: {error}; the port \
                     is down, and this is tried again until it works or rnicd is restarted"
                );
            }
        }
        self.is_lost = opened.is_err();
        ethernet.set_lost(self.is_lost);
    }

    /// Whether the link has a way to the network, as far as that is its own matter.
    pub(super) fn works(&self) -> bool {
        !self.is_lost
    }
}
