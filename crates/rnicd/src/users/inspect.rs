//! What `rnic status|qp|mr|cq|counters` of root show: of the daemon's engine and of those of all
//! users, which are asked at once and have one deadline.

use super::Users;
use super::engine::EngineProcess;
use rnic_core::qpn::{MAX_SHARDS, shard_of};
use rnic_core::slab::SLOT_BITS;
use rnic_host::inspect::{Found, Kind, Numbers, Place, Question, add_up};
use rnic_host::observe::Watcher;
use rnic_host::report::{self, EnginePlace, Object, Totals};
use rnic_host::satellite::protocol::{Inquiry, Told, first_number};
use rnic_host::server::{Engines, NUMBERS, Overview};
use rnic_host::shard::{FaultsChanged, ShardStopped};
use rnic_host::wire::{Fault, FaultChange, MAX_FAULTS};
use roce_wire::Qpn;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

impl Users {
    /// What all processes answer until then.
    fn ask_all<const N: usize>(
        &self,
        inquiries: [Inquiry; N],
        deadline: Instant,
    ) -> Vec<(Arc<EngineProcess>, [Option<Told>; N])> {
        Self::ask_each(self.all(), inquiries, deadline)
    }

    /// What these answer until then.
    fn ask_each<const N: usize>(
        engines: Vec<Arc<EngineProcess>>,
        inquiries: [Inquiry; N],
        deadline: Instant,
    ) -> Vec<(Arc<EngineProcess>, [Option<Told>; N])> {
        let ask = |engine: Arc<EngineProcess>| (inquiries.map(|one| engine.ask(one)), engine);
        let asked: Vec<_> = engines.into_iter().map(ask).collect();
        let told = asked.into_iter().map(|(answers, engine)| {
            let told = std::array::from_fn(|at| {
                let told = answers[at].as_ref()?.recv_deadline(deadline);
                told.inspect_err(|_| engine.is_late(inquiries[at])).ok()
            });
            (engine, told)
        });
        told.collect()
    }

    /// A few objects of the daemon's own engine. Where a list begins it is found out meanwhile
    /// which processes do not answer.
    fn own_objects(&self, kind: Kind, slot: u32) -> (Vec<(u32, Object)>, Option<u32>) {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let own = self.parts.own.ask(Question::Objects(kind, slot));
        if slot == 0 {
            self.all().iter().for_each(|engine| engine.begin_list());
            self.ask_all([Inquiry::Engine(Question::Totals)], deadline);
        }
        match own.until(deadline) {
            Some(Found::Objects { objects, next }) => (objects, next),
            _ => (Vec::new(), None),
        }
    }

    /// A few objects of a user's engine.
    fn objects_of(&self, kind: Kind, from: Place) -> (Vec<(u32, Object)>, Option<u32>) {
        let engine = self.all().into_iter().find(|engine| engine.number() == from.shard);
        let inquiry = Inquiry::Engine(Question::Objects(kind, from.slot));
        match engine.and_then(|engine| engine.look(inquiry, ANSWER_PATIENCE)) {
            Some(Told::Engine(Some(Found::Objects { objects, next }))) => {
                // A process that answers anything else must not keep the question going round, or
                // lead it past other users.
                let next = next.filter(|slot| *slot > from.slot && is_slot(*slot));
                (believed(kind, from, objects), next)
            }
            _ => (Vec::new(), None),
        }
    }
}

impl Engines for Users {
    fn overview(&self) -> Overview {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let own = self.parts.own.ask(Question::Totals);
        let engine = [Question::Totals, Question::Counters].map(Inquiry::Engine);
        // No session has this number: that there is an answer is what counts.
        let here = Inquiry::Sessions(u32::MAX);
        let told = self.ask_all([engine[0], engine[1], here], deadline);
        let mut totals = match own.until(deadline) {
            Some(Found::Totals(totals)) => totals,
            _ => Totals::default(),
        };
        let users = told.into_iter().map(|(engine, [of_engine, counted, here])| {
            if let Some(Told::Engine(Some(Found::Totals(one)))) = of_engine {
                totals.qps = totals.qps.saturating_add(one.qps);
                totals.cqs = totals.cqs.saturating_add(one.cqs);
                totals.mrs = totals.mrs.saturating_add(one.mrs);
            }
            let counted = match counted {
                Some(Told::Engine(Some(Found::Counters(counted)))) => Some(counted),
                _ => None,
            };
            engine.report(matches!(here, Some(Told::Sessions(_))), counted.as_ref())
        });
        let users = users.collect();
        Overview { totals, users }
    }

    /// Of each user no more than so many, which all are asked for at once.
    fn sessions(&self, from: u32) -> Vec<report::Session> {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let mut engines = self.all();
        engines.retain(|engine| from < clients_of(engine.number()).end);
        engines.sort_by_key(|engine| engine.number());
        let told = Self::ask_each(engines, [Inquiry::Sessions(from)], deadline);
        let sessions = told.into_iter().map(|(engine, told)| match told {
            [Some(Told::Sessions(sessions))] => sessions_of(&engine, from, sessions),
            _ => Vec::new(),
        });
        sessions.flatten().collect()
    }

    fn counters(&self) -> Numbers {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let own = self.parts.own.ask(Question::Counters);
        // Each engine is in one of the two, and will be added once, also if it ends meanwhile.
        let (engines, past) = self.table().all_that_counted();
        let told = Self::ask_each(engines, [Inquiry::Engine(Question::Counters)], deadline);
        let theirs = told.into_iter().map(|(engine, told)| match told {
            [Some(Told::Engine(Some(Found::Counters(counted))))] => counted,
            _ => engine.counted(deadline),
        });
        let mut others = add_up(theirs.chain([past]));
        let mut own = match own.until(deadline) {
            Some(Found::Counters(counted)) => counted,
            _ => Numbers::new(),
        };
        self.add_unserved(&mut own);
        // Names that no engine has are not shown.
        others.retain(|name, _| own.contains_key(name));
        add_up([own, others])
    }

    fn objects(&self, kind: Kind, from: Place) -> (Vec<(Place, Object)>, Option<Place>) {
        let (shard, own) = (from.shard, self.parts.own.number());
        let (objects, next) = match shard == own {
            true => self.own_objects(kind, from.slot),
            false => self.objects_of(kind, from),
        };
        let place = |slot| Place { shard, slot };
        let next_engine = Place { shard: shard.saturating_add(1), slot: 0 };
        let next_engine = Some(next_engine).filter(|next| next.shard < MAX_SHARDS);
        let objects = objects.into_iter().map(|(slot, object)| (place(slot), object));
        (objects.collect(), next.map(place).or(next_engine))
    }

    fn observe(&self, watcher: &Watcher) {
        self.parts.own.observe(watcher);
        let running = self.table().watch(watcher);
        running.iter().for_each(|engine| self.show(engine, watcher));
    }

    fn change_faults(&self, change: FaultChange) -> Result<FaultsChanged, ShardStopped> {
        // Processes get changes in the order in which the daemon's engine has made them.
        let order = self.changing_faults.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.parts.own.change_faults(change.clone())?;
        let (Ok(mut faults), Some(_)) = (found.clone(), &self.parts.shared_port) else {
            return Ok(found);
        };
        match change {
            FaultChange::Keep => {
                drop(order);
                self.add_strikes(&mut faults);
            }
            change => self.disturb_all(change, &faults),
        }
        Ok(Ok(faults))
    }
}

impl Users {
    /// Has all processes make a change to faults after which these are in force.
    pub(super) fn disturb_all(&self, change: FaultChange, faults: &[Fault]) {
        let change = match change {
            // Those that were added have numbers now.
            FaultChange::Add(more, seed) => {
                let first = faults.len().saturating_sub(more.len());
                FaultChange::Add(faults[first..].to_vec(), seed)
            }
            other => other,
        };
        let running = self.table().disturb(faults);
        running.iter().for_each(|engine| engine.disturb(change.clone()));
    }

    /// Adds attempts at sockets of satellites that failed to those at the daemon's own, which it
    /// has for the way outside or, beside a link of frames, for other engines of this host.
    pub(super) fn add_unserved(&self, own: &mut Numbers) {
        let names = ["link_bind_failed", "local_bind_failed"];
        if let Some((_, count)) = own.iter_mut().find(|(name, _)| names.contains(&name.as_ref())) {
            *count += self.unserved.load(Ordering::Relaxed);
        }
    }

    /// Adds what faults did to the packets of users.
    fn add_strikes(&self, faults: &mut [Fault]) {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        for (_, told) in self.ask_all([Inquiry::Engine(Question::Faults)], deadline) {
            let [Some(Told::Engine(Some(Found::Faults(counts))))] = told else { continue };
            for (number, counts) in counts.into_iter().take(MAX_FAULTS) {
                if let Some(fault) = faults.iter_mut().find(|fault| fault.number == number) {
                    fault.add_counts(counts);
                }
            }
        }
    }
}

/// The sessions that a process told of, from a number on, without what it invented.
fn sessions_of(
    engine: &EngineProcess,
    from: u32,
    mut told: Vec<report::Session>,
) -> Vec<report::Session> {
    let own = clients_of(engine.number());
    let mut least = from.max(own.start);
    told.retain(|session| {
        // A list that does not ascend could be asked for again and again.
        let fits = (least..own.end).contains(&session.session);
        if fits {
            least = session.session + 1;
        }
        fits
    });
    if engine.place() != EnginePlace::Daemon {
        told.truncate(MAX_SESSIONS);
    }
    for session in &mut told {
        // Whose they are is known here.
        session.uid = engine.user().0;
        session.client = session.client.filter(|client| own.contains(client));
        let name = session.command.take().unwrap_or_default();
        session.command = Some(report::shown(&name).chars().take(MAX_NAME).collect());
    }
    told
}

/// The objects that a process told of, from a place on, without what it invented: what would be
/// taken for another user's, would end the list early, is no text to be shown or too long for that,
/// or was not asked for.
pub(super) fn believed(kind: Kind, from: Place, told: Vec<(u32, Object)>) -> Vec<(u32, Object)> {
    let own = clients_of(from.shard);
    let mut least = from.slot;
    let told = told.into_iter().filter(|(slot, object)| {
        // A list that does not ascend could be asked for again and again.
        let fits = *slot >= least && is_slot(*slot) && object.kind() == kind;
        let is_own = own.contains(&object.client())
            && object.qpn().is_none_or(|qpn| shard_of(Qpn::new(qpn)) == from.shard);
        let is_good =
            fits && is_own && object.to_json().is_ok_and(|text| is_short_and_plain(&text));
        if is_good {
            least = slot + 1;
        }
        is_good
    });
    told.collect()
}

/// An engine's own words need no escapes, with which a text could command a terminal.
fn is_short_and_plain(json: &str) -> bool {
    json.len() <= LONGEST && json.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\')
}

/// The others would be read as places in another engine.
fn is_slot(slot: u32) -> bool {
    slot >> SLOT_BITS == 0
}

/// Numbers of sessions and clients in the engine process of a shard.
fn clients_of(shard: u8) -> Range<u32> {
    let first = first_number(shard);
    first..first + NUMBERS
}

/// Bytes of one object in a list: several times what an engine's take.
const LONGEST: usize = 4096;
/// Sessions of one user that are shown.
const MAX_SESSIONS: usize = 16;
/// Characters of a program's name that are shown, as the kernel keeps them.
const MAX_NAME: usize = 15;
/// How long engines have for an answer that is only displayed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
