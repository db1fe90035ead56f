//! The place of a new queue pair among the others.

use super::NO_CLIENT;
use crate::command::{ClientId, CommandError, Errno};
use crate::engine::Engine;
use crate::qp::Qp;
use crate::qp::create::QpIdentity;
use crate::qpn::QpnParts;
use crate::slab::SLOT_BITS;
use roce_wire::Qpn;

const NO_QP_LEFT: CommandError =
    CommandError { errno: Errno::NoMem, reason: "the device has no free queue pair" };

impl Engine {
    /// The names of the queue pair that is made next.
    pub(super) fn next_identity(&self, client: ClientId) -> Result<QpIdentity, CommandError> {
        let client_slot = self.shared.clients.slot_of(client).ok_or(NO_CLIENT)?;
        let handle = self.qps.next_handle().ok_or(NO_QP_LEFT)?;
        let slot = handle & ((1 << SLOT_BITS) - 1);
        let qpn = self.free_qpn(slot, handle >> SLOT_BITS).ok_or(NO_QP_LEFT)?;
        Ok(QpIdentity { handle, slot, qpn, client_id: client, client_slot })
    }

    pub(super) fn add_qp(&mut self, qp: Qp) -> Result<(), CommandError> {
        let client_slot = qp.client_slot;
        let handle = self.qps.insert(qp).map_err(|_| NO_QP_LEFT)?;
        // Room for every QP once, so that the data path never grows these lists.
        self.shared.mrs.make_room_for(handle);
        self.shared.active.add(client_slot);
        let qps = self.qps.len();
        self.shared.retiring.reserve(qps.saturating_sub(self.shared.retiring.len()) + 1);
        Ok(())
    }

    /// The number of the QP in `slot`; a few numbers are reserved, then the next generation's.
    fn free_qpn(&self, slot: u32, generation: u32) -> Option<Qpn> {
        (0..3).find_map(|skip| self.codec.encode(QpnParts { slot, generation: generation + skip }))
    }
}
