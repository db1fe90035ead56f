//! `librnic_function.so`: an engine in the program that uses it.
//!
//! Our libibverbs and librdmacm load it where a program is to have an engine of its own, and ask it
//! for connections that look like those to the daemon. Behind each is a session of the
//! [function](table): a satellite of the daemon, in threads of this process.

mod descriptors;
mod driver;
mod function;
mod stack;
mod table;
#[cfg(test)]
mod tests;

use driver::Driver;
use rnic_abi::os::driving::{Driving, Resting, Turned};
use std::ffi::{OsStr, c_int};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

/// Connects to the function of this process at the daemon with a socket at this path, which is
/// started where there is none. Returns a descriptor, or a negative error number; then there is a
/// text at `text`, with a final zero byte, and later calls with `or_daemon` start none either.
///
/// # Safety
/// `path` names `path_len` bytes, and `text` room for `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rnic_function_connect(
    path: *const u8,
    path_len: usize,
    text: *mut u8,
    room: usize,
    or_daemon: bool,
) -> c_int {
    // SAFETY: by contract.
    let path = unsafe { std::slice::from_raw_parts(path, path_len) };
    match table::connect(Path::new(OsStr::from_bytes(path)), or_daemon) {
        Ok(connection) => connection.into_raw_fd(),
        Err(error) => {
            let said = error.to_string();
            let len = said.len().min(room.saturating_sub(1));
            if room > 0 {
                // SAFETY: by contract there is room for that.
                unsafe {
                    std::ptr::copy_nonoverlapping(said.as_ptr(), text, len);
                    text.add(len).write(0);
                }
            }
            -error.raw_os_error().unwrap_or_else(|| number_of(error.kind()))
        }
    }
}

/// Which thread turns the engine of this process's function at the daemon with a socket at this
/// path; null where there is none, or where it is always the engine's own.
///
/// # Safety
/// `path` names `path_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rnic_function_driving(path: *const u8, path_len: usize) -> *const Driving {
    // SAFETY: by contract.
    let path = unsafe { std::slice::from_raw_parts(path, path_len) };
    table::driving(Path::new(OsStr::from_bytes(path))).map_or(null(), std::ptr::from_ref)
}

/// Does what the state calls for, in a thread of the program: [`Turned`], as bits.
///
/// # Safety
/// From [`rnic_function_driving`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rnic_function_turn(driving: *const Driving) -> c_int {
    // SAFETY: by contract; it is never freed.
    let driver = unsafe { driving.as_ref() }.and_then(Driver::of);
    driver.map_or(Turned::default(), Driver::turn).code()
}

/// Makes a turn for a thread of the program that is to sleep where there is nothing to do:
/// [`Turned`], as bits.
///
/// # Safety
/// From [`rnic_function_driving`]; `resting` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rnic_function_rest(
    driving: *const Driving,
    resting: *mut Resting,
) -> c_int {
    // SAFETY: by contract.
    let (driving, resting) = unsafe { (driving.as_ref(), resting.as_mut()) };
    let driver = driving.and_then(Driver::of).zip(resting);
    driver.map_or(Turned::default(), |(driver, resting)| driver.rest(resting)).code()
}

/// Closes what the program has of the function's descriptors.
///
/// # Safety
/// From [`rnic_function_driving`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rnic_function_release(driving: *const Driving) {
    // SAFETY: by contract; it is never freed.
    if let Some(driver) = unsafe { driving.as_ref() }.and_then(Driver::of) {
        driver.release();
    }
}

/// For an error that has a text of its own.
fn number_of(kind: std::io::ErrorKind) -> c_int {
    use std::io::ErrorKind as Kind;
    match kind {
        Kind::NotFound => libc::ENOENT,
        Kind::ConnectionRefused => libc::ECONNREFUSED,
        Kind::PermissionDenied => libc::EACCES,
        _ => libc::EIO,
    }
}
