//! Layouts and codecs: what is written is read back, and no bytes at all make a reader panic.
#![cfg(not(loom))]

use proptest::prelude::*;
use rnic_abi::control::{self, AsyncEvent, CompletionEvent, CreateQp, Reply, Request};
use rnic_abi::cqe::{CQE_WORDS, Cqe, CqeFlags, MAX_CARRIED};
use rnic_abi::doorbell::{MAX_RECORDS, RecordIndex};
use rnic_abi::verbs::{
    AccessFlags, AhAttr, AsyncEventType, AttrMask, QpAttr, QpCaps, QpState, QpType, SendFlags,
    WcOpcode, WcStatus, WrOpcode,
};
use rnic_abi::words::WORD;
use rnic_abi::wqe::{
    BadWqe, MAX_INLINE, MAX_SGE, MAX_SLOT_WORDS, RecvControl, SendControl, Sge, recv_stride,
    send_stride,
};

fn numbered<T: std::fmt::Debug>(from: fn(u8) -> Option<T>) -> impl Strategy<Value = T> {
    any::<u8>().prop_filter_map("no such number", from)
}

prop_compose! {
    fn send_control()(
        opcode in numbered(WrOpcode::from_number),
        flags in 0_u8..8,
        (data, num_sge, data_len) in (0..3, 0..=MAX_SGE as u8, 0..=MAX_INLINE as u16),
        (wr_id, imm_or_key, remote_qpn) in any::<(u64, u32, u32)>(),
        (remote_addr, rkey, qkey) in any::<(u64, u32, u32)>(),
        (compare_add, swap, ah, srqn) in any::<(u64, u64, u32, u32)>(),
    ) -> SendControl {
        let has_payload = opcode.number() <= 3 || [9, 15].contains(&opcode.number());
        let (inline, carried) = (data == 1, data == 2);
        let flags = SendFlags::from_bits_retain(flags);
        SendControl {
            opcode,
            flags: if inline { flags | SendFlags::INLINE } else { flags },
            num_sge: if inline { 0 } else { num_sge },
            data_len: if has_payload && data > 0 { data_len } else { 0 },
            carried,
            wr_id, imm_or_key, remote_qpn, remote_addr, rkey, qkey, compare_add, swap, ah, srqn,
        }
    }
}

prop_compose! {
    fn completion()(
        status in numbered(WcStatus::from_number),
        opcode in numbered(WcOpcode::from_number),
        flags in 0_u8..32,
        (wr_id, qpn, sl, byte_len) in any::<(u64, u32, u8, u32)>(),
        (imm_or_key, src_qp, vendor_err, timestamp) in any::<(u32, u32, u32, u64)>(),
        (record, wqe_index, pkey_index) in any::<(u32, u32, u16)>(),
        carried in prop::collection::vec(any::<u8>(), 0..=MAX_CARRIED),
    ) -> Cqe {
        let mut cqe = Cqe::new(wr_id, qpn, opcode);
        cqe.status = status;
        cqe.flags = CqeFlags::from_bits_retain(flags);
        (cqe.sl, cqe.byte_len, cqe.imm_or_key) = (sl, byte_len, imm_or_key);
        (cqe.src_qp, cqe.vendor_err, cqe.timestamp) = (src_qp, vendor_err, timestamp);
        (cqe.record, cqe.wqe_index, cqe.pkey_index) = (record, wqe_index, pkey_index);
        assert!(cqe.carry(&carried));
        cqe
    }
}

proptest! {
    #[test]
    fn a_send_wqe_is_read_back(control in send_control()) {
        prop_assert_eq!(SendControl::decode(&control.encode(), MAX_SLOT_WORDS), Ok(control));
    }

    /// Whatever passes stays inside its slot and within the limits.
    #[test]
    fn any_words_are_a_sound_send_wqe_or_none(
        mut words in any::<[u64; 8]>(),
        opcode in any::<u8>(),
        blocks in 1_usize..=MAX_SLOT_WORDS / 8,
        tame in any::<bool>(),
    ) {
        if tame {
            words[0] = words[0] & 0x0000_07ff_013f_0f00 | u64::from(opcode % 16);
        }
        let stride = blocks * 8;
        if let Ok(control) = SendControl::decode(&words, stride) {
            prop_assert!(control.words() <= stride);
            prop_assert!(usize::from(control.num_sge) <= MAX_SGE);
            prop_assert!(usize::from(control.data_len) <= MAX_INLINE);
            prop_assert_eq!(SendControl::decode(&control.encode(), stride), Ok(control));
        }
    }

    #[test]
    fn any_words_are_a_sound_receive_wqe_or_none(words in any::<[u64; 2]>(), blocks in 1_usize..12) {
        let stride = blocks * 8;
        if let Ok(control) = RecvControl::decode(&words, stride) {
            prop_assert!(2 + usize::from(control.num_sge) * 2 <= stride);
            prop_assert_eq!(RecvControl::decode(&control.encode(), stride), Ok(control));
        }
    }

    #[test]
    fn an_sge_is_read_back(addr in any::<u64>(), length in any::<u32>(), lkey in any::<u32>()) {
        let sge = Sge { addr, length, lkey };
        prop_assert_eq!(Sge::decode(sge.encode()), sge);
    }

    #[test]
    fn a_slot_has_room_for_what_was_asked(max_sge in any::<u32>(), max_inline in any::<u32>()) {
        let (sges, inline) = (max_sge.min(32) as usize, max_inline.min(1024) as usize);
        let stride = send_stride(max_sge, max_inline);
        prop_assert!(8 + 2 * sges + inline.div_ceil(8) <= stride && stride <= MAX_SLOT_WORDS);
        prop_assert!(2 + 2 * sges <= recv_stride(max_sge));
        prop_assert!(stride.is_multiple_of(8) && recv_stride(max_sge).is_multiple_of(8));
    }

    #[test]
    fn a_completion_is_read_back(cqe in completion()) {
        let words = cqe.encode();
        prop_assert_eq!(words[7], 0);
        prop_assert_eq!(Cqe::decode(&words), cqe);
    }

    #[test]
    fn any_words_are_some_completion(words in any::<[u64; CQE_WORDS]>()) {
        let cqe = Cqe::decode(&words);
        prop_assert!(cqe.carried_len() <= MAX_CARRIED);
        prop_assert_eq!(Cqe::decode(&cqe.encode()), cqe);
    }

    #[test]
    fn no_bytes_make_the_codec_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = control::decode::<Request>(&bytes);
        let _ = control::decode::<control::Answer>(&bytes);
    }

    /// A damaged message is refused or is another message; it is never half of one.
    #[test]
    fn a_damaged_request_never_panics(at in 0_usize..200, with in any::<u8>(), cut in any::<bool>()) {
        for request in requests() {
            let mut bytes = control::encode(&request).unwrap();
            let at = at % bytes.len();
            if cut { bytes.truncate(at) } else { bytes[at] = with }
            let _ = control::decode::<Request>(&bytes);
        }
    }

    #[test]
    fn events_are_read_back(cq in any::<u32>(), event in numbered(AsyncEventType::from_number)) {
        let completion = CompletionEvent { cq };
        prop_assert_eq!(CompletionEvent::decode(completion.encode()), completion);
        let event = AsyncEvent { event, element: cq };
        prop_assert_eq!(AsyncEvent::decode(event.encode()), Some(event));
    }
}

fn requests() -> Vec<Request> {
    let ah = AhAttr { dgid: [7; 16], hop_limit: 3, is_global: true, ..AhAttr::default() };
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
    let attr = QpAttr { state: QpState::Rtr, ah, access, dest_qpn: 0xff_ffff, ..QpAttr::default() };
    let caps = QpCaps { max_send_wr: 9, max_inline_data: 220, ..QpCaps::default() };
    vec![
        Request::Hello { abi: rnic_abi::ABI_VERSION },
        Request::OpenDevice { name: "rnic0".into() },
        Request::RegMr { pd: 1, addr: 2, length: 3, iova: u64::MAX, access, fd_offset: 4 },
        Request::ReregMr { mr: 1, pd: None, range: Some((1, 2, 3)), access: Some(access) },
        Request::CreateQp(CreateQp {
            pd: 1,
            qp_type: QpType::XrcRecv,
            send_cq: None,
            recv_cq: Some(2),
            srq: None,
            xrcd: Some(3),
            caps,
            sq_sig_all: true,
        }),
        Request::ModifyQp { qp: 5, mask: AttrMask::STATE | AttrMask::RATE_LIMIT, attr },
        Request::CreateAh { pd: 1, attr: ah },
    ]
}

#[test]
fn requests_are_read_back() {
    for request in requests() {
        let bytes = control::encode(&request).unwrap();
        assert_eq!(control::decode::<Request>(&bytes), Ok(request));
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(control::decode::<Request>(&longer), Err(control::Malformed));
    }
}

#[test]
fn a_message_that_is_too_long_is_not_made() {
    let reply = |len| Reply::Inspected { json: "x".repeat(len), next: None };
    assert!(control::encode(&reply(control::MAX_MESSAGE - 100)).is_ok());
    assert_eq!(control::encode(&reply(control::MAX_MESSAGE)), Err(control::Malformed));
}

/// An index out of range must not come in through a message.
#[test]
fn an_impossible_record_is_refused() {
    let last = u32::try_from(MAX_RECORDS).unwrap() - 1;
    let decoded = |index: u32| control::decode::<RecordIndex>(&control::encode(&index).unwrap());
    assert_eq!(decoded(last), Ok(RecordIndex::new(last).unwrap()));
    assert_eq!(decoded(last + 1), Err(control::Malformed));
    assert_eq!(RecordIndex::new(last + 1), None);
    assert_eq!(RecordIndex::new(last).unwrap().page().end, rnic_abi::doorbell::AREA_WORDS);
}

/// The layout in the module's documentation, in numbers: a change is a new `ABI_VERSION`.
#[test]
fn the_layouts_are_the_documented_ones() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut control = SendControl::new(WrOpcode::SendImm, flags, 0x1111);
    (control.num_sge, control.carried, control.data_len) = (2, true, 0x123);
    (control.imm_or_key, control.remote_qpn, control.remote_addr) = (1, 2, 3);
    (control.rkey, control.qkey, control.compare_add, control.swap) = (4, 5, 6, 7);
    (control.ah, control.srqn) = (8, 9);
    let words = [0x0123_0102_0603, 0x1111, 2 << 32 | 1, 3, 5 << 32 | 4, 6, 7, 9 << 32 | 8];
    assert_eq!(control.encode(), words);
    assert_eq!((SendControl::SGES_AT, control.data_at(), control.words()), (8, 12, 49));

    let mut cqe = Cqe::new(1, 2, WcOpcode::RecvWriteImm);
    (cqe.status, cqe.flags, cqe.sl) = (WcStatus::RemOpErr, CqeFlags::IMM | CqeFlags::RECV, 4);
    (cqe.byte_len, cqe.imm_or_key, cqe.src_qp, cqe.vendor_err) = (5, 6, 7, 8);
    (cqe.timestamp, cqe.record, cqe.wqe_index, cqe.pkey_index) = (9, 10, 11, 12);
    assert!(cqe.carry(&[0xab, 0xcd]));
    let words = cqe.encode();
    let head = [1, 0x0409_810b_0000_0002, 6 << 32 | 5, 8 << 32 | 7, 9, 11 << 32 | 10, 0x2_000c, 0];
    assert_eq!(words[..8], head);
    assert_eq!(words[8], 0xcdab);
    assert_eq!(CQE_WORDS * WORD, 128);
}

#[test]
fn each_impossible_wqe_is_refused_for_its_reason() {
    let good = SendControl::new(WrOpcode::Send, SendFlags::empty(), 1);
    let decode = |control: SendControl| SendControl::decode(&control.encode(), 16);
    let word0 = |word| SendControl::decode(&[word, 0, 0, 0, 0, 0, 0, 0], 16);
    assert_eq!(word0(12), Err(BadWqe::Opcode(12)));
    assert_eq!(word0(0x10 << 8), Err(BadWqe::Flags(0x10)));
    assert_eq!(decode(SendControl { num_sge: 5, ..good }), Err(BadWqe::SgeCount(5)));
    assert_eq!(decode(SendControl { data_len: 1, ..good }), Err(BadWqe::DataLength(1)));
    let inline = SendControl { flags: SendFlags::INLINE, ..good };
    assert_eq!(decode(SendControl { data_len: 65, ..inline }), Err(BadWqe::DataLength(65)));
    assert_eq!(decode(SendControl { num_sge: 1, ..inline }), Err(BadWqe::InlineWithSges));
    let read = SendControl { opcode: WrOpcode::Read, data_len: 8, ..inline };
    assert_eq!(decode(read), Err(BadWqe::DataLength(8)));
    assert!(decode(SendControl { data_len: 64, ..inline }).is_ok());
    let slot_full = SendControl { num_sge: 2, data_len: 32, carried: true, ..good };
    assert!(decode(slot_full).is_ok());
    assert_eq!(decode(SendControl { data_len: 33, ..slot_full }), Err(BadWqe::DataLength(33)));
}
