//! Attributes, GIDs, lists.

use std::{ffi::CStr, io};

use verbs_abi::{
    IBV_GID_TYPE_ROCE_V2, IBV_PORT_ACTIVE, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_port_attr, ibv_qp_init_attr, ibv_query_device_ex_input,
};

use super::*;
use crate::{
    cq::req_notify_cq,
    query::{query_device_ex, query_port},
};

#[test]
fn device_attributes_are_those_of_the_daemon() {
    let world = World::new();
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: valid objects.
    unsafe {
        let device = (*world.context).device;
        assert_eq!(CStr::from_ptr(ibv_get_device_name(device)).to_bytes()[..5], *b"rnic0");
        assert_eq!(ibv_get_device_guid(device).to_ne_bytes(), fake::info().node_guid);
        // What providers read behind a device.
        assert_eq!(device.byte_add(664).cast::<u64>().read(), 0);
        assert_eq!(ibv_query_device(world.context, &raw mut attr), 0);
        assert_eq!((*world.context).num_comp_vectors, 2);
        let mut speed = 0;
        assert_eq!(ibv_query_port_speed(world.context, 1, &raw mut speed), 0);
        assert_eq!(speed, 1000, "in units of 100 Mbit/s");
        assert_eq!(ibv_query_port_speed(world.context, 2, &raw mut speed), libc::EINVAL);
    }
    assert_eq!((attr.max_qp, attr.max_sge, attr.phys_port_cnt), (1000, 32, 1));
    assert!(attr.vendor_id != 0);
}

#[test]
fn structures_are_written_up_to_the_callers_size() {
    let world = World::new();
    let mut bytes = [0xff_u8; 64];
    for length in [48, 52, 56] {
        // SAFETY: the buffer is longer.
        let result = unsafe { query_port(world.context, 1, bytes.as_mut_ptr().cast(), length) };
        assert_eq!((result, bytes[length]), (0, 0xff));
    }
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: valid objects.
    unsafe {
        assert_eq!(query_port(world.context, 1, &raw mut attr, size_of_val(&attr)), 0);
        assert_eq!(query_port(world.context, 2, &raw mut attr, size_of_val(&attr)), libc::EINVAL);
    }
    assert_eq!((attr.state, attr.active_mtu, attr.link_layer), (IBV_PORT_ACTIVE, 3, 2));
    let mut long = [0xff_u8; 512];
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    // SAFETY: valid objects; the buffer is as long as said.
    unsafe {
        let attr = long.as_mut_ptr().cast::<ibv_device_attr_ex>();
        assert_eq!(query_device_ex(world.context, &raw const input, attr, 400), libc::EINVAL);
        assert_eq!(query_device_ex(world.context, ptr::null(), attr, 480), 0);
    }
    assert_eq!((long[479], long[480]), (0, 0xff));
}

#[test]
fn gids_by_index_and_as_a_table() {
    let world = World::new();
    let mut gid = ibv_gid::default();
    let mut query = |index| {
        // SAFETY: valid objects.
        let result = unsafe { ibv_query_gid(world.context, 1, index, &raw mut gid) };
        (result, gid.raw[0])
    };
    assert_eq!(query(1), (0, 2));
    assert_eq!(query(2), (0, 0), "not used");
    assert_eq!(query(16).0, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    let mut entries = [ibv_gid_entry::zeroed(); 4];
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: room as said.
    unsafe {
        let table = entries.as_mut_ptr();
        let too_few = _ibv_query_gid_table(world.context, table, 2, 0, size);
        assert_eq!(too_few, -(libc::EINVAL as isize));
        assert_eq!(_ibv_query_gid_table(world.context, table, 4, 0, size), 3);
        assert_eq!(_ibv_query_gid_ex(world.context, 1, 2, table, 0, size), libc::ENODATA);
    }
    let last = entries[2];
    assert_eq!((last.gid_index, last.ndev_ifindex, last.gid_type), (3, 7, IBV_GID_TYPE_ROCE_V2));
}

#[test]
fn a_query_returns_caps_in_both_structures() {
    let world = World::new();
    let mut attr = ibv_qp_attr::zeroed();
    let mut init = ibv_qp_init_attr::zeroed();
    // SAFETY: valid objects.
    assert_eq!(unsafe { ibv_query_qp(world.qp, &raw mut attr, 0, &raw mut init) }, 0);
    assert_eq!((attr.qp_state, attr.cap.max_send_sge), (IBV_QPS_RTS, 3));
    assert_eq!((init.cap.max_inline_data, init.send_cq), (100, world.cq));
}

#[test]
fn a_refusal_becomes_errno() {
    let world = World::new();
    let mut memory = [0_u8; 8];
    // SAFETY: live memory.
    assert!(unsafe { ibv_reg_mr(world.pd, memory.as_mut_ptr().cast(), 8, 0) }.is_null());
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    // An unknown access flag is refused, an unknown optional one is not.
    for (access, fine) in [(1 << 15 | 1, false), (1 << 25 | 1, true)] {
        // SAFETY: live memory.
        let mr = unsafe { ibv_reg_mr_iova2(world.pd, memory.as_mut_ptr().cast(), 8, 0, access) };
        assert_eq!(!mr.is_null(), fine);
    }
}

/// What a call left in errno, which is cleared before.
fn errno_after(call: impl FnOnce() -> c_int) -> (c_int, Option<c_int>) {
    crate::stubs::set_errno(0);
    let result = call();
    (result, io::Error::last_os_error().raw_os_error())
}

#[test]
fn a_returned_errno_value_is_also_set() {
    let world = World::new();
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = 99;
    let mut port = ibv_port_attr::zeroed();
    let invalid = (libc::EINVAL, Some(libc::EINVAL));
    let modify = || {
        // SAFETY: valid objects, here and below.
        unsafe { ibv_modify_qp(world.qp, &raw mut attr, IBV_QP_STATE) }
    };
    assert_eq!(errno_after(modify), invalid);
    // SAFETY: as above.
    assert_eq!(errno_after(|| unsafe { ibv_query_port(world.context, 7, &raw mut port) }), invalid);
    // SAFETY: as above.
    assert_eq!(errno_after(|| unsafe { ibv_resize_cq(world.cq, 0) }), invalid);
    assert_eq!(errno_after(|| world.send(&mut request(999, 0, &mut []))), invalid);
    // SAFETY: as above.
    let busy = errno_after(|| unsafe { ibv_destroy_comp_channel(world.channel) });
    assert_eq!(busy, (libc::EBUSY, Some(libc::EBUSY)));
    // Success leaves it alone.
    assert_eq!(errno_after(|| world.receive(1, &mut [])), (0, Some(0)));
}

#[test]
fn an_overwritten_handle_fails_with_enoent() {
    let world = World::new();
    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
    attr.qp_state = IBV_QPS_RTS;
    // SAFETY: valid objects, but for their handles.
    unsafe {
        (*world.qp).handle ^= 1;
        assert_eq!(ibv_modify_qp(world.qp, &raw mut attr, IBV_QP_STATE), libc::ENOENT);
        assert_eq!(ibv_query_qp(world.qp, &raw mut attr, 0, &raw mut init), libc::ENOENT);
        assert_eq!(ibv_destroy_qp(world.qp), libc::ENOENT);
        (*world.qp).handle ^= 1;
        assert_eq!(ibv_destroy_qp(world.qp), 0);
        (*world.cq).handle ^= 1;
        assert_eq!(req_notify_cq(world.cq, 0), libc::ENOENT);
        assert_eq!(ibv_resize_cq(world.cq, 100), libc::ENOENT);
        assert_eq!(ibv_destroy_cq(world.cq), libc::ENOENT);
        (*world.cq).handle ^= 1;
        assert_eq!(ibv_destroy_cq(world.cq), 0);
    }
}
