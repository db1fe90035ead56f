//! What an engine process of another user shows root's observers, and says to the daemon.

use crate::script::Script;
use rnic_abi::control::{MAX_MESSAGE, decode};
use rnic_core::qpn::shard_of;
use rnic_host::observe::comments::Comments;
use rnic_host::observe::story::Story;
use rnic_host::observe::{Belief, Observation, Told, Wants, believe};
use rnic_host::pcapng;
use rnic_host::satellite::protocol::FromEngine;
use roce_wire::Qpn;

/// The engine that speaks.
const SHARD: u8 = 3;
const ALL: Wants = Wants { frames: true, events: true };

/// Messages, each behind two bytes of its length. What is believed concerns that engine, can be
/// printed on any terminal, and makes a capture that `rnic explain` reads.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let (mut comments, mut story) = (Comments::default(), Story::default());
    let mut file = Vec::new();
    pcapng::write_head(&mut file, "rnic0").expect("memory takes all");
    let mut frames = 0;
    while !script.is_over() {
        let len = usize::from(script.u16());
        let bytes = script.slice(len.min(MAX_MESSAGE));
        // The other thing that it may say. It decodes, or not.
        let _ = decode::<FromEngine>(bytes);
        let Ok(Belief::Told { lost, told }) = believe(bytes, SHARD, ALL) else { continue };
        if let Told::Event(record) = &told {
            for (name, _) in record.fields().filter(|(name, _)| *name == "qpn") {
                let own = record.number(name).is_some_and(|qpn| shard_of(Qpn::new(qpn)) == SHARD);
                assert!(own, "an event of another engine's queue pair");
            }
            if let Some(id) = story.note(record) {
                assert!(is_printable(&id.to_string()));
            }
            assert!(record.to_json().iter().all(|(name, value)| {
                is_printable(name) && value.as_str().is_none_or(is_printable)
            }));
        }
        for frame in comments.take(Observation { shard: SHARD, lost, told }) {
            assert!(is_printable(&frame.comment), "{:?}", frame.comment);
            pcapng::write_frame(&mut file, &frame.captured, &frame.comment, frame.lost)
                .expect("memory takes all");
            frames += 1;
        }
    }
    frames += comments.rest().len() as u64;
    let report = rnic_explain::explain(&file[..], |_| {}).expect("a capture is a capture");
    assert!(report.capture.packets <= frames && !report.capture.is_cut);
}

/// No terminal takes it for a command.
fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}
