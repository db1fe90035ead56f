//! Packets that come twice: sent again by their requester, or copied by the network.

use super::*;

/// Packets sent again, and copies by the network.
fn counts(story: Story) -> (u64, u64) {
    let report = story.end();
    let (_, sent) = only(&report);
    (sent.repeated, sent.copies_made_by_the_network)
}

/// UDP sockets number the datagrams of each train from 0.
fn train(story: &mut Story, places: std::ops::Range<u32>) {
    for (ip_id, place) in (0..).zip(places) {
        story.packet_with(A, send(place), 8, ip_id);
    }
}

#[test]
fn a_train_that_a_nak_asks_for_is_no_copy() {
    let mut story = Story::default();
    train(&mut story, 0..8);
    story.answer(0, Syndrome::Nak(NakCode::PsnSequence));
    train(&mut story, 0..8);
    story.ack(7);
    assert_eq!(counts(story), (8, 0));
}

#[test]
fn a_lone_packet_that_is_sent_again_after_a_short_wait_is_no_copy() {
    let mut story = Story::default();
    story.packet_with(A, send(0), 8, 0);
    story.answer(0, Syndrome::RnrNak { timer: 1 });
    story.packet_with(A, send(0), 8, 0);
    story.ack(0);
    assert_eq!(counts(story), (1, 0));
}

#[test]
fn a_comment_that_a_packet_was_sent_again_is_believed() {
    let mut story = Story::default();
    story.packet_with(A, send(0), 8, 0);
    let bytes = frame(A, send(0), 8, 0);
    story.commented_frame((&bytes, bytes.len()), "message 0x000011/0; sent again: timeout");
    story.ack(0);
    assert_eq!(counts(story), (1, 0));
}

/// Nothing asks for it, and the requester goes on behind it.
#[test]
fn a_copy_is_one_without_numbers_too() {
    let mut story = Story::default();
    train(&mut story, 0..4);
    story.packet_with(A, send(2), 8, 2);
    story.packet_with(A, send(4), 8, 0);
    story.packet_with(A, send(4), 8, 0);
    story.ack(4);
    assert_eq!(counts(story), (0, 2));
}
