//! Threads that look for the way to addresses, for one engine process or the connection manager.
//!
//! A neighbour may take seconds to answer, so one thread is not enough; most ways are known, and a
//! thread started for each would cost the daemon more than the way. So threads stay for a while.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use rnic_host::thread;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// See the [module](self). Threads end some time after their last job.
pub(crate) struct Resolver {
    jobs: Sender<Job>,
    taken: Receiver<Job>,
    /// Threads that wait for a job that no other thread will take.
    idle: Arc<AtomicUsize>,
}

impl Resolver {
    pub(crate) fn new() -> Self {
        let (jobs, taken) = unbounded();
        Self { jobs, taken, idle: Arc::default() }
    }

    /// Has a thread do `job`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if !claim(&self.idle) {
            let (taken, idle) = (self.taken.clone(), Arc::clone(&self.idle));
            thread::spawn("rnic-resolve", STACK, move || work(&taken, &idle))?;
        }
        // The receiver is here, too.
        let _ = self.jobs.send(Box::new(job));
        Ok(())
    }
}

/// Takes one of those that are idle; false when there is none.
fn claim(idle: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
}

/// A thread's life: a job was promised to it when it was started, and whenever it was claimed.
fn work(jobs: &Receiver<Job>, idle: &AtomicUsize) {
    let mut next = jobs.recv().ok();
    while let Some(job) = next {
        job();
        idle.fetch_add(1, Ordering::AcqRel);
        next = match jobs.recv_timeout(STAYS) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Disconnected) => None,
            // Claimed meanwhile: its job is on the way.
            Err(RecvTimeoutError::Timeout) if !claim(idle) => jobs.recv().ok(),
            Err(RecvTimeoutError::Timeout) => None,
        };
    }
}

/// How long a thread without a job stays.
const STAYS: Duration = Duration::from_secs(1);
const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn jobs_that_wait_do_not_keep_others_and_threads_are_used_again() {
        let resolver = Resolver::new();
        let (release, waits) = bounded::<()>(0);
        let (done, all) = unbounded();
        for _ in 0..3 {
            let (waits, done) = (waits.clone(), done.clone());
            resolver
                .run(move || {
                    let _ = waits.recv();
                    done.send(None).unwrap();
                })
                .unwrap();
        }
        for _ in 0..100 {
            let done = done.clone();
            let job = move || done.send(Some(std::thread::current().id())).unwrap();
            resolver.run(job).unwrap();
            assert!(all.recv_timeout(Duration::from_secs(10)).unwrap().is_some());
            // Until it says that it is idle.
            std::thread::sleep(Duration::from_micros(200));
        }
        assert!(resolver.idle.load(Ordering::Acquire) < 20, "threads are not used again");
        drop(release);
        for _ in 0..3 {
            assert_eq!(all.recv_timeout(Duration::from_secs(10)), Ok(None));
        }
    }
}
