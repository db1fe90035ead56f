//! Capture files, as `rnic explain` reads them.

use rnic_explain::{html, tell};

/// The input is a file. What is understood of it has facts that fit together, and can be shown, as
/// a page too, whose data ends nowhere but at its end.
pub fn run(input: &[u8]) {
    let Ok((report, story)) = tell(input, "capture", |_| {}) else { return };
    assert!(!report.to_string().is_empty());
    assert!(story.steps.len() as u64 <= report.capture.roce_packets);
    assert_eq!(html(&story).matches("</script>").count(), 2);
    assert!(report.capture.roce_packets <= report.capture.packets);
    for sent in report.connections.iter().flat_map(|connection| &connection.sent) {
        let counted = sent.repeated + sent.copies_made_by_the_network + sent.overtaken;
        assert!(counted <= sent.requests, "{report}");
        assert!(sent.lost_before_capture <= sent.repeated, "{report}");
        assert!(sent.needless <= sent.repeated, "{report}");
    }
}
