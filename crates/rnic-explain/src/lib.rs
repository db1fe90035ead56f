//! What a capture of RoCEv2 packets says about its connections: which packets were sent again and
//! why, what was refused, how long answers took, and what a person may do about it.
//!
//! The capture may be of any kind of hardware or software, and from any place of the network; of a
//! connection it may show one direction only. A file of any length is read in bounded memory.
//!
//! | module | what |
//! |---|---|
//! | [`mod@file`] | pcap and pcapng files |
//! | `link` | from a packet of the file to a RoCEv2 frame |
//! | `part` | from a frame to its datagrams, where a kernel had joined several |
//! | `explainer` | from datagrams to directions, and from two directions to a connection |
//! | `requests`, `responses` | what is known of the two halves of a direction |
//! | `rewinds` | where a requester went back to, and why |
//! | `conversations` | the connection manager's messages |
//! | [`report`] | the result: facts, as JSON too |
//! | `findings` | what follows from the facts, for people |
//! | `text` | the report as text |
//! | `story`, `remark` | its packets and the comments on them, for a page in a browser |
#![forbid(unsafe_code)]

mod conversations;
mod explainer;
pub mod file;
mod findings;
mod latency;
mod link;
mod missing;
mod part;
mod remark;
pub mod report;
mod requests;
mod responses;
mod rewinds;
mod sent;
mod story;
mod text;

pub use explainer::Explainer;
pub use report::Report;
pub use rnic_page::{Story, html};

use file::{FileError, Reader};
use std::io::Read;

/// Reads a whole file. `progress` is told now and then how many bytes were read.
///
/// # Errors
/// When it is no capture, is damaged, or cannot be read.
pub fn explain(from: impl Read, progress: impl FnMut(u64)) -> Result<Report, FileError> {
    let (explainer, is_cut) = read(from, Explainer::default(), progress)?;
    Ok(explainer.finish(is_cut))
}

/// The same, and a story called `name` of the first packets and of those around what went wrong.
///
/// # Errors
/// As [`explain`].
pub fn tell(
    from: impl Read,
    name: &str,
    progress: impl FnMut(u64),
) -> Result<(Report, Story), FileError> {
    let (explainer, is_cut) = read(from, Explainer::telling(), progress)?;
    Ok(explainer.tell(is_cut, name))
}

/// Shows a capture to an explainer; true if the file ends within a packet.
fn read(
    from: impl Read,
    mut explainer: Explainer,
    mut progress: impl FnMut(u64),
) -> Result<(Explainer, bool), FileError> {
    /// Packets between two reports of progress.
    const STEP: u64 = 1 << 13;
    let mut reader = Reader::new(from)?;
    let mut count = 0u64;
    while let Some(packet) = reader.next_packet()? {
        explainer.packet(&packet);
        count += 1;
        if count.is_multiple_of(STEP) {
            progress(reader.position());
        }
    }
    Ok((explainer, reader.is_cut()))
}
