//! A capture on its way to a client: frames from the wire, written as pcapng to a descriptor that
//! the client sent.

use super::service::Service;
use crate::pcapng;
use crate::refusal::{Refused, refused_by_kernel};
use crate::thread::{self, STACK};
use crate::wire::{self, CaptureFeed};
use crossbeam_channel::RecvTimeoutError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A running capture; ends when dropped, when the descriptor's other end is closed, or when the
/// device ends.
pub(super) struct Capture {
    stop: Arc<AtomicBool>,
}

impl Capture {
    /// Starts to write to `fd`.
    pub(super) fn start(service: &Service, fd: OwnedFd) -> Result<Self, Refused> {
        let (tap, feed) = wire::capture();
        let stop = Arc::new(AtomicBool::new(false));
        let (name, ended) = (service.device.name.clone(), Arc::clone(&stop));
        // The thread inherits the rights of its client.
        thread::spawn("rnic-capture", STACK, move || {
            if let Err(error) = write(&feed, &ended, File::from(fd), &name) {
                tracing::debug!("a capture ends: {error}");
            }
        })
        .map_err(refused_by_kernel("no thread for a capture"))?;
        service.engines.capture(&tap);
        Ok(Self { stop })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn write(feed: &CaptureFeed, stop: &AtomicBool, file: File, name: &str) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    pcapng::write_head(&mut file, name)?;
    file.flush()?;
    let mut lost = 0;
    while !stop.load(Ordering::Relaxed) {
        match feed.frames.recv_timeout(LOOK_UP) {
            Ok(captured) => {
                let lost_now = feed.lost();
                pcapng::write_frame(&mut file, &captured, lost_now - lost)?;
                lost = lost_now;
                if feed.frames.is_empty() {
                    file.flush()?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    file.flush()
}

/// How soon the end of a session ends its capture.
const LOOK_UP: Duration = Duration::from_millis(100);
