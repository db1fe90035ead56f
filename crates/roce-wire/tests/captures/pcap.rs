//! Reads the capture files of `tests/vectors`.

use std::path::{Path, PathBuf};

/// A frame of a capture file.
pub(crate) struct Captured {
    /// File name and frame number (from 1, as packet analysers count).
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// All frames of a classic little-endian pcap file with link type Ethernet.
pub(crate) fn read_pcap(path: &Path) -> Vec<Captured> {
    let file = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let le32 = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(le32(0), 0xa1b2_c3d4, "{}: magic", path.display());
    assert_eq!(le32(20), 1, "{}: link type", path.display());
    let file_name = path.file_name().expect("a file").to_string_lossy();
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let (captured, original) = (le32(at + 8) as usize, le32(at + 12) as usize);
        assert_eq!(captured, original, "{}: truncated frame", path.display());
        at += 16;
        frames.push(Captured {
            name: format!("{file_name} #{}", frames.len() + 1),
            bytes: file[at..at + captured].to_vec(),
        });
        at += captured;
    }
    frames
}

/// Every capture file, by name.
pub(crate) fn all_pcaps() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in [vectors(), vectors().join("rxe")] {
        let entries = std::fs::read_dir(&folder).expect("vectors folder");
        files.extend(entries.map(|entry| entry.expect("entry").path()));
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files
}
