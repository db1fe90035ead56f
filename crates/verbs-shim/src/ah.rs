//! Address handles and multicast groups.

use std::ffi::c_int;

use rnic_abi::{control::Request, verbs::AhAttr};
use verbs_abi::IBV_WC_GRH;
use verbs_abi::{
    Zeroed, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp, ibv_wc,
};

use crate::{
    context::Context,
    error::{Errno, Result, code, pointer, zero_or_minus_one},
    gid,
    qp::Qp,
};

/// An address vector as the daemon knows it.
pub(crate) fn to_daemon(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: attr.grh.dgid.raw,
        // Programs put a hash of 32 bits here; a NIC sends the 20 the header has.
        flow_label: attr.grh.flow_label & 0xf_ffff,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        port_num: attr.port_num,
        is_global: attr.is_global != 0,
    }
}

/// The verbs form of address attributes that the daemon sent.
pub(crate) fn from_daemon(ah: &AhAttr) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw: ah.dgid };
    attr.grh.flow_label = ah.flow_label;
    attr.grh.sgid_index = ah.sgid_index;
    attr.grh.hop_limit = ah.hop_limit;
    attr.grh.traffic_class = ah.traffic_class;
    attr.sl = ah.sl;
    attr.port_num = ah.port_num;
    attr.is_global = ah.is_global.into();
    attr
}

/// # Safety
/// `pd` is from `ibv_alloc_pd`.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: by contract.
    let (context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: by contract.
    let session = unsafe { &Context::of(context).session };
    let handle = session.handle(&Request::CreateAh { pd: pd_handle, attr: to_daemon(attr) })?;
    Ok(Box::into_raw(Box::new(ibv_ah { context, pd, handle })))
}

/// Makes an address handle. NULL and errno on failure.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`; `attr` is valid.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: by contract.
    pointer(unsafe { create(pd, &*attr) })
}

/// Destroys an address handle.
///
/// # Safety
/// `ah` is from one of the calls that make one.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: by contract.
    let (context, handle) = unsafe { (Context::of((*ah).context), (*ah).handle) };
    let result = context.session.dispose(&Request::DestroyAh { ah: handle });
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(ah) });
    }
    code(result)
}

/// Reads the source address of a datagram from its GRH area, so that a reply can be sent there. For
/// IPv4 the last 20 bytes of the area are the IP header (RoCEv2 annex A17).
fn return_path(context: &Context, port: u8, wc: &ibv_wc, area: &[u8; 40]) -> Result<ibv_ah_attr> {
    let mut attr = ibv_ah_attr::zeroed();
    // The completion's `sl` tells the type of the IP header: RoCEv2 has no service level.
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    let (source, destination) = match ipv4_header(area) {
        Some(header) => {
            attr.grh.traffic_class = header[1];
            let mapped = |at: usize| {
                let mut gid = [0; 16];
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(&header[at..at + 4]);
                gid
            };
            (mapped(12), mapped(16))
        }
        None => {
            let [a, b, c, d, ..] = *area;
            let head = u32::from_be_bytes([a, b, c, d]);
            attr.grh.flow_label = head & 0xf_ffff;
            attr.grh.traffic_class = head.to_be_bytes()[0] << 4 | head.to_be_bytes()[1] >> 4;
            let gid = |at: usize| {
                let mut gid = [0; 16];
                gid.copy_from_slice(&area[at..at + 16]);
                gid
            };
            (gid(8), gid(24))
        }
    };
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: source };
    attr.grh.sgid_index = gid::index_of(context, &destination)?;
    attr.grh.hop_limit = u8::MAX;
    Ok(attr)
}

/// The IPv4 header in a GRH area. Its checksum tells it from the end of a GRH.
fn ipv4_header(area: &[u8; 40]) -> Option<&[u8; 20]> {
    let header: &[u8; 20] = area.last_chunk()?;
    let sum = header
        .as_chunks::<2>()
        .0
        .iter()
        .fold(0_u32, |sum, pair| sum + u32::from(u16::from_be_bytes(*pair)));
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (header[0] == 0x45 && folded == 0xffff).then_some(header)
}

/// # Safety
/// `wc` is valid; `grh` is null or valid.
unsafe fn path_of(
    context: &Context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr> {
    // SAFETY: valid by contract, and a GRH is 40 bytes of any value.
    let area = unsafe { grh.cast::<[u8; 40]>().as_ref() }.unwrap_or(&[0; 40]);
    // SAFETY: by contract.
    return_path(context, port, unsafe { &*wc }, area)
}

/// Fills in the address attributes for a reply to a datagram. -1 and errno on failure.
///
/// # Safety
/// `context` is open; `wc` and `grh` are valid; `ah_attr` is writable.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: by contract.
    let attr = unsafe { path_of(Context::of(context), port_num, wc, grh) };
    // SAFETY: writable by contract.
    zero_or_minus_one(attr.map(|attr| unsafe { ah_attr.write(attr) }))
}

/// Makes an address handle for replies to a datagram. NULL and errno on failure.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`; `wc` and `grh` are valid.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: by contract.
    let attr = unsafe { path_of(Context::of((*pd).context), port_num, wc, grh) };
    // SAFETY: by contract.
    pointer(attr.and_then(|attr| unsafe { create(pd, &attr) }))
}

/// # Safety
/// `qp` is a queue pair of this library; `gid` is valid.
unsafe fn multicast(qp: *mut ibv_qp, gid: *const ibv_gid, attach: bool) -> c_int {
    // SAFETY: by contract.
    let (qp, gid) = unsafe { (Qp::of(qp), (*gid).raw) };
    if !qp.rules.datagram {
        return code(Err(Errno(libc::EINVAL)));
    }
    let request = |qp| Request::Multicast { qp, gid, attach };
    code(qp.handle().and_then(|handle| qp.context().session.done(&request(handle))))
}

/// Joins a multicast group.
///
/// # Safety
/// `qp` is a queue pair of this library; `gid` is valid.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: by contract.
    unsafe { multicast(qp, gid, true) }
}

/// Leaves a multicast group.
///
/// # Safety
/// As [`ibv_attach_mcast`].
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: by contract.
    unsafe { multicast(qp, gid, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_is_known_by_its_checksum() {
        let mut area = [0; 40];
        let header = [0x45, 0x02, 0, 0x54, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        area[20..].copy_from_slice(&header);
        assert_eq!(ipv4_header(&area), None);
        let sum: u32 = header.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        area[30..32].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(ipv4_header(&area).map(|header| header[1]), Some(0x02));
    }
}
