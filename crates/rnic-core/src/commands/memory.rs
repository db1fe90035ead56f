//! Commands about memory regions and windows.

use super::{CommandResult, mr_outcome};
use crate::command::{ClientId, MrPlace, Outcome, WindowType};
use crate::engine::Engine;
use crate::mr::NewMr;
use rnic_abi::verbs::AccessFlags;

impl Engine {
    pub(super) fn reg_mr(&mut self, new: NewMr) -> CommandResult {
        self.owned_pd(new.client, new.pd)?;
        let keys = self.shared.mrs.register(new)?;
        self.owned_pd(new.client, new.pd)?.users += 1;
        Ok(mr_outcome(keys))
    }

    pub(super) fn dereg_mr(&mut self, client: ClientId, mr: u32) -> CommandResult {
        let pd = self.shared.mrs.deregister(client, mr)?.mr.pd;
        self.owned_pd(client, pd)?.users -= 1;
        Ok(Outcome::Done)
    }

    pub(super) fn rereg_mr(
        &mut self,
        client: ClientId,
        mr: u32,
        pd: Option<u32>,
        place: Option<MrPlace>,
        access: Option<AccessFlags>,
    ) -> CommandResult {
        let old = self.shared.mrs.owned(client, mr)?.mr;
        if let Some(pd) = pd {
            self.owned_pd(client, pd)?;
        }
        let NewMr { space, addr, length, iova, .. } = old;
        let MrPlace { space, addr, length, iova } =
            place.unwrap_or(MrPlace { space, addr, length, iova });
        let (pd, access) = (pd.unwrap_or(old.pd), access.unwrap_or(old.access));
        let new = NewMr { client, pd, space, addr, length, iova, access };
        let keys = self.shared.mrs.reregister(mr, new)?;
        self.owned_pd(client, old.pd)?.users -= 1;
        self.owned_pd(client, pd)?.users += 1;
        Ok(mr_outcome(keys))
    }

    pub(super) fn alloc_mw(
        &mut self,
        client: ClientId,
        pd: u32,
        kind: WindowType,
    ) -> CommandResult {
        self.owned_pd(client, pd)?;
        let (mw, rkey) = self.shared.mrs.alloc_window(client, pd, kind)?;
        self.owned_pd(client, pd)?.users += 1;
        Ok(Outcome::Mw { mw, rkey })
    }

    pub(super) fn dealloc_mw(&mut self, client: ClientId, mw: u32) -> CommandResult {
        let pd = self.shared.mrs.dealloc_window(client, mw)?;
        self.owned_pd(client, pd)?.users -= 1;
        Ok(Outcome::Done)
    }
}
