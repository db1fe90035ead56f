//! A management datagram at queue pair 1, in any state of the connection that it names.
//!
//! No panic; what parses is emitted unchanged; and the promises of [`crate::cm`], also where the
//! message comes twice.

use crate::cm::World;
use crate::cm::steps::{
    ACCEPT, BOUND, CONNECT, DISCONNECT, ESTABLISH, LISTEN, LISTEN_UDP, LOOK_UP, REP, REQ, RTU,
};
use crate::frame::print;
use crate::script::Script;
use roce_wire::cm::CmMad;
use roce_wire::mad::MAD_LEN;

/// What was before.
const LIVES: [&[&[u8]]; 9] = [
    &[LISTEN, LISTEN_UDP],
    &[LISTEN, REQ],
    &[LISTEN, REQ, ACCEPT],
    &[LISTEN, REQ, ACCEPT, RTU],
    &[BOUND, CONNECT],
    &[BOUND, CONNECT, REP],
    &[BOUND, CONNECT, REP, ESTABLISH],
    &[BOUND, CONNECT, REP, ESTABLISH, DISCONNECT],
    &[BOUND, LOOK_UP],
];

/// The first byte is what was before, the second the message of ours that this one is about, if
/// there is such a one. The rest is the message.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let life = script.pick(&LIVES);
    let about = usize::from(script.u8());
    let message = script.slice(input.len());
    check(message);
    let mut world = World::new();
    for step in life {
        world.play(step);
    }
    world.hear(message, about);
    world.hear(message, about);
    world.close();
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

    #[test]
    fn each_life_has_a_state_of_its_own() {
        let states = LIVES.map(|life| {
            let mut world = World::new();
            for step in life {
                world.play(step);
            }
            let state = format!("{world:?}");
            world.close();
            state
        });
        for (at, state) in states.iter().enumerate() {
            assert!(!states[..at].contains(state), "{at}: {state}");
        }
    }
}
