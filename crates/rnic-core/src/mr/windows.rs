//! Memory windows: keys for a part of a region that its program gives and takes away by work
//! requests.
//!
//! A window of **type 1** is of a protection domain: each bind replaces the one before, and one of
//! no bytes ends it. A window of **type 2** is bound by one queue pair, for the peer of that queue
//! pair only (type 2B), until it is invalidated, by the program or by the peer.

use super::{KeyFault, MrTable, Named, Target, Through, error};
use crate::command::{ClientId, CommandError, Errno, WindowType, no_such};
use crate::owned::Owned;
use crate::slab::Slab;
use rnic_abi::verbs::AccessFlags;
use rnic_abi::wqe::SendControl;

/// A memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Owner.
    pub client: ClientId,
    /// Protection domain.
    pub pd: u32,
    /// Its kind.
    pub kind: WindowType,
    /// Its key; the low byte is that of the last bind.
    pub key: u32,
    bound: Option<Bound>,
    /// Its neighbours among the windows that a queue pair bound; type 2.
    previous: Option<u32>,
    next: Option<u32>,
}

/// What a window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    region: u32,
    /// The queue pair that bound it.
    qp: u32,
    /// First byte, as the region names it.
    start: u64,
    length: u64,
    access: AccessFlags,
}

/// A bind: what a work request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// New key of the window: all but the low byte names the window.
    pub key: u32,
    /// Key of the region; it means nothing when no byte is bound.
    pub lkey: u32,
    /// First byte, as the region names it.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Rights, as `ibv_access_flags`.
    pub access: u64,
}

reasons! {
    /// Why a bind is refused.
    BindFault:
    /// No window has this key, or it is of another protection domain than the queue pair.
    Window,
    /// A window of type 2 is bound already.
    Bound,
    /// A window of type 2 needs at least one byte.
    Empty,
    /// No region has this key, or it is of another protection domain.
    Region,
    /// The region's rights do not allow it, or no window has such rights.
    Access,
    /// Not all bytes are inside the region.
    Bounds,
}

const NO_WINDOW: CommandError = no_such("no such memory window");

/// What a bind may ask for. LOCAL_WRITE, which programs name as well, means nothing for a window.
const RIGHTS: AccessFlags = WRITES
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::LOCAL_WRITE);
const WRITES: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC);

impl From<&SendControl> for Bind {
    fn from(control: &SendControl) -> Self {
        Self {
            key: control.rkey,
            lkey: control.qkey,
            start: control.remote_addr,
            length: control.compare_add,
            access: control.swap,
        }
    }
}

impl Owned for Window {
    fn owner(&self) -> Option<ClientId> {
        Some(self.client)
    }
}

impl Window {
    /// Whether peers can use it.
    pub fn is_bound(&self) -> bool {
        self.bound.is_some()
    }
}

/// Making and destroying.
impl MrTable {
    /// Makes a window that is not bound: its handle and key.
    ///
    /// # Errors
    /// ENOMEM when the table is full.
    pub fn alloc_window(
        &mut self,
        client: ClientId,
        pd: u32,
        kind: WindowType,
    ) -> Result<(u32, u32), CommandError> {
        let key = self.fresh_key();
        let handle = self
            .windows
            .insert(Window { client, pd, kind, key, bound: None, previous: None, next: None })
            .map_err(|_| error(Errno::NoMem, "the device has no free memory window"))?;
        self.by_index.insert(key >> 8, Named::Window(handle));
        Ok((handle, key))
    }

    /// Destroys a window: its key is dead when this returns. Returns its protection domain.
    ///
    /// # Errors
    /// ENOENT when `client` owns no such window.
    pub fn dealloc_window(&mut self, client: ClientId, mw: u32) -> Result<u32, CommandError> {
        // Rule: OwnWindows
        self.windows.get(mw).filter(|window| window.client == client).ok_or(NO_WINDOW)?;
        self.unbind(mw);
        let window = self.windows.remove(mw).ok_or(NO_WINDOW)?;
        self.by_index.remove(&(window.key >> 8));
        Ok(window.pd)
    }

    pub(super) fn remove_windows_of(&mut self, client: ClientId) {
        for mw in self.windows.of(client) {
            let _ = self.dealloc_window(client, mw);
        }
    }

    /// A queue pair is gone, or will have another peer: its windows are not bound any more.
    pub fn unbind_windows_of(&mut self, qp: u32) {
        let mut next = self.first_of(qp);
        while let Some(mw) = next {
            next = self.windows.get(mw).and_then(|window| window.next);
            // Rule: WindowEndsWithQp
            self.unbind(mw);
        }
    }

    /// A queue pair was made: its binds must not grow the table.
    pub fn make_room_for(&mut self, qp: u32) {
        let slots = Slab::<()>::slot_of(qp) + 1;
        if self.first_of_qp.len() < slots {
            self.first_of_qp.resize(slots, None);
        }
    }

    fn first_of(&self, qp: u32) -> Option<u32> {
        *self.first_of_qp.get(Slab::<()>::slot_of(qp))?
    }

    /// Puts a window among those that this queue pair bound.
    fn enlist(&mut self, mw: u32, qp: u32) {
        let Some(first) = self.first_of_qp.get_mut(Slab::<()>::slot_of(qp)) else { return };
        let second = first.replace(mw);
        if let Some(window) = second.and_then(|second| self.windows.get_mut(second)) {
            window.previous = Some(mw);
        }
        if let Some(window) = self.windows.get_mut(mw) {
            (window.previous, window.next) = (None, second);
        }
    }

    /// Takes a window out from among those that this queue pair bound.
    fn delist(&mut self, mw: u32, qp: u32) {
        let Some(window) = self.windows.get(mw) else { return };
        let Window { previous, next, .. } = *window;
        if let Some(window) = next.and_then(|next| self.windows.get_mut(next)) {
            window.previous = previous;
        }
        match previous.and_then(|previous| self.windows.get_mut(previous)) {
            Some(window) => window.next = next,
            None => {
                if let Some(first) = self.first_of_qp.get_mut(Slab::<()>::slot_of(qp)) {
                    *first = next;
                }
            }
        }
    }

    /// All windows with their handles.
    pub fn windows(&self) -> impl Iterator<Item = (u32, &Window)> {
        self.windows.iter()
    }
}

/// Binding and using.
impl MrTable {
    fn window(&self, key: u32) -> Option<(u32, &Window)> {
        let Named::Window(handle) = *self.by_index.get(&(key >> 8))? else { return None };
        Some((handle, self.windows.get(handle)?))
    }

    /// Binds a window, or, of type 1, ends what it is bound to.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn bind(&mut self, through: Through, bind: &Bind) -> Result<(), BindFault> {
        let (mw, window) = self.window(bind.key).ok_or(BindFault::Window)?;
        // Rule: WindowDomain
        if window.pd != through.pd {
            return Err(BindFault::Window);
        }
        let is_two = window.kind == WindowType::Two;
        // Rule: RebindNeedsInvalidation
        if is_two && window.bound.is_some() {
            return Err(BindFault::Bound);
        }
        // Rule: TypeTwoBindsBytes
        if is_two && bind.length == 0 {
            return Err(BindFault::Empty);
        }
        let bound = match bind.length {
            0 => None,
            _ => Some(self.bound_by(through, bind, is_two)?),
        };
        self.unbind(mw);
        if let Some(region) = bound.and_then(|bound| self.regions.get_mut(bound.region)) {
            region.windows += 1;
        }
        if let Some(window) = self.windows.get_mut(mw) {
            (window.key, window.bound) = (bind.key, bound);
        }
        if is_two {
            self.enlist(mw, through.qp);
        }
        Ok(())
    }

    /// What the bind asks for, where the region allows it.
    fn bound_by(&self, through: Through, bind: &Bind, is_two: bool) -> Result<Bound, BindFault> {
        let region = self.find(bind.lkey).ok_or(BindFault::Region)?;
        let Some(Named::Region(handle)) = self.by_index.get(&(bind.lkey >> 8)).copied() else {
            return Err(BindFault::Region);
        };
        let mr = &region.mr;
        // Rule: BindDomain
        if mr.pd != through.pd {
            return Err(BindFault::Region);
        }
        let access = u32::try_from(bind.access).ok().and_then(AccessFlags::from_bits);
        let access = access.filter(|access| RIGHTS.contains(*access)).ok_or(BindFault::Access)?;
        // Rule: TypeOneIsNotZeroBased
        if access.contains(AccessFlags::ZERO_BASED) && !is_two {
            return Err(BindFault::Access);
        }
        // Rule: BindNeedsRight
        if !mr.access.contains(AccessFlags::MW_BIND) {
            return Err(BindFault::Access);
        }
        // Rule: WritableWindowNeedsLocalWrite
        if access.intersects(WRITES) && !mr.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(BindFault::Access);
        }
        let offset = bind.start.checked_sub(mr.iova).ok_or(BindFault::Bounds)?;
        let inside = offset <= mr.length && bind.length <= mr.length - offset;
        // Rule: BindBounds
        if !inside {
            return Err(BindFault::Bounds);
        }
        let Bind { start, length, .. } = *bind;
        Ok(Bound { region: handle, qp: through.qp, start, length, access })
    }

    fn unbind(&mut self, mw: u32) {
        let Some(window) = self.windows.get_mut(mw) else { return };
        let is_two = window.kind == WindowType::Two;
        let Some(bound) = window.bound.take() else { return };
        if let Some(region) = self.regions.get_mut(bound.region) {
            region.windows = region.windows.saturating_sub(1);
        }
        if is_two {
            self.delist(mw, bound.qp);
        }
    }

    /// Checks that the peer, or the program, of a queue pair may invalidate this key.
    ///
    /// # Errors
    /// Only the key of a window of type 2 that this queue pair bound can be invalidated.
    pub fn check_invalidation(&self, key: u32, through: Through) -> Result<(), KeyFault> {
        self.invalidated_by(key, through).map(drop)
    }

    fn invalidated_by(&self, key: u32, through: Through) -> Result<u32, KeyFault> {
        let (mw, window) = self.window(key).ok_or(KeyFault::UnknownKey)?;
        window.check(key, through)?;
        // Rule: OnlyTypeTwoInvalidated
        if window.kind == WindowType::One {
            return Err(KeyFault::Access);
        }
        Ok(mw)
    }

    /// Takes a key away: it is dead when this returns.
    ///
    /// # Errors
    /// As [`check_invalidation`](Self::check_invalidation).
    pub fn invalidate(&mut self, key: u32, through: Through) -> Result<(), KeyFault> {
        let mw = self.invalidated_by(key, through)?;
        // Rule: InvalidatedKeyIsDead
        self.unbind(mw);
        Ok(())
    }

    /// See [`check_remote`](Self::check_remote).
    #[inline(never)]
    pub(super) fn check_window(
        &self,
        key: u32,
        through: Through,
        va: u64,
        len: u64,
        need: AccessFlags,
    ) -> Result<Target, KeyFault> {
        let (_, window) = self.window(key).ok_or(KeyFault::UnknownKey)?;
        let bound = window.check(key, through)?;
        // Rule: WindowRights
        if !bound.access.contains(need) {
            return Err(KeyFault::Access);
        }
        // Rule: ZeroBasedWindow
        let first = if bound.access.contains(AccessFlags::ZERO_BASED) { 0 } else { bound.start };
        let offset = va.checked_sub(first).ok_or(KeyFault::Bounds)?;
        let inside = offset <= bound.length && len <= bound.length - offset;
        // Rule: WindowBounds
        if !inside {
            return Err(KeyFault::Bounds);
        }
        // A region with windows is neither removed nor changed: this is inside of it.
        let mr = &self.regions.get(bound.region).ok_or(KeyFault::UnknownKey)?.mr;
        let addr = mr.addr + (bound.start - mr.iova) + offset;
        Ok(Target { space: mr.space, addr, private: false, is_window: true })
    }
}

impl Window {
    /// What it is bound to, when this is its key and the queue pair may use it.
    fn check(&self, key: u32, through: Through) -> Result<Bound, KeyFault> {
        // Rule: WindowKeyIsWhole
        if self.key != key {
            return Err(KeyFault::UnknownKey);
        }
        // Rule: WindowOfDomain
        if self.pd != through.pd {
            return Err(KeyFault::WrongPd);
        }
        let bound = self.bound.ok_or(KeyFault::UnknownKey)?;
        // Rule: TypeTwoOfItsQp
        if self.kind == WindowType::Two && bound.qp != through.qp {
            return Err(KeyFault::WrongQp);
        }
        Ok(bound)
    }
}
