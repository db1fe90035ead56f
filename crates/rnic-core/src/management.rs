//! QP1: management datagrams, which the control plane makes and reads.
//!
//! There is no queue pair behind the number: a datagram that arrives goes to the
//! [host](crate::ports::Host), and what is to leave comes as a command and waits in a short queue.
//! Nothing of this is on the way of other packets.

use crate::ah;
use crate::by_reference;
use crate::command::{OutgoingMad, Path};
use crate::event::{DropReason, Event, PacketInfo, Tap};
use crate::ports::{Host, TxIpId, TxTrain, Wire};
use crate::shared::Ctx;
use roce_wire::headers::{Bth, Deth};
use roce_wire::mad::MAD_LEN;
use roce_wire::{Datagram, Flow, HeaderRepr, Opcode, PKey, Psn, QKey, Qpn};

impl<T: Tap> Ctx<'_, T> {
    /// Sends what waits, as far as the wire takes it. False when something is left.
    #[cold]
    pub(crate) fn send_management<W: Wire>(&mut self, wire: &mut W, ip_id: &mut u16) -> bool {
        while let Some(next) = self.shared.outbox.waiting.front().copied() {
            let path = ah::settled(self.shared.config.profile, next.path);
            let psn = self.shared.outbox.psn;
            if !send(wire, &path, &next, psn, *ip_id) {
                return false;
            }
            *ip_id = ip_id.wrapping_add(1);
            self.shared.outbox.waiting.pop_front();
            self.shared.outbox.psn = psn.wrapping_add(1);
            let len = headers(&next, psn).datagram_len(MAD_LEN);
            self.shared.counters.tx_packets += 1;
            self.shared.counters.tx_bytes += len as u64;
            self.shared.counters.tx_mads += 1;
            self.event(|| Event::Sent {
                qpn: Qpn::GSI,
                packet: PacketInfo {
                    opcode: Opcode::UdSendOnly,
                    dest_qpn: next.dest,
                    psn,
                    ack_req: false,
                    payload: MAD_LEN as u32,
                    aeth: None,
                },
                message: None,
                retransmit: false,
            });
        }
        true
    }

    /// A datagram to QP1 has arrived: why it is dropped, if it is.
    #[cold]
    pub(crate) fn take_management<H: Host>(
        &mut self,
        (datagram, info): (&Datagram<'_>, PacketInfo),
        flow: &Flow,
        host: &mut H,
    ) -> Option<DropReason> {
        let (sender, mad) = match check(datagram, flow) {
            Ok(good) => good,
            Err(reason) => return Some(reason),
        };
        self.event(|| Event::Received { qpn: Qpn::GSI, packet: info });
        if !host.management(flow, sender, mad) {
            return Some(DropReason::NoReceive);
        }
        self.shared.counters.rx_mads += 1;
        None
    }
}

/// The sending queue pair and the content of a datagram to QP1.
fn check<'a>(datagram: &Datagram<'a>, flow: &Flow) -> Result<(Qpn, &'a [u8; MAD_LEN]), DropReason> {
    let bth = datagram.bth();
    // Rule: ManagementIsUd
    if bth.opcode != Opcode::UdSendOnly {
        return Err(DropReason::Transport);
    }
    let deth = datagram.deth().ok_or(DropReason::Malformed)?;
    // Rule: ManagementPKey
    if !bth.pkey.matches(PKey::DEFAULT) {
        return Err(DropReason::PKey);
    }
    if flow.dst.is_multicast() {
        return Err(DropReason::Address);
    }
    // Rule: ManagementQKey
    if deth.qkey != QKey::GSI {
        return Err(DropReason::QKey);
    }
    // Rule: ManagementLength
    let mad = datagram.payload().try_into().map_err(|_| DropReason::TooLong)?;
    Ok((deth.src_qp, mad))
}

/// What AckReq says means nothing without a connection: Linux sets it, ConnectX does not.
fn headers(outgoing: &OutgoingMad, psn: Psn) -> HeaderRepr {
    let mut headers = HeaderRepr::new(Bth::new(Opcode::UdSendOnly, outgoing.dest, psn));
    headers.deth = Some(Deth::new(QKey::GSI, Qpn::GSI));
    headers.with_payload_len(MAD_LEN)
}

/// False when the wire is full.
fn send<W: Wire>(wire: &mut W, path: &Path, next: &OutgoingMad, psn: Psn, ip_id: u16) -> bool {
    let headers = headers(next, psn);
    let len = headers.datagram_len(MAD_LEN);
    let Ok(segment_len) = u32::try_from(len) else { return true };
    let train = TxTrain {
        flow: path.flow,
        hop: path.hop,
        segments: 1,
        segment_len,
        last_len: segment_len,
        ip_id,
        // On this device QP1 is of this engine: it is that of the first shard.
        to_self: true,
    };
    let own_id = wire.caps().tx_ip_id == TxIpId::Ours;
    let Some(slot) = wire.reserve(&train) else { return false };
    let start = slot.offset as usize;
    let Some(datagram) = wire.tx(slot.arena).get_mut(start..start + len) else { return true };
    let payload_at = headers.emit(datagram);
    if let Some(payload) = datagram.get_mut(payload_at..payload_at + MAD_LEN) {
        payload.copy_from_slice(&next.mad);
    }
    if slot.is_internal {
        by_reference::mark_carried(datagram);
    } else {
        let ip_id = if own_id { ip_id } else { 0 };
        roce_wire::icrc::seal(&path.flow, ip_id, datagram);
    }
    true
}
