//! Why packets are dropped or refused, in words, and by which rules.

use rnic_core::event::{DropReason, NakReason};
use rnic_core::mr::KeyFault;
use roce_wire::{Opcode, Operation, Transport};

/// A sentence, and rules.
type Why = (&'static str, &'static [&'static str]);

/// A drop in a word or two.
pub(crate) fn drop_name(reason: DropReason) -> String {
    match reason {
        DropReason::Refused(why) => nak_name(why),
        DropReason::Icrc => "bad ICRC".to_owned(),
        other => words(&other.name()),
    }
}

/// A refusal in a word or two.
pub(crate) fn nak_name(reason: NakReason) -> String {
    words(&reason.name())
}

/// "key:unknown_key" as "key: unknown key".
fn words(name: &str) -> String {
    name.replace('_', " ").replace(':', ": ")
}

/// Why a packet with this opcode is dropped.
pub(crate) fn dropped(reason: DropReason, opcode: Option<Opcode>) -> Why {
    let transport = opcode.map(|opcode| opcode.info().transport);
    match reason {
        DropReason::Icrc => (
            "The checksum at its end (ICRC) is not that of its bytes: it was damaged on the way. \
             Nothing in it can be trusted, not even the queue pair number, so there is no answer.",
            &["Icrc"],
        ),
        DropReason::OutOfSequence if transport == Some(Transport::Uc) => (
            "It does not continue what has arrived, so the whole message is lost.",
            &["UcLossEndsMessage"],
        ),
        DropReason::OutOfSequence => (
            "It is ahead of the PSN that is expected, and the peer has been told already.",
            &["GapDropped", "OneNakPerGap"],
        ),
        DropReason::Duplicate if transport == Some(Transport::Uc) => {
            ("It was received before.", &["UcLateCopyHarmless"])
        }
        DropReason::Duplicate => {
            ("It was received before, and needs no answer.", &["DuplicateNotExecuted"])
        }
        DropReason::NoQp => ("No queue pair has this number.", &["WholeQpn"]),
        DropReason::QpState => {
            ("The queue pair is in a state in which it receives nothing.", &["StateReceives"])
        }
        DropReason::QKey => {
            ("Its Q_Key is not that of the queue pair it is for.", &["QKeyMatches"])
        }
        DropReason::NoReceive => (
            "No receive request is posted for it, and there is no answer that could say so.",
            &["UcNoReceiveDropped"],
        ),
        DropReason::TooLong => {
            ("It does not fit the receive request, which takes the next one.", &["DatagramFits"])
        }
        DropReason::Refused(_) => (
            "The request is wrong, and this transport has no answer that could say so.",
            &["UcRefusesSilently"],
        ),
        DropReason::Address => ("It does not come from the peer.", &["PeerAddress"]),
        _ => ("There is no answer.", &[]),
    }
}

/// Why a request with this opcode is answered with a NAK.
pub(crate) fn refused(reason: NakReason, opcode: Option<Opcode>) -> Why {
    match reason {
        NakReason::Sequence => (
            "A packet is missing. This one is not executed; a NAK tells the sender which PSN is \
             expected.",
            &["GapDropped", "GapNakPsn", "OneNakPerGap"],
        ),
        NakReason::Key(fault) => bad_key(fault, opcode),
        NakReason::ReceiveTooShort => (
            "The message is longer than the buffer of the receive request. NAK \"invalid \
             request\", and the connection is over.",
            &["SendFits", "TooLongStatus", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::NotAllowed => (
            "The queue pair does not allow this operation. NAK \"invalid request\", and the \
             connection is over.",
            &["QpAccess", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::Alignment => (
            "An atomic must be aligned to eight bytes. NAK \"invalid request\", and the \
             connection is over.",
            &["AtomicAlignment", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::OpcodeSequence => (
            "This packet does not continue the message that has begun. NAK \"invalid request\", \
             and the connection is over.",
            &["OpcodeSequence", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::Length => (
            "Its length does not fit its place in the message. NAK \"invalid request\", and the \
             connection is over.",
            &["PayloadLength", "WriteTotal", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::Resources => (
            "More READs and atomics are outstanding than this side allows.",
            &["ReplyDepth", "InvalidNak", "NakEndsQp"],
        ),
        NakReason::Local => (
            "The responder's own receive request is bad. NAK \"remote operational error\".",
            &["OperationalNak", "NakEndsQp"],
        ),
        _ => ("The request is refused, and the connection is over.", &["NakEndsQp"]),
    }
}

/// Why a key is not good for a request with this opcode.
fn bad_key(fault: KeyFault, opcode: Option<Opcode>) -> Why {
    match fault {
        KeyFault::UnknownKey => (
            "No memory has this key. NAK \"remote access error\", and the connection is over.",
            &["AccessNak", "QpAccessErr", "NakEndsQp"],
        ),
        KeyFault::Bounds => (
            "The key is good, but not for these addresses. NAK \"remote access error\", and the \
             connection is over.",
            &["KeyBounds", "AccessNak", "QpAccessErr", "NakEndsQp"],
        ),
        KeyFault::Access => (
            "The key does not allow this. NAK \"remote access error\", and the connection is over.",
            match opcode.map(|opcode| opcode.info().operation) {
                Some(Operation::ReadRequest) => &["ReadNeedsRight", "AccessNak", "NakEndsQp"],
                Some(Operation::Write) => &["WriteNeedsRight", "AccessNak", "NakEndsQp"],
                _ => &["AtomicNeedsRight", "AccessNak", "NakEndsQp"],
            },
        ),
        KeyFault::WrongPd | KeyFault::WrongQp => (
            "The key is not for this queue pair. NAK \"remote access error\", and the connection is \
             over.",
            &["KeyDomain", "AccessNak", "NakEndsQp"],
        ),
    }
}
