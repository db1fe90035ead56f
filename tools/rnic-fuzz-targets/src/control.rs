//! Control messages, events, and the descriptors of the shared rings.

use crate::script::Script;
use rnic_abi::control::{
    Answer, AsyncEvent, CmNotice, CompletionEvent, MAX_MESSAGE, Reply, Request, decode, encode,
};
use rnic_abi::cqe::{CQE_WORDS, Cqe};
use rnic_abi::wqe::{
    CONTROL_WORDS, MAX_SLOT_WORDS, RECV_CONTROL_WORDS, RecvControl, SGE_WORDS, SendControl, Sge,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// The first byte selects what the rest is.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let kind = script.u8();
    let bytes = script.slice(MAX_MESSAGE);
    match kind % 7 {
        0 => check_message::<Request>(bytes),
        1 => check_message::<Answer>(bytes),
        2 => check_message::<Reply>(bytes),
        3 => check_events(bytes),
        4 => check_work_requests(bytes),
        5 => check_completion(bytes),
        _ => check_message::<CmNotice>(bytes),
    }
}

/// Whatever decodes can be encoded and is equal after a round trip.
fn check_message<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = decode::<T>(bytes) else { return };
    let encoded = encode(&message).expect("what came in a message fits into one");
    assert!(encoded.len() <= bytes.len(), "the encoding is not the shortest one");
    assert_eq!(decode::<T>(&encoded).as_ref(), Ok(&message));
}

fn check_events(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let completion = CompletionEvent::decode(script.bytes());
    assert_eq!(CompletionEvent::decode(completion.encode()), completion);
    if let Some(event) = AsyncEvent::decode(script.bytes()) {
        assert_eq!(AsyncEvent::decode(event.encode()), Some(event));
    }
}

fn check_work_requests(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let stride = usize::from(script.u8()) * 8 % (MAX_SLOT_WORDS + 1);
    let words: [u64; CONTROL_WORDS] = std::array::from_fn(|_| script.u64());
    if let Ok(control) = SendControl::decode(&words, stride) {
        assert!(control.words() <= stride, "the WQE is longer than its slot");
        assert_eq!(SendControl::decode(&control.encode(), stride), Ok(control));
    }
    let words: [u64; RECV_CONTROL_WORDS] = std::array::from_fn(|_| script.u64());
    if let Ok(control) = RecvControl::decode(&words, stride) {
        let end = RECV_CONTROL_WORDS + usize::from(control.num_sge) * SGE_WORDS;
        assert!(end <= stride, "the WQE is longer than its slot");
        assert_eq!(RecvControl::decode(&control.encode(), stride), Ok(control));
    }
    let words: [u64; SGE_WORDS] = std::array::from_fn(|_| script.u64());
    assert_eq!(Sge::decode(words).encode(), words);
}

fn check_completion(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let words: [u64; CQE_WORDS] = std::array::from_fn(|_| script.u64());
    let cqe = Cqe::decode(&words);
    assert!(cqe.carried_len() <= cqe.carried().len());
    assert_eq!(Cqe::decode(&cqe.encode()), cqe);
}
