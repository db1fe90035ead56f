//! All shards of a device.
//!
//! A shard serves clients of one user, and its thread carries that user's rights and no more: a
//! client may turn itself into a setuid program while its registrations live, and it is the kernel
//! that must then refuse to touch its memory. The first shard owns the wire; it serves the user
//! who comes first, and another one once it has no clients left, so that a single user never needs
//! a second shard. A daemon that is not root has only that one.

use super::{Message, Port, Shard, ShardHandle, channel};
use crate::config::Config;
use crate::net::Change;
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::system::{self, User};
use crate::wire::DeviceWire;
use crossbeam_channel::Sender;
use rnic_abi::os::Credentials;
use rnic_core::EngineConfig;
use rnic_core::qpn::MAX_SHARDS;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::{io, thread};

/// See the [module](self).
pub(crate) struct Crew {
    /// The daemon is root. Sessions, which ask for shards, are not: they act as their clients.
    privileged: bool,
    config: Config,
    engine: EngineConfig,
    first: ShardHandle,
    shards: Mutex<Shards>,
}

#[derive(Default)]
struct Shards {
    /// Whom the first shard serves, and how many clients it has.
    first: Option<(User, usize)>,
    others: BTreeMap<User, ShardHandle>,
    threads: Vec<JoinHandle<()>>,
    /// How the network is, for shards to come.
    network: Option<Change>,
}

/// A client's place at a shard; its clients must be gone when it is dropped.
pub(crate) struct Seat {
    crew: Arc<Crew>,
    user: User,
    shard: ShardHandle,
}

impl Deref for Seat {
    type Target = ShardHandle;

    fn deref(&self) -> &ShardHandle {
        &self.shard
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((user, clients)) = &mut self.crew.lock().first
            && *user == self.user
        {
            *clients -= 1;
        }
    }
}

impl Crew {
    /// Starts the first shard, on `wire`.
    ///
    /// # Errors
    /// When threads or descriptors are used up.
    pub(crate) fn start(
        config: Config,
        engine: EngineConfig,
        wire: DeviceWire,
    ) -> io::Result<Self> {
        let port = Port::Device(Box::new(wire));
        let (first, thread) = start(&config, EngineConfig { shard: 0, ..engine }, port, None)?;
        let shards = Shards { threads: vec![thread], ..Shards::default() };
        let privileged = rustix::process::geteuid().is_root();
        Ok(Self { privileged, config, engine, first, shards: Mutex::new(shards) })
    }

    fn lock(&self) -> MutexGuard<'_, Shards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client at the shard of its user, which is started when there is none.
    ///
    /// # Errors
    /// EUSERS when there are too many users.
    pub(crate) fn seat(self: &Arc<Self>, peer: &Credentials) -> Result<Seat, Refused> {
        let user = match peer.uid {
            0 => (0, 0),
            uid => (uid, peer.gid),
        };
        let shard = self.shard_of(user)?;
        Ok(Seat { crew: Arc::clone(self), user, shard })
    }

    fn shard_of(&self, user: User) -> Result<ShardHandle, Refused> {
        if !self.privileged {
            return Ok(self.first.clone());
        }
        let failed = refused_by_kernel("no engine for this user");
        let mut shards = self.lock();
        if let Some(shard) = shards.others.get(&user) {
            return Ok(shard.clone());
        }
        match &mut shards.first {
            Some((first, clients)) if *first == user => {
                *clients += 1;
                return Ok(self.first.clone());
            }
            Some((_, 1..)) => {}
            _ => {
                let acting = self.first.ask(|answer| Message::ActAs(user, answer));
                acting.map_err(engine_gone)?.map_err(failed)?;
                shards.first = Some((user, 1));
                return Ok(self.first.clone());
            }
        }
        self.add(&mut shards, user)
    }

    fn add(&self, shards: &mut Shards, user: User) -> Result<ShardHandle, Refused> {
        let number = u8::try_from(1 + shards.others.len()).unwrap_or(u8::MAX);
        if number >= MAX_SHARDS {
            let text =
                format!("this daemon serves {MAX_SHARDS} users at most: start one daemon per user");
            return Err(refuse(libc::EUSERS, text));
        }
        let failed = refused_by_kernel("no engine for this user");
        let wire = self.first.ask(|answer| Message::AddShard(number, answer));
        let wire = wire.map_err(engine_gone)?.map_err(&failed)?;
        let engine = EngineConfig { shard: number, ..self.engine };
        let (shard, thread) = start(&self.config, engine, Port::Shard(Box::new(wire)), Some(user))
            .map_err(&failed)?;
        tracing::info!("engine {number} serves user {}", user.0);
        if let Some(change) = &shards.network {
            shard.tell(Message::Network(change.clone()));
        }
        shards.threads.push(thread);
        shards.others.insert(user, shard.clone());
        Ok(shard)
    }

    /// The shard that has the wire.
    pub(crate) fn first(&self) -> &ShardHandle {
        &self.first
    }

    /// The network changed.
    pub(crate) fn follow(&self, change: Change) {
        self.lock().network = Some(change.clone());
        self.tell_all(|| Message::Network(change.clone()));
    }

    fn all(&self) -> Vec<ShardHandle> {
        let shards = self.lock();
        std::iter::once(&self.first).chain(shards.others.values()).cloned().collect()
    }

    /// Tells every shard.
    fn tell_all(&self, message: impl Fn() -> Message) {
        self.all().iter().for_each(|shard| shard.tell(message()));
    }

    /// Asks every shard; the answers of those that are alive.
    pub(crate) fn ask_all<T>(&self, message: impl Fn(Sender<T>) -> Message) -> Vec<T> {
        self.all().iter().filter_map(|shard| shard.ask(&message).ok()).collect()
    }

    /// Ends all shards.
    pub(crate) fn stop(&self) {
        self.tell_all(|| Message::Stop);
        let threads = std::mem::take(&mut self.lock().threads);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("an engine's thread has panicked");
            }
        }
    }
}

/// Starts a shard that acts as `user`.
fn start(
    config: &Config,
    engine: EngineConfig,
    port: Port,
    user: Option<User>,
) -> io::Result<(ShardHandle, JoinHandle<()>)> {
    let (handle, inbox) = channel()?;
    let config = config.clone();
    let (report, ready) = crossbeam_channel::bounded(1);
    let name = format!("rnic-engine-{}", engine.shard);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let identity = user.map_or(Ok(()), system::become_user);
        match identity.and_then(|()| Shard::new(engine, port, inbox, &config)) {
            Ok(shard) => {
                let _ = report.send(Ok(()));
                shard.run();
            }
            Err(error) => {
                let _ = report.send(Err(error));
            }
        }
    })?;
    ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
    Ok((handle, thread))
}

fn engine_gone<T>(_: T) -> Refused {
    refuse(libc::EIO, "the engine has stopped")
}
