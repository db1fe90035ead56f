//! The frames of one direction as a pcap file. A thread of its own writes it: a busy disk must not
//! delay frames, which the hosts would take for loss.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pcap_file::pcap::{PcapPacket, PcapWriter};

type Stamped = (Duration, Vec<u8>);

/// A file being written.
pub(super) struct Capture {
    frames: Sender<Stamped>,
    writer: JoinHandle<Result<()>>,
}

impl Capture {
    /// Makes the file.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let file = PcapWriter::new(BufWriter::new(file))?;
        let (frames, queue) = channel();
        let writer = std::thread::Builder::new()
            .name("link-capture".into())
            .spawn(move || write(file, &queue))?;
        Ok(Self { frames, writer })
    }

    /// Adds a frame. An error of the writer is reported by [`Capture::finish`].
    pub(super) fn add(&self, at: Duration, frame: &[u8]) {
        let _ = self.frames.send((at, frame.to_vec()));
    }

    /// Writes the rest.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.frames);
        self.writer.join().map_err(|_| anyhow!("the capture's writer panicked"))?
    }
}

fn write(mut file: PcapWriter<BufWriter<File>>, queue: &Receiver<Stamped>) -> Result<()> {
    for (at, frame) in queue {
        let length = u32::try_from(frame.len())?;
        file.write_packet(&PcapPacket::new(at, length, &frame))
            .context("cannot write a capture")?;
    }
    Ok(())
}
