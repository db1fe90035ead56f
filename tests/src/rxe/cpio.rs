//! Writes the `newc` archive that Linux unpacks as its initial file system.
//!
//! It is not compressed: under emulation, decompressing costs more than reading. All files
//! belong to root, whatever user builds the archive.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// An archive in the making.
pub struct Archive<W: Write> {
    sink: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub fn new(sink: W) -> Self {
        Self { sink, inode: 1 }
    }

    /// Adds everything under `dir`, in order of names.
    ///
    /// # Errors
    /// When a file cannot be read or the archive not be written.
    pub fn add_tree(&mut self, dir: &Path) -> Result<()> {
        self.add_folder(dir, dir)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.sink.flush()?;
        Ok(())
    }

    fn add_folder(&mut self, root: &Path, dir: &Path) -> Result<()> {
        let mut paths: Vec<_> =
            fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(root)?.to_str().context("a file name is not UTF-8")?;
            let metadata = fs::symlink_metadata(&path)?;
            let mode = metadata.permissions().mode() & 0o7777;
            if metadata.is_dir() {
                self.entry(name, DIRECTORY | mode, &[])?;
                self.add_folder(root, &path)?;
            } else if metadata.is_symlink() {
                let to = fs::read_link(&path)?;
                let to = to.to_str().context("a link's target is not UTF-8")?;
                self.entry(name, SYMLINK | 0o777, to.as_bytes())?;
            } else {
                self.entry(name, REGULAR | mode, &fs::read(&path)?)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> Result<()> {
        let size = u32::try_from(data.len()).context("a file of 4 GiB does not fit")?;
        let name_size = u32::try_from(name.len() + 1)?;
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        // namesize, check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.inode += 1;
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08X}"));
        }
        head.push_str(name);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(data)
    }

    /// Header with name, and data, each end at a multiple of four bytes.
    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink.write_all(bytes)?;
        let padding = bytes.len().wrapping_neg() % 4;
        self.sink.write_all(&[0; 3][..padding])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.entry("bin/a", REGULAR | 0o755, b"hello").unwrap();
        archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081ED", "regular file, mode 755");
        assert_eq!(&bytes[54..62], b"00000005", "five bytes of data");
        assert_eq!(&bytes[110..116], b"bin/a\0");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
