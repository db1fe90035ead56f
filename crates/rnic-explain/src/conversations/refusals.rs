//! Why a connection was refused, and what a person may do about it.

use roce_wire::cm::{RejectReason, SidrStatus};

const NO_LISTENER: &str =
    "Start the server first, on this address and port, and compare the ports of both ends.";
const PROGRAM: &str = "The program decided so: it called rdma_reject, failed while it accepted, or \
                       ended meanwhile. What it printed says more than the network can.";
const RESOURCES: &str = "That end has no queue pair or memory left: look at its limits (ulimit -l, \
                         ulimit -n, quotas of the device) and at what its program has open.";
const OPTIONS: &str = "Both ends do not fit each other: compare their options, versions and the MTU of their \
     interfaces.";
const BUSY: &str = "That end still has an earlier connection of this queue pair or with this \
                    number: wait some seconds and connect again.";
const TIMEOUT: &str = "An answer did not come in time: the program there did not accept \
                       (rdma_accept) or was busy, or messages were lost on the way.";
const ADDRESSES: &str = "That end has no device for this address, or its way back leads over \
                         another interface: compare addresses, GIDs and routes of both hosts.";

/// The reason of a REJ in words, as the specification has them, and advice.
pub(super) fn reason(reason: RejectReason) -> (String, &'static str) {
    let (text, advice) = match reason {
        RejectReason::NO_QP => ("no queue pair is available", RESOURCES),
        RejectReason::NO_RESOURCES => ("no resources are available", RESOURCES),
        RejectReason::TIMEOUT => ("a message of the other end did not come in time", TIMEOUT),
        RejectReason::UNSUPPORTED_REQUEST => ("the request is not supported", OPTIONS),
        RejectReason::INVALID_COMM_ID => ("the communication id is not known", BUSY),
        RejectReason::INVALID_COMM_INSTANCE => ("the communication instance is not known", BUSY),
        RejectReason::INVALID_SERVICE_ID => ("nothing listens for this service", NO_LISTENER),
        RejectReason::INVALID_TRANSPORT => {
            ("the transport type is not that of the service", OPTIONS)
        }
        RejectReason::STALE_CONNECTION => ("the queue pair has a connection already", BUSY),
        RejectReason::INVALID_GID => ("the GID is not that of this port", ADDRESSES),
        RejectReason::INVALID_MTU => ("the path MTU is not possible", OPTIONS),
        RejectReason::INSUFFICIENT_RESPONDER_RESOURCES => {
            ("so many READs and atomics at a time are not possible", OPTIONS)
        }
        RejectReason::CONSUMER_DEFINED => ("the program refused", PROGRAM),
        RejectReason::DUPLICATE_COMM_ID => ("the communication id is in use", BUSY),
        RejectReason::VENDOR_OPTION => ("the vendor's option (ECE) is not supported", OPTIONS),
        _ => return (format!("reason {}", reason.0), OPTIONS),
    };
    (format!("{text} (reason {})", reason.0), advice)
}

/// The status of a SIDR_REP that refuses, and advice.
pub(super) fn status(status: SidrStatus) -> (String, &'static str) {
    let (text, advice) = match status {
        SidrStatus::UNSUPPORTED_SERVICE => ("nothing listens for this service", NO_LISTENER),
        SidrStatus::REJECTED => ("the program refused", PROGRAM),
        SidrStatus::NO_QP => ("no queue pair is available", RESOURCES),
        SidrStatus::REDIRECT => ("another port is to be asked", ADDRESSES),
        SidrStatus::UNSUPPORTED_VERSION => ("the version is not supported", OPTIONS),
        _ => return (format!("status {}", status.0), OPTIONS),
    };
    (format!("{text} (status {})", status.0), advice)
}
