//! What all stories have in common.

use crate::rules::MISSING;
use crate::{Blow, Played, all, index, markdown, play, text};
use proptest::prelude::*;
use rnic_page::Kind;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn played(name: &str, blows: &[(u64, Blow)]) -> Played {
    play(crate::named(name).unwrap(), blows).unwrap()
}

#[test]
fn every_explanation_belongs_to_something_that_happens() {
    let mut in_vain = Vec::new();
    for scenario in all() {
        let unmet = played(scenario.name, &[]).unmet;
        in_vain.extend(unmet.into_iter().map(|text| (scenario.name, text)));
    }
    assert!(in_vain.is_empty(), "{in_vain:#?}");
}

#[test]
fn every_story_is_complete() {
    for scenario in all() {
        let story = played(scenario.name, &[]).story;
        let name = &story.name;
        assert!(!story.about.is_empty() && !story.next.is_empty(), "{name}");
        let question = story.question.as_ref().unwrap();
        assert!(question.ask.ends_with('?') && !question.answer.is_empty(), "{name}");
        assert!(story.steps.is_sorted_by_key(|step| step.at), "{name}");
        assert!(story.next.iter().all(|next| next.starts_with("rnic ")), "{name}");
        let rules = story.steps.iter().flat_map(|step| &step.rules);
        for rule in rules {
            assert_ne!(rule.what, MISSING, "{name}: {}", rule.name);
        }
    }
}

/// Every byte of a block belongs to one field, if the block has fields.
#[test]
fn fields_cover_their_bytes() {
    for scenario in all() {
        for step in played(scenario.name, &[]).story.steps {
            for block in step.blocks.iter().filter(|block| !block.fields.is_empty()) {
                let mut at = 0;
                for field in &block.fields {
                    assert_eq!(field.start, at, "{}: {block:?}", scenario.name);
                    at += field.len;
                }
                let rest = block.hex.len() / 2 - at;
                assert!(rest < 8, "{}: {block:?}", scenario.name);
            }
        }
    }
}

/// What a rule is about is in the packet that it is named at.
#[test]
fn rules_of_packets_are_true_of_them() {
    let witnesses = [
        ("AckReqAtEnd", "BTH AckReq", "1"),
        ("UcAsksForNoAck", "BTH AckReq", "0"),
        ("MsnCountsMessages", "AETH syndrome", "ACK"),
        ("MsnCountsReads", "AETH syndrome", "ACK"),
        ("MsnCountsAtomics", "AETH syndrome", "ACK"),
    ];
    let mut seen = BTreeSet::new();
    for scenario in all() {
        for step in played(scenario.name, &[]).story.steps {
            for (rule, name, value) in witnesses {
                if step.flight.is_some() && step.rules.iter().any(|named| named.name == rule) {
                    let mut fields = step.blocks[0].fields.iter();
                    let field = fields.find(|field| field.name == name);
                    assert!(field.is_some_and(|f| f.value == value), "{}: {rule}", scenario.name);
                    seen.insert(rule);
                }
            }
        }
    }
    assert_eq!(seen.len(), witnesses.len(), "{seen:?}");
}

/// Every packet that arrives is told at its receiver under the number it left with.
#[test]
fn packets_that_arrive_were_sent() {
    for scenario in all() {
        let story = played(scenario.name, &[]).story;
        let sent = story.steps.iter().filter_map(|step| step.flight.as_ref());
        let sent: BTreeSet<u64> = sent.map(|flight| flight.number).collect();
        for step in story.steps.iter().filter(|step| step.kind == Kind::Arrival) {
            let number = step.title.split(['#', ' ']).find_map(|word| word.parse().ok());
            assert!(number.is_some_and(|n| sent.contains(&n)), "{}: {}", story.name, step.title);
        }
    }
}

#[test]
fn a_story_is_the_same_each_time() {
    for scenario in all() {
        let [one, two] = [(); 2].map(|()| played(scenario.name, &[]));
        assert_eq!(one.story, two.story);
        assert_eq!(one.pcap, two.pcap);
    }
}

#[test]
fn the_walkthrough_is_what_the_generator_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walkthrough");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let mut names = BTreeSet::from(["README.md".to_owned()]);
    assert!(read("README.md") == index(), "cargo xtask walkthrough writes docs/walkthrough anew");
    for scenario in all() {
        let name = format!("{}.md", scenario.name);
        let page = markdown(&played(scenario.name, &[]).story);
        assert!(read(&name) == page, "{name}: cargo xtask walkthrough writes it anew");
        names.insert(name);
    }
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(files, names, "files of stories that there are not");
}

#[test]
fn every_story_has_its_place_in_the_index() {
    let placed = crate::scenarios::CHAPTERS.iter().flat_map(|(_, names)| *names);
    let placed: Vec<&str> = placed.copied().collect();
    let mut names: Vec<&str> = all().iter().map(|scenario| scenario.name).collect();
    assert_eq!(placed.len(), names.len());
    names.retain(|name| !placed.contains(name));
    assert!(names.is_empty(), "{names:?}");
}

fn blow() -> impl Strategy<Value = Blow> {
    prop_oneof![
        Just(Blow::Drop),
        Just(Blow::Duplicate),
        Just(Blow::Corrupt),
        (1_000u64..300_000).prop_map(Blow::Delay),
    ]
}

/// A packet that is lost, damaged, late or doubled changes a story, and breaks none.
#[test]
fn every_story_bears_one_blow_at_any_packet() {
    for scenario in all() {
        let packets = played(scenario.name, &[]).story.steps;
        let packets = packets.iter().filter(|step| step.flight.is_some()).count();
        for number in 1..=packets as u64 {
            for blow in [Blow::Drop, Blow::Duplicate, Blow::Corrupt, Blow::Delay(30_000)] {
                let story = played(scenario.name, &[(number, blow)]).story;
                let struck = story.steps.iter().filter_map(|step| step.flight.as_ref());
                let mut struck = struck.filter(|flight| flight.number == number);
                assert!(struck.all(|flight| flight.fate.is_some()), "{} {number}", story.name);
                assert!(text(&story, true).len() > 100);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_story_bears_several_blows(
        blows in prop::collection::vec((1u64..40, blow()), 1..6),
    ) {
        for scenario in all() {
            let story = played(scenario.name, &blows).story;
            prop_assert!(story.steps.is_sorted_by_key(|step| step.at));
        }
    }
}
