use proptest::option::of;
use proptest::prelude::*;

use super::*;
use crate::headers::Syndrome;
use crate::types::{Msn, PKey, QKey, RKey};
use crate::{Flow, icrc};

const MIN_LEN: usize = Bth::LEN + ICRC_LEN;

fn sample(opcode: Opcode, pad: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x11; len];
    bytes[..Bth::LEN].copy_from_slice(
        &Bth { pad, ..Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0x65_4321)) }.to_bytes(),
    );
    bytes
}

#[test]
fn refusals_name_their_reason() {
    let refusal = |bytes: &[u8]| Datagram::parse(bytes).expect_err("refused");
    assert_eq!(refusal(&[]), ParseError::TooShort);
    assert_eq!(refusal(&sample(Opcode::RcSendOnly, 0, MIN_LEN)[..15]), ParseError::TooShort);
    let mut other_version = sample(Opcode::RcSendOnly, 0, MIN_LEN);
    other_version[1] |= 3;
    assert_eq!(refusal(&other_version), ParseError::Version(3));
    let mut reserved = sample(Opcode::RcSendOnly, 0, MIN_LEN);
    reserved[0] = 0x15;
    assert_eq!(refusal(&reserved), ParseError::UnknownOpcode(0x15));
    assert_eq!(peek(&reserved), Some((0x15, Qpn::new(0x12_3456), Psn::new(0x65_4321))));
    assert_eq!(peek(&reserved[..11]), None);
    assert_eq!(
        refusal(&sample(Opcode::RcWriteOnly, 0, MIN_LEN + 12)),
        ParseError::HeaderTruncated(Opcode::RcWriteOnly)
    );
    assert_eq!(refusal(&sample(Opcode::RcSendOnly, 1, MIN_LEN)), ParseError::PadTooLong);
    assert_eq!(refusal(&sample(Opcode::RcSendOnly, 3, MIN_LEN + 2)), ParseError::PadTooLong);
    assert_eq!(refusal(&sample(Opcode::RcSendOnly, 0, MIN_LEN + 5)), ParseError::Unaligned);
}

#[test]
fn payload_excludes_padding_and_icrc() {
    let mut bytes = sample(Opcode::RcSendOnly, 3, MIN_LEN + 4);
    bytes[MIN_LEN..].copy_from_slice(&[1, 2, 3, 4]);
    let datagram = Datagram::parse(&bytes).expect("good");
    assert_eq!(datagram.payload(), [0x11]);
    assert_eq!(datagram.pad_bytes(), [0x11; 3]);
    assert_eq!(datagram.icrc_bytes(), [1, 2, 3, 4]);
    assert_eq!(datagram.payload_offset(), Bth::LEN);
}

#[test]
fn shortest_datagram_of_every_opcode_parses() {
    for &opcode in Opcode::ALL {
        let len = usize::from(opcode.info().header_len) + ICRC_LEN;
        let bytes = sample(opcode, 0, len);
        let datagram = Datagram::parse(&bytes).expect("good");
        assert_eq!(datagram.payload(), []);
        assert!(datagram.headers().is_consistent());
        let truncated = Datagram::parse(&bytes[..len - 4]).expect_err("too short");
        assert!(matches!(truncated, ParseError::HeaderTruncated(_) | ParseError::TooShort));
    }
}

#[test]
fn notification_packet_is_as_connectx_sends_it() {
    let headers = HeaderRepr::cnp(Qpn::new(0x118));
    let mut bytes = [0xaa; 32];
    assert_eq!((headers.emit(&mut bytes), headers.datagram_len(0)), (28, 32));
    assert_eq!(bytes[..12], [0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
    assert_eq!(bytes[12..28], [0; 16]);
}

#[test]
fn padding_completes_a_word() {
    assert_eq!([0, 1, 2, 3, 4, 4095].map(pad_for), [0, 3, 2, 1, 0, 1]);
}

prop_compose! {
    fn any_bth()(
        opcode in proptest::sample::select(Opcode::ALL),
        flags: [bool; 5],
        pkey: u16,
        resv6 in 0..64u8,
        resv7 in 0..128u8,
        qp: u32,
        psn: u32,
    ) -> Bth {
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        let (dest_qp, psn) = (Qpn::new(qp), Psn::new(psn));
        let pkey = PKey(pkey);
        Bth { solicited, mig_req, fecn, becn, ack_req, pkey, resv6, resv7,
              ..Bth::new(opcode, dest_qp, psn) }
    }
}

prop_compose! {
    /// Headers of any opcode with any value in every field.
    fn any_headers()(bth in any_bth(), a: u64, b: u64, c: u64, d: u32, e: u32, byte: u8,
                     cnp: [u8; 16]) -> HeaderRepr {
        let has = |header| bth.opcode.info().has(header);
        let low_24 = d & 0xff_ffff;
        let rkey = RKey(e);
        HeaderRepr {
            bth,
            rdeth: has(HeaderSet::RDETH).then_some(Rdeth { reserved: byte, ee_context: low_24 }),
            deth: has(HeaderSet::DETH)
                .then_some(Deth { qkey: QKey(e), reserved: byte, src_qp: Qpn::new(d) }),
            xrceth: has(HeaderSet::XRCETH).then_some(XrcEth { reserved: byte, srq: low_24 }),
            feth: has(HeaderSet::FETH).then_some(Feth(d)),
            reth: has(HeaderSet::RETH).then_some(Reth { va: a, rkey, dma_len: d }),
            atomic: has(HeaderSet::ATOMIC_ETH)
                .then_some(AtomicEth { va: a, rkey, swap_or_add: b, compare: c }),
            aeth: has(HeaderSet::AETH)
                .then_some(Aeth { syndrome: Syndrome::from_u8(byte), msn: Msn::new(d) }),
            atomic_ack: has(HeaderSet::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original: c }),
            imm: has(HeaderSet::IMM_DT).then_some(ImmDt(e.to_be_bytes())),
            ieth: has(HeaderSet::IETH).then_some(Ieth { rkey }),
            cnp: has(HeaderSet::CNP).then_some(CnpBody(cnp)),
        }
    }
}

proptest! {
    #[test]
    fn headers_round_trip(headers in any_headers(), payload: Vec<u8>, sport: u16, ip_id: u16) {
        let headers = headers.with_payload_len(payload.len());
        let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), sport);
        let mut bytes = vec![0xaa; headers.datagram_len(payload.len())];
        let at = headers.emit(&mut bytes);
        prop_assert_eq!(at, headers.header_len());
        bytes[at..at + payload.len()].copy_from_slice(&payload);
        headers.write_pad_and_icrc(&flow, ip_id, &mut bytes);

        let datagram = Datagram::parse(&bytes).expect("own datagram");
        prop_assert_eq!(datagram.headers(), headers);
        prop_assert_eq!(datagram.payload(), payload);
        prop_assert!(datagram.pad_bytes().iter().all(|&byte| byte == 0));
        let known = icrc::IpIdHint::Known(ip_id);
        prop_assert_eq!(icrc::verify(&flow, known, &bytes), icrc::IcrcCheck::Good);
    }

    /// Any bytes: parsing gives a reason or a view none of whose accessors panics, and whose
    /// headers are the bytes.
    #[test]
    fn arbitrary_bytes_are_safe(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        opcode in of(proptest::sample::select(Opcode::ALL)),
        good_version: bool,
    ) {
        // Steer some of the cases past the first checks.
        if let (Some(first), Some(opcode)) = (bytes.first_mut(), opcode) {
            *first = opcode.code();
        }
        if let (Some(second), true) = (bytes.get_mut(1), good_version) {
            *second &= 0xf0;
        }
        let _ = peek(&bytes);
        match Datagram::parse(&bytes) {
            Err(reason) => prop_assert!(!reason.to_string().is_empty()),
            Ok(datagram) => {
                let mut headers = [0; MAX_HEADER_LEN];
                let len = datagram.headers().emit(&mut headers);
                prop_assert_eq!(&headers[..len], &bytes[..len]);
                let rest = datagram.payload_len() + datagram.pad_bytes().len() + ICRC_LEN;
                prop_assert_eq!(len + rest, bytes.len());
                prop_assert_eq!(datagram.payload().len(), datagram.payload_len());
                prop_assert_eq!(&datagram.icrc_bytes()[..], &bytes[bytes.len() - ICRC_LEN..]);
                prop_assert!(datagram.to_string().contains(datagram.opcode().name()));
                prop_assert!(!crate::pretty::Tree(&datagram).to_string().is_empty());
            }
        }
    }
}
