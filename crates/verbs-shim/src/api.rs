//! The functions behind the rows of `exports.txt` whose kind is `impl`, in one namespace, each
//! under its C name.

pub(crate) use crate::{
    ah::{
        ibv_attach_mcast, ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_detach_mcast,
        ibv_init_ah_from_wc,
    },
    async_events::{ibv_ack_async_event, ibv_get_async_event},
    channel::{
        ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
    },
    context::{ibv_close_device, ibv_open_device},
    cq::{ibv_create_cq, ibv_destroy_cq, ibv_resize_cq},
    device::{
        ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list,
        ibv_get_device_name,
    },
    ece::{ibv_query_ece, ibv_set_ece},
    fork::{ibv_fork_init, ibv_is_fork_initialized},
    gid::{
        _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_gid,
        ibv_query_gid_type, ibv_query_pkey,
    },
    import::{
        ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd, ibv_unimport_dm,
        ibv_unimport_mr, ibv_unimport_pd,
    },
    kernel::{
        ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern,
        ibv_copy_qp_attr_from_kern,
    },
    mr::{ibv_dereg_mr, ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr},
    pd::{ibv_alloc_pd, ibv_dealloc_pd},
    qp::{ibv_create_qp, ibv_destroy_qp, ibv_qp_to_qp_ex},
    qp_attr::{ibv_modify_qp, ibv_query_qp},
    query::{ibv_query_device, ibv_query_port, ibv_query_port_speed, ibv_query_qp_data_in_order},
    rates::{ibv_rate_to_mbps, ibv_rate_to_mult, mbps_to_ibv_rate, mult_to_ibv_rate},
    srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq},
    strings::{
        ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_wc_status_str,
        ibv_wr_opcode_str,
    },
    sysfs::{ibv_get_sysfs_path, ibv_read_sysfs_file},
};
