//! The functions behind the rows of `exports.txt` whose kind is `impl`, in one namespace, each
//! under its C name.

pub(crate) use crate::{
    address::{rdma_get_dst_port, rdma_get_src_port},
    devices::rdma_get_devices,
    strings::rdma_event_str,
};
