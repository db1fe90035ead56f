//! A management datagram at queue pair 1, in any state of the connection that it names.
//!
//! No panic; what parses is emitted unchanged; and the promises of [`crate::cm`], also where the
//! message comes twice.

use crate::cm::World;
use crate::cm::steps::{
    ACCEPT, ANSWER, BOUND, CONNECT, DISCONNECT, DREP, DREQ, ESTABLISH, LISTEN, LISTEN_UDP, LOOK_UP,
    MRA_OF_REP, MRA_OF_REQ, REJ, RELEASE, REP, REQ, RTU, SIDR_REQ,
};
use crate::frame::print;
use crate::script::Script;
use rnic_sim::cm::way;
use roce_wire::cm::{AboutMessage, CmMad, CmMessage, CmaHeader, PortSpace, service_id};
use roce_wire::mad::MAD_LEN;
use roce_wire::{Gid, Qpn};

/// What was before. The message of ours that was sent last names both ends of the connection as
/// soon as any can: what comes a second time is answered by an MRA, which does.
const LIVES: [&[&[u8]]; 17] = [
    &[LISTEN, LISTEN_UDP],
    &[LISTEN, REQ, REQ],
    &[LISTEN, REQ, ACCEPT],
    &[LISTEN, REQ, ACCEPT, MRA_OF_REP],
    &[LISTEN, REQ, ACCEPT, RTU],
    &[LISTEN, REQ, ACCEPT, RTU, DREQ],
    &[LISTEN, REQ, ACCEPT, RTU, RELEASE],
    &[LISTEN_UDP, SIDR_REQ],
    &[LISTEN_UDP, SIDR_REQ, ANSWER],
    &[BOUND, CONNECT],
    &[BOUND, CONNECT, MRA_OF_REQ],
    &[BOUND, CONNECT, REJ],
    &[BOUND, CONNECT, REP, REP],
    &[BOUND, CONNECT, REP, ESTABLISH],
    &[BOUND, CONNECT, REP, ESTABLISH, DISCONNECT],
    &[BOUND, CONNECT, REP, ESTABLISH, DISCONNECT, DREP],
    &[BOUND, LOOK_UP],
];

/// The first byte is what was before, the second the message of ours that this one is about, if
/// there is such a one. The rest is the message.
pub fn run(input: &[u8]) {
    check(input.get(2..).unwrap_or_default());
    play(input).close();
}

fn play(input: &[u8]) -> World {
    let mut script = Script::new(input);
    let mut world = live(script.pick(&LIVES));
    let about = script.u8();
    let message = world.about(about.into(), script.slice(input.len()));
    world.hear(&message);
    world.hear(&message);
    world
}

fn live(life: &[&[u8]]) -> World {
    let mut world = World::new();
    life.iter().for_each(|step| world.play(step));
    world
}

/// Reserved bits are not kept, so the first emission may differ from the input; all later ones are
/// equal.
fn check(bytes: &[u8]) {
    let Ok(mad) = CmMad::parse(bytes) else { return };
    print(&mad.message);
    let emitted = mad.to_bytes();
    assert_eq!(emitted.len(), MAD_LEN);
    assert_eq!(CmMad::parse(&emitted), Ok(mad), "a message changed on its way through bytes");
}

/// A message as an input of each life, changed so that it is as good there as it can be: it is
/// about the message of ours that was sent last; what asks for something new finds a listener.
pub fn inputs(mad: &CmMad) -> Vec<Vec<u8>> {
    /// No message that was sent has this number.
    const NONE: u8 = u8::MAX;
    let input = |(number, life): (u8, &[&[u8]])| {
        let (mut mad, mut about) = (*mad, live(life).last_sent().unwrap_or(NONE));
        let is_asked = life[0] != BOUND;
        match &mut mad.message {
            CmMessage::Req(req) => {
                about = NONE;
                // Each is one bit away from what the peer of a life that is asked has.
                (req.local_comm_id, req.local_qpn) = (6, Qpn::new(4));
                req.service_id = service_id(PortSpace::Tcp, 1);
                let way = way(0, 1);
                (req.primary.local_gid, req.primary.remote_gid) =
                    (Gid::from_ip(way.remote), Gid::from_ip(way.local));
                introduce(&mut req.private_data);
            }
            CmMessage::SidrReq(req) => {
                about = NONE;
                (req.request_id, req.service_id) = (9, service_id(PortSpace::Udp, 1));
                introduce(&mut req.private_data);
            }
            CmMessage::Mra(mra) if is_asked => mra.about = AboutMessage::Rep,
            CmMessage::Dreq(dreq) => dreq.remote_qpn = Qpn::new(if is_asked { 5 } else { 6 }),
            _ => {}
        }
        [&[number, about][..], &mad.to_bytes()].concat()
    };
    (0..).zip(LIVES).map(input).collect()
}

/// Says from which port of host 1 a request comes.
fn introduce(private: &mut [u8]) {
    let way = way(0, 1);
    let header = CmaHeader { src_port: 9, src: way.remote, dst: way.local };
    private[..CmaHeader::LEN].copy_from_slice(&header.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::cm::CmCounters;
    use std::fs;
    use std::path::Path;

    /// The states of all identifiers, with what else decides what a message does.
    fn states(world: &World) -> String {
        let text = format!("{:?}", world.manager());
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let after = text.split(" state: ").skip(1);
        let states = after.map(|rest| rest.split(|c| !is_word(c)).next().unwrap_or_default());
        let mut states: Vec<_> = states.collect();
        states.extend(text.contains("was_put_off: true").then_some("put off"));
        states.extend(text.contains("owner: None").then_some("let go"));
        states.join(", ")
    }

    #[test]
    fn each_life_has_a_state_of_its_own() {
        let expected = [
            "Listening, Listening",
            "Listening, ReqReceived",
            "Listening, RepSent",
            "Listening, RepSent, put off",
            "Listening, Established",
            "Listening, Timewait",
            "Listening, DreqSent, let go",
            "Listening, SidrReceived",
            "Listening, SidrAnswered",
            "ReqSent",
            "ReqSent, put off",
            "Idle",
            "RepReceived",
            "Established",
            "DreqSent",
            "Timewait",
            "SidrSent",
        ];
        for (life, expected) in LIVES.iter().zip(expected) {
            let mut world = live(life);
            assert_eq!(states(&world), expected);
            let counters = world.manager().counters();
            let CmCounters { cm_received, cm_sent, cm_retransmitted, cm_duplicates, .. } = counters;
            // Nothing was malformed, a stranger's, refused, or out of state.
            let good = CmCounters {
                cm_received,
                cm_sent,
                cm_retransmitted,
                cm_duplicates,
                ..CmCounters::default()
            };
            assert_eq!(counters, good, "{expected}");
            let repeats = life.windows(2).filter(|steps| steps[0] == steps[1]).count();
            assert_eq!(cm_duplicates, repeats as u64, "{expected}");
            world.close();
        }
    }

    #[test]
    fn seeds_concern_the_connection_of_their_life() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/mad");
        for (seed, expected) in [
            ("req_00", "Listening, Listening, ReqReceived"),
            ("req_04", "Listening, Established, ReqReceived"),
            ("mra_02", "Listening, RepSent, put off"),
            ("mra_09", "ReqSent, put off"),
            ("rej_01", "Listening, Idle"),
            ("rej_09", "Idle"),
            ("rep_09", "RepReceived"),
            ("rtu_02", "Listening, Established"),
            ("dreq_04", "Listening, Timewait"),
            ("dreq_12", "Timewait"),
            ("dreq_13", "Timewait"),
            ("drep_14", "Timewait"),
            ("sidr_req_07", "Listening, SidrReceived, SidrReceived"),
            ("sidr_rep_16", "Idle"),
        ] {
            let mut world = play(&fs::read(folder.join(seed)).expect("a seed"));
            assert_eq!(states(&world), expected, "{seed}");
            world.close();
        }
    }
}
