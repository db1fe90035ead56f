//! All shards of a device.
//!
//! A shard serves clients of one user, and its thread carries that user's rights and no more: a
//! client may turn itself into a setuid program while its registrations live, and it is the kernel
//! that must then refuse to touch its memory. The first shard owns the wire; it serves the user
//! who comes first, and another one once it has no clients left, so that a single user never needs
//! a second shard. Every further one ends with its last client. A daemon that is not root has only
//! the first.
//!
//! An engine may be kept by its clients' memory for as long as they like. So nothing here waits for
//! one, but the end of the daemon, and that for a moment only.

use super::{Message, Shard, ShardHandle, ShardPort, channel};
use crate::inspect::{self, Found, Kind, Numbers, Object, Question};
use crate::refusal::{Refused, refuse, refused_by_kernel};
use crate::report::Totals;
use crate::settings::Settings;
use crate::system::{self, User};
use crate::thread::{self, STACK};
use crate::wire::{DeviceWire, Junction};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rnic_abi::os::Credentials;
use rnic_core::qpn::MAX_SHARDS;
use rnic_core::slab::SLOT_BITS;
use rnic_core::{EngineConfig, Secret};
use rnic_net::Change;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct ShardSet {
    /// The daemon is root. Sessions, which ask for shards, are not: they act as their clients.
    privileged: bool,
    engine: EngineConfig,
    groups: u32,
    first: ShardHandle,
    junction: Junction,
    shards: Mutex<Shards>,
    /// What engines that have ended had counted.
    past: Arc<Mutex<Numbers>>,
    /// Disconnected when no engine runs any more.
    ended: Receiver<()>,
}

struct Shards {
    /// Whom the first shard serves, and how many clients it has.
    first: Option<(User, usize)>,
    /// Further ones, by their number less one.
    others: [Option<Member>; MAX_SHARDS as usize - 1],
    /// Further shards started ever.
    started: u64,
    /// How the network is, for shards to come.
    network: Option<Change>,
    /// The thread that starts them; none at the daemon's end.
    starter: Option<Sender<Start>>,
}

struct Member {
    user: User,
    clients: usize,
    shard: ShardHandle,
}

/// A client's place at a shard; its clients must be gone when it is dropped.
pub struct ShardLease {
    shards: Arc<ShardSet>,
    user: User,
    shard: ShardHandle,
}

impl Deref for ShardLease {
    type Target = ShardHandle;

    fn deref(&self) -> &ShardHandle {
        &self.shard
    }
}

impl Drop for ShardLease {
    fn drop(&mut self) {
        self.shards.lock().leave(self.user);
    }
}

impl Shards {
    /// The shard of `user`, and how many clients it has.
    fn of(&mut self, user: User) -> Option<&mut Member> {
        self.others.iter_mut().flatten().find(|member| member.user == user)
    }

    /// One of its clients has gone.
    fn leave(&mut self, user: User) {
        if let Some((_, clients)) = self.first.as_mut().filter(|(first, _)| *first == user) {
            *clients -= 1;
            return;
        }
        let is_theirs = |member: &&mut Option<Member>| {
            member.as_ref().is_some_and(|member| member.user == user)
        };
        let Some(place) = self.others.iter_mut().find(is_theirs) else { return };
        if let Some(member) = place {
            member.clients -= 1;
            if member.clients == 0 {
                member.shard.tell(Message::Stop);
                *place = None;
            }
        }
    }

    /// How many shards serve groups of `uid`.
    fn groups_of(&self, uid: u32) -> usize {
        let others = self.others.iter().flatten().map(|member| member.user);
        let first = self.first.filter(|(_, clients)| *clients > 0).map(|(user, _)| user);
        others.chain(first).filter(|user| user.0 == uid).count()
    }

    /// A number that no shard has, not the one that was given back last: a new shard's QP numbers
    /// are those that the one before it had.
    fn vacant(&self) -> Option<usize> {
        let len = self.others.len();
        let start = usize::try_from(self.started).unwrap_or(0);
        (0..len).map(|step| start.wrapping_add(step) % len).find(|at| self.others[*at].is_none())
    }
}

impl ShardSet {
    /// Starts the first shard, on `wire`.
    ///
    /// # Errors
    /// When threads or descriptors are used up.
    pub fn start(
        settings: Settings,
        groups: u32,
        engine: EngineConfig,
        wire: DeviceWire,
    ) -> io::Result<Self> {
        let junction = wire.junction();
        let port = ShardPort::Device(Box::new(wire));
        let past = Arc::default();
        let (running, ended) = bounded(0);
        let (starter, starts) = bounded::<Start>(0);
        let make = Maker { settings, past: Arc::clone(&past), running };
        let first = make.start(EngineConfig { shard: 0, ..engine }, port, None, || ())?;
        // Sessions have their clients' rights and priority, which their engines must not inherit.
        thread::spawn("rnic-starter", STACK, move || {
            for Start { engine, port, user, at_end, answer } in starts {
                let _ = answer.send(make.start(engine, port, Some(user), at_end));
            }
        })?;
        let shards = Shards {
            first: None,
            others: [const { None }; MAX_SHARDS as usize - 1],
            started: 0,
            network: None,
            starter: Some(starter),
        };
        let privileged = rustix::process::geteuid().is_root();
        let shards = Mutex::new(shards);
        Ok(Self { privileged, engine, groups, first, junction, shards, past, ended })
    }

    fn lock(&self) -> MutexGuard<'_, Shards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client at the shard of its user, which is started when there is none.
    ///
    /// # Errors
    /// EUSERS when there are too many users, or one of them comes with too many groups.
    pub fn lease(self: &Arc<Self>, peer: &Credentials) -> Result<ShardLease, Refused> {
        let user = match peer.uid {
            0 => (0, 0),
            uid => (uid, peer.gid),
        };
        let shard = self.shard_of(user)?;
        Ok(ShardLease { shards: Arc::clone(self), user, shard })
    }

    fn shard_of(&self, user: User) -> Result<ShardHandle, Refused> {
        if !self.privileged {
            return Ok(self.first.clone());
        }
        let mut shards = self.lock();
        if let Some(member) = shards.of(user) {
            member.clients += 1;
            return Ok(member.shard.clone());
        }
        match &mut shards.first {
            Some((first, clients)) if *first == user => *clients += 1,
            Some((_, 1..)) => return self.add(&mut shards, user),
            _ => {
                // When that fails it refuses the client, which it hears of after this.
                self.first.tell(Message::ActAs(user));
                shards.first = Some((user, 1));
            }
        }
        Ok(self.first.clone())
    }

    fn add(&self, shards: &mut Shards, user: User) -> Result<ShardHandle, Refused> {
        if shards.groups_of(user.0) >= self.groups as usize {
            let text = format!(
                "the daemon serves {} groups of one user at a time (quota.groups)",
                self.groups
            );
            return Err(refuse(libc::EUSERS, text));
        }
        let Some(place) = shards.vacant() else {
            let text = format!("this daemon serves {MAX_SHARDS} users at a time: try again later");
            return Err(refuse(libc::EUSERS, text));
        };
        let failed = refused_by_kernel("no engine for this user");
        let number = u8::try_from(1 + place).unwrap_or(u8::MAX);
        let serial = shards.started;
        let (wire, branch, receiver) = self.junction.branch(serial).map_err(&failed)?;
        // Users must not be able to guess each other's keys, nor those of who had the number
        // before.
        let secret = Secret::new(system::random().map_err(&failed)?);
        let engine = EngineConfig { shard: number, secret, ..self.engine };
        let (answer, started) = bounded(1);
        let first = self.first.clone();
        let start = Start {
            engine,
            port: ShardPort::Shard(Box::new(wire)),
            user,
            at_end: Box::new(move || first.tell(Message::EndShard(serial))),
            answer,
        };
        // At the daemon's end the message is not taken, and no answer comes.
        if let Some(starter) = &shards.starter {
            let _ = starter.send(start);
        }
        // Not from an engine, but from a thread that becomes one and waits for no answer.
        let ends = io::Error::from(io::ErrorKind::BrokenPipe);
        let shard = started.recv().unwrap_or(Err(ends)).map_err(&failed)?;
        tracing::info!("engine {number} serves user {}", user.0);
        self.first.tell(Message::AddShard(number, branch, receiver));
        if let Some(change) = &shards.network {
            shard.tell(Message::Network(change.clone()));
        }
        shards.started += 1;
        shards.others[place] = Some(Member { user, clients: 1, shard: shard.clone() });
        Ok(shard)
    }

    /// The shard that has the wire.
    pub fn first(&self) -> &ShardHandle {
        &self.first
    }

    /// The network changed.
    pub fn follow(&self, change: Change) {
        self.lock().network = Some(change.clone());
        self.all().iter().for_each(|shard| shard.tell(Message::Network(change.clone())));
    }

    fn all(&self) -> Vec<ShardHandle> {
        let shards = self.lock();
        let others = shards.others.iter().flatten().map(|member| &member.shard);
        std::iter::once(&self.first).chain(others).cloned().collect()
    }

    /// How many objects all shards have.
    pub fn totals(&self) -> Totals {
        let found = self.answers(Question::Totals).into_iter().filter_map(|found| match found {
            Found::Totals(totals) => Some(totals),
            _ => None,
        });
        found.fold(Totals::default(), |sum, one| Totals {
            qps: sum.qps + one.qps,
            cqs: sum.cqs + one.cqs,
            mrs: sum.mrs + one.mrs,
        })
    }

    /// What all shards have counted, those that have ended too.
    pub fn counters(&self) -> Numbers {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = self.answers(Question::Counters).into_iter().filter_map(|found| match found {
            Found::Counters(counted) => Some(counted),
            _ => None,
        });
        inspect::add_up(found.chain([past]))
    }

    /// What all shards answer; those that do not within a second are left out.
    fn answers(&self, question: Question) -> Vec<Found> {
        let asked: Vec<_> = self.all().iter().map(|shard| ask(shard, question)).collect();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        asked.iter().filter_map(|answered| answered.recv_deadline(deadline).ok()).collect()
    }

    /// A few objects of a kind, with their places, and where to go on. A shard that does not answer
    /// within a second is left out.
    pub fn objects(&self, kind: Kind, from: Place) -> (Vec<(Place, Object)>, Option<Place>) {
        let Place { shard: number, slot } = from;
        let next_shard = Some(Place { shard: number.saturating_add(1), slot: 0 })
            .filter(|next| next.shard < MAX_SHARDS);
        let found = self
            .numbered(number)
            .map(|shard| ask(&shard, Question::Objects(kind, slot)).recv_timeout(ANSWER_PATIENCE));
        let Some(Ok(Found::Objects { objects, next })) = found else {
            return (Vec::new(), next_shard);
        };
        let place = |slot| Place { shard: number, slot };
        let objects = objects.into_iter().map(|object| (place(object.slot()), object)).collect();
        (objects, next.map(place).or(next_shard))
    }

    fn numbered(&self, number: u8) -> Option<ShardHandle> {
        let Some(other) = usize::from(number).checked_sub(1) else {
            return Some(self.first.clone());
        };
        let shards = self.lock();
        shards.others.get(other)?.as_ref().map(|member| member.shard.clone())
    }

    /// Ends all shards. One that does not end at once is left to the end of the process.
    pub fn stop(&self) {
        self.all().iter().for_each(|shard| shard.tell(Message::Stop));
        self.lock().starter = None;
        if self.ended.recv_timeout(STOP_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("an engine does not end: it waits for memory of a client");
        }
    }
}

fn ask(shard: &ShardHandle, question: Question) -> Receiver<Found> {
    let (answer, answered) = bounded(1);
    shard.tell(Message::Inspect(question, answer));
    answered
}

/// Where an object is among all of its kind: a number that orders them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    shard: u8,
    slot: u32,
}

impl From<Place> for u32 {
    fn from(place: Place) -> Self {
        Self::from(place.shard) << SLOT_BITS | place.slot
    }
}

impl From<u32> for Place {
    /// Of any number: one that is no object's place leads to none.
    fn from(number: u32) -> Self {
        let shard = u8::try_from(number >> SLOT_BITS).unwrap_or(u8::MAX);
        Self { shard, slot: number & ((1 << SLOT_BITS) - 1) }
    }
}

/// What the starter is asked for.
struct Start {
    engine: EngineConfig,
    port: ShardPort,
    user: User,
    at_end: Box<dyn FnOnce() + Send>,
    answer: Sender<io::Result<ShardHandle>>,
}

/// What every shard gets.
struct Maker {
    settings: Settings,
    past: Arc<Mutex<Numbers>>,
    /// Each thread holds a copy until its end.
    running: Sender<()>,
}

impl Maker {
    /// Starts a shard that acts as `user`. Calls `at_end` behind everything that it does.
    fn start(
        &self,
        engine: EngineConfig,
        port: ShardPort,
        user: Option<User>,
        at_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<ShardHandle> {
        let (handle, inbox) = channel()?;
        let settings = self.settings;
        let (past, running) = (Arc::clone(&self.past), self.running.clone());
        let (report, ready) = bounded(1);
        let name = format!("rnic-engine-{}", engine.shard);
        thread::spawn(&name, STACK, move || {
            let identity = user.map_or(Ok(()), system::become_user);
            match identity.and_then(|()| Shard::new(engine, port, inbox, &settings)) {
                Ok(shard) => {
                    let _ = report.send(Ok(()));
                    let counted = shard.run();
                    let mut past = past.lock().unwrap_or_else(PoisonError::into_inner);
                    *past = inspect::add_up([std::mem::take(&mut *past), counted]);
                    at_end();
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
            drop(running);
        })?;
        ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(handle)
    }
}

/// How long engines have for an answer that is only displayed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long engines have for their end.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
