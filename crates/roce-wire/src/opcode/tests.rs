use super::*;

#[test]
fn codes_and_opcodes_are_one_to_one() {
    let known = (0..=255u8).filter(|&code| Opcode::from_u8(code).is_some()).count();
    assert_eq!(known, Opcode::ALL.len());
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_u8(opcode.code()), Some(opcode));
        assert_eq!(Opcode::named(opcode.name()), Some(opcode));
        // What users write in small letters is looked up in capitals.
        assert_eq!(opcode.name(), opcode.name().to_ascii_uppercase());
    }
    assert_eq!(Opcode::named("rc_send_only"), None);
}

#[test]
fn every_transport_has_exactly_its_operations() {
    let base_of = |transport| match transport {
        Transport::Rc => 0x00,
        Transport::Uc => 0x20,
        Transport::Rd => 0x40,
        Transport::Ud => 0x60,
        Transport::Cnp => 0x80,
        Transport::Xrc => 0xa0,
    };
    let rc: Vec<u8> = (0x00..=0x14).chain([0x16, 0x17, 0x1c, 0x1d]).collect();
    let expected = [
        (Transport::Rc, rc.clone()),
        (Transport::Uc, (0x00..=0x0b).collect()),
        (Transport::Rd, (0x00..=0x15).collect()),
        (Transport::Ud, vec![0x04, 0x05]),
        (Transport::Cnp, vec![0x01]),
        (Transport::Xrc, rc),
    ];
    for (transport, operations) in expected {
        let base: u8 = base_of(transport);
        for low in 0..32u8 {
            let found = Opcode::from_u8(base | low);
            assert_eq!(found.is_some(), operations.contains(&low), "{transport:?} {low:#x}");
            if let Some(opcode) = found {
                assert_eq!(opcode.transport(), transport);
            }
        }
    }
    for manufacturer in 0xc0..=0xffu8 {
        assert_eq!(Opcode::from_u8(manufacturer), None);
    }
}

#[test]
fn names_follow_transport_and_operation() {
    for &opcode in Opcode::ALL {
        let info = opcode.info();
        let prefix = format!("{:?}", info.transport).to_uppercase();
        assert!(info.name.starts_with(&prefix), "{}", info.name);
        let position = match info.position {
            Position::First => "FIRST",
            Position::Middle => "MIDDLE",
            Position::Last => "LAST",
            Position::Only => "ONLY",
        };
        if let Operation::Send | Operation::Write | Operation::ReadResponse = info.operation {
            assert!(info.name.contains(position), "{}", info.name);
        }
        assert_eq!(info.name.ends_with("_IMM"), info.trailer() == Trailer::Imm);
        assert_eq!(info.name.ends_with("_INV"), info.trailer() == Trailer::Invalidate);
    }
}

#[test]
fn header_lengths() {
    let cases = [
        (Opcode::RcSendOnly, 12),
        (Opcode::RcSendOnlyInv, 16),
        (Opcode::RcWriteOnlyImm, 12 + 16 + 4),
        (Opcode::RcReadRespMiddle, 12),
        (Opcode::RcAtomicAck, 12 + 4 + 8),
        (Opcode::RcCmpSwap, 12 + 28),
        (Opcode::RcFlush, 12 + 4 + 16),
        (Opcode::UdSendOnlyImm, 12 + 8 + 4),
        (Opcode::XrcWriteOnlyImm, 12 + 4 + 16 + 4),
        (Opcode::XrcAck, 12 + 4),
        (Opcode::RdFetchAdd, 12 + 4 + 8 + 28),
        (Opcode::RdAck, 12 + 4 + 4),
        (Opcode::RdResync, 12 + 4 + 8),
        (Opcode::Cnp, 12 + 16),
    ];
    for (opcode, len) in cases {
        assert_eq!(opcode.info().header_len, len, "{opcode}");
    }
    let longest = Opcode::ALL.iter().map(|opcode| opcode.info().header_len).max();
    assert_eq!(longest.map(usize::from), Some(crate::datagram::MAX_HEADER_LEN));
}

#[test]
fn constructors_agree_with_the_table() {
    for position in [Position::First, Position::Middle, Position::Last, Position::Only] {
        for trailer in [Trailer::None, Trailer::Imm, Trailer::Invalidate] {
            let info = Opcode::rc_send(position, trailer).info();
            assert_eq!((info.operation, info.position), (Operation::Send, position));
            assert_eq!(info.trailer(), if position.is_end() { trailer } else { Trailer::None });
        }
        for imm in [false, true] {
            let info = Opcode::rc_write(position, imm).info();
            assert_eq!((info.operation, info.position), (Operation::Write, position));
            assert_eq!(info.trailer() == Trailer::Imm, imm && position.is_end());
            assert_eq!(info.has(HeaderSet::RETH), position.is_start());
        }
        let info = Opcode::rc_read_response(position).info();
        assert_eq!((info.operation, info.position), (Operation::ReadResponse, position));
        assert_eq!(Position::new(position.is_start(), position.is_end()), position);
    }
    assert_eq!(Opcode::RcSendOnly.on(Transport::Ud), Some(Opcode::UdSendOnly));
    assert_eq!(Opcode::RcSendOnlyInv.on(Transport::Uc), None);
    assert_eq!(Opcode::RcFlush.on(Transport::Xrc), Some(Opcode::XrcFlush));
    assert_eq!(Opcode::Cnp.on(Transport::Rc), None);
    assert_eq!(Opcode::ud_send(true), Opcode::UdSendOnlyImm);
}

#[test]
fn payload_rules() {
    let mtu = 1024;
    assert!(Opcode::RcSendFirst.info().payload.allows(1024, 0, mtu));
    assert!(!Opcode::RcSendFirst.info().payload.allows(1020, 0, mtu));
    assert!(!Opcode::RcSendLast.info().payload.allows(0, 0, mtu));
    assert!(Opcode::RcSendOnly.info().payload.allows(0, 0, mtu));
    assert!(!Opcode::RcSendOnly.info().payload.allows(1025, 3, mtu));
    assert!(!Opcode::RcReadRequest.info().payload.allows(4, 0, mtu));
    assert!(Opcode::RcAtomicWrite.info().payload.allows(8, 0, mtu));
    assert!(!Opcode::RcAtomicWrite.info().payload.allows(7, 1, mtu));
}

#[test]
fn responses_are_not_requests() {
    for &opcode in Opcode::ALL {
        let low = opcode.code() & 0x1f;
        let response = (0x0d..=0x12).contains(&low) || opcode == Opcode::Cnp;
        assert_eq!(opcode.is_request(), !response, "{opcode}");
    }
}
