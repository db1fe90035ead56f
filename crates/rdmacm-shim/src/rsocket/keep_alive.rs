//! Messages of idle streams, by which an end learns that the other one is gone.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use rnic_abi::os::{OfProcess, signals};

use super::{
    stream::{Phase, Stream},
    wire::Control,
};

struct Watched {
    stream: Weak<Stream>,
    last: Instant,
}

/// A child made by fork has no such thread, and begins without streams.
static WATCHED: OfProcess<Vec<Watched>> = OfProcess::new();

/// From now on the stream sends such messages, as long as its option says so.
pub(crate) fn watch(stream: &Arc<Stream>) {
    let mut watched = WATCHED.lock();
    let weak = Arc::downgrade(stream);
    watched.retain(|watched| !watched.stream.ptr_eq(&weak));
    let is_first = watched.is_empty();
    watched.push(Watched { stream: weak, last: Instant::now() });
    if is_first {
        let thread = thread::Builder::new().name("rsocket-alive".into());
        // The program's signals are for the program's threads.
        let started = signals::without(|| thread.spawn(run));
        if started.is_err() {
            watched.clear();
        }
    }
}

fn run() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let mut watched = WATCHED.lock();
        watched.retain_mut(Watched::stays);
        if watched.is_empty() {
            return;
        }
    }
}

impl Watched {
    /// Sends a message where it is time. False once the stream does not want it any more.
    fn stays(&mut self) -> bool {
        let Some(stream) = self.stream.upgrade() else { return false };
        let mut core = stream.core();
        if !core.options.keep_alive || core.phase == Phase::Failed {
            return false;
        }
        let after = Duration::from_secs(core.options.keep_alive_after.into());
        if self.last.elapsed() >= after
            && let Some(link) = core.link.as_mut().filter(|link| link.flow.is_up())
        {
            self.last = Instant::now();
            if let Err(error) = link.control(Control::KeepAlive) {
                link.fail(error.0);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::status_of_child;

    /// As if the thread of the parent were in the middle of its round.
    #[test]
    fn a_child_starts_its_own_thread_whatever_that_of_its_parent_does() {
        let mut watched = WATCHED.lock();
        watched.push(Watched { stream: Weak::new(), last: Instant::now() });
        let status = status_of_child(|| WATCHED.lock().is_empty());
        watched.clear();
        assert_eq!(status, 0);
    }
}
