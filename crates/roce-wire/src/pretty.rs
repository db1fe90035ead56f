//! Packets as text: one line for logs and tests, a tree for a close look.
//!
//! All of it is `Display`: nothing allocates, and malformed input prints its reason.

use core::fmt;

use crate::cm::{CmMad, CmMessage, CmaHeader};
use crate::datagram::{Datagram, HeaderRepr};
use crate::flow::Flow;
use crate::frame::Frame;
use crate::headers::{Aeth, NakCode, Syndrome, credit_count, rnr_timer_ns};
use crate::opcode::{HeaderSet, Operation};
use crate::types::Qpn;

/// `RC_WRITE_ONLY qp 0x000123 psn 0x000010 len 5 va 0x7f.. rkey 0x00112233 dma_len 5`
#[derive(Clone, Copy, Debug)]
pub struct HeaderLine<'a> {
    pub headers: &'a HeaderRepr,
    pub payload_len: usize,
}

impl fmt::Display for HeaderLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeaderRepr { bth, .. } = self.headers;
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        if self.payload_len > 0 {
            write!(f, " len {}", self.payload_len)?;
        }
        for (set, text) in
            [(bth.ack_req, " A"), (bth.solicited, " SE"), (bth.fecn, " FECN"), (bth.becn, " BECN")]
        {
            if set {
                f.write_str(text)?;
            }
        }
        write_extensions(f, self.headers, " ")
    }
}

/// The extension headers, each after `before`.
fn write_extensions(f: &mut fmt::Formatter<'_>, headers: &HeaderRepr, before: &str) -> fmt::Result {
    if let Some(rdeth) = &headers.rdeth {
        write!(f, "{before}ee {:#08x}", rdeth.ee_context)?;
    }
    if let Some(deth) = &headers.deth {
        write!(f, "{before}from qp {} qkey {:#010x}", deth.src_qp, deth.qkey.0)?;
    }
    if let Some(xrceth) = &headers.xrceth {
        write!(f, "{before}srq {:#08x}", xrceth.srq)?;
    }
    if let Some(feth) = &headers.feth {
        write!(f, "{before}placement {} selectivity {}", feth.placement(), feth.selectivity())?;
    }
    if let Some(reth) = &headers.reth {
        write!(f, "{before}va {:#x} rkey {:#010x} dma_len {}", reth.va, reth.rkey.0, reth.dma_len)?;
    }
    if let Some(atomic) = &headers.atomic {
        write!(f, "{before}va {:#x} rkey {:#010x}", atomic.va, atomic.rkey.0)?;
        match headers.bth.opcode.operation() {
            Operation::CmpSwap => {
                write!(f, " compare {:#x} swap {:#x}", atomic.compare, atomic.swap_or_add)?;
            }
            _ => write!(f, " add {:#x}", atomic.swap_or_add)?,
        }
    }
    if let Some(aeth) = &headers.aeth {
        write!(f, "{before}{aeth}")?;
    }
    if let Some(atomic_ack) = &headers.atomic_ack {
        write!(f, "{before}original {:#x}", atomic_ack.original)?;
    }
    if let Some(imm) = &headers.imm {
        write!(f, "{before}imm {:#010x}", u32::from_be_bytes(imm.0))?;
    }
    if let Some(ieth) = &headers.ieth {
        write!(f, "{before}invalidate {:#010x}", ieth.rkey.0)?;
    }
    Ok(())
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.syndrome, self.msn)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Syndrome::Ack { credits } => match credit_count(credits) {
                Some(count) => write!(f, "ACK credits {count}"),
                None => f.write_str("ACK"),
            },
            Syndrome::RnrNak { timer } => {
                let us = rnr_timer_ns(timer) / 1000;
                write!(f, "RNR NAK {}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Syndrome::Nak(code) => write!(f, "NAK {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NakCode::PsnSequence => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccess => "remote access error",
            NakCode::RemoteOperational => "remote operational error",
            NakCode::InvalidRdRequest => "invalid RD request",
        })
    }
}

/// The line of its headers, and what a connection management message says.
impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HeaderLine { headers: &self.headers(), payload_len: self.payload_len() }.fmt(f)?;
        match cm_message(self) {
            Some(mad) => write!(f, " {}", mad.message),
            None => Ok(()),
        }
    }
}

/// Source and destination, then the datagram or why there is none.
impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.flow)?;
        match Datagram::parse(self.payload()) {
            Ok(datagram) => datagram.fmt(f),
            Err(reason) => write!(f, "malformed: {reason}"),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.src, self.dst)
    }
}

impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        let ids = |f: &mut fmt::Formatter<'_>, local: u32, remote: u32| {
            write!(f, " id {local:#010x} peer id {remote:#010x}")
        };
        match self {
            CmMessage::Req(req) => {
                write!(f, " id {:#010x} service {:#x}", req.local_comm_id, req.service_id)?;
                write!(f, " qp {} psn {}", req.local_qpn, req.starting_psn)
            }
            CmMessage::Rep(rep) => {
                ids(f, rep.local_comm_id, rep.remote_comm_id)?;
                write!(f, " qp {} psn {}", rep.local_qpn, rep.starting_psn)
            }
            CmMessage::Rtu(rtu) => ids(f, rtu.local_comm_id, rtu.remote_comm_id),
            CmMessage::Mra(mra) => ids(f, mra.local_comm_id, mra.remote_comm_id),
            CmMessage::Rej(rej) => {
                ids(f, rej.local_comm_id, rej.remote_comm_id)?;
                write!(f, " reason {}", rej.reason.0)
            }
            CmMessage::Dreq(dreq) => {
                ids(f, dreq.local_comm_id, dreq.remote_comm_id)?;
                write!(f, " qp {}", dreq.remote_qpn)
            }
            CmMessage::Drep(drep) => ids(f, drep.local_comm_id, drep.remote_comm_id),
            CmMessage::SidrReq(req) => {
                write!(f, " id {:#010x} service {:#x}", req.request_id, req.service_id)
            }
            CmMessage::SidrRep(rep) => {
                write!(f, " id {:#010x} status {} qp {}", rep.request_id, rep.status.0, rep.qpn)
            }
            CmMessage::Lap(path) | CmMessage::Apr(path) => {
                ids(f, path.local_comm_id(), path.remote_comm_id())
            }
        }
    }
}

/// A datagram as an indented tree, one header a line.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a>(pub &'a Datagram<'a>);

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let datagram = self.0;
        let HeaderRepr { bth, .. } = &datagram.headers();
        writeln!(f, "{} ({:#04x})", bth.opcode, bth.opcode.code())?;
        write!(f, "  qp {} psn {} pkey {:#06x}", bth.dest_qp, bth.psn, bth.pkey.0)?;
        write!(f, " ack_req {} solicited {}", u8::from(bth.ack_req), u8::from(bth.solicited))?;
        write!(f, " mig_req {} pad {}", u8::from(bth.mig_req), bth.pad)?;
        write!(f, " fecn {} becn {}", u8::from(bth.fecn), u8::from(bth.becn))?;
        if bth.resv6 != 0 || bth.resv7 != 0 {
            write!(f, " reserved {:#04x} {:#04x}", bth.resv6, bth.resv7)?;
        }
        write_extensions(f, &datagram.headers(), "\n  ")?;
        if let Some(mad) = cm_message(datagram) {
            write!(f, "\n  {}", mad.message)?;
            write_cm_details(f, &mad.message)?;
        } else if datagram.payload_len() > 0 {
            write!(f, "\n  payload {} bytes", datagram.payload_len())?;
        }
        let icrc = u32::from_be_bytes(datagram.icrc_bytes());
        write!(f, "\n  icrc {icrc:#010x}")
    }
}

/// A frame as an indented tree, or why it is none. Takes any bytes.
#[derive(Clone, Copy, Debug)]
pub struct FrameTree<'a>(pub &'a [u8]);

impl fmt::Display for FrameTree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = match Frame::parse(self.0) {
            Ok(frame) => frame,
            Err(reason) => return write!(f, "not a RoCEv2 frame: {reason}"),
        };
        write!(f, "Ethernet {} > {}", frame.src_mac, frame.dst_mac)?;
        if let Some(vlan) = frame.vlan {
            write!(f, " vlan {} priority {}", vlan.id(), vlan.priority())?;
        }
        let flow = &frame.flow;
        write!(f, "\nIP {flow} dscp {} ecn {:?}", flow.dscp(), flow.ecn())?;
        if flow.is_ipv4() {
            write!(f, " ttl {} id {:#06x} df {}", flow.hop_limit, frame.ip_id, u8::from(flow.df))?;
        } else {
            write!(f, " hop limit {} flow label {:#07x}", flow.hop_limit, flow.flow_label)?;
        }
        writeln!(f, "\nUDP port {:#06x} datagram {} bytes", flow.sport, frame.payload().len())?;
        match Datagram::parse(frame.payload()) {
            Ok(datagram) => write!(f, "{}", Tree(&datagram))?,
            Err(reason) => write!(f, "malformed: {reason}")?,
        }
        f.write_str(if frame.verify_icrc().is_good() { " good" } else { " BAD" })
    }
}

fn write_cm_details(f: &mut fmt::Formatter<'_>, message: &CmMessage) -> fmt::Result {
    let private_data: &[u8] = match message {
        CmMessage::Req(req) => {
            write!(f, "\n    {:?}", req.transport)?;
            write!(f, " responder_resources {}", req.responder_resources)?;
            write!(f, " initiator_depth {}", req.initiator_depth)?;
            write!(f, " retry {} rnr_retry {}", req.retry_count, req.rnr_retry_count)?;
            if let Some(mtu) = req.path_mtu() {
                write!(f, " mtu {mtu}")?;
            }
            write!(f, "\n    path {} > {}", req.primary.local_gid, req.primary.remote_gid)?;
            &req.private_data
        }
        CmMessage::SidrReq(req) => &req.private_data,
        CmMessage::Rep(rep) => {
            write!(f, "\n    responder_resources {}", rep.responder_resources)?;
            write!(f, " initiator_depth {}", rep.initiator_depth)?;
            return write!(f, " rnr_retry {}", rep.rnr_retry_count);
        }
        _ => return Ok(()),
    };
    match CmaHeader::parse(private_data) {
        Some(cma) => write!(f, "\n    rdma_cm {} port {} > {}", cma.src, cma.src_port, cma.dst),
        None => Ok(()),
    }
}

/// The connection management message of a datagram for QP1.
fn cm_message(datagram: &Datagram<'_>) -> Option<CmMad> {
    if !datagram.opcode().info().has(HeaderSet::DETH) || datagram.bth().dest_qp != Qpn::GSI {
        return None;
    }
    CmMad::parse(datagram.payload()).ok()
}

#[cfg(test)]
mod tests;
