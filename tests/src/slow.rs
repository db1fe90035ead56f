//! Looks at what takes too long, while it does: after its end there is nothing to see.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Does `work`. When that takes longer than `limit`, looks meanwhile; returns what was seen, too.
pub(crate) fn when_slow<T, Seen: Send>(
    limit: Duration,
    look: impl FnOnce() -> Seen + Send,
    work: impl FnOnce() -> T,
) -> (T, Option<Seen>) {
    let (done, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let is_slow = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            is_slow.then(look)
        });
        let result = work();
        drop(done);
        (result, looks.join().unwrap_or_default())
    })
}
