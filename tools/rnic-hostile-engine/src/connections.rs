//! What a hostile engine process asks of the connection manager.

use crate::random::{one_of, word};
use fastrand::Rng;
use rnic_abi::control::{CmHappening, CmNotice, CmOffer, CmRequest, CmService, CmTarget};
use rnic_host::satellite::protocol::{Call, FromEngine};
use std::net::Ipv4Addr;

/// Of one of a few sessions, which now and then are over.
pub(crate) fn message(number: u32, random: &mut Rng) -> FromEngine {
    let any = word(random) as u32;
    let session = one_of(random, [0, 1, 2, any]);
    match random.u8(..16) {
        0 => FromEngine::CloseConnections(session),
        _ => FromEngine::Call(number, Call::Connections(session, request(random))),
    }
}

/// Channels, ports and identifiers that there may be, with numbers that no library would name.
fn request(random: &mut Rng) -> CmRequest {
    let (any, any_port) = (word(random) as u32, random.u16(..));
    let id = one_of(random, [0, 1, 2, 3, 4, any]);
    let channel = random.u32(..4);
    let port = one_of(random, [0, 7174, 7175, any_port]);
    let private = vec![7; one_of(random, [0, 56, 148, 196, 197, 5000])];
    let offer = CmOffer { qpn: word(random) as u32, ..CmOffer::default() };
    let (what, backlog) = (random.u32(..20), word(random) as u32);
    let to = target(port, random);
    match random.u8(..15) {
        0 => CmRequest::OpenChannel,
        1 => CmRequest::CloseChannel { channel },
        2..=4 => CmRequest::Bind {
            channel,
            space: one_of(random, [0x106, 0x106, 0x111, 0x13f, any_port]),
            address: Some(to.local).filter(|_| random.bool()),
            port,
            shared: random.bool(),
        },
        5 => CmRequest::Listen { id, backlog },
        6 => {
            let (retry_count, mtu_code, ack_timeout) = (random.u8(..), 3, random.u8(..));
            let kinds = [CmService::Reliable, CmService::Unreliable, CmService::Extended];
            let service = one_of(random, kinds);
            CmRequest::Connect {
                id,
                to,
                service,
                offer,
                retry_count,
                mtu_code,
                ack_timeout,
                private,
            }
        }
        7 => CmRequest::LookUp { id, to, private },
        8 => CmRequest::Accept { id, offer, private },
        9 => CmRequest::Answer { id, qpn: offer.qpn, qkey: what, private },
        10 => CmRequest::Reject { id, private },
        11 => CmRequest::Release { id },
        12 => {
            let what = CmHappening::Posted(what, 0);
            CmRequest::Post(CmNotice { id, what, private })
        }
        13 => CmRequest::Undecided { id },
        _ => CmRequest::Move { id, channel },
    }
}

/// On this host: nothing leaves it.
fn target(port: u16, random: &mut Rng) -> CmTarget {
    let mut gid = || Ipv4Addr::new(127, 0, 0, random.u8(..3)).to_ipv6_mapped().octets();
    let (local, remote) = (gid(), gid());
    CmTarget { local, remote, port, traffic_class: random.u8(..), flow_label: random.u32(..) }
}
