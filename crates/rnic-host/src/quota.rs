//! How much one user, and all users together, may make the daemon hold.
//!
//! Limits that the file does not set are derived from the daemon's own ([`Machine`]), so that users
//! who use up everything they may have neither get the daemon killed by the OOM killer nor leave it
//! without a descriptor for the next client.

mod machine;

pub use machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// Something that the daemon holds for its clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Connections to the control socket; each has a thread.
    Sessions,
    /// Open descriptors of the daemon.
    Descriptors,
    /// Mappings of the daemon's address space.
    Mappings,
    /// Queue pairs.
    Qps,
    /// Completion queues.
    Cqs,
    /// Memory regions.
    Mrs,
    /// Protection domains.
    Pds,
    /// Completion channels.
    Channels,
    /// Address handles.
    Ahs,
    /// Bytes registered, all regions together.
    RegisteredBytes,
    /// Bytes of the daemon's memory: queues, doorbells, and what it keeps of each object.
    RingBytes,
    /// Bytes of registered memory that the daemon maps: where pages are missing, they become the
    /// daemon's own. 0 refuses to map any.
    SharedBytes,
    /// Bytes of device memory.
    DeviceMemoryBytes,
}

impl Resource {
    /// All there are.
    pub const ALL: [Self; 13] = [
        Self::Sessions,
        Self::Descriptors,
        Self::Mappings,
        Self::Qps,
        Self::Cqs,
        Self::Mrs,
        Self::Pds,
        Self::Channels,
        Self::Ahs,
        Self::RegisteredBytes,
        Self::RingBytes,
        Self::SharedBytes,
        Self::DeviceMemoryBytes,
    ];

    /// Its key in the configuration file.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Descriptors => "descriptors",
            Self::Mappings => "mappings",
            Self::Qps => "qps",
            Self::Cqs => "cqs",
            Self::Mrs => "mrs",
            Self::Pds => "pds",
            Self::Channels => "channels",
            Self::Ahs => "ahs",
            Self::RegisteredBytes => "registered-bytes",
            Self::RingBytes => "ring-bytes",
            Self::SharedBytes => "shared-bytes",
            Self::DeviceMemoryBytes => "device-memory-bytes",
        }
    }

    /// [`RingBytes`](Self::RingBytes) that one of them costs besides its queues: about what the
    /// resident memory of a daemon grows by.
    #[must_use]
    pub const fn weight(self) -> u64 {
        match self {
            Self::Sessions => 128 << 10,
            Self::Qps => 8 << 10,
            Self::Channels => 4 << 10,
            Self::Cqs | Self::Mrs => 1 << 10,
            Self::Pds => 512,
            Self::Ahs => 256,
            Self::DeviceMemoryBytes => 1,
            _ => 0,
        }
    }
}

/// So much of each resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Amounts([u64; Resource::ALL.len()]);

impl Index<Resource> for Amounts {
    type Output = u64;

    fn index(&self, resource: Resource) -> &u64 {
        &self.0[resource as usize]
    }
}

impl IndexMut<Resource> for Amounts {
    fn index_mut(&mut self, resource: Resource) -> &mut u64 {
        &mut self.0[resource as usize]
    }
}

impl Amounts {
    fn of(amount: impl Fn(Resource) -> u64) -> Self {
        Self(Resource::ALL.map(amount))
    }
}

/// The `[total]` section of the configuration file.
pub type Section = BTreeMap<Resource, u64>;

/// The `[quota]` section.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct UserSection {
    /// Groups that the clients of one user may be of at the same time.
    pub groups: Option<u32>,
    #[serde(flatten)]
    pub limits: Section,
}

/// Everything decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of one user, all of that user's clients together.
    pub user: Amounts,
    /// Of root and of the daemon's own user, each of whom can end the daemon anyway: the limits
    /// that the file sets, else those of all users together.
    pub owner: Amounts,
    /// Of all users together.
    pub all: Amounts,
    /// Of all users together but root and the daemon's own: a part stays for these two, so that
    /// they can always connect.
    pub others: Amounts,
}

impl Limits {
    /// What the file says, and what follows from the machine where it says nothing.
    #[must_use]
    pub fn new(quota: &Section, total: &Section, machine: &Machine) -> Self {
        let said = |section: &Section, resource| section.get(&resource).copied();
        let all = Amounts::of(|resource| {
            said(total, resource).unwrap_or_else(|| default_total(resource, machine))
        });
        let user = |resource| all[resource].div_ceil(USER_PART).min(usual(resource));
        Self {
            user: Amounts::of(|r| said(quota, r).unwrap_or_else(|| user(r))),
            owner: Amounts::of(|r| said(quota, r).unwrap_or(all[r])),
            all,
            others: Amounts::of(|r| all[r] - all[r] / RESERVED_PART),
        }
    }
}

/// No user gets more than one in so many parts of what all have.
const USER_PART: u64 = 4;
/// One in so many parts of everything is for root and the daemon's own user.
const RESERVED_PART: u64 = 8;

/// As much as any user has a use for.
const fn usual(resource: Resource) -> u64 {
    match resource {
        Resource::Sessions => 1024,
        _ => u64::MAX,
    }
}

fn default_total(resource: Resource, machine: &Machine) -> u64 {
    // Queues and mapped memory leave a quarter for everything else.
    let memory = machine.memory / 8 * 3;
    match resource {
        Resource::Sessions => (machine.tasks / 2)
            .min(machine.descriptors / 8)
            .min(machine.memory / SESSION_ROOM)
            .clamp(16, 8192),
        // The daemon needs some for itself.
        Resource::Descriptors => machine.descriptors / 8 * 7,
        Resource::Mappings => machine.mappings / 8 * 7,
        Resource::Qps | Resource::Cqs | Resource::Pds => 1 << 17,
        Resource::Ahs => 1 << 18,
        Resource::Mrs => 1 << 21,
        Resource::Channels => 1 << 14,
        Resource::RegisteredBytes => 1 << 48,
        Resource::RingBytes | Resource::SharedBytes => memory,
        Resource::DeviceMemoryBytes => machine.memory / 64,
    }
}

/// Memory that there must be for each session: its stack, its messages, the kernel's part.
const SESSION_ROOM: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Machine =
        Machine { memory: 2 << 30, descriptors: 1024, tasks: 1 << 20, mappings: 65_530 };

    #[test]
    fn each_resource_has_its_place() {
        for (at, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(at, resource as usize);
        }
    }

    #[test]
    fn all_users_together_stay_within_the_machine() {
        let limits = Limits::new(&Section::new(), &Section::new(), &SMALL);
        let memory = limits.all[Resource::RingBytes] + limits.all[Resource::SharedBytes];
        assert!(memory <= SMALL.memory / 4 * 3, "{memory}");
        assert!(limits.all[Resource::Descriptors] < SMALL.descriptors);
        assert!(limits.all[Resource::Sessions] < SMALL.descriptors / 4);
        for resource in Resource::ALL {
            let (user, others, all) =
                (limits.user[resource], limits.others[resource], limits.all[resource]);
            assert!(user > 0 && 2 * user <= others && others < all, "{resource:?}: {limits:?}");
            assert_eq!(limits.owner[resource], all);
        }
    }

    #[test]
    fn what_the_file_says_holds_for_everybody() {
        let quota = Section::from([(Resource::Qps, 3), (Resource::SharedBytes, 0)]);
        let total = Section::from([(Resource::Sessions, 80)]);
        let limits = Limits::new(&quota, &total, &SMALL);
        assert_eq!((limits.user[Resource::Qps], limits.owner[Resource::Qps]), (3, 3));
        assert_eq!(
            (limits.user[Resource::SharedBytes], limits.owner[Resource::SharedBytes]),
            (0, 0)
        );
        assert_eq!((limits.user[Resource::Sessions], limits.owner[Resource::Sessions]), (20, 80));
        assert_eq!((limits.all[Resource::Sessions], limits.others[Resource::Sessions]), (80, 70));
    }
}
