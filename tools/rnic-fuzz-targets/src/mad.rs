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
use roce_wire::cm::CmMad;
use roce_wire::mad::MAD_LEN;

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

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_core::cm::CmCounters;

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
}
