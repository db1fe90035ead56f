//! What a client watches, on its way to a descriptor that the client sent.

use super::service::Service;
use crate::observe::{self, Wants};
use crate::refusal::{Refused, refused_by_kernel};
use crate::thread::{self, STACK};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends when dropped, when the descriptor's other end is closed, or when the device ends.
pub(super) struct Watching {
    stop: Arc<AtomicBool>,
}

impl Watching {
    /// Starts to write to `fd`.
    pub(super) fn start(service: &Service, wants: Wants, fd: OwnedFd) -> Result<Self, Refused> {
        let (watcher, feed) = observe::watch(wants);
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        // The thread inherits the rights of its client.
        thread::spawn("rnic-watch", STACK, move || {
            if let Err(error) = observe::write(&feed, &ended, File::from(fd)) {
                tracing::debug!("a client does not watch any more: {error}");
            }
        })
        .map_err(refused_by_kernel("no thread for what is watched"))?;
        service.engines.observe(&watcher);
        Ok(Self { stop })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
