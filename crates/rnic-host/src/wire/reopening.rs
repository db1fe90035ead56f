//! Links of frames go on where their interface was deleted and made anew.

use super::frames::Ethernet;
use rnic_net::Change;

/// Which interface a link uses, and whether it should use another one. A socket of an interface
/// that was deleted never hears anything again, though another one has its name and addresses.
pub(super) struct Reopening {
    used: u32,
    /// The link could not be opened on the interface that there is now.
    is_lost: bool,
    /// How often not.
    pub(super) failed: u64,
}

impl Reopening {
    /// Of a link on the interface of this index.
    pub(super) fn new(used: u32) -> Self {
        Self { used, is_lost: false, failed: 0 }
    }

    /// Whether the link is to be opened on another interface now. Not before that is up: drivers
    /// may refuse until then, and nothing leaves anyway.
    pub(super) fn is_due(&self, change: &Change) -> bool {
        change.interface != self.used && change.port.active
    }

    /// It was, or could not be.
    pub(super) fn note(&mut self, interface: u32, ethernet: &Ethernet, opened: xdp_io::Result<()>) {
        match opened {
            Ok(()) => {
                tracing::info!("packet I/O uses interface number {interface} now");
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
