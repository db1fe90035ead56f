use super::*;

#[test]
fn syndromes_keep_every_byte() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
    }
    assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK);
    assert_eq!(Syndrome::from_u8(0x2c), Syndrome::RnrNak { timer: 12 });
    assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(Syndrome::from_u8(0x65), Syndrome::Reserved(0x65));
    assert_eq!(Syndrome::from_u8(0x45), Syndrome::Reserved(0x45));
    assert_eq!(Syndrome::from_u8(0x9f), Syndrome::Reserved(0x9f));
}

#[test]
fn rnr_timers_double_every_two_codes() {
    assert_eq!(rnr_timer_ns(0), 655_360_000);
    assert_eq!(rnr_timer_ns(1), 10_000);
    assert_eq!(rnr_timer_ns(12), 640_000);
    assert_eq!(rnr_timer_ns(14), 1_280_000);
    assert_eq!(rnr_timer_ns(31), 491_520_000);
    for code in 3..=29 {
        assert_eq!(rnr_timer_ns(code + 2), 2 * rnr_timer_ns(code), "code {code}");
    }
}

#[test]
fn credit_codes_never_promise_too_much() {
    assert_eq!(credit_count(Syndrome::NO_CREDIT_INFO), None);
    assert_eq!(credit_count(5), Some(6));
    assert_eq!(credit_count(30), Some(32768));
    for count in (0..40_000).chain([u32::MAX]) {
        let code = credit_code(count);
        assert!(u32::from(credit_count(code).expect("a count")) <= count);
        let next = credit_count(code + 1);
        assert!(next.is_none_or(|next| u32::from(next) > count), "{count}");
    }
}

#[test]
fn flush_bits() {
    let feth = Feth::new(Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE, Feth::WHOLE_REGION);
    assert_eq!(feth.to_bytes(), [0, 0, 0, 0x13]);
    assert_eq!((feth.placement(), feth.selectivity()), (3, 1));
}
