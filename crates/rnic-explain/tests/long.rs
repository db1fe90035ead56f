//! A capture that is longer than memory. In a program of its own: its memory is measured.

use rnic_explain::tell;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a pcap file before its packets.
const HEAD: usize = 24;
/// What a capture may take, however long it is.
const MOST_MEMORY: u64 = 64 << 20;

/// A capture file whose packets begin anew until there were enough.
struct Long {
    file: Vec<u8>,
    at: usize,
    left: u64,
}

impl Long {
    fn new(length: u64) -> Self {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roce-wire/tests/vectors");
        let file = fs::read(vectors.join("rxe/loss_rc_write_read.pcap")).unwrap();
        Self { file, at: 0, left: length }
    }
}

impl Read for Long {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.file.len() {
            self.at = HEAD;
        }
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let len = to.len().min(self.file.len() - self.at).min(left);
        to[..len].copy_from_slice(&self.file[self.at..self.at + len]);
        self.at += len;
        self.left -= len as u64;
        Ok(len)
    }
}

/// The most memory that this process had.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// Ten gigabytes in the long form.
#[test]
fn a_capture_longer_than_memory_takes_little_of_it() {
    let is_long = std::env::var_os("RNIC_LONG").is_some();
    let length = if is_long { 10_000_000_000 } else { 300_000_000 };
    let (before, mut told) = (most_memory(), Vec::new());
    let from = io::BufReader::with_capacity(1 << 20, Long::new(length));
    let (report, story) = tell(from, "long", |done| told.push(done)).unwrap();
    let took = most_memory() - before;
    assert!(took < MOST_MEMORY, "{took} bytes");
    assert!(report.capture.packets > length / 2000, "{report}");
    assert!(story.steps.len() <= 2010, "{}", story.steps.len());
    // A progress bar has a hundred steps.
    assert!(told.is_sorted() && told.last().is_some_and(|last| *last > length / 10 * 9));
}
