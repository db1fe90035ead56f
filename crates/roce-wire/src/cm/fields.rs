//! Big-endian fields at fixed offsets of a management datagram's body.
//!
//! Offsets are constants of the message layouts, all within the body, so indexing cannot fail.

use crate::mad::MAD_BODY_LEN;
use crate::types::Gid;

/// Reads fields of a body.
pub(super) struct Fields<'a>(pub(super) &'a [u8; MAD_BODY_LEN]);

impl Fields<'_> {
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u24(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 8 | u32::from(self.u8(at + 2))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn gid(&self, at: usize) -> Gid {
        Gid(self.bytes(at))
    }

    /// `width` bits of the byte at `at`, the lowest of them at `shift`.
    pub(super) fn bits(&self, at: usize, shift: u32, width: u32) -> u8 {
        (self.0[at] >> shift) & low_bits(width)
    }

    pub(super) fn bit(&self, at: usize, shift: u32) -> bool {
        self.bits(at, shift, 1) != 0
    }
}

/// Writes fields of a body that starts as zeros.
pub(super) struct FieldsMut<'a>(pub(super) &'a mut [u8; MAD_BODY_LEN]);

impl FieldsMut<'_> {
    pub(super) fn bytes(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub(super) fn u24(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes()[1..]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub(super) fn gid(&mut self, at: usize, value: Gid) {
        self.bytes(at, &value.0);
    }

    pub(super) fn bits(&mut self, at: usize, shift: u32, width: u32, value: u8) {
        self.0[at] |= (value & low_bits(width)) << shift;
    }

    pub(super) fn bit(&mut self, at: usize, shift: u32, value: bool) {
        self.bits(at, shift, 1, u8::from(value));
    }
}

const fn low_bits(width: u32) -> u8 {
    (0xff_u16 >> (8 - width)) as u8
}
