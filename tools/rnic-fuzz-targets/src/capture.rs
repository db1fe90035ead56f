//! Capture files, as `rnic explain` reads them.

use rnic_explain::explain;

/// The input is a file. What is understood of it has facts that fit together, and can be shown.
pub fn run(input: &[u8]) {
    let Ok(report) = explain(input, |_| {}) else { return };
    assert!(!report.to_string().is_empty());
    assert!(report.capture.roce_packets <= report.capture.packets);
    for sent in report.connections.iter().flat_map(|connection| &connection.sent) {
        let counted = sent.repeated + sent.copies_made_by_the_network + sent.overtaken;
        assert!(counted <= sent.requests, "{report}");
        assert!(sent.lost_before_capture <= sent.repeated, "{report}");
        assert!(sent.needless <= sent.repeated, "{report}");
    }
}
