use super::*;
use roce_wire::mad::MadHeader;

const REQ: u16 = 0x10;
const REP: u16 = 0x13;

/// A message with both communication ids.
fn message(attribute: u16, own: u32, other: u32) -> CmMad {
    let mut bytes = MadHeader::cm(attribute, 7).to_bytes().to_vec();
    bytes.extend(own.to_be_bytes());
    bytes.extend(other.to_be_bytes());
    bytes.resize(256, 0);
    CmMad::parse(&bytes).unwrap()
}

#[test]
fn answers_with_ever_new_numbers_take_bounded_memory() {
    let (asking, answering) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut all = Conversations::default();
    let mut connected = 0;
    for number in 1..20_000 {
        all.message(&message(REQ, 1, 0), asking, answering, Duration::ZERO);
        let rep = message(REP, number, 1);
        connected += u32::from(all.message(&rep, answering, asking, Duration::ZERO).is_some());
    }
    assert_eq!((connected, all.by_other_id.len(), all.all.len()), (1, 1, 1));
    assert!(all.ends.len() <= 2, "{}", all.ends.len());
}
