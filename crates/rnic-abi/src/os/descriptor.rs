//! Descriptors of the library in a process that may close them.
//!
//! A program that becomes a daemon closes every descriptor that it does not know, and its next file
//! may get the number of one of ours. The library must not write to that file.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Identifies a file. Every socket and memory file has its own inode; all eventfds share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Major and minor number.
    pub device: (u32, u32),
    /// Of the file on its device.
    pub number: u64,
}

impl Inode {
    /// That of the file that a number refers to.
    ///
    /// # Errors
    /// The errno of a closed descriptor.
    pub fn of(fd: RawFd) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: fstat writes one `stat`, for which all-zero bytes are valid too.
        let stat = unsafe {
            if libc::fstat(fd, stat.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            stat.assume_init()
        };
        let device = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
        Ok(Self { device, number: stat.st_ino })
    }
}

/// A descriptor that is used only while its number still refers to the same file.
pub struct Descriptor<T: AsFd> {
    inner: ManuallyDrop<T>,
    inode: Inode,
}

impl<T: AsFd> Descriptor<T> {
    /// Of a descriptor that is open now.
    ///
    /// # Errors
    /// The errno of a closed descriptor.
    pub fn new(inner: T) -> io::Result<Self> {
        let inode = Inode::of(inner.as_fd().as_raw_fd())?;
        Ok(Self { inner: ManuallyDrop::new(inner), inode })
    }

    /// The descriptor; `None` when the program has closed it. One system call.
    pub fn get(&self) -> Option<&T> {
        let now = Inode::of(self.number()).ok()?;
        (now == self.inode).then_some(&*self.inner)
    }

    /// Its number, whatever file that refers to now.
    pub fn number(&self) -> RawFd {
        self.inner.as_fd().as_raw_fd()
    }

    /// Of the file that it referred to at first.
    pub fn inode(&self) -> Inode {
        self.inode
    }
}

impl<T: AsFd> Drop for Descriptor<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: once, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_number_that_stands_for_another_file_is_left_alone() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let descriptor = Descriptor::new(ours).unwrap();
        assert!(descriptor.get().is_some());
        let file = File::open("/dev/null").unwrap();
        // SAFETY: takes the number from its owner, as programs do.
        let number = unsafe { libc::dup2(file.as_raw_fd(), descriptor.number()) };
        assert!(descriptor.get().is_none());
        drop(descriptor);
        assert!(Inode::of(number).is_ok(), "it is not closed");
        // SAFETY: the test's own.
        unsafe { libc::close(number) };
        assert_eq!(io::Read::read(&mut theirs, &mut [0]).unwrap(), 0);
    }
}
