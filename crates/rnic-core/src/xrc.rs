//! XRC domains, the clients that take part in them, and what belongs to a domain.
//!
//! A domain is shared by the clients that opened it: each may make shared receive queues in it, and
//! make and open its targets. Objects that belong to one client (openings, references, shared
//! receive queues) go with that client. A target goes with the last reference to it, and a domain
//! with its last opening.

use crate::command::{
    ClientId, CommandError, Errno, NewXrcSrq, XrcFile, XrcOpen, invalid, no_such, refuse,
};
use crate::config::EngineConfig;
use crate::owned::{Owned, OwnedSlab};
use crate::permutation::Permutation;
use crate::qpn::MAX_QPS;
use crate::secret::Purpose;
use crate::slab::{SLOT_BITS, Slab};
use crate::srq::XrcSrq;
use std::collections::{BTreeMap, BTreeSet};

/// Bits of a shared receive queue's number that name its slot; the other eight tell how often the
/// slot was used again.
const SLOT_BITS_OF_NUMBER: u32 = 16;
/// Shared receive queues that numbers can name.
pub(crate) const MAX_SRQS: usize = 1 << SLOT_BITS_OF_NUMBER;

/// Handles with this bit are references to targets: no queue pair has a slot so high.
const IS_REFERENCE: u32 = 1 << (SLOT_BITS - 1);
const _: () = assert!(MAX_QPS <= IS_REFERENCE as usize);

const NO_XRCD: CommandError = no_such("no such XRC domain");

/// A domain.
#[derive(Debug)]
struct Domain {
    /// What stands for it.
    file: Option<XrcFile>,
    openings: u32,
    /// Handles of its targets.
    targets: BTreeSet<u32>,
}

/// A client takes part in a domain.
#[derive(Clone, Copy, Debug)]
struct Opening {
    client: ClientId,
    domain: u32,
    /// Shared receive queues and references of this client.
    users: u32,
}

impl Owned for Opening {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

/// A client refers to a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) client: ClientId,
    opening: u32,
    /// The target's own handle.
    pub(crate) qp: u32,
    pub(crate) async_events: u64,
}

impl Owned for Reference {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

/// All of XRC but the targets and the shared receive queues themselves.
#[derive(Debug)]
pub(crate) struct Xrc {
    domains: Slab<Domain>,
    /// Those that files stand for.
    by_file: BTreeMap<XrcFile, u32>,
    openings: OwnedSlab<Opening>,
    references: OwnedSlab<Reference>,
    numbers: Permutation<12, 12>,
}

impl Xrc {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let max = config.limits.max_pd as usize;
        Self {
            domains: Slab::new(max),
            by_file: BTreeMap::new(),
            openings: OwnedSlab::new(max),
            references: OwnedSlab::new((config.limits.max_qp as usize).min(MAX_QPS)),
            numbers: Permutation::new(config.secret, Purpose::SrqNumbers),
        }
    }

    /// The slot of the shared receive queue that has this number, if any has it.
    pub(crate) fn slot_of(&self, number: u32) -> Option<usize> {
        let slot = self.numbers.undo(number) & (MAX_SRQS as u32 - 1);
        usize::try_from(slot).ok()
    }

    /// The number of the shared receive queue with this handle. 0 means none, so that the slot has
    /// that of another generation then.
    fn number_of(&self, srq: u32) -> u32 {
        let slot = srq & (MAX_SRQS as u32 - 1);
        let number =
            |generation: u32| self.numbers.apply((generation & 0xff) << SLOT_BITS_OF_NUMBER | slot);
        let generation = srq >> SLOT_BITS;
        match number(generation) {
            0 => number(generation + 1),
            number => number,
        }
    }

    /// A reference by its handle.
    pub(crate) fn reference_mut(&mut self, handle: u32) -> Option<&mut Reference> {
        self.references.get_mut(handle & !IS_REFERENCE)
    }

    /// The target's own handle, where this is a reference to it.
    #[cfg(feature = "leap")]
    pub(crate) fn referred(&self, handle: u32) -> Option<u32> {
        let is_reference = handle & IS_REFERENCE != 0;
        is_reference.then(|| self.references.get(handle & !IS_REFERENCE)).flatten().map(|it| it.qp)
    }

    /// The target's own handle, where a client has this reference to it; `None` where the handle
    /// is not one of a reference.
    pub(crate) fn target_of(
        &self,
        client: ClientId,
        handle: u32,
    ) -> Option<Result<u32, CommandError>> {
        if handle & IS_REFERENCE == 0 {
            return None;
        }
        let found = self.references.get(handle & !IS_REFERENCE);
        // Rule: OwnReferences
        let own = found.filter(|found| found.client == client);
        Some(own.map(|own| own.qp).ok_or(no_such("no such queue pair")))
    }

    fn owned(&mut self, client: ClientId, xrcd: u32) -> Result<&mut Opening, CommandError> {
        // Rule: OwnDomains
        self.openings.get_mut(xrcd).filter(|opening| opening.client == client).ok_or(NO_XRCD)
    }

    /// What a shared receive queue of a domain has besides. Its opening counts it from now on.
    pub(crate) fn add_srq(
        &mut self,
        client: ClientId,
        NewXrcSrq { xrcd, cq }: NewXrcSrq,
        handle: u32,
    ) -> Result<XrcSrq, CommandError> {
        let number = self.number_of(handle);
        let opening = self.owned(client, xrcd)?;
        opening.users += 1;
        Ok(XrcSrq { handle, number, domain: opening.domain, opening: xrcd, cq })
    }

    /// A shared receive queue or a reference is gone.
    pub(crate) fn release(&mut self, opening: u32) {
        if let Some(opening) = self.openings.get_mut(opening) {
            opening.users -= 1;
        }
    }

    /// The domain that a client opened by this handle.
    pub(crate) fn domain_of(&mut self, client: ClientId, xrcd: u32) -> Result<u32, CommandError> {
        self.owned(client, xrcd).map(|opening| opening.domain)
    }

    /// A client makes or joins a domain, and knows it by the handle from then on.
    pub(crate) fn open(&mut self, client: ClientId, how: XrcOpen) -> Result<u32, CommandError> {
        // Rule: DomainOfFile
        let there = how.file.and_then(|file| self.by_file.get(&file).copied());
        let domain = match there {
            None if how.file.is_some() && !how.create => {
                return Err(refuse(Errno::Again, "no XRC domain has this file yet"));
            }
            Some(_) if how.exclusive => {
                return Err(invalid("an XRC domain has this file already"));
            }
            Some(domain) => domain,
            None => {
                let domain = Domain { file: how.file, openings: 0, targets: BTreeSet::new() };
                let handle = self.domains.insert(domain).map_err(|_| full())?;
                self.by_file.extend(how.file.map(|file| (file, handle)));
                handle
            }
        };
        let opening = Opening { client, domain, users: 0 };
        let opened = self.openings.insert(opening).map_err(|_| full());
        if opened.is_ok()
            && let Some(domain) = self.domains.get_mut(domain)
        {
            domain.openings += 1;
        }
        self.forget_if_unused(domain);
        opened
    }

    /// A client leaves a domain.
    pub(crate) fn close(&mut self, client: ClientId, xrcd: u32) -> Result<(), CommandError> {
        // Rule: OpeningInUse
        if self.owned(client, xrcd)?.users > 0 {
            let text = "shared receive queues or queue pairs of this client are in the domain";
            return Err(refuse(Errno::Busy, text));
        }
        self.leave(xrcd);
        Ok(())
    }

    fn leave(&mut self, opening: u32) {
        let Some(Opening { domain, .. }) = self.openings.remove(opening) else { return };
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.openings -= 1;
        }
        self.forget_if_unused(domain);
    }

    fn forget_if_unused(&mut self, domain: u32) {
        let Some(found) = self.domains.get(domain).filter(|domain| domain.openings == 0) else {
            return;
        };
        if let Some(file) = found.file {
            self.by_file.remove(&file);
        }
        self.domains.remove(domain);
    }

    /// The client takes part in no domain any more. What it had there is gone already.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        self.openings.of(client).into_iter().for_each(|opening| self.leave(opening));
    }

    /// A target was made in a domain.
    pub(crate) fn add_target(&mut self, domain: u32, qp: u32) {
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.targets.insert(qp);
        }
    }

    /// A target of a domain is gone.
    pub(crate) fn remove_target(&mut self, domain: u32, qp: u32) {
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.targets.remove(&qp);
        }
    }

    /// The targets of a domain.
    pub(crate) fn targets_of(&self, domain: u32) -> impl Iterator<Item = u32> {
        self.domains.get(domain).into_iter().flat_map(|domain| domain.targets.iter().copied())
    }

    /// The references of a client.
    pub(crate) fn references_of(&self, client: ClientId) -> Vec<u32> {
        let own = self.references.of(client).into_iter();
        own.map(|handle| handle | IS_REFERENCE).collect()
    }

    /// A further reference to a target, by that target's own handle.
    pub(crate) fn refer(
        &mut self,
        client: ClientId,
        xrcd: u32,
        qp: u32,
    ) -> Result<u32, CommandError> {
        self.owned(client, xrcd)?;
        let reference = Reference { client, opening: xrcd, qp, async_events: 0 };
        let full = refuse(Errno::NoMem, "the device has no free queue pair");
        let handle = self.references.insert(reference).map_err(|_| full)?;
        self.owned(client, xrcd)?.users += 1;
        Ok(handle | IS_REFERENCE)
    }

    /// Takes a reference away.
    pub(crate) fn unrefer(&mut self, handle: u32) -> Option<Reference> {
        let gone = self.references.remove(handle & !IS_REFERENCE)?;
        self.release(gone.opening);
        Some(gone)
    }
}

fn full() -> CommandError {
    refuse(Errno::NoMem, "the device has no free XRC domain")
}

#[cfg(test)]
mod tests {
    use super::{MAX_SRQS, SLOT_BITS, Xrc};
    use crate::config::EngineConfig;
    use std::collections::HashSet;

    #[test]
    fn every_shared_receive_queue_is_found_by_its_number() {
        let xrc = Xrc::new(&EngineConfig::new([5, 6]));
        let last = MAX_SRQS as u32 - 1;
        let mut numbers = HashSet::new();
        for slot in (0..100).chain([last]) {
            for generation in 0..256 {
                let number = xrc.number_of(generation << SLOT_BITS | slot);
                assert!(number > 0 && number < 1 << 24);
                assert_eq!(xrc.slot_of(number), Some(slot as usize));
                numbers.insert(number);
            }
        }
        // The one that would be 0 has that of another generation.
        assert!(numbers.len() >= 101 * 256 - 1);
    }

    #[test]
    fn numbers_of_neighbours_are_unrelated() {
        let xrc = Xrc::new(&EngineConfig::new([5, 6]));
        let step = |slot| xrc.number_of(slot + 1).wrapping_sub(xrc.number_of(slot));
        let steps: HashSet<u32> = (0..64).map(step).collect();
        assert!(steps.len() > 60, "the differences repeat: {steps:?}");
    }
}
