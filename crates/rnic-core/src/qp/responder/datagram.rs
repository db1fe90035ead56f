//! Datagrams: each is a message of one packet, from any peer that knows the Q_Key.
//!
//! Nothing links one with the next, so there are no PSNs to compare, and what is wrong with one
//! concerns no other. Its receive begins with 40 bytes that tell where it came from (IBTA A17.4.5).

use super::super::Qp;
use super::super::packet::Packet;
use super::super::verdict::Verdict;
use super::Checked;
use crate::event::{DropReason, Tap};
use crate::shared::Ctx;
use rnic_abi::cqe::MAX_CARRIED;
use rnic_abi::verbs::WcOpcode;
use roce_wire::grh::{GRH_LEN, header_type};

impl Qp {
    /// Looks at one datagram. `area`: what its receive begins with. In line it would cost all
    /// other requests.
    #[inline(never)]
    pub(crate) fn handle_datagram<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        area: &[u8; GRH_LEN],
    ) -> Verdict {
        match self.execute_datagram(ctx, packet, area) {
            Ok(()) => Verdict::Done,
            Err(verdict) => verdict,
        }
    }

    fn execute_datagram<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        area: &[u8; GRH_LEN],
    ) -> Checked {
        self.check_length(packet)?;
        self.check_resources(ctx, packet)?;
        let total = GRH_LEN + packet.datagram.payload_len();
        // Rule: DatagramFits
        if self.responder.recv.is_none_or(|recv| total as u64 > recv.room) {
            return Err(Verdict::Drop(DropReason::TooLong));
        }
        let undo = ctx.shared.batch.len();
        let carried = self.place_datagram(ctx, packet, area).inspect_err(|_| {
            // Its receive fails: nothing of it is placed.
            ctx.shared.batch.truncate(undo);
        })?;
        let mut data = [0; MAX_CARRIED];
        for (to, from) in data.iter_mut().zip(area.iter().chain(packet.datagram.payload())) {
            *to = *from;
        }
        let byte_len = u32::try_from(total).unwrap_or(u32::MAX);
        let carried = data.get(..carried).unwrap_or(&[]);
        // Where an InfiniBand completion has the service level, ConnectX tells the type of the IP
        // header, and programs check it before they read the area.
        // Rule: HeaderTypeTold
        let sl = header_type(area);
        self.deliver(ctx, packet, WcOpcode::Recv, byte_len, carried, sl);
        Ok(())
    }

    /// Queues the area and the payload for the receive SGEs, but for the first bytes, as many as
    /// are returned: those the CQE carries. So the area mostly needs no copy of its own.
    fn place_datagram<T: Tap>(
        &mut self,
        ctx: &mut Ctx<'_, T>,
        packet: &Packet<'_>,
        area: &[u8; GRH_LEN],
    ) -> Checked<usize> {
        let may_carry = ctx.shared.config.carry_small_receives;
        let total = GRH_LEN + packet.datagram.payload_len();
        let queued = ctx.shared.batch.add_area(area);
        // Rule: AreaFirst
        let is_carried = self.scatter(ctx, packet, queued, may_carry)?;
        let all = is_carried && total <= MAX_CARRIED;
        match (is_carried, self.scatter(ctx, packet, packet.bytes, all)?) {
            (true, true) => Ok(total),
            (true, false) => Ok(GRH_LEN),
            (false, _) => Ok(0),
        }
    }
}
