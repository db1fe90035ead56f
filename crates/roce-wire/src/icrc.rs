//! The invariant CRC: a CRC-32 over everything routers do not change.
//!
//! It covers eight bytes of ones (where InfiniBand has its local route header), the IP and UDP
//! headers with the fields that change on the way set to ones, the base transport header with byte
//! 4 set to ones, and everything after it. The CRC is the one of Ethernet and zlib; it is sent
//! least significant byte first.
//!
//! The IPv4 identification and "don't fragment" are covered. A receiver behind a UDP socket does
//! not see them, and [`IpIdHint::Predicted`] deals with that.

use crc32fast::Hasher;

use crate::ROCE_PORT;
use crate::datagram::ICRC_LEN;
use crate::flow::{AddressPair, Flow};
use crate::headers::Bth;
use crate::net::{Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};

/// CRC state after the eight leading bytes of ones, as zlib would continue from it.
const AFTER_ONES: u32 = 0x2144_df1c;

/// Next header value of a RoCEv1 global route header.
const NEXT_HEADER_BTH: u8 = 0x1b;

/// The largest UDP payload; more cannot be a datagram.
const MAX_DATAGRAM_LEN: usize = 65535 - Ipv4Repr::LEN - UdpRepr::LEN;

/// What the receiver knows of the IPv4 identification. Irrelevant for IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpIdHint {
    /// The received header is at hand.
    Known(u16),
    /// The header was hidden by a UDP socket. This value is tried first, with the flow's "don't
    /// fragment"; if they are not the ones, those that make the CRC good are computed. The check
    /// then has only 15 bits of strength left, so the kernel's IP checksum and the Ethernet FCS
    /// matter more.
    Predicted(u16),
}

/// Outcome of checking an ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum IcrcCheck {
    /// The CRC is good with the known or predicted header.
    Good,
    /// The CRC is good if the packet's IPv4 header had this identification and "don't fragment".
    GoodWith {
        id: u16,
        df: bool,
    },
    Bad,
}

impl IcrcCheck {
    pub const fn is_good(self) -> bool {
        !matches!(self, IcrcCheck::Bad)
    }

    /// The IPv4 identification of the packet that was checked with `hint`; the likely one where the
    /// CRC is bad.
    pub const fn ip_id(self, hint: IpIdHint) -> u16 {
        match (self, hint) {
            (IcrcCheck::GoodWith { id, .. }, _)
            | (_, IpIdHint::Known(id) | IpIdHint::Predicted(id)) => id,
        }
    }

    /// The flow of the packet that was checked as one of `flow`; that one where the CRC is bad.
    #[must_use]
    pub const fn flow(self, mut flow: Flow) -> Flow {
        if let IcrcCheck::GoodWith { df, .. } = self {
            flow.df = df;
        }
        flow
    }
}

/// The ICRC of a datagram (base transport header to pad bytes) sent on `flow`.
///
/// For IPv4 the packet is assumed to have no options and to carry the identification `ip_id`.
pub fn icrc(flow: &Flow, ip_id: u16, datagram_without_icrc: &[u8]) -> u32 {
    let udp_len = (UdpRepr::LEN + datagram_without_icrc.len() + ICRC_LEN) as u16;
    match flow.addresses() {
        AddressPair::V4(src, dst) => {
            const L3: usize = Ipv4Repr::LEN;
            let mut head = [0xff; L3 + UdpRepr::LEN + Bth::LEN];
            head[0] = 0x45;
            head[2..4].copy_from_slice(&udp_len.wrapping_add(L3 as u16).to_be_bytes());
            head[4..6].copy_from_slice(&ip_id.to_be_bytes());
            let flags = if flow.df { Ipv4Repr::DONT_FRAGMENT } else { 0 };
            head[6..8].copy_from_slice(&flags.to_be_bytes());
            head[9] = PROTOCOL_UDP;
            head[12..16].copy_from_slice(&src.octets());
            head[16..20].copy_from_slice(&dst.octets());
            put_udp(&mut head[L3..], flow.sport, udp_len);
            finish(&mut head, datagram_without_icrc)
        }
        AddressPair::V6(src, dst) => {
            const L3: usize = Ipv6Repr::LEN;
            let mut head = [0xff; L3 + UdpRepr::LEN + Bth::LEN];
            head[0] = 0x6f;
            head[4..6].copy_from_slice(&udp_len.to_be_bytes());
            head[6] = PROTOCOL_UDP;
            head[8..24].copy_from_slice(&src.octets());
            head[24..40].copy_from_slice(&dst.octets());
            put_udp(&mut head[L3..], flow.sport, udp_len);
            finish(&mut head, datagram_without_icrc)
        }
    }
}

/// Writes the ICRC of a complete datagram into its last four bytes.
///
/// # Panics
/// If `datagram` is shorter than four bytes.
pub fn seal(flow: &Flow, ip_id: u16, datagram: &mut [u8]) {
    let (covered, last) = datagram.split_at_mut(datagram.len() - ICRC_LEN);
    last.copy_from_slice(&icrc(flow, ip_id, covered).to_le_bytes());
}

/// Checks the ICRC of a received datagram (base transport header to ICRC).
#[inline(always)]
pub fn verify(flow: &Flow, ip_id: IpIdHint, datagram: &[u8]) -> IcrcCheck {
    let Some((covered, received)) = datagram.split_last_chunk::<ICRC_LEN>() else {
        return IcrcCheck::Bad;
    };
    if datagram.len() > MAX_DATAGRAM_LEN {
        return IcrcCheck::Bad;
    }
    let received = u32::from_le_bytes(*received);
    match ip_id {
        IpIdHint::Known(id) if icrc(flow, id, covered) == received => IcrcCheck::Good,
        IpIdHint::Known(_) => IcrcCheck::Bad,
        IpIdHint::Predicted(id) => {
            let delta = icrc(flow, id, covered) ^ received;
            if delta == 0 {
                return IcrcCheck::Good;
            }
            if !flow.is_ipv4() {
                return IcrcCheck::Bad;
            }
            match explain(delta, covered.len()) {
                Some((other_id, other_df)) => {
                    IcrcCheck::GoodWith { id: id ^ other_id, df: flow.df ^ other_df }
                }
                None => IcrcCheck::Bad,
            }
        }
    }
}

/// Checks the ICRC of a packet that begins with its IPv4, IPv6 or (RoCEv1) global route header,
/// whatever flags it carries. Bytes beyond the length in that header are ignored.
pub fn verify_frame(l3: &[u8]) -> IcrcCheck {
    let check = match l3.first().map(|byte| byte >> 4) {
        Some(4) => verify_ipv4(l3),
        Some(6) => verify_ipv6(l3),
        _ => None,
    };
    if check == Some(true) { IcrcCheck::Good } else { IcrcCheck::Bad }
}

fn verify_ipv4(l3: &[u8]) -> Option<bool> {
    const L3: usize = Ipv4Repr::LEN;
    let mut head = *l3.first_chunk::<{ L3 + UdpRepr::LEN + Bth::LEN }>()?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let (covered, received) = l3.get(..len)?.split_last_chunk::<ICRC_LEN>()?;
    head[1] = 0xff;
    head[8] = 0xff;
    head[10..12].fill(0xff);
    mask_udp_checksum(&mut head[L3..]);
    let computed = finish(&mut head, covered.get(L3 + UdpRepr::LEN..)?);
    Some(computed == u32::from_le_bytes(*received))
}

fn verify_ipv6(l3: &[u8]) -> Option<bool> {
    const L3: usize = Ipv6Repr::LEN;
    let mut ip = *l3.first_chunk::<L3>()?;
    let len = L3 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let (covered, received) = l3.get(..len)?.split_last_chunk::<ICRC_LEN>()?;
    ip[0] |= 0x0f;
    ip[1..4].fill(0xff);
    ip[7] = 0xff;
    let computed = if ip[6] == NEXT_HEADER_BTH {
        let mut head = [0xff; L3 + Bth::LEN];
        head[..L3].copy_from_slice(&ip);
        finish(&mut head, covered.get(L3..)?)
    } else {
        let mut head = [0xff; L3 + UdpRepr::LEN + Bth::LEN];
        head[..L3].copy_from_slice(&ip);
        head[L3..L3 + UdpRepr::LEN].copy_from_slice(covered.get(L3..L3 + UdpRepr::LEN)?);
        mask_udp_checksum(&mut head[L3..]);
        finish(&mut head, covered.get(L3 + UdpRepr::LEN..)?)
    };
    Some(computed == u32::from_le_bytes(*received))
}

/// Writes source port, destination port and length; the checksum stays masked.
fn put_udp(udp: &mut [u8], sport: u16, len: u16) {
    udp[..2].copy_from_slice(&sport.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
}

fn mask_udp_checksum(udp: &mut [u8]) {
    udp[6..8].fill(0xff);
}

/// Puts the masked base transport header at the end of `head`, then runs the CRC over `head` and
/// the rest of `covered`, so that the payload is read once and in one piece.
fn finish<const HEAD: usize>(head: &mut [u8; HEAD], covered: &[u8]) -> u32 {
    let mut crc = Hasher::new_with_initial(AFTER_ONES);
    match covered.split_first_chunk::<{ Bth::LEN }>() {
        Some((bth, rest)) => {
            let at = HEAD - Bth::LEN;
            head[at..].copy_from_slice(bth);
            head[at + BTH_MASKED_BYTE] = 0xff;
            crc.update(head);
            crc.update(rest);
        }
        None => {
            crc.update(&head[..HEAD - Bth::LEN]);
            crc.update(covered);
        }
    }
    crc.finalize()
}

/// FECN, BECN and six reserved bits: switches may mark them.
const BTH_MASKED_BYTE: usize = 4;

/// The difference of IPv4 identifications that changes the CRC by `delta`, with or without another
/// "don't fragment", if there is one.
///
/// A CRC is linear: flipping bits V (16 of them, as a polynomial) of the identification changes it
/// by V * x^(8 n + 32) modulo the generator, where n bytes follow the identification. So
/// `delta * x^-(8 n + 32)` must have no terms beyond x^15, and there is at most one solution.
/// Flipping "don't fragment" in the byte that follows adds one known term to it.
fn explain(delta: u32, covered_len: usize) -> Option<(u16, bool)> {
    const AFTER_ID: usize = Ipv4Repr::LEN - 6 + UdpRepr::LEN;
    let mut bytes = covered_len + AFTER_ID + 4;
    let mut value = delta;
    for powers in &INVERSE_BYTE_POWERS {
        let digit = bytes & 0xf;
        if digit != 0 {
            value = multiply(value, powers[digit]);
        }
        bytes >>= 4;
    }
    // Reflected: bit 31 is the term x^0, bit 16 is x^15. A two-byte polynomial is as if shifted in
    // byte by byte, least significant bit first, so each byte is bit-reversed and the first byte of
    // the identification holds the higher powers.
    let df = value & 0xffff != 0;
    if df {
        value ^= DF_FLIPPED;
    }
    if value & 0xffff != 0 {
        return None;
    }
    let [low_terms, high_terms] = ((value >> 16) as u16).to_be_bytes();
    Some((u16::from_be_bytes([high_terms, low_terms]), df))
}

/// "Don't fragment" is x^1 of its byte, and that byte is x^-8 of the identification.
const DF_FLIPPED: u32 = {
    let mut value = multiply_by_x(ONE);
    let mut bit = 0;
    while bit < 8 {
        value = divide_by_x(value);
        bit += 1;
    }
    value
};

/// The generator x^32 + x^26 + ... + 1 without its top term, bit 31 being x^0.
const GENERATOR: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 0x8000_0000;

/// `INVERSE_BYTE_POWERS[k][d]` is x^(-8 d 16^k): four multiplications undo any packet length.
const INVERSE_BYTE_POWERS: [[u32; 16]; 4] = inverse_byte_powers();

const fn inverse_byte_powers() -> [[u32; 16]; 4] {
    let mut table = [[ONE; 16]; 4];
    let mut step = ONE;
    let mut bit = 0;
    while bit < 8 {
        step = divide_by_x(step);
        bit += 1;
    }
    let mut digit = 0;
    while digit < 4 {
        let mut i = 1;
        while i < 16 {
            table[digit][i] = multiply(table[digit][i - 1], step);
            i += 1;
        }
        step = multiply(table[digit][15], step);
        digit += 1;
    }
    table
}

/// Product of two polynomials modulo the generator.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut term = ONE;
    while term != 0 {
        if a & term != 0 {
            product ^= b;
        }
        b = multiply_by_x(b);
        term >>= 1;
    }
    product
}

const fn multiply_by_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { GENERATOR } else { 0 }
}

/// The inverse of [`multiply_by_x`]: the generator has the term x^0, so bit 31 tells whether the
/// multiplication reduced.
const fn divide_by_x(a: u32) -> u32 {
    if a & ONE != 0 { ((a ^ GENERATOR) << 1) | 1 } else { a << 1 }
}

#[cfg(test)]
mod tests;
