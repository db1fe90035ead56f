//! Device contexts: their doorbells, and which of them are worth polling.
//!
//! A context that is inactive for long, because it neither rings nor receives and none of its
//! requests leave, is **parked**: its `need_wakeup` word stays set, so it writes its eventfd at the
//! next doorbell, and until it is active again it costs a turn nothing. The host that turns the
//! engine must look at those eventfds now and then, however busy it is.

use crate::command::{ClientId, CommandError, Errno};
use crate::time::Instant;
use rnic_abi::cpu_hints::CpuHints;
use rnic_abi::doorbell::{Doorbells, RecordIndex};

/// The queue that a doorbell record belongs to, with the slot of its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordOwner {
    /// The send queue of a QP.
    Sq(u32),
    /// The receive queue of a QP.
    Rq(u32),
    /// A shared receive queue. It is looked at when a message needs a WQE, never for its doorbell.
    Srq,
}

/// One device context.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    doorbells: Doorbells,
    /// By doorbell record.
    records: Vec<Option<RecordOwner>>,
    last_active: Instant,
    parked: bool,
}

/// All contexts, at stable slots.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    slots: Vec<Option<Client>>,
    /// Slots of the contexts that are polled.
    live: Vec<u32>,
    /// How many are parked.
    parked: usize,
    asleep: bool,
    /// How programs are asked to share CPUs.
    cpu_hints: CpuHints,
}

/// Level-2 words of one context that one turn follows: 64 queues each.
const DOORBELL_WORDS_PER_TURN: usize = 16;

impl Clients {
    pub(crate) fn add(
        &mut self,
        id: ClientId,
        doorbells: Doorbells,
        now: Instant,
    ) -> Result<(), CommandError> {
        if self.slot_of(id).is_some() {
            return Err(CommandError {
                errno: Errno::Invalid,
                reason: "the client exists already",
            });
        }
        doorbells.ask(self.cpu_hints);
        let client = Client { id, doorbells, records: Vec::new(), last_active: now, parked: false };
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = Some(client);
        self.live.push(u32::try_from(slot).unwrap_or(u32::MAX));
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let slot = self.slot_of(id)?;
        self.live.retain(|live| *live != slot);
        let client = self.slots.get_mut(slot as usize)?.take()?;
        self.parked -= usize::from(client.parked);
        Some(client)
    }

    /// Some contexts are not polled: only their eventfds tell that they ring.
    pub(crate) fn any_parked(&self) -> bool {
        self.parked > 0
    }

    /// Where a context is; control plane only.
    pub(crate) fn slot_of(&self, id: ClientId) -> Option<u32> {
        let slot = self.slots.iter().position(|c| c.as_ref().is_some_and(|c| c.id == id))?;
        u32::try_from(slot).ok()
    }

    /// From now on a doorbell of `record` means the queue of `owner`, which begins at index 0;
    /// `None` forgets it.
    pub(crate) fn bind(&mut self, slot: u32, record: RecordIndex, owner: Option<RecordOwner>) {
        let Some(Some(client)) = self.slots.get_mut(slot as usize) else { return };
        let at = record.value() as usize;
        if client.records.len() <= at {
            client.records.resize(at + 1, None);
        }
        client.records[at] = owner;
        client.doorbells.reset(record);
    }

    /// The queue of `record` starts over at index 0: what was posted is forgotten.
    pub(crate) fn start_over(&self, slot: u32, record: RecordIndex) {
        if let Some(Some(client)) = self.slots.get(slot as usize) {
            client.doorbells.reset(record);
        }
    }

    /// Is `record` free to be given to a queue?
    pub(crate) fn is_unbound(&self, slot: u32, record: RecordIndex) -> bool {
        let Some(Some(client)) = self.slots.get(slot as usize) else { return false };
        client.records.get(record.value() as usize).is_none_or(Option::is_none)
    }

    /// The producer index last published for `record`.
    #[inline]
    pub(crate) fn producer(&self, slot: u32, record: RecordIndex) -> u32 {
        match self.slots.get(slot as usize) {
            Some(Some(client)) => client.doorbells.producer(record),
            _ => 0,
        }
    }

    /// Visits the queue of every doorbell that rang. Returns true when more are waiting.
    pub(crate) fn take_doorbells(
        &mut self,
        now: Instant,
        park_after: u64,
        mut visit: impl FnMut(RecordOwner),
    ) -> bool {
        let mut more = false;
        let mut i = 0;
        while let Some(slot) = self.live.get(i) {
            let Some(Some(client)) = self.slots.get_mut(*slot as usize) else {
                self.live.swap_remove(i);
                continue;
            };
            if client.doorbells.is_rung() {
                client.last_active = now;
                let records = &client.records;
                more |= client.doorbells.take(DOORBELL_WORDS_PER_TURN, |record| {
                    // A record that no queue has is a hostile or late doorbell: it means nothing.
                    if let Some(Some(owner)) = records.get(record.value() as usize) {
                        visit(*owner);
                    }
                });
            } else if now.since(client.last_active).as_nanos() > u128::from(park_after) {
                if client.doorbells.prepare_sleep() {
                    client.parked = true;
                    self.parked += 1;
                    self.live.swap_remove(i);
                    continue;
                }
                client.doorbells.awake();
            }
            i += 1;
        }
        more
    }

    /// This context rang while it was parked, received something, or requests of it left. Programs
    /// that only receive, or whose requests take long, wait for more without ever ringing.
    #[inline]
    pub(crate) fn note_activity(&mut self, slot: u32, now: Instant) {
        let Some(Some(client)) = self.slots.get_mut(slot as usize) else { return };
        client.last_active = now;
        if client.parked {
            self.unpark(slot);
        }
    }

    /// Polls a context again.
    #[cold]
    fn unpark(&mut self, slot: u32) {
        let Some(Some(client)) = self.slots.get_mut(slot as usize) else { return };
        client.parked = false;
        self.parked -= 1;
        self.live.push(slot);
        if !self.asleep {
            client.doorbells.awake();
        }
    }

    /// Asks every polled context to wake the engine. False when a doorbell is pending.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.asleep = true;
        let mut quiet = true;
        for slot in &self.live {
            if let Some(Some(client)) = self.slots.get(*slot as usize) {
                quiet &= client.doorbells.prepare_sleep();
            }
        }
        if !quiet {
            self.awake();
        }
        quiet
    }

    /// The polled contexts need not wake the engine any more.
    pub(crate) fn awake(&mut self) {
        if !std::mem::take(&mut self.asleep) {
            return;
        }
        for slot in &self.live {
            if let Some(Some(client)) = self.slots.get(*slot as usize) {
                client.doorbells.awake();
            }
        }
    }

    /// The polled contexts.
    fn polled(&self) -> impl Iterator<Item = &Client> {
        self.live.iter().filter_map(|slot| self.slots.get(*slot as usize)?.as_ref())
    }

    /// How many threads of polled contexts polled for nothing since the last call.
    pub(crate) fn take_pollers(&self) -> u32 {
        self.polled().map(|client| client.doorbells.take_pollers()).sum()
    }

    /// A CPU that programs of polled contexts run on: `stay` when that is one of them.
    pub(crate) fn program_cpu(&self, stay: Option<u32>) -> Option<u32> {
        let mut cpus = self.polled().filter_map(|client| client.doorbells.client_cpu());
        let first = cpus.next()?;
        if Some(first) == stay || cpus.any(|cpu| Some(cpu) == stay) { stay } else { Some(first) }
    }

    /// Asks the programs of all contexts to share CPUs like this.
    pub(crate) fn ask(&mut self, hints: CpuHints) {
        self.cpu_hints = hints;
        for client in self.iter() {
            client.doorbells.ask(hints);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::doorbell::{AREA_WORDS, Bell};
    use rnic_abi::words::Words;

    const PARK_AFTER: u64 = 1000;

    /// Contexts whose programs run on CPUs 0, 1 and so on.
    fn contexts(count: u32) -> (Clients, Vec<Bell>) {
        let mut clients = Clients::default();
        let bells = (0..count).map(|cpu| {
            let area = Words::heap(AREA_WORDS);
            let doorbells = Doorbells::new(area.clone()).unwrap();
            clients.add(ClientId(cpu), doorbells, Instant::ZERO).unwrap();
            let bell = Bell::new(area).unwrap();
            bell.publish_cpu(cpu);
            bell
        });
        let bells = bells.collect();
        (clients, bells)
    }

    fn look(clients: &mut Clients, nanos: u64) -> Instant {
        let now = Instant::from_nanos(nanos);
        clients.take_doorbells(now, PARK_AFTER, |_| ());
        now
    }

    /// 1 GiB of requests takes longer than a silent context is polled, and its program polls all
    /// the time.
    #[test]
    fn a_context_whose_requests_leave_is_followed_however_long_it_has_not_rung() {
        let (mut clients, _bells) = contexts(1);
        assert_eq!(clients.program_cpu(None), Some(0));
        let late = look(&mut clients, 2 * PARK_AFTER);
        assert!(clients.any_parked());
        assert_eq!(clients.program_cpu(Some(0)), None);
        clients.note_activity(0, late);
        assert!(!clients.any_parked());
        assert_eq!(clients.program_cpu(Some(0)), Some(0));
        look(&mut clients, 4 * PARK_AFTER);
        assert_eq!(clients.program_cpu(Some(0)), None);
    }

    /// The engine would go to and fro between the CPUs of two programs that are active by turns.
    #[test]
    fn the_engine_stays_with_one_of_two_contexts_that_do_not_ring() {
        let (mut clients, _bells) = contexts(2);
        for step in 1..20_u32 {
            let now = look(&mut clients, u64::from(step) * PARK_AFTER / 2);
            clients.note_activity(step % 2, now);
            assert_eq!(clients.program_cpu(Some(0)), Some(0));
        }
    }

    /// A context that receives rings seldom; when it does, the engine finds it in the next turn.
    #[test]
    fn a_parked_context_that_receives_need_not_wake_the_engine() {
        let (mut clients, bells) = contexts(1);
        let late = look(&mut clients, 2 * PARK_AFTER);
        let record = RecordIndex::new(0).unwrap();
        assert!(bells[0].ring(record, 1), "nothing else tells that it rang");
        clients.note_activity(0, late);
        clients.take_doorbells(late, PARK_AFTER, |_| ());
        assert!(!bells[0].ring(record, 2));
    }
}
