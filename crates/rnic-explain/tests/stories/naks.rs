//! What a requester did about NAKs.

use super::*;

const RNR: Syndrome = Syndrome::RnrNak { timer: 14 };
const LOST: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

/// Another connection, which shows that the capture went on.
fn elsewhere(story: &mut Story, place: u32) {
    let mut headers = send(place);
    headers.bth.dest_qp = Qpn::new(0x44);
    story.packet(A, headers, 8);
}

/// One request that meets no receive so often.
fn refused_again_and_again(times: u32) -> Story {
    let mut story = Story::default();
    story.sends([0]);
    story.ack(0);
    for _ in 0..times {
        story.sends([1]);
        story.answer(1, RNR);
        story.wait(Duration::from_millis(2));
    }
    story
}

fn what(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.what.as_str()).collect()
}

#[test]
fn a_receive_that_is_never_posted_ends_in_the_error_of_its_name() {
    let mut story = refused_again_and_again(7);
    story.wait(Duration::from_secs(1));
    elsewhere(&mut story, 0);
    let report = story.end();
    let first = &report.findings[0];
    assert!(
        first.what.contains("was refused 7 times by an RNR NAK and not sent again"),
        "{report}"
    );
    assert!(first.is_serious && first.advice.contains(" RNR_RETRY_EXC_ERR"), "{first:?}");
    let text = report.to_string();
    assert!(!text.contains("without an answer") && !text.contains(" RETRY_EXC_ERR"), "{text}");
}

/// At the end of a capture a requester may just wait.
#[test]
fn a_requester_that_waits_at_the_end_has_not_given_up() {
    let report = refused_again_and_again(4).end();
    assert!(report.findings.iter().all(|finding| !finding.is_serious), "{report}");
    assert!(what(&report)[0].contains("4 times by an RNR NAK, to the end of the capture"));
}

#[test]
fn a_requester_that_tries_for_ever_has_not_given_up() {
    let mut story = refused_again_and_again(50);
    story.wait(Duration::from_secs(1));
    elsewhere(&mut story, 0);
    assert!(story.end().findings.iter().all(|finding| !finding.is_serious));
    // The receive comes at last.
    let mut story = refused_again_and_again(20);
    story.sends([1, 2]);
    story.ack(2);
    let report = story.end();
    let [finding] = &what(&report)[..] else { panic!("{report}") };
    assert!(finding.contains("20 times there was no receive"), "{finding}");
}

#[test]
fn a_packet_that_is_lost_each_time_is_told_from_a_peer_that_is_silent() {
    let mut story = Story::default();
    story.sends([0]);
    story.ack(0);
    for _ in 0..8 {
        story.sends([1, 2]);
        story.answer(1, LOST);
    }
    let report = story.end();
    let first = &report.findings[0];
    assert!(
        first
            .what
            .contains("was sent 8 times and never acknowledged; the other end asked for it 8"),
        "{first:?}"
    );
    assert!(first.is_serious && first.advice.contains("path MTU"), "{first:?}");
}

/// Linux's rxe refuses the packet, and asks for it because of the packets behind it.
#[test]
fn a_sequence_nak_behind_an_rnr_nak_tells_of_no_loss() {
    let mut story = Story::default();
    story.sends(0..3);
    story.answer(0, RNR);
    story.answer(0, LOST);
    story.wait(Duration::from_millis(2));
    story.sends(0..3);
    story.ack(2);
    let report = story.end();
    let back = only(&report).1.went_back;
    assert_eq!((back.after_rnr_nak, back.after_sequence_nak), (1, 0));
    let [finding] = &what(&report)[..] else { panic!("{report}") };
    assert!(finding.contains("once there was no receive"), "{finding}");
}

#[test]
fn a_receive_that_was_missing_hides_no_losses() {
    let mut story = Story::default();
    story.sends(0..3);
    story.answer(0, RNR);
    story.wait(Duration::from_millis(2));
    story.sends(0..10);
    story.ack(2);
    story.answer(3, LOST);
    story.sends(3..12);
    story.ack(11);
    let report = story.end();
    assert_eq!(only(&report).1.repeated, 3 + 7);
    let found = what(&report);
    let loss = found.iter().find(|what| what.contains("were sent again")).unwrap();
    assert!(loss.contains("7 of 22 request packets were sent again"), "{loss}");
    assert!(loss.contains("once after a sequence NAK, by") && !loss.contains("RNR"), "{loss}");
}

/// The requester had another reason to send it again.
#[test]
fn a_loss_that_an_rnr_nak_mends_needs_no_reason() {
    let mut story = Story::default();
    story.sends([0, 1, 3]);
    story.answer(0, RNR);
    story.wait(Duration::from_millis(2));
    story.sends(0..4);
    story.ack(3);
    let report = story.end();
    let all = what(&report);
    let loss = all.iter().find(|what| what.contains("lost before it came to the place"));
    let loss = loss.unwrap_or_else(|| panic!("{report}"));
    assert!(loss.contains("1 of 7 request packets were sent again (14.2 %); what was"), "{loss}");
}
