//! The shortest captured frame of each kind.

use crate::Seed;
use rnic_fuzz_targets::mad;
use rnic_host::observe::{Captured, Way};
use rnic_host::pcapng;
use roce_wire::cm::CmMad;
use roce_wire::{Datagram, Frame};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Longer frames only add payload.
const LONGEST: usize = 400;
/// The first byte of an input selects what the rest is.
const FRAME: u8 = 0;
const DATAGRAM: u8 = 1;
/// Bytes before the first packet of a file, and before each packet.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

pub(crate) fn seeds(captures: &Path) -> std::io::Result<Vec<Seed>> {
    let mut shortest: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for file in pcaps(captures)? {
        for bytes in frames(&fs::read(file)?) {
            for (kind, input) in inputs(bytes) {
                let known = shortest.entry(kind).or_insert_with(|| input.clone());
                if input.len() < known.len() {
                    *known = input;
                }
            }
        }
    }
    Ok(shortest.into_iter().collect())
}

/// A message of each kind, for each state that it may meet.
pub(crate) fn mads(captures: &Path) -> std::io::Result<Vec<Seed>> {
    let mut kinds = BTreeMap::new();
    for file in pcaps(captures)? {
        for bytes in frames(&fs::read(file)?) {
            let Ok(frame) = Frame::parse(bytes) else { continue };
            let Ok(datagram) = Datagram::parse(frame.payload()) else { continue };
            if let Ok(mad) = CmMad::parse(datagram.payload()) {
                kinds.entry(mad.message.name().to_lowercase()).or_insert(mad);
            }
        }
    }
    let mut seeds = Vec::new();
    for (kind, mad) in kinds {
        let inputs = mad::inputs(&mad).into_iter().enumerate();
        seeds.extend(inputs.map(|(life, input)| (format!("{kind}_{life:02}"), input)));
    }
    Ok(seeds)
}

/// The first packets of each capture, as files.
pub(crate) fn captures(folder: &Path) -> std::io::Result<Vec<Seed>> {
    const PACKETS: usize = 6;
    const LONGEST: usize = 2048;
    let mut seeds = Vec::new();
    for file in pcaps(folder)? {
        let bytes = fs::read(&file)?;
        let packets = frames(&bytes);
        let packets = packets.iter().take(PACKETS).map(|frame| RECORD_HEADER + frame.len());
        let len = FILE_HEADER + packets.sum::<usize>();
        if len <= LONGEST
            && let Some(start) = bytes.get(..len)
        {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            if seeds.is_empty() {
                seeds.push(("commented".into(), commented(&frames(start))?));
            }
            seeds.push((name.into_owned(), start.to_vec()));
        }
    }
    Ok(seeds)
}

/// A file as `rnic capture` writes it, with what it and others say of packets.
fn commented(frames: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let said = [
        "message 0x000011/5",
        "message 0x000011/5; fault 1: drop; never reached the wire",
        "message 0x000011/5; sent again: timeout",
        "</script><img src=x>",
    ];
    let mut file = Vec::new();
    pcapng::write_head(&mut file, "rnic0")?;
    for (frame, comment) in frames.iter().zip(said) {
        let (at, frame) = (SystemTime::UNIX_EPOCH, frame.to_vec());
        let captured = Captured { at, way: Way::Sent, frame };
        pcapng::write_frame(&mut file, &captured, comment, 1)?;
    }
    Ok(file)
}

/// A frame is a seed, and so is the datagram in it.
fn inputs(bytes: &[u8]) -> Vec<Seed> {
    if bytes.len() > LONGEST {
        return Vec::new();
    }
    let Ok(frame) = Frame::parse(bytes) else {
        return vec![("frame_refused".into(), tagged(FRAME, bytes))];
    };
    let ip = if frame.flow.is_ipv4() { "ipv4" } else { "ipv6" };
    let vlan = if frame.vlan.is_some() { "_vlan" } else { "" };
    let mut inputs = vec![(format!("frame_{ip}{vlan}"), tagged(FRAME, bytes))];
    if let Ok(datagram) = Datagram::parse(frame.payload()) {
        let name = datagram.opcode().name().to_lowercase();
        inputs.push((format!("datagram_{name}"), tagged(DATAGRAM, frame.payload())));
        if let Some(aeth) = datagram.aeth() {
            let kind = aeth.syndrome.to_u8() >> 5;
            inputs.push((format!("syndrome_{kind}"), tagged(DATAGRAM, frame.payload())));
        }
        if let Ok(mad) = CmMad::parse(datagram.payload()) {
            let name = mad.message.name().to_lowercase();
            inputs.push((format!("frame_mad_{name}"), tagged(FRAME, bytes)));
        }
    }
    inputs
}

fn tagged(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], bytes].concat()
}

fn pcaps(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(pcaps(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "pcap") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The frames of a little-endian capture file.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = file.get(FILE_HEADER..).unwrap_or(&[]);
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(RECORD_HEADER) {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let Some((frame, later)) = behind.split_at_checked(len as usize) else { break };
        frames.push(frame);
        rest = later;
    }
    frames
}
