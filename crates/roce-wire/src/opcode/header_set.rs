//! Which extension headers a packet has.

use core::fmt;

/// A set of extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeaderSet(u16);

impl HeaderSet {
    pub const NONE: HeaderSet = HeaderSet(0);
    pub const RDETH: HeaderSet = HeaderSet(1 << 0);
    pub const DETH: HeaderSet = HeaderSet(1 << 1);
    pub const XRCETH: HeaderSet = HeaderSet(1 << 2);
    pub const FETH: HeaderSet = HeaderSet(1 << 3);
    pub const RETH: HeaderSet = HeaderSet(1 << 4);
    pub const ATOMIC_ETH: HeaderSet = HeaderSet(1 << 5);
    pub const AETH: HeaderSet = HeaderSet(1 << 6);
    pub const ATOMIC_ACK_ETH: HeaderSet = HeaderSet(1 << 7);
    pub const IMM_DT: HeaderSet = HeaderSet(1 << 8);
    pub const IETH: HeaderSet = HeaderSet(1 << 9);
    pub const CNP: HeaderSet = HeaderSet(1 << 10);

    /// Bytes of each header, in bit order.
    const LENGTHS: [u8; 11] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 16];

    pub const fn has(self, other: HeaderSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// It has no header that `other` has not.
    pub const fn is_within(self, other: HeaderSet) -> bool {
        self.0 & !other.0 == 0
    }

    #[must_use]
    pub const fn with(self, other: HeaderSet) -> HeaderSet {
        HeaderSet(self.0 | other.0)
    }

    /// The headers of the set that precede `header` on the wire.
    #[must_use]
    pub(crate) const fn before(self, header: HeaderSet) -> HeaderSet {
        HeaderSet(self.0 & (header.0 - 1))
    }

    /// Bytes that the headers of the set take on the wire.
    pub(crate) const fn wire_len(self) -> u8 {
        if self.0 == 0 {
            return 0;
        }
        let mut total = 0;
        let mut bit = 0;
        while bit < Self::LENGTHS.len() {
            if self.0 & (1 << bit) != 0 {
                total += Self::LENGTHS[bit];
            }
            bit += 1;
        }
        total
    }
}

impl fmt::Debug for HeaderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderSet({:#013b})", self.0)
    }
}
