//! The vnet header in front of each frame: segmentation and checksum offload.

/// Length of `struct virtio_net_hdr`.
pub(super) const VNET_HEADER: usize = 10;
/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_NONE and _UDP_L4.
const GSO_NONE: u8 = 0;
const GSO_UDP_L4: u8 = 5;
/// Offset of the checksum in the UDP header.
const UDP_CHECKSUM: usize = 6;
const UDP_HEADER: usize = 8;

/// `struct virtio_net_hdr`; on AF_PACKET sockets its fields are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl VnetHeader {
    pub(super) fn encode(&self) -> [u8; VNET_HEADER] {
        let mut bytes = [0; VNET_HEADER];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let fields = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (slot, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            slot.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<VnetHeader> {
        let bytes: &[u8; VNET_HEADER] = bytes.first_chunk()?;
        let field = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: field(2),
            gso_size: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        })
    }

    /// UDP payload per frame of a received train, 0 for a single frame; `None` for a kind of train
    /// that is not UDP.
    pub(super) fn segment_bytes(&self) -> Option<usize> {
        match self.gso_type {
            GSO_NONE => Some(0),
            GSO_UDP_L4 if self.gso_size > 0 => Some(usize::from(self.gso_size)),
            _ => None,
        }
    }
}

/// The vnet header for `frame`. For a train (more UDP payload than `gso_size`, not 0) the UDP
/// checksum field is set to the pseudo-header sum, from which the kernel continues. `None` when
/// the frame should be a train and its headers are not UDP over IP with matching lengths.
pub(super) fn prepare(frame: &mut [u8], gso_size: u16) -> Option<VnetHeader> {
    if gso_size == 0 {
        return Some(VnetHeader::default());
    }
    let headers = Headers::parse(frame)?;
    let payload = frame.len() - headers.udp - UDP_HEADER;
    if payload <= usize::from(gso_size) {
        return Some(VnetHeader::default());
    }
    let checksum = headers.udp + UDP_CHECKSUM;
    frame[checksum..checksum + 2].copy_from_slice(&headers.pseudo_sum.to_be_bytes());
    Some(VnetHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_UDP_L4,
        header_len: (headers.udp + UDP_HEADER) as u16,
        gso_size,
        checksum_start: headers.udp as u16,
        checksum_offset: UDP_CHECKSUM as u16,
    })
}

/// Where the UDP header is, and the sum of the pseudo-header.
struct Headers {
    udp: usize,
    pseudo_sum: u16,
}

impl Headers {
    fn parse(frame: &[u8]) -> Option<Headers> {
        let field = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk::<2>()?));
        let mut ip = 14;
        let mut ethertype = field(12)?;
        if matches!(ethertype, 0x8100 | 0x88a8) {
            ethertype = field(16)?;
            ip = 18;
        }
        let (udp, protocol_at, addresses, total) = match ethertype {
            0x0800 if *frame.get(ip)? == 0x45 => {
                (ip + 20, ip + 9, ip + 12..ip + 20, usize::from(field(ip + 2)?))
            }
            0x86dd => (ip + 40, ip + 6, ip + 8..ip + 40, usize::from(field(ip + 4)?) + 40),
            _ => return None,
        };
        let protocol = *frame.get(protocol_at)?;
        let udp_len = field(udp + 4)?;
        let described = usize::from(udp_len) == frame.len().checked_sub(udp)?
            && total == frame.len() - ip
            && usize::from(udp_len) >= UDP_HEADER;
        if protocol != 17 || !described {
            return None;
        }
        let words = frame.get(addresses)?.chunks_exact(2);
        let mut sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        sum += u32::from(protocol) + u32::from(udp_len);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        Some(Headers { udp, pseudo_sum: sum as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4_frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + payload];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
        frame
    }

    #[test]
    fn vnet_header_round_trips() {
        let header = prepare(&mut v4_frame(3000), 1000).unwrap();
        assert_eq!(VnetHeader::decode(&header.encode()), Some(header));
        assert_eq!(header.segment_bytes(), Some(1000));
        assert_eq!((header.checksum_start, header.header_len), (34, 42));
    }

    #[test]
    fn a_train_gets_the_pseudo_header_sum() {
        let mut frame = v4_frame(3000);
        prepare(&mut frame, 1000).unwrap();
        let sum = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 3008;
        assert_eq!(frame[40..42], (sum as u16).to_be_bytes());
    }

    #[test]
    fn what_fits_one_segment_is_left_alone() {
        let mut frame = v4_frame(1000);
        assert_eq!(prepare(&mut frame, 1000), Some(VnetHeader::default()));
        assert_eq!(frame[40..42], [0, 0]);
    }

    #[test]
    fn broken_headers_are_refused_without_panic() {
        let good = v4_frame(2000);
        for cut in 0..60 {
            assert_eq!(prepare(&mut good[..cut].to_vec(), 100), None, "cut at {cut}");
        }
        for (at, value) in [(12, 9), (14, 0x46), (16, 1), (23, 6), (39, 1)] {
            let mut frame = good.clone();
            frame[at] = value;
            assert_eq!(prepare(&mut frame, 100), None, "byte {at}");
        }
    }
}
