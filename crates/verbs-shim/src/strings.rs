//! Names of statuses, events, states and opcodes. The names of statuses and events are those of
//! libibverbs, so that users find them in a web search.

use std::ffi::{CStr, c_char};

use verbs_abi::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};

/// Names by value; `None` where the numbering has a gap.
type Names = [Option<&'static CStr>];

fn name_of(names: &Names, value: i64) -> *const c_char {
    usize::try_from(value)
        .ok()
        .and_then(|index| names.get(index).copied().flatten())
        .unwrap_or(c"unknown")
        .as_ptr()
}

/// Name of a completion status (`IBV_WC_*`).
pub(crate) extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    const NAMES: &Names = &[
        Some(c"success"),
        Some(c"local length error"),
        Some(c"local QP operation error"),
        Some(c"local EE context operation error"),
        Some(c"local protection error"),
        Some(c"Work Request Flushed Error"),
        Some(c"memory management operation error"),
        Some(c"bad response error"),
        Some(c"local access error"),
        Some(c"remote invalid request error"),
        Some(c"remote access error"),
        Some(c"remote operation error"),
        Some(c"transport retry counter exceeded"),
        Some(c"RNR retry counter exceeded"),
        Some(c"local RDD violation error"),
        Some(c"remote invalid RD request"),
        Some(c"aborted error"),
        Some(c"invalid EE context number"),
        Some(c"invalid EE context state"),
        Some(c"fatal error"),
        Some(c"response timeout error"),
        Some(c"general error"),
        Some(c"tag matching error"),
        Some(c"tag matching rendezvous incomplete"),
    ];
    name_of(NAMES, status.into())
}

/// Name of an asynchronous event (`IBV_EVENT_*`).
pub(crate) extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    const NAMES: &Names = &[
        Some(c"CQ error"),
        Some(c"local work queue catastrophic error"),
        Some(c"invalid request local work queue error"),
        Some(c"local access violation work queue error"),
        Some(c"communication established"),
        Some(c"send queue drained"),
        Some(c"path migrated"),
        Some(c"path migration request error"),
        Some(c"local catastrophic error"),
        Some(c"port active"),
        Some(c"port error"),
        Some(c"LID change"),
        Some(c"P_Key change"),
        Some(c"SM change"),
        Some(c"SRQ catastrophic error"),
        Some(c"SRQ limit reached"),
        Some(c"last WQE reached"),
        Some(c"client reregistration"),
        Some(c"GID table change"),
        Some(c"WQ fatal"),
        Some(c"device speed change"),
    ];
    name_of(NAMES, event.into())
}

/// Name of a node type (`IBV_NODE_*`, -1 is unknown).
pub(crate) extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    const NAMES: &Names = &[
        None,
        Some(c"channel adapter"),
        Some(c"switch"),
        Some(c"router"),
        Some(c"iWARP NIC"),
        Some(c"usNIC"),
        Some(c"usNIC UDP"),
        Some(c"unspecified"),
    ];
    name_of(NAMES, node_type.into())
}

/// Name of a port state (`IBV_PORT_*`).
pub(crate) extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    const NAMES: &Names = &[
        Some(c"unchanged"),
        Some(c"down"),
        Some(c"init"),
        Some(c"armed"),
        Some(c"active"),
        Some(c"active defer"),
    ];
    name_of(NAMES, state.into())
}

/// Name of a send work request's opcode (`IBV_WR_*`).
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    const NAMES: &Names = &[
        Some(c"RDMA WRITE"),
        Some(c"RDMA WRITE with immediate"),
        Some(c"SEND"),
        Some(c"SEND with immediate"),
        Some(c"RDMA READ"),
        Some(c"ATOMIC compare and swap"),
        Some(c"ATOMIC fetch and add"),
        Some(c"local invalidate"),
        Some(c"bind memory window"),
        Some(c"SEND with invalidate"),
        Some(c"TSO"),
        Some(c"driver 1"),
        None,
        None,
        Some(c"FLUSH"),
        Some(c"ATOMIC WRITE"),
    ];
    name_of(NAMES, opcode.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: every name is a static C string.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn names_stand_at_the_values_that_verbs_h_gives_them() {
        assert_eq!(text(ibv_wc_status_str(0)), "success");
        assert_eq!(text(ibv_wc_status_str(5)), "Work Request Flushed Error");
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(21)), "general error");
        assert_eq!(text(ibv_event_type_str(9)), "port active");
        assert_eq!(text(ibv_event_type_str(18)), "GID table change");
        assert_eq!(text(ibv_node_type_str(1)), "channel adapter");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_wr_opcode_str(14)), "FLUSH");
    }

    #[test]
    fn values_outside_the_numbering_are_unknown() {
        for name in [
            ibv_wc_status_str(24),
            ibv_event_type_str(u32::MAX),
            ibv_node_type_str(-1),
            ibv_node_type_str(0),
            ibv_port_state_str(6),
            ibv_wr_opcode_str(12),
        ] {
            assert_eq!(text(name), "unknown");
        }
    }
}
