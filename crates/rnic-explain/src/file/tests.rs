use super::*;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use proptest::prelude::*;

const FIRST: Duration = Duration::new(1_700_000_000, 123_456_000);
const SECOND: Duration = Duration::new(1_700_000_001, 5_000);

/// Two packets: one of four bytes, one of six of which four were captured.
fn pcap(endianness: Endianness, ts_resolution: TsResolution) -> Vec<u8> {
    let header =
        PcapHeader { endianness, ts_resolution, datalink: DataLink::RAW, ..Default::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (at, whole_len) in [(FIRST, 4), (SECOND, 6)] {
        writer.write_packet(&PcapPacket::new(at, whole_len, &[1, 2, 3, 4])).unwrap();
    }
    writer.into_writer()
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 12).to_be_bytes();
    [&kind.to_be_bytes(), &len[..], body, &len].concat()
}

/// The same in pcapng, with a block that means nothing to us, in network byte order; the second
/// packet is simple, so that it has no time.
fn next_generation(resolution: u8) -> Vec<u8> {
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>();
    let section = numbers(&[0x1a2b_3c4d, 0x0001_0000, u32::MAX, u32::MAX]);
    let interface = [&[0, 101, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1][..], &[resolution, 0, 0, 0]].concat();
    let units = match resolution {
        6 => FIRST.as_micros() as u64,
        _ => FIRST.as_nanos() as u64,
    };
    let packet = numbers(&[0, (units >> 32) as u32, units as u32, 4, 4, 0x0102_0304]);
    let options = [&[0, 2, 0, 4, 0, 0, 0, 1][..], &[0, 1, 0, 5], b"lost!\0\0\0", &[0; 4]].concat();
    let packet = [packet, options].concat();
    let simple = numbers(&[6, 0x0102_0304]);
    [
        block(0x0a0d_0d0a, &section),
        block(1, &interface),
        block(0xbad, &[0; 20]),
        block(6, &packet),
        block(3, &simple),
    ]
    .concat()
}

/// Time and whole length of all packets.
fn read(bytes: &[u8]) -> Result<Vec<(Duration, usize)>, FileError> {
    let mut reader = Reader::new(bytes)?;
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet()? {
        assert_eq!((packet.link, packet.bytes), (LinkType(101), &[1, 2, 3, 4][..]));
        found.push((packet.at, packet.whole_len));
    }
    assert!(reader.is_cut() || reader.position() == bytes.len() as u64);
    Ok(found)
}

#[test]
fn each_kind_of_file_is_read() {
    for endianness in [Endianness::Little, Endianness::Big] {
        for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let found = read(&pcap(endianness, resolution)).unwrap();
            assert_eq!(found, [(FIRST, 4), (SECOND, 6)]);
        }
    }
    for resolution in [6, 9] {
        let found = read(&next_generation(resolution)).unwrap();
        assert_eq!(found, [(FIRST, 4), (FIRST, 6)]);
    }
}

#[test]
fn the_comment_of_a_packet_is_read() {
    let bytes = next_generation(6);
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert_eq!(reader.next_packet().unwrap().unwrap().comment, b"lost!");
    assert_eq!(reader.next_packet().unwrap().unwrap().comment, b"", "a simple one has none");
    // One that is longer than its block is none.
    let at = bytes.windows(5).position(|word| word == b"lost!").unwrap();
    let mut long = bytes.clone();
    long[at - 1] = 200;
    let mut reader = Reader::new(&long[..]).unwrap();
    assert_eq!(reader.next_packet().unwrap().unwrap().comment, b"");
}

#[test]
fn a_file_that_ends_within_a_packet_has_the_packets_before_it() {
    let bytes = pcap(Endianness::Little, TsResolution::MicroSecond);
    for cut in [1, 4, 10] {
        let mut reader = Reader::new(&bytes[..bytes.len() - cut]).unwrap();
        assert!(reader.next_packet().unwrap().is_some());
        assert!(reader.next_packet().unwrap().is_none() && reader.is_cut());
    }
}

#[test]
fn what_is_no_capture_is_refused_with_a_reason() {
    assert!(matches!(Reader::new(&b""[..]), Err(FileError::NoCapture)));
    assert!(matches!(Reader::new(&b"hello, world"[..]), Err(FileError::NoCapture)));
    let mut long = pcap(Endianness::Little, TsResolution::MicroSecond);
    long[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = read(&long).unwrap_err().to_string();
    assert_eq!(error, "the file is damaged behind byte 40: a packet is longer than any network's");
    // A packet of an interface that was never described.
    let [section, packet] = [&next_generation(6)[..28], &block(6, &[9; 20])];
    assert!(matches!(read(&[section, packet].concat()), Err(FileError::Damaged { .. })));
}

#[test]
fn a_block_that_is_too_short_for_its_kind_is_refused() {
    let head = &next_generation(6)[..28 + 28];
    for kind in [1, 3, 6] {
        let error = read(&[head, &block(kind, &[])].concat()).unwrap_err().to_string();
        assert!(error.contains("a block is too short for its kind"), "{kind}: {error}");
    }
}

proptest! {
    /// Whatever is in the file: no panic, no endless loop, no unbounded memory.
    #[test]
    fn damaged_files_are_refused_or_end(
        start in 0..3usize,
        changes in proptest::collection::vec((0..400usize, any::<u8>()), 0..12),
    ) {
        let mut bytes = match start {
            0 => pcap(Endianness::Big, TsResolution::NanoSecond),
            1 => next_generation(6),
            _ => vec![0; 64],
        };
        for (at, value) in changes {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        if let Ok(mut reader) = Reader::new(&bytes[..]) {
            for _ in 0..100 {
                match reader.next_packet() {
                    Ok(Some(packet)) => prop_assert!(packet.bytes.len() <= bytes.len()),
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}
