//! Options of identifiers.

use std::ffi::{c_int, c_void};

use verbs_abi::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id,
};

use crate::{
    error::{Errno, Result, code},
    id,
};

/// # Safety
/// `id` is one, `value` has `len` bytes.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: by contract.
    code(unsafe { id::of(id) }.and_then(|id| {
        if level != RDMA_OPTION_ID || value.is_null() {
            return Err(Errno(libc::ENOSYS));
        }
        // SAFETY: by contract.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
        let mut inner = id.inner();
        match name {
            RDMA_OPTION_ID_TOS => inner.options.tos = byte(bytes)?,
            RDMA_OPTION_ID_REUSEADDR => inner.options.reuse = number(bytes)? != 0,
            RDMA_OPTION_ID_AFONLY => inner.options.one_family = number(bytes)? != 0,
            RDMA_OPTION_ID_ACK_TIMEOUT => {
                let exponent = byte(bytes)?;
                if exponent > 31 {
                    return Err(Errno(libc::EINVAL));
                }
                inner.options.ack_timeout = Some(exponent);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }))
}

fn byte(bytes: &[u8]) -> Result<u8> {
    match bytes {
        [byte] => Ok(*byte),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn number(bytes: &[u8]) -> Result<c_int> {
    bytes.try_into().map(c_int::from_ne_bytes).map_err(|_| Errno(libc::EINVAL))
}
