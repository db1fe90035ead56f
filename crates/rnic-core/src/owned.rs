//! Objects that clients have: a table that finds what one client has without a look at what all
//! others have, so that the end of a client takes as long as it had objects.

use crate::command::ClientId;
use crate::slab::Slab;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

/// An object of a client, as long as it exists.
pub(crate) trait Owned {
    /// `None`: it goes with no client.
    fn owner(&self) -> Option<ClientId>;
}

/// A [`Slab`] of such objects; what is made and removed goes through this.
#[derive(Debug)]
pub(crate) struct OwnedSlab<T> {
    objects: Slab<T>,
    handles: BTreeSet<(ClientId, u32)>,
}

impl<T: Owned> OwnedSlab<T> {
    /// See [`Slab::new`].
    pub(crate) fn new(max: usize) -> Self {
        Self { objects: Slab::new(max), handles: BTreeSet::new() }
    }

    /// See [`Slab::insert`].
    pub(crate) fn insert(&mut self, object: T) -> Result<u32, T> {
        let owner = object.owner();
        let handle = self.objects.insert(object)?;
        self.handles.extend(owner.map(|owner| (owner, handle)));
        Ok(handle)
    }

    /// See [`Slab::remove`].
    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let object = self.objects.remove(handle)?;
        if let Some(owner) = object.owner() {
            self.handles.remove(&(owner, handle));
        }
        Some(object)
    }

    /// The handles of what a client has.
    pub(crate) fn of(&self, client: ClientId) -> Vec<u32> {
        let own = self.handles.range((client, 0)..=(client, u32::MAX));
        own.map(|(_, handle)| *handle).collect()
    }
}

impl<T> Deref for OwnedSlab<T> {
    type Target = Slab<T>;

    #[inline(always)]
    fn deref(&self) -> &Slab<T> {
        &self.objects
    }
}

impl<T> DerefMut for OwnedSlab<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Slab<T> {
        &mut self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::{Owned, OwnedSlab};
    use crate::command::ClientId;

    struct Object(Option<u32>);

    impl Owned for Object {
        fn owner(&self) -> Option<ClientId> {
            self.0.map(ClientId)
        }
    }

    #[test]
    fn a_client_is_told_what_it_has_and_nothing_else() {
        let mut objects = OwnedSlab::new(6);
        let owners = [Some(1), Some(2), None, Some(1), Some(2), Some(1)];
        let made = owners.map(|owner| objects.insert(Object(owner)).ok().unwrap());
        assert!(objects.insert(Object(Some(1))).is_err(), "it is full");
        assert_eq!(objects.of(ClientId(1)), [made[0], made[3], made[5]]);
        assert_eq!(objects.of(ClientId(2)), [made[1], made[4]]);
        assert_eq!(objects.of(ClientId(3)), []);
        for handle in [made[3], made[2], made[1]] {
            objects.remove(handle).unwrap();
            assert!(objects.remove(handle).is_none());
        }
        // The slots are used again, with other handles.
        let again = [0; 3].map(|_| objects.insert(Object(Some(2))).ok().unwrap());
        assert_eq!(objects.of(ClientId(1)), [made[0], made[5]]);
        let mut of_two = vec![made[4], again[0], again[1], again[2]];
        of_two.sort_unstable();
        assert_eq!(objects.of(ClientId(2)), of_two);
        assert_eq!(objects.len(), 6);
    }
}
