//! What `rnic status|qp|mr|cq|counters` of root show: of the daemon's engine and of those of all
//! users, which are asked at once and have one deadline.

use super::engine::EngineProcess;
use super::protocol::{Inquiry, Told};
use super::{NUMBERS, Users, first_number};
use rnic_core::qpn::MAX_SHARDS;
use rnic_core::slab::SLOT_BITS;
use rnic_host::inspect::{Found, Kind, Numbers, Place, Question, add_up};
use rnic_host::report::{self, Object, Totals};
use rnic_host::server::{Engines, Overview};
use rnic_host::shard::ShardStopped;
use rnic_host::wire::{CaptureTap, Fault, FaultChange};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Users {
    /// What all processes answer until then.
    fn ask_all<const N: usize>(
        &self,
        inquiries: [Inquiry; N],
        deadline: Instant,
    ) -> Vec<(Arc<EngineProcess>, [Option<Told>; N])> {
        let ask = |engine: Arc<EngineProcess>| (inquiries.map(|one| engine.ask(one)), engine);
        let asked: Vec<_> = self.all().into_iter().map(ask).collect();
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
        let told = self.ask_all([engine[0], engine[1], Inquiry::Sessions], deadline);
        let mut totals = match own.until(deadline) {
            Some(Found::Totals(totals)) => totals,
            _ => Totals::default(),
        };
        let users = told.into_iter().map(|(engine, [of_engine, counted, sessions])| {
            if let Some(Told::Engine(Some(Found::Totals(one)))) = of_engine {
                totals.qps = totals.qps.saturating_add(one.qps);
                totals.cqs = totals.cqs.saturating_add(one.cqs);
                totals.mrs = totals.mrs.saturating_add(one.mrs);
            }
            let counted = match counted {
                Some(Told::Engine(Some(Found::Counters(counted)))) => Some(counted),
                _ => None,
            };
            let sessions = match sessions {
                Some(Told::Sessions(sessions)) => Some(sessions),
                _ => None,
            };
            let entry = engine.report(sessions.as_ref().map(Vec::len), counted.as_ref());
            (entry, sessions_of(&engine, sessions.unwrap_or_default()))
        });
        let users = users.collect();
        Overview { totals, users }
    }

    fn counters(&self) -> Numbers {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let own = self.parts.own.ask(Question::Counters);
        let told = self.ask_all([Inquiry::Engine(Question::Counters)], deadline).into_iter();
        let theirs = told.filter_map(|(_, told)| match told {
            [Some(Told::Engine(Some(Found::Counters(counted))))] => Some(counted),
            _ => None,
        });
        let past = self.table().past.clone();
        let mut others = add_up(theirs.chain([past]));
        let own = match own.until(deadline) {
            Some(Found::Counters(counted)) => counted,
            _ => Numbers::new(),
        };
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

    fn capture(&self, tap: &CaptureTap) {
        self.parts.own.capture(tap);
        self.all().iter().for_each(|engine| self.show(engine, tap));
        self.table().taps.push(tap.clone());
    }

    fn change_faults(&self, change: FaultChange) -> Result<Option<Vec<Fault>>, ShardStopped> {
        let found = self.parts.own.change_faults(change.clone())?;
        if let (Some(faults), Some(_)) = (&found, &self.parts.shared_port) {
            self.table().faults.clone_from(faults);
            if !matches!(change, FaultChange::Keep) {
                self.all().iter().for_each(|engine| engine.disturb(change.clone()));
            }
        }
        Ok(found)
    }
}

/// The sessions that a process told of, without what it invented.
fn sessions_of(engine: &EngineProcess, mut told: Vec<report::Session>) -> Vec<report::Session> {
    let own = clients_of(engine.number());
    told.retain(|session| own.contains(&session.session));
    told.truncate(MAX_SESSIONS);
    for session in &mut told {
        // Whose they are is known here.
        session.uid = engine.user().0;
        session.client = session.client.filter(|client| own.contains(client));
        let name = session.command.take().unwrap_or_default();
        session.command = Some(name.chars().take(MAX_NAME).collect());
    }
    told
}

/// The objects that a process told of, from a place on, without what it invented: what would be
/// taken for another user's, is too long to be shown, or was not asked for.
pub(super) fn believed(kind: Kind, from: Place, told: Vec<(u32, Object)>) -> Vec<(u32, Object)> {
    let own = clients_of(from.shard);
    let told = told.into_iter().filter(|(slot, object)| {
        let fits = *slot >= from.slot && is_slot(*slot) && object.kind() == kind;
        let is_short = || object.to_json().is_ok_and(|text| text.len() <= LONGEST);
        fits && own.contains(&object.client()) && is_short()
    });
    told.collect()
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
