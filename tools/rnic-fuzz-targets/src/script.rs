//! Fuzz bytes as a script: numbers read front to back, zeros after the end.

/// What is left of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.slice(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    /// At most `len` bytes.
    pub(crate) fn slice(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = later;
        now
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A number below `end`, which is 1 to 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.u8()) % end
    }

    /// One of the items.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// A small signed number, mostly zero: the interesting values are next to a limit.
    pub(crate) fn nudge(&mut self) -> i32 {
        match self.u8() {
            byte @ 0..=31 => i32::from(byte) - 16,
            _ => 0,
        }
    }
}
