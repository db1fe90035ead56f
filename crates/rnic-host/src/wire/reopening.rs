//! Links of frames go on where their interface was deleted and made anew.

use super::frames::Ethernet;
use rnic_net::{Change, Incarnation};
use std::time::{Duration, Instant};

/// How long an interface that the link could not be opened on is left alone. Tests have less time.
const RETRY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

/// Which interface a link uses, and whether it should use another one. A socket of an interface
/// that was deleted, or went to another network namespace, never hears anything again, though
/// another one has its name and addresses, or the same one has come back.
pub(super) struct Reopening {
    used: Incarnation,
    /// The interface that it could not be opened on, and when that is tried again.
    refused: Option<(Incarnation, Instant)>,
    /// How often it could not be opened.
    pub(super) failed: u64,
}

impl Reopening {
    /// Of a link on this interface.
    pub(super) fn new(used: Incarnation) -> Self {
        Self { used, refused: None, failed: 0 }
    }

    /// Whether the interface is still the one that the link was opened on.
    pub(super) fn uses(&self, change: &Change) -> bool {
        change.interface == self.used
    }

    /// Whether the link is to be opened on another interface now. Not before that is up: drivers
    /// may refuse until then, and nothing leaves anyway. And not at each change when that failed:
    /// some drivers take the link down for each attempt, and what they tell of it would make the
    /// next one, for ever.
    pub(super) fn is_due(&self, change: &Change) -> bool {
        let waits = self
            .refused
            .is_some_and(|(refused, until)| refused == change.interface && Instant::now() < until);
        !self.uses(change) && change.port.active && !waits
    }

    /// It was, in this mode, or could not be.
    pub(super) fn note(
        &mut self,
        interface: Incarnation,
        (ethernet, mode): (&Ethernet, &str),
        opened: xdp_io::Result<()>,
    ) {
        match opened {
            Ok(()) => {
                tracing::info!("packet I/O {mode} uses interface number {} now", interface.index);
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
        self.refused = opened.is_err().then(|| (interface, Instant::now() + RETRY));
        ethernet.set_retry(self.refused.map(|(_, until)| until));
    }

    /// Whether the link has a way to the network, as far as that is its own matter.
    pub(super) fn works(&self) -> bool {
        self.refused.is_none()
    }
}
