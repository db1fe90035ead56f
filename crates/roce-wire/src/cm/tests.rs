use core::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::types::{PKey, PathMtu, Psn, QKey, Qpn};

/// Sets exactly the bits that a layout does not reserve, then checks that they survive.
fn assert_keeps(attribute_id: u16, body: [u8; MAD_BODY_LEN], reserved: &[(usize, u8)]) {
    let mut mad = [0; MAD_LEN];
    mad[..MadHeader::LEN].copy_from_slice(&MadHeader::cm(attribute_id, 7).to_bytes());
    mad[MadHeader::LEN..].copy_from_slice(&body);
    for &(at, bits) in reserved {
        mad[MadHeader::LEN + at] &= !bits;
    }
    let parsed = CmMad::parse(&mad).expect("parses");
    assert_eq!(parsed.message.attribute_id(), attribute_id);
    assert_eq!(parsed.to_bytes(), mad);
}

/// Attribute and reserved bits (offset in the body, bits) of every message.
#[rustfmt::skip]
const LAYOUTS: [(u16, &[(usize, u8)]); 11] = [
    (attribute::REQ, &[
        (4, 0xff), (24, 0xff), (25, 0xff), (26, 0xff), (27, 0xff),
        (90, 0x0f), (91, 0xc0), (94, 0x07), (95, 0x07),
        (134, 0x0f), (135, 0xc0), (138, 0x07), (139, 0x07),
    ]),
    (attribute::MRA, &[(8, 0x3f), (9, 0x07)]),
    (attribute::REJ, &[(8, 0x3f), (9, 0x01)]),
    (attribute::REP, &[(27, 0x0f)]),
    (attribute::RTU, &[]),
    (attribute::DREQ, &[(11, 0xff)]),
    (attribute::DREP, &[]),
    (attribute::SIDR_REQ, &[(6, 0xff), (7, 0xff)]),
    (attribute::SIDR_REP, &[]),
    (attribute::LAP, &[]),
    (attribute::APR, &[]),
];

proptest! {
    #[test]
    fn every_bit_that_is_not_reserved_survives(
        layout in 0..LAYOUTS.len(),
        body in proptest::collection::vec(any::<u8>(), MAD_BODY_LEN),
    ) {
        let (attribute_id, reserved) = LAYOUTS[layout];
        assert_keeps(attribute_id, body.try_into().expect("length"), reserved);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMad::parse(&bytes);
        let _ = CmaHeader::parse(&bytes);
    }

    #[test]
    fn cma_headers_round_trip(src_port: u16, src: [u8; 16], dst: [u8; 16], v4: bool) {
        let ip = |bytes: [u8; 16]| -> IpAddr {
            if v4 { [bytes[0], bytes[1], bytes[2], bytes[3]].into() } else { bytes.into() }
        };
        let header = CmaHeader { src_port, src: ip(src), dst: ip(dst) };
        prop_assert_eq!(CmaHeader::parse(&header.to_bytes()), Some(header));
    }
}

#[test]
fn refusals_name_their_reason() {
    let good = CmMad::new(
        1,
        CmMessage::Drep(Drep {
            local_comm_id: 1,
            remote_comm_id: 2,
            private_data: [0; Drep::PRIVATE_DATA_LEN],
        }),
    )
    .to_bytes();
    let with = |at: usize, value: u8| {
        let mut mad = good;
        mad[at] = value;
        CmMad::parse(&mad).expect_err("refused")
    };
    assert!(CmMad::parse(&good).is_ok());
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 1), MadError::Class(1));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 0x83), MadError::Method(0x83));
    assert_eq!(with(17, 0x1b), MadError::Attribute(0x1b));
    assert_eq!(CmMad::parse(&good[..255]), Err(MadError::Length));
    assert_eq!(CmMad::parse(&[]), Err(MadError::Length));
}

#[test]
fn request_fields_lie_where_the_layout_says() {
    let path = CmPath {
        local_lid: 0xffff,
        flow_label: 0x5_ba59,
        packet_rate: 3,
        hop_limit: 64,
        sl: 5,
        subnet_local: true,
        local_ack_timeout: 18,
        ..CmPath::default()
    };
    let request = Req {
        local_comm_id: 0x0102_0304,
        vendor_id: 0x15b3,
        service_id: service_id(PortSpace::Tcp, 7174),
        local_ca_guid: 1,
        local_qkey: QKey(0),
        local_qpn: Qpn::new(0x11_2233),
        responder_resources: 4,
        local_eecn: 0,
        initiator_depth: 16,
        remote_eecn: 0,
        remote_cm_response_timeout: 20,
        transport: TransportType::Uc,
        flow_control: true,
        starting_psn: Psn::new(0xab_cdef),
        local_cm_response_timeout: 22,
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu_code: PathMtu::Mtu1024.code(),
        rdc_exists: false,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 1,
        primary: path,
        alternate: CmPath::default(),
        private_data: [9; Req::PRIVATE_DATA_LEN],
    };
    let mad = CmMad::new(0x55, CmMessage::Req(request)).to_bytes();
    let body = &mad[MadHeader::LEN..];
    assert_eq!(mad[..4], [1, 7, 2, 3]);
    assert_eq!(mad[15..18], [0x55, 0x00, 0x10]);
    assert_eq!(body[..8], [1, 2, 3, 4, 0, 0, 0x15, 0xb3]);
    assert_eq!(body[8..16], [0, 0, 0, 0, 0x01, 0x06, 0x1c, 0x06]);
    assert_eq!(body[32..36], [0x11, 0x22, 0x33, 4]);
    assert_eq!(body[43], 20 << 3 | 1 << 1 | 1);
    assert_eq!(body[44..48], [0xab, 0xcd, 0xef, 22 << 3 | 7]);
    assert_eq!(body[50..52], [3 << 4 | 6, 15 << 4 | 1 << 3 | 1]);
    assert_eq!(body[88..96], [0x5b, 0xa5, 0x90, 3, 0, 64, 5 << 4 | 8, 18 << 3]);
    assert_eq!(body[140..], [9; 92]);
}

#[test]
fn service_ids_name_a_port() {
    assert_eq!(service_id(PortSpace::Udp, 7174), 0x0111_1c06);
    assert_eq!(service_id_parts(0x0106_1c06), Some((PortSpace::Tcp, 7174)));
    assert_eq!(service_id_parts(0x0107_1c06), None);
    assert_eq!(service_id_parts(0x1_0000_0106_1c06), None);
}
