//! XRC domains.

use std::{ffi::c_int, os::fd::BorrowedFd, sync::Once};

use rnic_abi::control::Request;
use verbs_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};

use crate::{
    context::Context,
    error::{Errno, code, pointer},
    report,
};

/// An XRC domain.
#[repr(C)]
struct Xrcd {
    ibv: ibv_xrcd,
    handle: u32,
}

/// The daemon's handle of a domain.
///
/// # Safety
/// `xrcd` is from [`open_xrcd`].
pub(crate) unsafe fn handle_of(xrcd: *mut ibv_xrcd) -> u32 {
    // SAFETY: by contract.
    unsafe { (*xrcd.cast::<Xrcd>()).handle }
}

/// Makes an XRC domain of this context, or, with a descriptor, makes or joins that of its file,
/// which the user's processes share. NULL and errno on failure: EAGAIN when no domain has the file
/// and `O_CREAT` is not given, EINVAL when one has it and `O_EXCL` is given.
///
/// # Safety
/// `context` is open; `attr` is a valid description.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: by contract.
    let (session, attr) = unsafe { (&Context::of(context).session, &*attr) };
    let complete = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != complete {
        return pointer(Err(Errno(libc::EINVAL)));
    }
    let given = |flag| attr.oflags & flag != 0;
    let request =
        Request::OpenXrcd { create: given(libc::O_CREAT), exclusive: given(libc::O_EXCL) };
    // SAFETY: it is open, as checked before it is used, and the program keeps it open.
    let file = (attr.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(attr.fd) });
    if file.is_some() && session.is_in_program() {
        warn_of_domain();
    }
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    let opened = match is_open(attr.fd) {
        true => session.handle_with(&request, &files),
        false => Err(Errno(libc::EBADF)),
    };
    pointer(
        opened.map(|handle| {
            Box::into_raw(Box::new(Xrcd { ibv: ibv_xrcd { context }, handle })).cast()
        }),
    )
}

/// What programs do with a domain that they believe to share fails later, without a cause to see.
fn warn_of_domain() {
    static ONCE: Once = Once::new();
    let text = "the XRC domain of a file is this program's alone, as its engine is; programs that \
                share one take the daemon's: RNIC_ENGINE=daemon";
    report::say_once(&ONCE, text);
}

/// -1 stands for no file. A descriptor that cannot be sent would end the session.
fn is_open(fd: c_int) -> bool {
    // SAFETY: the call only reads the flags of a descriptor, whatever the number.
    fd == -1 || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

/// Destroys an XRC domain; EBUSY while something belongs to it.
///
/// # Safety
/// `xrcd` is from [`open_xrcd`].
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: by contract.
    let (context, handle) = unsafe { (Context::of((*xrcd).context), handle_of(xrcd)) };
    let result = context.session.dispose(&Request::CloseXrcd { xrcd: handle });
    if result.is_ok() {
        // SAFETY: made by Box::into_raw above.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    }
    code(result)
}
