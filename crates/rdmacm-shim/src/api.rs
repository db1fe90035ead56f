//! The functions behind the rows of `exports.txt` whose kind is `impl`, in one namespace, each
//! under its C name.

pub(crate) use crate::{
    address::{rdma_get_dst_port, rdma_get_src_port},
    addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo},
    channel::{
        rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    },
    connect::{
        rdma_accept, rdma_bind_addr, rdma_connect, rdma_disconnect, rdma_reject, rdma_resolve_addr,
        rdma_resolve_route,
    },
    devices::{rdma_free_devices, rdma_get_devices},
    ece::{rdma_get_remote_ece, rdma_reject_ece, rdma_set_local_ece},
    endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request},
    events::{rdma_ack_cm_event, rdma_establish, rdma_get_cm_event, rdma_notify},
    listen::rdma_listen,
    migrate::rdma_migrate_id,
    multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast},
    options::rdma_set_option,
    qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr},
    rsocket::{
        calls::{
            raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt,
            rlisten, rpoll, rselect, rsetsockopt, rshutdown, rsocket,
        },
        data::{
            riomap, riounmap, riowrite, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg,
            rsendto, rwrite, rwritev,
        },
    },
    srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq},
    strings::rdma_event_str,
};
