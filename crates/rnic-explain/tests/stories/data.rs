//! Data of READs that is lost on its way back.

use super::*;

impl Story {
    fn read(&mut self, place: u32, packets: u32) {
        let mut headers = request(Opcode::RcReadRequest, place);
        headers.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: packets * 1024 });
        self.packet(A, headers, 0);
    }

    /// Those of the responses, packets of 1024 bytes each, that come.
    fn data(&mut self, (begin, end): (u32, u32), places: impl IntoIterator<Item = u32>) {
        for place in places {
            let mut headers = response(AT_A, place, Syndrome::ACK);
            headers.bth.opcode = match (place == begin, place + 1 == end) {
                (true, true) => Opcode::RcReadRespOnly,
                (true, false) => Opcode::RcReadRespFirst,
                (false, false) => Opcode::RcReadRespMiddle,
                (false, true) => Opcode::RcReadRespLast,
            };
            headers.aeth = headers.aeth.filter(|_| headers.bth.opcode != Opcode::RcReadRespMiddle);
            self.packet(B, headers, 1024);
        }
    }
}

#[test]
fn data_that_is_lost_before_the_capture_is_asked_for_again() {
    // The first packet of the data, one between, the last one.
    for lost in [4, 5, 7] {
        let mut story = Story::default();
        story.read(0, 4);
        story.data((0, 4), 0..4);
        story.read(4, 4);
        story.read(8, 4);
        story.data((4, 8), (4..8).filter(|place| *place != lost));
        story.data((8, 12), 8..12);
        story.read(lost, 8 - lost);
        story.read(8, 4);
        story.data((lost, 8), lost..8);
        story.data((8, 12), 8..12);
        let report = story.end();
        let (connection, sent) = only(&report);
        assert_eq!((sent.repeated, sent.repeated_for_data, sent.needless), (2, 2, 0), "{report}");
        let back = sent.went_back;
        assert_eq!((back.after_lost_data, back.unexplained, back.after_silence), (1, 0, 0));
        assert_eq!(connection.sent[1].repeated_responses, 0, "{report}");
        let [finding] = &report.findings[..] else { panic!("{report}") };
        assert!(finding.what.contains("once data of READs or atomics was lost on its way back"));
    }
}

#[test]
fn data_that_is_lost_behind_the_capture_is_needless_here() {
    let mut story = Story::default();
    story.read(0, 4);
    story.data((0, 4), 0..4);
    story.wait(Duration::from_millis(70));
    story.read(2, 2);
    story.data((2, 4), 2..4);
    let report = story.end();
    let (connection, sent) = only(&report);
    assert_eq!((sent.repeated, sent.needless, sent.repeated_for_data), (1, 1, 0));
    assert_eq!(connection.sent[1].repeated_responses, 2);
}

/// A requester that goes on has it.
#[test]
fn data_that_only_the_capture_does_not_have_stops_nothing() {
    let mut story = Story::default();
    story.read(0, 4);
    story.data((0, 4), [0, 1, 3]);
    for begin in (4..400).step_by(4) {
        story.wait(Duration::from_millis(3));
        story.read(begin, 4);
        story.data((begin, begin + 4), begin..begin + 4);
    }
    story.wait(Duration::from_millis(70));
    story.read(396, 4);
    let report = story.end();
    let (_, sent) = only(&report);
    assert_eq!((sent.repeated, sent.needless, sent.repeated_for_data), (1, 1, 0), "{report}");
}
