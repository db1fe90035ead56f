//! The functions behind the rows of `exports.txt` whose kind is `impl`, in one namespace, each
//! under its C name.

pub(crate) use crate::{
    device::{ibv_free_device_list, ibv_get_device_list},
    fork::{ibv_fork_init, ibv_is_fork_initialized},
    kernel::{
        ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern,
        ibv_copy_qp_attr_from_kern,
    },
    rates::{ibv_rate_to_mbps, ibv_rate_to_mult, mbps_to_ibv_rate, mult_to_ibv_rate},
    strings::{
        ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_wc_status_str,
        ibv_wr_opcode_str,
    },
    sysfs::{ibv_get_sysfs_path, ibv_read_sysfs_file},
};
