use core::net::IpAddr;

use super::*;
use crate::headers::{Bth, Reth};
use crate::types::{Msn, Psn, RKey};
use crate::{FrameHeader, MacAddr, Opcode, VlanTag};

fn write_headers() -> HeaderRepr {
    let mut bth = Bth::new(Opcode::RcWriteOnly, Qpn::new(0x123), Psn::new(0x10));
    bth.ack_req = true;
    let mut headers = HeaderRepr::new(bth);
    headers.reth = Some(Reth { va: 0x7f12_3456_7000, rkey: RKey(0x11_2233), dma_len: 5 });
    headers.with_payload_len(5)
}

#[test]
fn a_write_on_one_line() {
    let line = HeaderLine { headers: &write_headers(), payload_len: 5 }.to_string();
    assert_eq!(
        line,
        "RC_WRITE_ONLY qp 0x000123 psn 0x000010 len 5 A va 0x7f1234567000 rkey 0x00112233 dma_len 5"
    );
}

#[test]
fn a_frame_as_a_tree() {
    let ip = |text: &str| -> IpAddr { text.parse().expect("address") };
    let header = FrameHeader {
        dst_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        src_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: Some(VlanTag::new(3, 7)),
        flow: Flow::new(ip("192.0.2.1"), ip("192.0.2.2"), 0xd431),
    };
    let headers = write_headers();
    let len = headers.datagram_len(5);
    let mut bytes = vec![0; header.len() + len];
    let at = header.emit(0x1234, len, &mut bytes);
    headers.emit(&mut bytes[at..]);
    headers.write_pad_and_icrc(&header.flow, 0x1234, &mut bytes[at..]);
    let icrc = u32::from_be_bytes(*bytes.last_chunk().expect("ICRC"));
    let expected = format!(
        "Ethernet 02:00:00:00:00:02 > 02:00:00:00:00:01 vlan 7 priority 3\n\
         IP 192.0.2.1 > 192.0.2.2 dscp 0 ecn Ect0 ttl 64 id 0x1234 df 1\n\
         UDP port 0xd431 datagram 40 bytes\n\
         RC_WRITE_ONLY (0x0a)\n  \
           qp 0x000123 psn 0x000010 pkey 0xffff ack_req 1 solicited 0 mig_req 1 pad 3 fecn 0 becn 0\n  \
           va 0x7f1234567000 rkey 0x00112233 dma_len 5\n  \
           payload 5 bytes\n  \
           icrc {icrc:#010x} good"
    );
    assert_eq!(FrameTree(&bytes).to_string(), expected);
    bytes[at + 30] ^= 1;
    assert!(FrameTree(&bytes).to_string().ends_with(" BAD"));
    bytes[at] = 0x15;
    assert!(FrameTree(&bytes).to_string().contains("malformed: unknown opcode 0x15"));
    assert_eq!(
        FrameTree(&bytes[..9]).to_string(),
        "not a RoCEv2 frame: frame shorter than its headers say"
    );
}

#[test]
fn acknowledgements_say_what_happened() {
    let text = |byte| Aeth { syndrome: Syndrome::from_u8(byte), msn: Msn::new(9) }.to_string();
    assert_eq!(text(0x1f), "ACK msn 9");
    assert_eq!(text(0x06), "ACK credits 8 msn 9");
    assert_eq!(text(0x2c), "RNR NAK 0.64 ms msn 9");
    assert_eq!(text(0x20), "RNR NAK 655.36 ms msn 9");
    assert_eq!(text(0x60), "NAK PSN sequence error msn 9");
    assert_eq!(text(0x45), "reserved syndrome 0x45 msn 9");
}
