//! Static rates of address handles: the encoding, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::c_int;

use verbs_abi::{
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX, ibv_rate,
};

/// One encoded rate. `multiple` is 0 where the rate is no multiple of 2.5 Gbit/s.
struct Rate {
    code: ibv_rate,
    multiple: c_int,
    mbps: c_int,
}

const fn rate(code: ibv_rate, multiple: c_int, mbps: c_int) -> Rate {
    Rate { code, multiple, mbps }
}

/// The codes of verbs.h; from 14 Gbit/s on, the data rate after 64b/66b coding counts.
const RATES: [Rate; 23] = [
    rate(IBV_RATE_2_5_GBPS, 1, 2_500),
    rate(IBV_RATE_5_GBPS, 2, 5_000),
    rate(IBV_RATE_10_GBPS, 4, 10_000),
    rate(IBV_RATE_20_GBPS, 8, 20_000),
    rate(IBV_RATE_30_GBPS, 12, 30_000),
    rate(IBV_RATE_40_GBPS, 16, 40_000),
    rate(IBV_RATE_60_GBPS, 24, 60_000),
    rate(IBV_RATE_80_GBPS, 32, 80_000),
    rate(IBV_RATE_120_GBPS, 48, 120_000),
    rate(IBV_RATE_14_GBPS, 0, 14_062),
    rate(IBV_RATE_56_GBPS, 0, 56_250),
    rate(IBV_RATE_112_GBPS, 0, 112_500),
    rate(IBV_RATE_168_GBPS, 0, 168_750),
    rate(IBV_RATE_25_GBPS, 0, 25_781),
    rate(IBV_RATE_100_GBPS, 0, 103_125),
    rate(IBV_RATE_200_GBPS, 0, 206_250),
    rate(IBV_RATE_300_GBPS, 0, 309_375),
    rate(IBV_RATE_28_GBPS, 11, 28_125),
    rate(IBV_RATE_50_GBPS, 20, 53_125),
    rate(IBV_RATE_400_GBPS, 160, 425_000),
    rate(IBV_RATE_600_GBPS, 240, 637_500),
    rate(IBV_RATE_800_GBPS, 320, 850_000),
    rate(IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// Multiple of 2.5 Gbit/s for an encoded rate, or -1.
pub(crate) extern "C" fn ibv_rate_to_mult(code: ibv_rate) -> c_int {
    RATES.iter().find(|rate| rate.code == code && rate.multiple != 0).map_or(-1, |r| r.multiple)
}

/// Encoded rate for a multiple of 2.5 Gbit/s; `IBV_RATE_MAX` when there is none.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> ibv_rate {
    RATES.iter().find(|r| multiple != 0 && r.multiple == multiple).map_or(IBV_RATE_MAX, |r| r.code)
}

/// Mbit/s of an encoded rate, or -1.
pub(crate) extern "C" fn ibv_rate_to_mbps(code: ibv_rate) -> c_int {
    RATES.iter().find(|rate| rate.code == code).map_or(-1, |rate| rate.mbps)
}

/// Encoded rate of exactly so many Mbit/s; `IBV_RATE_MAX` when there is none.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|rate| rate.mbps == mbps).map_or(IBV_RATE_MAX, |rate| rate.code)
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
        assert_eq!(
            [mult_to_ibv_rate(0), mult_to_ibv_rate(3), mbps_to_ibv_rate(1)],
            [IBV_RATE_MAX; 3]
        );
    }
}
