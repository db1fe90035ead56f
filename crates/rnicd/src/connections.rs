//! The connection manager of the device, in the daemon, for all users.
//!
//! Its protocol is in [`rnic_core::cm`]. Here are its thread, which takes what arrives at QP1 and
//! does what is due, and the way out: finding a neighbour may take seconds, and nothing else waits
//! meanwhile. A datagram that cannot leave at once is dropped; what matters is sent again.

mod ways;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rnic_abi::control::DeviceInfo;
use rnic_core::Secret;
use rnic_core::cm::{Cm, CmConfig, Route};
use rnic_host::shard::{Mad, ShardHandle, ShardMessage, monotonic};
use rnic_host::system::random;
use rnic_host::thread;
use rnic_net::Network;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use ways::Ways;

/// See the [module](self).
pub(crate) struct Connections {
    cm: Mutex<Cm>,
    ways: Arc<Ways>,
}

impl Connections {
    /// Starts it: from now on it serves QP1 of the engine.
    ///
    /// # Errors
    /// When there is no thread left.
    pub(crate) fn start(
        device: &DeviceInfo,
        network: &Arc<Network>,
        engine: &ShardHandle,
    ) -> Result<Arc<Self>> {
        let config = CmConfig {
            secret: Secret::new(random().context("no randomness")?),
            guid: u64::from_be_bytes(device.node_guid),
            max_ids: MAX_IDS,
            mtu_code: network.port().active_mtu,
        };
        let ways = Ways::new(Arc::clone(network), engine.clone());
        let this = Arc::new(Self { cm: Mutex::new(Cm::new(config)), ways });
        let (sender, arrivals) = bounded(MAX_ARRIVALS);
        let manager = Arc::clone(&this);
        thread::spawn("rnic-cm", thread::STACK, move || manager.run(&arrivals))?;
        engine.tell(ShardMessage::ServeManagement(sender));
        Ok(this)
    }

    /// The link allows this path MTU code from now on.
    pub(crate) fn set_mtu(&self, code: u8) {
        self.cm().set_mtu(code);
    }

    fn cm(&self) -> MutexGuard<'_, Cm> {
        self.cm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the engine has ended.
    fn run(&self, arrivals: &Receiver<Mad>) {
        loop {
            let patience = self.cm().next_deadline().map_or(IDLE, |at| at.since(monotonic()));
            let mut next = match arrivals.recv_timeout(patience) {
                Ok(mad) => Some(mad),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut cm = self.cm();
            for _ in 0..AT_ONCE {
                let Some(Mad { flow, sender, mad }) = next else { break };
                cm.receive(monotonic(), &Route::back(&flow, sender), &mad);
                self.flush(&mut cm);
                next = arrivals.try_recv().ok();
            }
            cm.expire(monotonic());
            self.flush(&mut cm);
        }
    }

    /// Passes on what the last call has caused.
    fn flush(&self, cm: &mut Cm) {
        while let Some(outgoing) = cm.next_mad() {
            self.ways.send(&outgoing);
        }
    }
}

/// Most identifiers, those of all users together.
const MAX_IDS: usize = 1 << 15;
/// Datagrams that wait for the thread.
const MAX_ARRIVALS: usize = 1024;
/// Datagrams that are handled before timers are looked at.
const AT_ONCE: usize = 64;
/// How long to sleep when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
