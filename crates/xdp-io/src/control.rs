//! Control messages (`cmsg`): written to be sent, parsed when received.

/// Length of `struct cmsghdr`: the length word, level and type.
const HEADER: usize = size_of::<usize>() + 8;
/// Control messages start and end at multiples of this.
const ALIGN: usize = size_of::<usize>();
/// Room for everything this crate sends or receives with one message.
const CAPACITY: usize = 192;

/// A buffer of control messages.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    /// No messages.
    pub(crate) const EMPTY: Control = Control { bytes: [0; CAPACITY], len: 0 };

    /// Appends one message. More than fits is refused, which the callers' fixed sets never reach.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let total = HEADER + data.len();
        let end = self.len + total.next_multiple_of(ALIGN);
        let Some(space) = self.bytes.get_mut(self.len..end) else {
            debug_assert!(false, "control message buffer too small");
            return;
        };
        space[..size_of::<usize>()].copy_from_slice(&total.to_ne_bytes());
        space[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        space[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        space[HEADER..total].copy_from_slice(data);
        self.len = end;
    }

    /// Bytes in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The buffer's size.
    pub(crate) const fn capacity() -> usize {
        CAPACITY
    }

    /// The messages in the first `len` bytes, for a buffer that the kernel filled.
    pub(crate) fn received(&self, len: usize) -> ControlMessages<'_> {
        ControlMessages { rest: &self.bytes[..len.min(CAPACITY)] }
    }
}

/// Iterator over (level, type, data).
pub(crate) struct ControlMessages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (i32, i32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from_ne_bytes(self.rest.get(..size_of::<usize>())?.try_into().ok()?);
        let message = self.rest.get(..length)?;
        let data = message.get(HEADER..)?;
        let level = i32::from_ne_bytes(message[HEADER - 8..HEADER - 4].try_into().ok()?);
        let kind = i32::from_ne_bytes(message[HEADER - 4..HEADER].try_into().ok()?);
        self.rest = self.rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((level, kind, data))
    }
}

/// The data of a control message as `int` (some are sent as a single byte).
pub(crate) fn as_int(data: &[u8]) -> Option<i32> {
    match data.first_chunk::<4>() {
        Some(four) => Some(i32::from_ne_bytes(*four)),
        None => data.first().map(|byte| i32::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let mut control = Control::EMPTY;
        control.push(0, 1, &7i32.to_ne_bytes());
        control.push(17, 103, &1040u16.to_ne_bytes());
        control.push(41, 50, &[9; 20]);
        let all: Vec<_> = control.received(control.len()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].0, all[0].1, as_int(all[0].2)), (0, 1, Some(7)));
        assert_eq!(all[1], (17, 103, &1040u16.to_ne_bytes()[..]));
        assert_eq!(all[2], (41, 50, &[9u8; 20][..]));
    }

    #[test]
    fn broken_lengths_end_the_iteration() {
        for length in [0usize, 1, HEADER - 1, CAPACITY + 1, usize::MAX] {
            let mut control = Control::EMPTY;
            control.push(0, 1, &[1, 2, 3, 4]);
            control.bytes[..size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(control.received(control.len()).count(), 0, "length {length}");
        }
    }
}
