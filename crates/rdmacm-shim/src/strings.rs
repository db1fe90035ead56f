//! Names of connection manager events.

use std::ffi::{CStr, c_char};

use verbs_abi::rdma_cm_event_type;

/// Names by value, those of rdma_cma.h: users know them, and scripts search for them.
const EVENTS: [&CStr; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// Name of an event (`RDMA_CM_EVENT_*`).
pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    usize::try_from(event)
        .ok()
        .and_then(|index| EVENTS.get(index).copied())
        .unwrap_or(c"UNKNOWN EVENT")
        .as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_the_values_that_rdma_cma_h_gives_them() {
        // SAFETY: every name is a static C string.
        let text = |event| unsafe { CStr::from_ptr(rdma_event_str(event)) }.to_str().unwrap();
        assert_eq!(text(9), "RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(text(15), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
        assert_eq!(text(20), "UNKNOWN EVENT");
    }
}
