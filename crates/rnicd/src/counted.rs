//! What the device has counted, over all its engines.

use rnic_host::inspect::{Numbers, raise};
use rnic_host::server::Service;
use std::sync::Arc;

/// The counters when they were last asked for. They never go down, also while an engine does not
/// answer in time and is missing in the sum.
pub(crate) struct Counted {
    service: Arc<Service>,
    highest: Numbers,
}

impl Counted {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self { service: Arc::clone(service), highest: Numbers::new() }
    }

    /// What they are now.
    pub(crate) fn now(&mut self) -> &Numbers {
        raise(&mut self.highest, self.service.engines.counters());
        &self.highest
    }
}
