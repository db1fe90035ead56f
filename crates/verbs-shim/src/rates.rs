//! Static rates of address handles: the encoding, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::{c_int, c_uint};

/// `IBV_RATE_MAX`: what an unknown speed is taken for.
const RATE_MAX: c_uint = 0;

/// One encoded rate. `multiple` is 0 where the rate is no multiple of 2.5 Gbit/s.
struct Rate {
    code: c_uint,
    multiple: c_int,
    mbps: c_int,
}

const fn rate(code: c_uint, multiple: c_int, mbps: c_int) -> Rate {
    Rate { code, multiple, mbps }
}

/// IBTA 9.11.1 (static rate) with the codes of verbs.h; from 14 Gbit/s on, the data rate after 64b/66b coding counts.
const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(5, 2, 5_000),
    rate(3, 4, 10_000),
    rate(6, 8, 20_000),
    rate(4, 12, 30_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    rate(11, 0, 14_062),
    rate(12, 0, 56_250),
    rate(13, 0, 112_500),
    rate(14, 0, 168_750),
    rate(15, 0, 25_781),
    rate(16, 0, 103_125),
    rate(17, 0, 206_250),
    rate(18, 0, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// Multiple of 2.5 Gbit/s for an encoded rate, or -1.
pub(crate) extern "C" fn ibv_rate_to_mult(code: c_uint) -> c_int {
    RATES.iter().find(|rate| rate.code == code && rate.multiple != 0).map_or(-1, |r| r.multiple)
}

/// Encoded rate for a multiple of 2.5 Gbit/s; `IBV_RATE_MAX` when there is none.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    RATES.iter().find(|r| multiple != 0 && r.multiple == multiple).map_or(RATE_MAX, |r| r.code)
}

/// Mbit/s of an encoded rate, or -1.
pub(crate) extern "C" fn ibv_rate_to_mbps(code: c_uint) -> c_int {
    RATES.iter().find(|rate| rate.code == code).map_or(-1, |rate| rate.mbps)
}

/// Encoded rate of exactly so many Mbit/s; `IBV_RATE_MAX` when there is none.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|rate| rate.mbps == mbps).map_or(RATE_MAX, |rate| rate.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_converts_there_and_back() {
        for rate in &RATES {
            assert_eq!(ibv_rate_to_mbps(rate.code), rate.mbps);
            assert_eq!(mbps_to_ibv_rate(rate.mbps), rate.code);
            if rate.multiple != 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate.code)), rate.code);
            }
        }
    }

    #[test]
    fn what_has_no_encoding_is_refused_or_maximal() {
        assert_eq!([ibv_rate_to_mult(0), ibv_rate_to_mult(11), ibv_rate_to_mbps(99)], [-1; 3]);
        assert_eq!([mult_to_ibv_rate(0), mult_to_ibv_rate(3), mbps_to_ibv_rate(1)], [RATE_MAX; 3]);
    }
}
