//! Behaviour in which devices differ although all of them keep to the specification.
//!
//! What is here is what is known of ConnectX from captures and from its vendor's documents. Two
//! things that other devices do otherwise are the same in both profiles, because ConnectX does what
//! the specification says: MigReq is 1 in every packet, and the UDP source port is folded from the
//! flow label.

use roce_wire::net::Ecn;

/// Vendor behaviour where implementations differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// As the InfiniBand architecture says.
    #[default]
    Spec,
    /// As ConnectX does it: its timeouts, its ACK requests, its credits and its ECN bits.
    ConnectX,
}

/// Packets of a long message after which an ACK is asked for: so many may a timeout repeat that had
/// arrived. To ask for more ACKs takes instructions where few packets come at a time (3 % for twice
/// as many); where many do, they share one.
const ACK_DISTANCE: u32 = 32;
/// ConnectX asks for an ACK at least once in so many packets (`log_ack_req_freq` 8).
const ACK_REQUEST_DISTANCE: u32 = 256;
/// Its firmware takes a smaller timeout exponent for this one: 268 ms.
const SHORTEST_EXPONENT: u8 = 16;
/// Exponent of the first timeout of adaptive retransmission: 4.2 ms.
const FIRST_EXPONENT: u8 = 10;
/// Nanoseconds of timeout exponent 0.
const TIMEOUT_UNIT: u64 = 4096;

impl Profile {
    /// TOS or traffic class of the packets of a queue pair whose address vector says `tos`.
    /// ConnectX marks everything as able to carry congestion marks.
    pub(crate) fn tos(self, tos: u8) -> u8 {
        match self {
            Self::ConnectX if Ecn::from_tos(tos) == Ecn::NotEct => tos | Ecn::Ect0 as u8,
            _ => tos,
        }
    }

    /// Packets of a long message after which an ACK is asked for: a power of two, as `window` is,
    /// and below it, so that the window always opens again.
    #[inline]
    pub(crate) fn ack_interval(self, window: u32) -> u32 {
        match self {
            Self::Spec => (window / 4).clamp(1, ACK_DISTANCE),
            Self::ConnectX => (window / 2).clamp(1, ACK_REQUEST_DISTANCE),
        }
    }

    /// Do ACKs say how many receive WQEs are posted? The specification leaves it open.
    #[inline]
    pub(crate) fn tells_credits(self) -> bool {
        self == Self::ConnectX
    }

    /// Does `out_of_sequence` count gaps, and not the packets behind them?
    pub(crate) fn counts_gaps(self) -> bool {
        self == Self::ConnectX
    }

    /// Nanoseconds that `exponent` of the queue pair's attributes stands for.
    pub(crate) fn timeout(self, exponent: u8) -> u64 {
        let exponent = match self {
            Self::Spec => exponent,
            Self::ConnectX => exponent.max(SHORTEST_EXPONENT),
        };
        TIMEOUT_UNIT << exponent.min(31)
    }

    /// Nanoseconds until the next timeout fires, after so many without progress; `timeout` is
    /// what [`timeout`](Self::timeout) returns. Spec: between one and four times that, longer each
    /// time: a busy peer still has the unanswered packets in its queue, and each repetition makes
    /// the queue longer. ConnectX retransmits adaptively: early at first, then after twice as long
    /// each time.
    pub(crate) fn wait(self, timeout: u64, fired: u8) -> u64 {
        match self {
            // Rule: TimeoutBacksOff
            Self::Spec => match fired {
                0 => timeout + timeout / 2,
                1 => timeout * 3,
                _ => timeout * 4 - timeout / 4,
            },
            Self::ConnectX => timeout.min(TIMEOUT_UNIT << (FIRST_EXPONENT + fired.min(31))),
        }
    }

    /// Do timeouts end the connection by the time they took, and not by their number?
    pub(crate) fn retries_by_time(self) -> bool {
        self == Self::ConnectX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_leaves_the_ecn_bits_to_the_application() {
        assert_eq!(Profile::Spec.tos(0x68), 0x68);
        assert_eq!(Profile::ConnectX.tos(0x68), 0x6a);
        assert_eq!(Profile::ConnectX.tos(0x01), 0x01);
    }

    #[test]
    fn acks_are_asked_for_before_the_window_is_full() {
        for window in (1..20).map(|bits| 1 << bits) {
            for profile in [Profile::Spec, Profile::ConnectX] {
                let interval = profile.ack_interval(window);
                assert!(interval.is_power_of_two() && interval < window, "{profile:?} {window}");
            }
        }
        assert_eq!(Profile::ConnectX.ack_interval(4096), 256);
        assert_eq!(Profile::Spec.ack_interval(4096), 32);
        assert_eq!(Profile::Spec.ack_interval(16), 4);
    }

    #[test]
    fn connectx_waits_twice_as_long_each_time_up_to_its_timeout() {
        let profile = Profile::ConnectX;
        let timeout = profile.timeout(14);
        assert_eq!(timeout, 268_435_456);
        let waits: Vec<_> = (0..9).map(|fired| profile.wait(timeout, fired) / 1_000_000).collect();
        assert_eq!(waits, [4, 8, 16, 33, 67, 134, 268, 268, 268]);
        assert_eq!(profile.wait(timeout, u8::MAX), timeout);
    }

    #[test]
    fn spec_waits_longer_each_time_within_what_the_specification_allows() {
        let timeout = Profile::Spec.timeout(14);
        let waits: Vec<_> = (0..4).map(|fired| Profile::Spec.wait(timeout, fired)).collect();
        assert_eq!(waits, [100_663_296, 201_326_592, 251_658_240, 251_658_240]);
        assert!(waits.iter().all(|wait| (timeout..=4 * timeout).contains(wait)));
        assert!(Profile::Spec.wait(Profile::Spec.timeout(31), u8::MAX) > Profile::Spec.timeout(31));
    }
}
