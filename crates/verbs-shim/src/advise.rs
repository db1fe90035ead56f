//! Advice about on-demand memory: its pages are made present before they are used.
//!
//! The engine reaches memory through the program's own page tables, so the program is the one that
//! brings pages in. The daemon only says whether the keys are good for that.

use std::{ffi::c_int, slice};

use rnic_abi::{control::Request, verbs::AccessFlags};
use verbs_abi::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, ibv_pd, ibv_sge,
};

use crate::{
    context::Context,
    error::{Errno, Result, code},
};

/// Prefetches on-demand memory. 0 or an errno value: ENOTSUP for other advice, EINVAL for unknown
/// flags, EFAULT for a key, a right or a range that is wrong, and with `IBV_ADVISE_MR_FLAG_FLUSH`
/// for pages that are not there. Without that flag pages are a hint.
///
/// # Safety
/// `pd` is from `ibv_alloc_pd`, and `sg_list` has `num_sges` entries.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    let list = match num_sges {
        0 => &[],
        // SAFETY: by contract.
        count => unsafe { slice::from_raw_parts(sg_list, count as usize) },
    };
    // SAFETY: by contract.
    let (context, pd) = unsafe { (Context::of((*pd).context), (*pd).handle) };
    code(advise(context, pd, advice, flags, list))
}

fn advise(context: &Context, pd: u32, advice: u32, flags: u32, list: &[ibv_sge]) -> Result<()> {
    let (need, how) = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => (AccessFlags::empty(), Some(libc::MADV_POPULATE_READ)),
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => {
            (AccessFlags::LOCAL_WRITE, Some(libc::MADV_POPULATE_WRITE))
        }
        // The engine sees at once what the program has.
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (AccessFlags::empty(), None),
        _ => return Err(Errno(libc::ENOTSUP)),
    };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let access = need | AccessFlags::ON_DEMAND;
    for &ibv_sge { addr, length, lkey } in list {
        let request = Request::CheckAccess { pd, lkey, addr, length: length.into(), access };
        context.session.done(&request)?;
    }
    let Some(how) = how else { return Ok(()) };
    for sge in list {
        let there = populate(context, sge, how);
        if flags & IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            there?;
        }
    }
    Ok(())
}

/// Makes the pages of a range present.
fn populate(context: &Context, sge: &ibv_sge, how: c_int) -> Result<()> {
    const GONE: Errno = Errno(libc::EFAULT);
    let length = u64::from(sge.length);
    let region = context.on_demand.find_settled(sge.lkey).ok_or(GONE)?;
    let start = region.locate(sge.addr, length).ok_or(GONE)?.addr();
    // SAFETY: a plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| GONE)?;
    let first = start - start % page;
    let whole = (start - first + sge.length as usize).next_multiple_of(page);
    // SAFETY: pages become present without a change of their content; where there are none, it is
    // an error.
    if unsafe { libc::madvise(first as *mut libc::c_void, whole, how) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // Kernels before 5.14, and memory that has no pages to be brought in.
        Some(libc::EINVAL) => Ok(()),
        _ => Err(GONE),
    }
}
