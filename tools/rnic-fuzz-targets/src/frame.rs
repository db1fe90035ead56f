//! Frames and datagrams from the network.

use crate::script::Script;
use roce_wire::frame::FrameHeader;
use roce_wire::grh::{GRH_LEN, GrhArea};
use roce_wire::net::EthernetRepr;
use roce_wire::pretty::{FrameTree, HeaderLine, Tree};
use roce_wire::{Datagram, Flow, Frame, IpIdHint, datagram, icrc};
use std::fmt::{self, Display, Write};
use std::net::{IpAddr, Ipv4Addr};

/// The first byte selects what the rest is.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let kind = script.u8();
    let bytes = script.slice(input.len());
    match kind % 3 {
        0 => check_frame(bytes),
        1 => check_datagram(bytes),
        _ => check_grh(bytes),
    }
}

/// Whole frames: parse, print, emit again.
fn check_frame(bytes: &[u8]) {
    print(&FrameTree(bytes));
    let Ok(frame) = Frame::parse(bytes) else { return };
    print(&frame);
    let _ = frame.verify_icrc();
    check_datagram(frame.payload());
    let header = frame.header();
    let mut out = [0; FrameHeader::MAX_LEN];
    let len = header.emit(frame.ip_id, frame.payload().len(), &mut out);
    assert_eq!(len, frame.payload_range().start, "the header has another length");
    // The frame as our sender would have made it is the same frame to a receiver.
    let mut again = out[..len].to_vec();
    again.extend_from_slice(frame.payload());
    let parsed = Frame::parse(&again).expect("a header that was emitted parses");
    assert_eq!(parsed.header(), header);
    assert_eq!(parsed.ip_id, frame.ip_id);
    assert_eq!(parsed.payload(), frame.payload());
    let (ethernet, _) = EthernetRepr::parse(bytes).expect("the frame has an Ethernet header");
    let mut out = [0; EthernetRepr::LEN + EthernetRepr::VLAN_LEN];
    let len = ethernet.emit(&mut out);
    assert_eq!(out[..len], bytes[..len], "the Ethernet header changed");
}

fn check_datagram(bytes: &[u8]) {
    let peeked = datagram::peek(bytes);
    let flow = Flow::new(IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST), 7);
    let known = icrc::verify(&flow, IpIdHint::Known(1), bytes);
    assert!(!known.is_good() || icrc::verify(&flow, IpIdHint::Predicted(9), bytes).is_good());
    let Ok(parsed) = Datagram::parse(bytes) else { return };
    let headers = &parsed.headers();
    let bth = &headers.bth;
    assert_eq!(peeked, Some((bth.opcode.code(), bth.dest_qp, bth.psn)));
    assert!(headers.is_consistent());
    print(&parsed);
    print(&Tree(&parsed));
    print(&HeaderLine { headers, payload_len: parsed.payload_len() });
    let mut out = [0; datagram::MAX_HEADER_LEN];
    let len = headers.emit(&mut out);
    assert_eq!(out[..len], bytes[..len], "the headers changed");
    assert_eq!(len, parsed.payload_offset());
    assert_eq!(headers.datagram_len(parsed.payload_len()), bytes.len());
    let ends = [parsed.payload().len(), parsed.pad_bytes().len(), parsed.icrc_bytes().len()];
    assert_eq!(len + ends.iter().sum::<usize>(), bytes.len());
}

fn check_grh(bytes: &[u8]) {
    if let Some(area) = bytes.first_chunk::<GRH_LEN>() {
        let _ = GrhArea::parse(area);
    }
}

/// Formats the text and discards it.
pub(crate) fn print(what: &impl Display) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, _text: &str) -> fmt::Result {
            Ok(())
        }
    }
    write!(Nowhere, "{what}").expect("printing does not fail");
}
