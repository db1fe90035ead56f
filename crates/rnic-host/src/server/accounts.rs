//! What each user makes the daemon hold, by user id and whatever number of sessions.
//!
//! Everything that a client causes to exist is taken here first, and given back when it is gone:
//! a [`Charge`] lives where the object lives.

use super::plane::Ledger;
use crate::quota::{Amounts, Limits, Resource};
use crate::refusal::{Refused, refuse};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The books of all users.
#[derive(Debug)]
pub struct Accounts {
    limits: Mutex<Limits>,
    /// Root and the daemon's own user.
    owners: [u32; 2],
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: Amounts,
    users: BTreeMap<u32, Amounts>,
}

/// One user's.
#[derive(Clone, Debug)]
pub(super) struct Account {
    ledger: Arc<dyn Ledger>,
    user: u32,
}

/// Something taken; dropped, it is given back.
#[derive(Debug)]
#[must_use = "it is given back at once"]
pub(super) struct Charge {
    account: Account,
    resource: Resource,
    amount: u64,
}

impl Accounts {
    /// With nothing taken, of a daemon that runs as user `own`.
    pub fn new(limits: Limits, own: u32) -> Arc<Self> {
        Arc::new(Self { limits: limits.into(), owners: [0, own], taken: Mutex::default() })
    }

    /// Has other limits from now on. What was taken stays; a user who has more than that gets
    /// nothing more.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Of this user, and of all together.
    fn limits_of(&self, user: u32) -> (Amounts, Amounts) {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        match self.owners.contains(&user) {
            true => (limits.owner, limits.all),
            false => (limits.user, limits.others),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for Accounts {
    fn limit(&self, user: u32, resource: Resource) -> u64 {
        self.limits_of(user).0[resource]
    }

    fn take(&self, user: u32, wanted: &[(Resource, u64)]) -> Result<(), Refused> {
        let (own, together) = self.limits_of(user);
        let mut taken = self.lock();
        let mut mine = taken.users.get(&user).copied().unwrap_or_default();
        let mut all = taken.all;
        for (resource, amount) in wanted.iter().flat_map(|(what, amount)| parts(*what, *amount)) {
            mine[resource] = mine[resource].saturating_add(amount);
            if mine[resource] > own[resource] {
                return Err(over_quota(user, resource, own[resource]));
            }
            all[resource] = all[resource].saturating_add(amount);
            if all[resource] > together[resource] {
                return Err(over_total(resource, together[resource]));
            }
        }
        taken.users.insert(user, mine);
        taken.all = all;
        Ok(())
    }

    fn give(&self, user: u32, resource: Resource, amount: u64) {
        let mut taken = self.lock();
        let taken = &mut *taken;
        let Some(mine) = taken.users.get_mut(&user) else { return };
        for (resource, amount) in parts(resource, amount) {
            mine[resource] -= amount;
            taken.all[resource] -= amount;
        }
        if *mine == Amounts::default() {
            taken.users.remove(&user);
        }
    }
}

/// Itself, and the memory that it takes.
fn parts(resource: Resource, amount: u64) -> [(Resource, u64); 2] {
    [(resource, amount), (Resource::RingBytes, amount.saturating_mul(resource.weight()))]
}

impl Account {
    /// Of a user, in these books.
    pub(super) fn new(ledger: Arc<dyn Ledger>, user: u32) -> Self {
        Self { ledger, user }
    }

    /// Takes so much.
    ///
    /// # Errors
    /// As [`Ledger::take`].
    pub(super) fn take(&self, resource: Resource, amount: u64) -> Result<Charge, Refused> {
        self.take_all([(resource, amount)]).map(|[charge]| charge)
    }

    /// Takes so much of each: all of it or nothing.
    ///
    /// # Errors
    /// As [`Ledger::take`].
    pub(super) fn take_all<const N: usize>(
        &self,
        wanted: [(Resource, u64); N],
    ) -> Result<[Charge; N], Refused> {
        self.ledger.take(self.user, &wanted)?;
        Ok(wanted.map(|(resource, amount)| Charge { account: self.clone(), resource, amount }))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Account { ledger, user } = &self.account;
        ledger.give(*user, self.resource, self.amount);
    }
}

fn over_quota(user: u32, resource: Resource, limit: u64) -> Refused {
    let key = resource.key();
    let text = format!("user {user} may have {limit} {} here (quota.{key})", words(resource));
    refuse(errno(resource), text)
}

fn over_total(resource: Resource, limit: u64) -> Refused {
    let key = resource.key();
    let text = format!("this daemon gives {limit} {} in all (total.{key})", words(resource));
    refuse(errno(resource), text)
}

fn errno(resource: Resource) -> i32 {
    match resource {
        Resource::Sessions => libc::EAGAIN,
        Resource::Descriptors => libc::EMFILE,
        _ => libc::ENOMEM,
    }
}

fn words(resource: Resource) -> &'static str {
    match resource {
        Resource::Sessions => "sessions",
        Resource::Descriptors => "descriptors of the daemon",
        Resource::Mappings => "mappings of the daemon",
        Resource::Qps => "queue pairs",
        Resource::Cqs => "completion queues",
        Resource::Mrs => "memory regions and windows",
        Resource::Pds => "protection domains",
        Resource::Ahs => "address handles",
        Resource::Channels => "completion channels",
        Resource::RegisteredBytes => "bytes registered",
        Resource::RingBytes => "bytes of the daemon's memory",
        Resource::SharedBytes => "bytes that the daemon maps",
        Resource::DeviceMemoryBytes => "bytes of device memory",
    }
}

#[cfg(test)]
impl Accounts {
    /// Of a daemon that refuses nothing below `ring_bytes`.
    pub(super) fn for_test(ring_bytes: u64) -> Arc<Self> {
        use crate::quota::{Machine, Section};
        let machine =
            Machine { memory: 1 << 40, descriptors: 1 << 20, tasks: 1 << 20, mappings: 1 << 20 };
        let quota = Section::from([(Resource::RingBytes, ring_bytes)]);
        Self::new(Limits::new(&quota, &Section::new(), &machine), 0)
    }

    pub(super) fn of(self: &Arc<Self>, user: u32) -> Account {
        Account::new(self.clone(), user)
    }

    /// What a user has.
    pub(super) fn taken(&self, user: u32, resource: Resource) -> u64 {
        self.lock().users.get(&user).map_or(0, |mine| mine[resource])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Machine, Section};

    const OWN: u32 = 7;

    fn accounts(quota: &[(Resource, u64)], total: &[(Resource, u64)]) -> Arc<Accounts> {
        let section = |pairs: &[_]| pairs.iter().copied().collect::<Section>();
        let machine =
            Machine { memory: 1 << 40, descriptors: 1 << 20, tasks: 1 << 20, mappings: 1 << 20 };
        Accounts::new(Limits::new(&section(quota), &section(total), &machine), OWN)
    }

    fn take_all(account: &Account, resource: Resource) -> Vec<Charge> {
        std::iter::from_fn(|| account.take(resource, 1).ok()).collect()
    }

    #[test]
    fn new_limits_hold_for_what_is_taken_next() {
        let accounts = accounts(&[(Resource::Qps, 5)], &[]);
        let account = accounts.of(1000);
        let held = account.take(Resource::Qps, 3).unwrap();
        let limits = |most| {
            let machine = Machine {
                memory: 1 << 40,
                descriptors: 1 << 20,
                tasks: 1 << 20,
                mappings: 1 << 20,
            };
            Limits::new(&Section::from([(Resource::Qps, most)]), &Section::new(), &machine)
        };
        accounts.set_limits(limits(2));
        assert_eq!(accounts.limit(1000, Resource::Qps), 2);
        assert!(account.take(Resource::Qps, 1).is_err());
        accounts.set_limits(limits(4));
        let _one = account.take(Resource::Qps, 1).unwrap();
        drop(held);
        let _three = account.take(Resource::Qps, 3).unwrap();
    }

    #[test]
    fn sessions_of_one_user_share_a_quota() {
        let accounts = accounts(&[(Resource::Qps, 5)], &[]);
        let (one, other) = (accounts.of(1000), accounts.of(1000));
        let held = one.take(Resource::Qps, 3).unwrap();
        let refusal = other.take(Resource::Qps, 3).unwrap_err();
        assert_eq!(refusal.errno, libc::ENOMEM);
        assert!(refusal.message.contains("quota.qps"), "{refusal}");
        let _more = other.take(Resource::Qps, 2).unwrap();
        // Another user has another.
        let _theirs = accounts.of(1001).take(Resource::Qps, 5).unwrap();
        drop(held);
        let _again = other.take(Resource::Qps, 3).unwrap();
    }

    #[test]
    fn objects_take_memory_of_the_daemon() {
        let weight = Resource::Qps.weight();
        let accounts = accounts(&[(Resource::RingBytes, 3 * weight)], &[]);
        let user = accounts.of(1000);
        let _rings = user.take(Resource::RingBytes, weight).unwrap();
        let qps = take_all(&user, Resource::Qps);
        assert_eq!(qps.len(), 2);
        drop(qps);
        assert_eq!(accounts.taken(1000, Resource::RingBytes), weight);
    }

    #[test]
    fn a_part_of_everything_is_left_for_root_and_the_daemons_user() {
        let quota = (Resource::Sessions, 1000);
        let accounts = accounts(&[quota], &[(Resource::Sessions, 80)]);
        let others: Vec<_> = (1000..1009)
            .flat_map(|user| take_all(&accounts.of(user), Resource::Sessions))
            .collect();
        assert_eq!(others.len(), 70);
        let refusal = accounts.of(1010).take(Resource::Sessions, 1).unwrap_err();
        assert_eq!(refusal.errno, libc::EAGAIN);
        assert!(refusal.message.contains("total.sessions"), "{refusal}");
        let root = accounts.of(0).take(Resource::Sessions, 4).unwrap();
        let own = take_all(&accounts.of(OWN), Resource::Sessions);
        assert_eq!(own.len(), 6);
        drop((root, own, others));
        assert_eq!(accounts.lock().all, Amounts::default());
        assert!(accounts.lock().users.is_empty());
    }

    #[test]
    fn amounts_that_overflow_are_refused() {
        let accounts = accounts(&[], &[]);
        let user = accounts.of(0);
        let _one = user.take(Resource::RegisteredBytes, 1).unwrap();
        assert!(user.take(Resource::RegisteredBytes, u64::MAX).is_err());
        assert!(user.take(Resource::Qps, u64::MAX).is_err());
    }
}
