//! The UDP payload of a RoCEv2 packet: headers, payload, padding, ICRC.

use crate::headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpBody, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, XrcEth,
};
use crate::opcode::{HeaderSet, Opcode, OpcodeInfo};
use crate::types::{Psn, Qpn};

/// Bytes of the invariant CRC at the end of a datagram.
pub const ICRC_LEN: usize = 4;

/// The longest header any opcode has: reliable datagram atomics.
pub const MAX_HEADER_LEN: usize = Bth::LEN + Rdeth::LEN + Deth::LEN + AtomicEth::LEN;

/// Pad bytes that follow a payload of this length.
pub const fn pad_for(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// Why bytes are not a RoCEv2 datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ParseError {
    /// Shorter than a base transport header and an ICRC.
    #[error("shorter than a transport header and an ICRC")]
    TooShort,
    /// Transport header version other than 0.
    #[error("transport header version {0}, not 0")]
    Version(u8),
    /// Reserved or manufacturer opcode.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The opcode's extension headers do not fit.
    #[error("too short for the extension headers of {0}")]
    HeaderTruncated(Opcode),
    /// Fewer bytes after the headers than the pad count says.
    #[error("pad count exceeds the payload")]
    PadTooLong,
    /// Not a multiple of four bytes long, as payload, padding and headers together must be.
    #[error("length is not a multiple of four")]
    Unaligned,
}

/// Opcode byte, destination queue pair and PSN of bytes too odd to [`Datagram::parse`], so that
/// even a refused packet can be counted against its queue pair or answered.
pub fn peek(bytes: &[u8]) -> Option<(u8, Qpn, Psn)> {
    let b = bytes.first_chunk::<{ Bth::LEN }>()?;
    let qpn = Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]]));
    let psn = Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]]));
    Some((b[0], qpn, psn))
}

/// All headers of a datagram.
///
/// Which of the optional headers are `Some` is fixed by the opcode; [`Datagram::parse`] guarantees
/// it, and code that builds one for sending must obey it, as [`HeaderRepr::is_consistent`] checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderRepr {
    pub bth: Bth,
    pub rdeth: Option<Rdeth>,
    pub deth: Option<Deth>,
    pub xrceth: Option<XrcEth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack: Option<AtomicAckEth>,
    pub imm: Option<ImmDt>,
    pub ieth: Option<Ieth>,
    pub cnp: Option<CnpBody>,
}

impl HeaderRepr {
    /// Headers with nothing but `bth`; fill in those its opcode needs.
    pub const fn new(bth: Bth) -> HeaderRepr {
        HeaderRepr {
            bth,
            rdeth: None,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            cnp: None,
        }
    }

    /// Headers of a congestion notification packet.
    pub const fn cnp(dest_qp: Qpn) -> HeaderRepr {
        let mut headers = HeaderRepr::new(Bth::cnp(dest_qp));
        headers.cnp = Some(CnpBody([0; CnpBody::LEN]));
        headers
    }

    /// Sets the pad count for a payload of `len` bytes.
    #[must_use]
    pub const fn with_payload_len(mut self, len: usize) -> HeaderRepr {
        self.bth.pad = pad_for(len);
        self
    }

    /// The extension headers that are present.
    pub fn present(&self) -> HeaderSet {
        let mut set = HeaderSet::NONE;
        let mut add = |present: bool, header| {
            if present {
                set = set.with(header);
            }
        };
        add(self.rdeth.is_some(), HeaderSet::RDETH);
        add(self.deth.is_some(), HeaderSet::DETH);
        add(self.xrceth.is_some(), HeaderSet::XRCETH);
        add(self.feth.is_some(), HeaderSet::FETH);
        add(self.reth.is_some(), HeaderSet::RETH);
        add(self.atomic.is_some(), HeaderSet::ATOMIC_ETH);
        add(self.aeth.is_some(), HeaderSet::AETH);
        add(self.atomic_ack.is_some(), HeaderSet::ATOMIC_ACK_ETH);
        add(self.imm.is_some(), HeaderSet::IMM_DT);
        add(self.ieth.is_some(), HeaderSet::IETH);
        add(self.cnp.is_some(), HeaderSet::CNP);
        set
    }

    /// The extension headers are those of the opcode.
    pub fn is_consistent(&self) -> bool {
        self.present() == self.bth.opcode.info().headers
    }

    /// Bytes before the payload.
    pub const fn header_len(&self) -> usize {
        self.bth.opcode.info().header_len as usize
    }

    /// Bytes of the whole datagram: headers, payload, the pad bytes of `bth.pad`, ICRC.
    pub const fn datagram_len(&self, payload_len: usize) -> usize {
        self.header_len() + payload_len + self.bth.pad as usize + ICRC_LEN
    }

    /// Writes the headers to the front of `buf` and returns their length: that is where the payload
    /// goes, after it come the padding and the ICRC ([`write_pad_and_icrc`]).
    ///
    /// # Panics
    /// If `buf` is shorter than the headers.
    ///
    /// [`write_pad_and_icrc`]: HeaderRepr::write_pad_and_icrc
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        debug_assert!(self.is_consistent(), "headers do not fit {}", self.bth.opcode);
        let mut out = Writer { buf, at: 0 };
        out.put(&self.bth.to_bytes());
        if self.bth.opcode.info().headers == HeaderSet::NONE {
            return out.at;
        }
        if let Some(rdeth) = &self.rdeth {
            out.put(&rdeth.to_bytes());
        }
        if let Some(deth) = &self.deth {
            out.put(&deth.to_bytes());
        }
        if let Some(xrceth) = &self.xrceth {
            out.put(&xrceth.to_bytes());
        }
        if let Some(feth) = &self.feth {
            out.put(&feth.to_bytes());
        }
        if let Some(reth) = &self.reth {
            out.put(&reth.to_bytes());
        }
        if let Some(atomic) = &self.atomic {
            out.put(&atomic.to_bytes());
        }
        if let Some(aeth) = &self.aeth {
            out.put(&aeth.to_bytes());
        }
        if let Some(atomic_ack) = &self.atomic_ack {
            out.put(&atomic_ack.to_bytes());
        }
        if let Some(imm) = &self.imm {
            out.put(&imm.0);
        }
        if let Some(ieth) = &self.ieth {
            out.put(&ieth.to_bytes());
        }
        if let Some(cnp) = &self.cnp {
            out.put(&cnp.0);
        }
        out.at
    }

    /// Finishes a datagram whose headers and payload are in place: zeroes the pad bytes and seals
    /// it with the ICRC for `flow` and the IPv4 identification `ip_id` (ignored for IPv6).
    ///
    /// # Panics
    /// If `datagram` is shorter than headers, padding and ICRC.
    pub fn write_pad_and_icrc(&self, flow: &crate::Flow, ip_id: u16, datagram: &mut [u8]) {
        let pad_end = datagram.len() - ICRC_LEN;
        datagram[pad_end - usize::from(self.bth.pad)..pad_end].fill(0);
        crate::icrc::seal(flow, ip_id, datagram);
    }
}

/// A checked view of a datagram. Its headers are read when they are asked for: most packets of a
/// long message have no extension header, and of the base transport header few fields count.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    opcode: Opcode,
    info: &'static OpcodeInfo,
    bth: &'a [u8; Bth::LEN],
    bytes: &'a [u8],
    payload_offset: usize,
    payload_end: usize,
}

impl<'a> Datagram<'a> {
    /// Checks lengths, padding, version and opcode.
    ///
    /// Rules that need a queue pair, such as payload length against the path MTU, are the engine's
    /// ([`crate::PayloadRule`]).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Datagram<'a>, ParseError> {
        let bth = bytes.first_chunk().ok_or(ParseError::TooShort)?;
        if bytes.len() < Bth::LEN + ICRC_LEN {
            return Err(ParseError::TooShort);
        }
        let version = bth[1] & 0xf;
        if version != 0 {
            return Err(ParseError::Version(version));
        }
        let opcode = Opcode::from_u8(bth[0]).ok_or(ParseError::UnknownOpcode(bth[0]))?;
        let info = opcode.info();
        let payload_offset = usize::from(info.header_len);
        let icrc_offset = bytes.len() - ICRC_LEN;
        if payload_offset > icrc_offset {
            return Err(ParseError::HeaderTruncated(opcode));
        }
        let payload_end = icrc_offset
            .checked_sub(usize::from(Bth::pad_of(bth)))
            .filter(|&end| end >= payload_offset)
            .ok_or(ParseError::PadTooLong)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::Unaligned);
        }
        Ok(Datagram { opcode, info, bth, bytes, payload_offset, payload_end })
    }

    /// The base transport header. In line, only the fields that are used cost anything.
    #[inline(always)]
    pub fn bth(&self) -> Bth {
        Bth::from_bytes(self.opcode, self.bth)
    }

    /// All headers.
    pub fn headers(&self) -> HeaderRepr {
        HeaderRepr {
            bth: self.bth(),
            rdeth: self.extension(HeaderSet::RDETH).map(Rdeth::from_bytes),
            deth: self.extension(HeaderSet::DETH).map(Deth::from_bytes),
            xrceth: self.xrceth(),
            feth: self.feth(),
            reth: self.reth(),
            atomic: self.atomic(),
            aeth: self.aeth(),
            atomic_ack: self.atomic_ack(),
            imm: self.imm(),
            ieth: self.ieth(),
            cnp: self.extension(HeaderSet::CNP).map(|bytes| CnpBody(*bytes)),
        }
    }

    /// The shared receive queue that a request of XRC names.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.extension(HeaderSet::XRCETH).map(XrcEth::from_bytes)
    }

    /// What a WRITE or READ is about.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.extension(HeaderSet::RETH).map(Reth::from_bytes)
    }

    /// What a FLUSH is about, besides.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.extension(HeaderSet::FETH).map(Feth::from_bytes)
    }

    /// What an atomic request is about.
    #[inline]
    pub fn atomic(&self) -> Option<AtomicEth> {
        self.extension(HeaderSet::ATOMIC_ETH).map(AtomicEth::from_bytes)
    }

    /// An acknowledgement.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.extension(HeaderSet::AETH).map(Aeth::from_bytes)
    }

    /// The result of an atomic.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.extension(HeaderSet::ATOMIC_ACK_ETH).map(AtomicAckEth::from_bytes)
    }

    /// The key that a SEND invalidates.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        self.extension(HeaderSet::IETH).map(Ieth::from_bytes)
    }

    /// The Q_Key and sender of a datagram.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.extension(HeaderSet::DETH).map(Deth::from_bytes)
    }

    pub fn imm(&self) -> Option<ImmDt> {
        self.extension(HeaderSet::IMM_DT).map(|bytes| ImmDt(*bytes))
    }

    /// The bytes of one extension header, if the opcode has it.
    #[inline]
    fn extension<const N: usize>(&self, header: HeaderSet) -> Option<&'a [u8; N]> {
        let set = self.info.headers;
        if !set.has(header) {
            return None;
        }
        let start = Bth::LEN + usize::from(set.before(header).wire_len());
        // `parse` has found room for all of them.
        self.bytes.get(start..self.payload_offset)?.first_chunk()
    }

    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// What its opcode means.
    pub fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// The data, without padding and ICRC.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload_offset..self.payload_end]
    }

    pub fn payload_len(&self) -> usize {
        self.payload_end - self.payload_offset
    }

    /// Where the payload begins, counted from the base transport header.
    pub fn payload_offset(&self) -> usize {
        self.payload_offset
    }

    /// Number of pad bytes.
    pub fn pad(&self) -> u8 {
        Bth::pad_of(self.bth)
    }

    /// The pad bytes; zero when the sender is well-behaved.
    pub fn pad_bytes(&self) -> &'a [u8] {
        &self.bytes[self.payload_end..self.bytes.len() - ICRC_LEN]
    }

    /// The invariant CRC as received.
    pub fn icrc_bytes(&self) -> [u8; ICRC_LEN] {
        let mut icrc = [0; ICRC_LEN];
        icrc.copy_from_slice(&self.bytes[self.bytes.len() - ICRC_LEN..]);
        icrc
    }

    /// The whole datagram.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.buf[self.at..self.at + N].copy_from_slice(bytes);
        self.at += N;
    }
}

#[cfg(test)]
mod tests;
