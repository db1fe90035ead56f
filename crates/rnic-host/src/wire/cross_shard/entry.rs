//! Trains as words of a ring.

use super::super::train_len;
use rnic_core::ports::{ArenaId, HopId, Range, RxIpId, RxTrain, TxTrain, WireCaps};
use roce_wire::Flow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Words of an entry.
pub(super) const WORDS: usize = 8;
pub(super) type Entry = [u64; WORDS];

const IS_V6: u64 = 1;
const IS_DF: u64 = 1 << 1;
/// The identification was not seen.
const IS_LIKELY: u64 = 1 << 2;

fn halves(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [bits as u64, (bits >> 64) as u64]
}

fn address(is_v6: bool, [low, high]: [u64; 2]) -> IpAddr {
    match is_v6 {
        true => Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into(),
        false => Ipv4Addr::from_bits(low as u32).into(),
    }
}

/// Words 0 to 5.
fn encode_flow(flow: &Flow, ip_id: u16, flags: u64) -> [u64; 6] {
    let [src_low, src_high] = halves(flow.src);
    let [dst_low, dst_high] = halves(flow.dst);
    let v6 = if flow.src.is_ipv6() { IS_V6 } else { 0 };
    let df = if flow.df { IS_DF } else { 0 };
    let ports = u64::from(flow.sport) << 32 | u64::from(flow.tos) << 48;
    let fifth = v6 | df | flags | u64::from(flow.hop_limit) << 8 | u64::from(ip_id) << 16 | ports;
    [src_low, src_high, dst_low, dst_high, fifth, u64::from(flow.flow_label)]
}

/// The flow, the identification, and whether that is only likely.
fn decode_flow(entry: &Entry) -> (Flow, u16, bool) {
    let [src_low, src_high, dst_low, dst_high, fifth, label, ..] = *entry;
    let is_v6 = fifth & IS_V6 != 0;
    let flow = Flow {
        src: address(is_v6, [src_low, src_high]),
        dst: address(is_v6, [dst_low, dst_high]),
        sport: (fifth >> 32) as u16,
        tos: (fifth >> 48) as u8,
        hop_limit: (fifth >> 8) as u8,
        flow_label: label as u32 & 0x000f_ffff,
        df: fifth & IS_DF != 0,
    };
    (flow, (fifth >> 16) as u16, fifth & IS_LIKELY != 0)
}

/// A train to be sent.
pub(super) fn encode_tx(train: &TxTrain) -> Entry {
    let [a, b, c, d, e, f] = encode_flow(&train.flow, train.ip_id, 0);
    let lens = u64::from(train.segment_len) | u64::from(train.last_len) << 32;
    [a, b, c, d, e, f | u64::from(train.hop.0) << 32, lens, u64::from(train.segments)]
}

/// Why a train of a further shard is not sent: it is none that an engine makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotATrain;

/// The train that another process wants sent, and its bytes, if it is one that this device may
/// send.
pub(super) fn decode_tx(
    entry: &Entry,
    caps: &WireCaps,
    own: &[IpAddr],
    longest: usize,
) -> Result<(TxTrain, usize), NotATrain> {
    let (flow, ip_id, _) = decode_flow(entry);
    let [.., hop, lens, segments] = *entry;
    let train = TxTrain {
        flow,
        hop: HopId((hop >> 32) as u32),
        segments: u32::try_from(segments).map_err(|_| NotATrain)?,
        segment_len: lens as u32,
        last_len: (lens >> 32) as u32,
        ip_id,
        // It was made by another engine than the one that receives what stays inside.
        to_self: false,
    };
    let len = train_len(&train).ok_or(NotATrain)?;
    let fits = train.segments <= caps.max_segments
        && train.segment_len <= caps.max_datagram
        && (1..=train.segment_len).contains(&train.last_len)
        && len <= caps.max_train
        && len as usize <= longest;
    if fits && own.contains(&flow.src) { Ok((train, len as usize)) } else { Err(NotATrain) }
}

/// A received datagram of so many bytes.
pub(super) fn encode_rx(train: &RxTrain, len: usize) -> Entry {
    let (id, flags) = match train.ip_id {
        RxIpId::Seen(id) => (id, 0),
        RxIpId::Likely(id) => (id, IS_LIKELY),
    };
    let [a, b, c, d, e, f] = encode_flow(&train.flow, id, flags);
    [a, b, c, d, e, f, len as u64, 0]
}

/// The datagram that the owner of the wire received, at `offset` of the arena.
pub(super) fn decode_rx(entry: &Entry, arena: ArenaId, offset: u32) -> RxTrain {
    let (flow, id, is_likely) = decode_flow(entry);
    let len = entry[6] as u32;
    let ip_id = if is_likely { RxIpId::Likely(id) } else { RxIpId::Seen(id) };
    let range = Range { offset, len };
    RxTrain { flow, arena, range, segment_len: len, ip_id, is_internal: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::ports::TxIpId;

    const CAPS: WireCaps = WireCaps {
        max_datagram: 4192,
        max_segments: 16,
        max_train: 65_000,
        tx_ip_id: TxIpId::Ours,
    };

    fn train(src: IpAddr) -> TxTrain {
        let dst = match src {
            IpAddr::V4(_) => IpAddr::from([10, 0, 0, 9]),
            IpAddr::V6(_) => "2001:db8::9".parse().unwrap(),
        };
        let flow =
            Flow { tos: 0xb9, hop_limit: 7, flow_label: 0xabcde, ..Flow::new(src, dst, 4711) };
        let (segments, segment_len, last_len) = (15, 4136, 1000);
        let (hop, ip_id) = (HopId(0x8000_0007), 0xfffe);
        TxTrain { flow, hop, segments, segment_len, last_len, ip_id, to_self: false }
    }

    fn addresses() -> [IpAddr; 2] {
        [IpAddr::from([10, 0, 0, 1]), "2001:db8::1".parse().unwrap()]
    }

    #[test]
    fn trains_survive() {
        for own in addresses() {
            let train = train(own);
            let decoded = decode_tx(&encode_tx(&train), &CAPS, &addresses(), 65_536);
            assert_eq!(decoded, Ok((train, 14 * 4136 + 1000)));
            for ip_id in [RxIpId::Seen(1), RxIpId::Likely(0xffff)] {
                let range = Range { offset: 64, len: 300 };
                let (arena, segment_len) = (ArenaId(0), 300);
                let flow = train.flow;
                let rx = RxTrain { flow, arena, range, segment_len, ip_id, is_internal: false };
                assert_eq!(decode_rx(&encode_rx(&rx, 300), arena, 64), rx);
            }
        }
    }

    #[test]
    fn trains_that_no_engine_makes_are_refused() {
        let [own, _] = addresses();
        let good = train(own);
        let mut foreign = good;
        foreign.flow.src = IpAddr::from([10, 0, 0, 2]);
        let bad = [
            foreign,
            TxTrain { segments: 0, ..good },
            TxTrain { segments: 17, ..good },
            TxTrain { segments: u32::MAX, segment_len: u32::MAX, ..good },
            TxTrain { segment_len: 4193, ..good },
            TxTrain { last_len: 4137, ..good },
            TxTrain { last_len: 0, ..good },
            TxTrain { segments: 16, last_len: 4136, ..good },
        ];
        for train in bad {
            let decoded = decode_tx(&encode_tx(&train), &CAPS, &addresses(), 65_536);
            assert_eq!(decoded, Err(NotATrain), "{train:?}");
        }
        assert!(decode_tx(&[u64::MAX; WORDS], &CAPS, &addresses(), 65_536).is_err());
        assert!(decode_tx(&encode_tx(&good), &CAPS, &addresses(), 1000).is_err());
    }
}
