//! Translation between the kernel's and the library's form of attributes.
//!
//! No kernel produces these structures here, but the librdmacm of rdma-core, which may be loaded
//! over this library, calls these functions.

use verbs_abi::{
    ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid, ibv_global_route,
    ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec,
};

/// # Safety
/// `dst` is writable and `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const ib_uverbs_ah_attr,
) {
    // SAFETY: by contract.
    unsafe { dst.write(ah_attr(&src.read())) };
}

/// # Safety
/// `dst` is writable and `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const ib_uverbs_qp_attr,
) {
    // SAFETY: by contract.
    unsafe { dst.write(qp_attr(&src.read())) };
}

/// # Safety
/// `dst` is writable and `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const ib_user_path_rec,
) {
    // SAFETY: by contract.
    unsafe { dst.write(path_rec(&src.read())) };
}

/// # Safety
/// `dst` is writable and `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut ib_user_path_rec,
    src: *const ibv_sa_path_rec,
) {
    // SAFETY: by contract.
    unsafe { dst.write(user_path_rec(&src.read())) };
}

fn ah_attr(src: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: src.grh.dgid },
            flow_label: src.grh.flow_label,
            sgid_index: src.grh.sgid_index,
            hop_limit: src.grh.hop_limit,
            traffic_class: src.grh.traffic_class,
        },
        dlid: src.dlid,
        sl: src.sl,
        src_path_bits: src.src_path_bits,
        static_rate: src.static_rate,
        is_global: src.is_global,
        port_num: src.port_num,
    }
}

fn qp_attr(src: &ib_uverbs_qp_attr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: src.qp_state,
        cur_qp_state: src.cur_qp_state,
        path_mtu: src.path_mtu,
        path_mig_state: src.path_mig_state,
        qkey: src.qkey,
        rq_psn: src.rq_psn,
        sq_psn: src.sq_psn,
        dest_qp_num: src.dest_qp_num,
        qp_access_flags: src.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        },
        ah_attr: ah_attr(&src.ah_attr),
        alt_ah_attr: ah_attr(&src.alt_ah_attr),
        pkey_index: src.pkey_index,
        alt_pkey_index: src.alt_pkey_index,
        en_sqd_async_notify: src.en_sqd_async_notify,
        sq_draining: src.sq_draining,
        max_rd_atomic: src.max_rd_atomic,
        max_dest_rd_atomic: src.max_dest_rd_atomic,
        min_rnr_timer: src.min_rnr_timer,
        port_num: src.port_num,
        timeout: src.timeout,
        retry_cnt: src.retry_cnt,
        rnr_retry: src.rnr_retry,
        alt_port_num: src.alt_port_num,
        alt_timeout: src.alt_timeout,
        // The kernel's form has none.
        rate_limit: 0,
    }
}

fn path_rec(src: &ib_user_path_rec) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_signed(),
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible.cast_signed(),
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        // An encoded MTU is below 64.
        mtu: (src.mtu & 0xff) as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    }
}

fn user_path_rec(src: &ibv_sa_path_rec) -> ib_user_path_rec {
    ib_user_path_rec {
        dgid: src.dgid.raw,
        sgid: src.sgid.raw,
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_unsigned(),
        flow_label: src.flow_label,
        reversible: src.reversible.cast_unsigned(),
        mtu: src.mtu.into(),
        pkey: src.pkey,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        numb_path: src.numb_path,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_abi::Zeroed;

    #[test]
    fn a_path_record_survives_the_round_trip() {
        let mut path = ibv_sa_path_rec::zeroed();
        path.dgid.raw[15] = 7;
        (path.mtu, path.rate, path.pkey, path.preference) = (3, 16, 0xffff, 9);
        let mut kernel = ib_user_path_rec::zeroed();
        let mut back = ibv_sa_path_rec::zeroed();
        // SAFETY: all are local variables.
        unsafe {
            ibv_copy_path_rec_to_kern(&raw mut kernel, &raw const path);
            ibv_copy_path_rec_from_kern(&raw mut back, &raw const kernel);
        }
        assert_eq!(format!("{back:?}"), format!("{path:?}"));
    }

    #[test]
    fn attributes_of_a_qp_land_in_their_fields() {
        let mut kernel = ib_uverbs_qp_attr::zeroed();
        (kernel.qp_state, kernel.dest_qp_num, kernel.alt_timeout) = (3, 0x1234, 14);
        kernel.max_inline_data = 220;
        kernel.ah_attr.grh.dgid[0] = 0xfe;
        let mut attr = ibv_qp_attr::zeroed();
        // SAFETY: both are local variables.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut attr, &raw const kernel) };
        assert_eq!((attr.qp_state, attr.dest_qp_num, attr.alt_timeout), (3, 0x1234, 14));
        assert_eq!((attr.cap.max_inline_data, attr.rate_limit), (220, 0));
        assert_eq!(attr.ah_attr.grh.dgid.raw[0], 0xfe);
    }
}
