//! Counters, under the names that users know from `rdma statistic` and hw_counters.

use crate::event::{DropReason, NakReason};
use roce_wire::{NakCode, Syndrome};

counters! {
    /// Counters of one port (and shard). Plain numbers: one thread writes.
    Counters:
    /// Datagrams sent.
    tx_packets,
    /// Bytes of datagrams sent (BTH to ICRC).
    tx_bytes,
    /// Datagrams received, good or bad.
    rx_packets,
    /// Bytes of datagrams received.
    rx_bytes,
    /// Management datagrams sent.
    tx_mads,
    /// Management datagrams received and taken.
    rx_mads,
    /// Doorbells found.
    doorbells,
    /// Send WQEs fetched.
    send_wqes,
    /// Completions written.
    completions,
    /// Datagrams sent again.
    retransmitted_packets,
    /// Duplicate requests received.
    duplicate_request,
    /// Requests ahead of the expected PSN. With the profile of ConnectX: how often there was such a
    /// gap, however many requests came behind it.
    out_of_sequence,
    /// NAK sequence errors received.
    packet_seq_err,
    /// NAK sequence errors sent.
    sent_seq_err,
    /// Implied NAKs noticed.
    implied_nak_seq_err,
    /// Local ACK timeouts.
    local_ack_timeout_err,
    /// RNR NAKs sent.
    out_of_buffer,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR retries exhausted.
    rnr_nak_retry_err,
    /// Transport retries exhausted.
    req_retry_exceeded,
    /// Datagrams with a bad ICRC.
    rx_icrc_encapsulated,
    /// Datagrams whose headers do not add up.
    rx_malformed,
    /// Datagrams for a QP number that does not exist.
    rx_no_qp,
    /// Datagrams to a group that no QP is attached to.
    rx_no_member,
    /// Datagrams with the wrong transport for their QP.
    rx_bad_transport,
    /// Datagrams that the QP's state does not accept.
    rx_bad_state,
    /// Datagrams that do not come from the QP's peer.
    rx_bad_address,
    /// P_Key mismatches.
    bad_pkey_violations,
    /// Q_Key mismatches.
    qkey_violations,
    /// Datagrams dropped behind a fault of the same burst.
    rx_after_fault,
    /// Responses outside the window, or with a reserved syndrome.
    rx_ghost_response,
    /// Datagrams without a receive WQE or too long for it (UC, UD).
    rx_discarded,
    /// Datagrams lost between shards.
    shard_queue_full,
    /// Datagrams whose payload was gone from the sender's memory, on the same device.
    rx_lent_gone,
    /// Requests refused: key, right or range.
    resp_remote_access_errors,
    /// Requests refused: malformed, out of order opcode, not allowed.
    resp_remote_invalid_request,
    /// Requests refused: local receive WQE or memory.
    resp_local_errors,
    /// Requests refused: message longer than the receive buffers.
    resp_local_length_error,
    /// Our requests that the peer refused for access.
    req_remote_access_errors,
    /// Our requests that the peer refused as invalid.
    req_remote_invalid_request,
    /// Our requests that failed inside the peer.
    req_remote_op_errors,
    /// Send WQEs that could not be executed.
    req_local_errors,
    /// Completions with status flushed.
    flushed_wqes,
    /// Completions that found their CQ full.
    cq_overflows,
    /// CNPs received.
    rp_cnp_handled,
    /// Datagrams received with congestion marked.
    np_ecn_marked_roce_packets,
    /// Completion events sent.
    completion_events,
    /// Async events sent.
    async_events,
}

counters! {
    /// Counters of one QP.
    QpCounters:
    /// Datagrams sent.
    tx_packets,
    /// Bytes of datagrams sent (BTH to ICRC).
    tx_bytes,
    /// Datagrams accepted for checking.
    rx_packets,
    /// Bytes of datagrams accepted for checking.
    rx_bytes,
    /// Request datagrams sent again.
    retransmitted_packets,
    /// Local ACK timeouts.
    timeouts,
    /// RNR NAKs received.
    rnr_naks_received,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// Duplicate requests received.
    duplicates,
    /// Requests received ahead of the expected PSN.
    out_of_sequence,
}

impl Counters {
    /// Counts a drop.
    pub fn dropped(&mut self, reason: DropReason) {
        let counter = match reason {
            DropReason::Malformed => &mut self.rx_malformed,
            DropReason::Icrc => &mut self.rx_icrc_encapsulated,
            DropReason::NoQp => &mut self.rx_no_qp,
            DropReason::NoMember => &mut self.rx_no_member,
            DropReason::Transport => &mut self.rx_bad_transport,
            DropReason::QpState => &mut self.rx_bad_state,
            DropReason::PKey => &mut self.bad_pkey_violations,
            DropReason::Address => &mut self.rx_bad_address,
            DropReason::QKey => &mut self.qkey_violations,
            // Counted with the gap that it tells of.
            DropReason::OutOfSequence => return,
            DropReason::Refused(reason) => return self.refused(reason),
            DropReason::Duplicate => &mut self.duplicate_request,
            DropReason::GhostResponse | DropReason::ReservedSyndrome => &mut self.rx_ghost_response,
            DropReason::AfterFault => &mut self.rx_after_fault,
            DropReason::NoReceive | DropReason::TooLong => &mut self.rx_discarded,
            DropReason::HandOver => &mut self.shard_queue_full,
            DropReason::LentGone => &mut self.rx_lent_gone,
        };
        *counter += 1;
    }

    /// Counts an acknowledgement that leaves.
    pub fn acknowledged(&mut self, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => self.sent_seq_err += 1,
            Syndrome::RnrNak { .. } => self.out_of_buffer += 1,
            _ => {}
        }
    }

    /// Counts a request that is refused for good.
    pub fn refused(&mut self, reason: NakReason) {
        let counter = match reason {
            // The next packet in sequence ends it.
            NakReason::Sequence => return,
            NakReason::OpcodeSequence
            | NakReason::NotAllowed
            | NakReason::Resources
            | NakReason::NoSrq
            | NakReason::Length
            | NakReason::Alignment => &mut self.resp_remote_invalid_request,
            NakReason::ReceiveTooShort => &mut self.resp_local_length_error,
            NakReason::Key(_) | NakReason::Invalidation(_) => &mut self.resp_remote_access_errors,
            NakReason::Local | NakReason::RemoteMemory => &mut self.resp_local_errors,
        };
        *counter += 1;
    }
}
