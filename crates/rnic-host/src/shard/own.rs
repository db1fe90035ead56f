//! The engine of this process.
//!
//! An engine may be kept by its clients' memory for as long as they like. So nothing here waits for
//! it, but its end, and that for a moment only.

use super::driving::{Driven, ProgramsEngine};
use super::held::Held;
use super::{Shard, ShardHandle, ShardMessage, ShardPort, channel};
use crate::inspect::{Found, Question, Seen};
use crate::settings::Settings;
use crate::thread::{self, STACK};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rnic_abi::os::EventFd;
use rnic_core::EngineConfig;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct OwnEngine {
    number: u8,
    shard: ShardHandle,
    /// Disconnected when it does not run any more.
    ended: Receiver<()>,
    /// Readable from then on.
    gone: Arc<EventFd>,
    /// For the program that drives it.
    programs: Option<ProgramsEngine>,
}

impl OwnEngine {
    /// Starts it on `port`, in a thread with the rights and the priority of the calling one.
    ///
    /// # Errors
    /// When threads or descriptors are used up.
    pub fn start(settings: Settings, engine: EngineConfig, port: ShardPort) -> io::Result<Self> {
        Self::start_driven(settings, engine, port, None)
    }

    /// The same, in a program that may turn it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_driven(
        settings: Settings,
        engine: EngineConfig,
        port: ShardPort,
        driven: Option<Driven>,
    ) -> io::Result<Self> {
        let driving = driven.as_ref().map(|driven| driven.driving);
        let (shard, inbox) = channel()?;
        let (report, ready) = bounded(1);
        let (running, ended) = bounded::<()>(0);
        let gone = Arc::new(EventFd::new()?);
        let end = End { _running: running, gone: Arc::clone(&gone) };
        let number = engine.shard;
        thread::spawn(&format!("rnic-engine-{number}"), STACK, move || {
            let _end = end;
            match Shard::new(engine, port, inbox, &settings, driven) {
                Ok(shard) => {
                    let held = Held::new(shard);
                    let _ = report.send(Ok(held.clone()));
                    held.run();
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })?;
        let held = ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        let programs = driving.map(|driving| ProgramsEngine::new(held, driving));
        Ok(Self { number, shard, ended, gone, programs })
    }

    /// The number of its shard.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Becomes readable when it does not run any more, also after a panic.
    pub fn gone(&self) -> &EventFd {
        &self.gone
    }

    /// The way to it.
    pub fn handle(&self) -> &ShardHandle {
        &self.shard
    }

    /// The way to turn it in threads of the program that it was started for.
    pub fn programs(&self) -> Option<&ProgramsEngine> {
        self.programs.as_ref()
    }

    /// What it tells about itself; `None` when it does not within a second.
    pub fn inspect(&self, question: Question) -> Option<Found> {
        self.ask(question).until(Instant::now() + ANSWER_PATIENCE)
    }

    /// The same for a caller that waits for other answers as well.
    pub fn ask(&self, question: Question) -> Asked {
        let (answer, answered) = bounded::<Seen>(1);
        self.shard.tell(ShardMessage::Inspect(question, answer));
        Asked(answered)
    }

    /// Ends it. When it does not end at once it is left to the end of the process.
    pub fn stop(&self) {
        self.shard.tell(ShardMessage::Stop);
        if self.ended.recv_timeout(STOP_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("an engine does not end: it waits for memory of a client");
        }
    }
}

/// Tells of the end of an engine's thread, however it comes.
struct End {
    _running: Sender<()>,
    gone: Arc<EventFd>,
}

impl Drop for End {
    fn drop(&mut self) {
        // A failure leaves those that wait for it to the sockets that the shard has closed.
        let _ = self.gone.wake();
    }
}

/// A question to an engine.
pub struct Asked(Receiver<Seen>);

impl Asked {
    /// The answer; `None` when there is none by then.
    pub fn until(&self, deadline: Instant) -> Option<Found> {
        self.0.recv_deadline(deadline).ok().map(Found::from)
    }
}

/// How long an engine has for an answer that is only displayed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long an engine has for its end.
const STOP_PATIENCE: Duration = Duration::from_millis(500);
