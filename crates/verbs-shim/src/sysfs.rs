//! The attribute-file calls that programs make on the paths in `ibv_device`.

use std::{
    env,
    ffi::{CStr, CString, OsStr, c_char, c_int},
    fs::File,
    io::{self, Read},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    slice,
    sync::OnceLock,
};

use crate::stubs::set_errno;

/// Root of the attribute tree: `/sys`, or what `SYSFS_PATH` says. Owned by the library.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| sysfs_root(env::var_os("SYSFS_PATH").as_deref())).as_ptr()
}

fn sysfs_root(configured: Option<&OsStr>) -> CString {
    let bytes = configured.unwrap_or_default().to_owned().into_vec();
    let length = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    match CString::new(&bytes[..length]) {
        Ok(root) if length > 0 => root,
        _ => c"/sys".to_owned(),
    }
}

/// Reads an attribute file into `buf`, terminated by a zero byte in place of its final newline.
///
/// Returns the text's length, or -1 with errno; EOVERFLOW when the text does not fit (it is never
/// cut short).
///
/// # Safety
/// `dir` and `file` are C strings; `buf` has room for `size` bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size > isize::MAX as usize {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: both are C strings by contract and not null.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    // SAFETY: the caller gives `size` writable bytes, and zeroing them first makes them
    // initialised.
    let buf = unsafe {
        buf.write_bytes(0, size);
        slice::from_raw_parts_mut(buf.cast::<u8>(), size)
    };
    let path =
        Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    match read_attribute(&path, buf) {
        Ok(length) => c_int::try_from(length).unwrap_or(c_int::MAX),
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// Fills `buf` from the file, cuts one final newline, and puts a zero byte behind the text.
fn read_attribute(path: &Path, buf: &mut [u8]) -> io::Result<usize> {
    let mut length = File::open(path)?.read(buf)?;
    if length > 0 && buf[length - 1] == b'\n' {
        length -= 1;
    }
    *buf.get_mut(length).ok_or(io::Error::from_raw_os_error(libc::EOVERFLOW))? = 0;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_defaults_and_loses_trailing_slashes() {
        assert_eq!(sysfs_root(None).as_c_str(), c"/sys");
        assert_eq!(sysfs_root(Some(OsStr::new("///"))).as_c_str(), c"/sys");
        assert_eq!(sysfs_root(Some(OsStr::new("/run/x//"))).as_c_str(), c"/run/x");
    }

    #[test]
    fn a_text_is_terminated_and_must_fit() {
        let path = env::temp_dir().join(format!("sysfs-attribute-{}", std::process::id()));
        std::fs::write(&path, "abcd\n").unwrap();
        let mut buf = [0xff; 8];
        assert_eq!(read_attribute(&path, &mut buf).unwrap(), 4);
        assert_eq!(&buf[..5], b"abcd\0");
        assert_eq!(read_attribute(&path, &mut [0; 5]).unwrap(), 4);
        let error = read_attribute(&path, &mut [0; 4]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOVERFLOW));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_missing_file_sets_errno() {
        let mut buf = [0; 8];
        // SAFETY: two C strings and a buffer with its size.
        let length = unsafe {
            ibv_read_sysfs_file(c"/nowhere".as_ptr(), c"at_all".as_ptr(), buf.as_mut_ptr(), 8)
        };
        assert_eq!(length, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    }
}
