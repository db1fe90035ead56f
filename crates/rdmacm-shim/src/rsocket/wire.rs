//! What rsockets say to each other, byte by byte. Nothing here knows of sockets or verbs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Of the private data of a connection.
pub(crate) const VERSION: u8 = 1;
/// Flag: the sender's memory is big-endian.
const BIG_ENDIAN: u8 = 1 << 0;
/// Flag: the sender's table has places for mapped buffers.
const HAS_MAPPINGS: u8 = 1 << 1;
/// Bytes of the private data of a connection.
pub(crate) const CONNECT_LEN: usize = 40;
/// Bytes of a [`Place`] in memory.
pub(crate) const PLACE_LEN: usize = 16;
/// Bytes of a [`Mapping`] in memory.
pub(crate) const MAPPING_LEN: usize = 24;
/// Places for data at the beginning of a table.
pub(crate) const PLACES: usize = 2;
/// Most bytes that one message can announce.
pub(crate) const MAX_DATA: u32 = (1 << 29) - 1;

/// Memory that the other end may write to. It means something to the owner only.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
}

impl Place {
    fn from_be(bytes: &[u8; PLACE_LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes(part(bytes, 0)),
            rkey: u32::from_be_bytes(part(bytes, 8)),
            len: u32::from_be_bytes(part(bytes, 12)),
        }
    }

    fn to_be(self) -> [u8; PLACE_LEN] {
        join(&[&self.addr.to_be_bytes(), &self.rkey.to_be_bytes(), &self.len.to_be_bytes()])
    }

    /// As in the table of this host.
    pub(crate) fn from_table(bytes: &[u8; PLACE_LEN]) -> Self {
        Self {
            addr: u64::from_ne_bytes(part(bytes, 0)),
            rkey: u32::from_ne_bytes(part(bytes, 8)),
            len: u32::from_ne_bytes(part(bytes, 12)),
        }
    }

    /// As in the table of the other end.
    pub(crate) fn to_table(self, order: Order) -> [u8; PLACE_LEN] {
        join(&[&order.long(self.addr), &order.word(self.rkey), &order.word(self.len)])
    }
}

/// A mapped buffer: which offsets stand for which memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) offset: u64,
    pub(crate) place: Place,
}

impl Mapping {
    pub(crate) fn from_table(bytes: &[u8; MAPPING_LEN]) -> Self {
        Self {
            offset: u64::from_ne_bytes(part(bytes, 0)),
            place: Place::from_table(&part(bytes, 8)),
        }
    }

    pub(crate) fn to_table(self, order: Order) -> [u8; MAPPING_LEN] {
        join(&[&order.long(self.offset), &self.place.to_table(order)])
    }

    /// Where an offset lies, and how many bytes there are from there on.
    pub(crate) fn find(&self, offset: u64) -> Option<Place> {
        let into = offset.checked_sub(self.offset)?;
        let len = u64::from(self.place.len).checked_sub(into).filter(|len| *len > 0)?;
        // The sum is the other end's affair: it wraps as on a real card.
        let addr = self.place.addr.wrapping_add(into);
        Some(Place { addr, rkey: self.place.rkey, len: u32::try_from(len).ok()? })
    }
}

/// Byte order of the other end's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    #[default]
    Same,
    Swapped,
}

impl Order {
    fn long(self, value: u64) -> [u8; 8] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }

    fn word(self, value: u32) -> [u8; 4] {
        match self {
            Self::Same => value.to_ne_bytes(),
            Self::Swapped => value.swap_bytes().to_ne_bytes(),
        }
    }
}

/// What both ends say of themselves when they connect.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Connect {
    /// Messages that may be on their way.
    pub(crate) credits: u16,
    pub(crate) order: Order,
    /// Places for mapped buffers; 0 where there are none.
    pub(crate) mappings: u16,
    /// The table; its length counts places, not bytes.
    pub(crate) table: Place,
    /// Where the first data goes.
    pub(crate) data: Place,
}

impl Connect {
    /// `None` for what does not come from an rsocket, or from another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        // Linux fills the private data up with zeros.
        let bytes: &[u8; CONNECT_LEN] = bytes.first_chunk()?;
        let [version, flags, ..] = *bytes;
        if version != VERSION {
            return None;
        }
        let is_big = flags & BIG_ENDIAN != 0;
        let mappings = if flags & HAS_MAPPINGS == 0 { 0 } else { expand(bytes[7]) };
        Some(Self {
            credits: u16::from_be_bytes(part(bytes, 2)),
            order: if is_big == cfg!(target_endian = "big") { Order::Same } else { Order::Swapped },
            mappings,
            table: Place::from_be(&part(bytes, 8)),
            data: Place::from_be(&part(bytes, 24)),
        })
    }

    /// What this end says; the order is always its own.
    pub(crate) fn encode(&self) -> [u8; CONNECT_LEN] {
        let endian = if cfg!(target_endian = "big") { BIG_ENDIAN } else { 0 };
        let head = [VERSION, endian | HAS_MAPPINGS];
        let tail = [0, 0, 0, compress(self.mappings)];
        let credits = self.credits.to_be_bytes();
        join(&[&head, &credits, &tail, &self.table.to_be(), &self.data.to_be()])
    }

    /// Address of a place for a mapped buffer.
    pub(crate) fn mapping_at(&self, index: u16) -> Option<u64> {
        let places = u64::from(self.table.len).checked_mul(PLACE_LEN as u64)?;
        let into = places.checked_add(u64::from(index).checked_mul(MAPPING_LEN as u64)?)?;
        (index < self.mappings).then(|| self.table.addr.wrapping_add(into))
    }
}

/// A number of mapped buffers in one byte: exact up to 128, rounded down to multiples of 256
/// beyond.
pub(crate) fn compress(value: u16) -> u8 {
    match u8::try_from(value) {
        Ok(value) if value <= 128 => value,
        _ => 0x80 | ((value >> 8) as u8 & 0x7f),
    }
}

/// Reverses [`compress`].
pub(crate) fn expand(value: u8) -> u16 {
    match value {
        0..=128 => value.into(),
        _ => u16::from(value & 0x7f) << 8,
    }
}

/// Immediate data of a message: three bits say what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// So many bytes were written to where they belong.
    Data(u32),
    /// So many messages in all may be sent, modulo 65536. With a body it has also filled in the
    /// next place of the table.
    Credits(u16),
    /// This place for a mapped buffer is filled in.
    Mapping(u16),
    Control(Control),
    /// Nothing that this version knows.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The sender is still there.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPING: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    pub(crate) fn decode(imm: u32) -> Self {
        let value = imm & MAX_DATA;
        match imm >> 29 {
            DATA => Self::Data(value),
            CREDITS => Self::Credits(value as u16),
            MAPPING => Self::Mapping(value as u16),
            CONTROL => match value {
                0 => Self::Control(Control::Disconnect),
                1 => Self::Control(Control::KeepAlive),
                2 => Self::Control(Control::Shutdown),
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Data(len) => DATA << 29 | (len & MAX_DATA),
            Self::Credits(total) => CREDITS << 29 | u32::from(total),
            Self::Mapping(index) => MAPPING << 29 | u32::from(index),
            Self::Control(control) => {
                let value = match control {
                    Control::Disconnect => 0,
                    Control::KeepAlive => 1,
                    Control::Shutdown => 2,
                };
                CONTROL << 29 | value
            }
            Self::Unknown => 5 << 29,
        }
    }
}

/// What every datagram begins with: where it comes from.
pub(crate) fn datagram_header(from: SocketAddr) -> Vec<u8> {
    let port = from.port().to_be_bytes();
    match from {
        SocketAddr::V4(v4) => [&[4, 8][..], &port, &v4.ip().octets()].concat(),
        SocketAddr::V6(v6) => {
            let flow = v6.flowinfo().to_be_bytes();
            [&[6, 24][..], &port, &flow, &v6.ip().octets()].concat()
        }
    }
}

/// Where a datagram comes from, and the data behind its header.
pub(crate) fn open_datagram(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (head, _) = bytes.split_first_chunk::<4>()?;
    let port = u16::from_be_bytes([head[2], head[3]]);
    match *head {
        [4, 8, ..] => {
            let (header, data) = bytes.split_first_chunk::<8>()?;
            let ip = Ipv4Addr::from(part::<4, 8>(header, 4));
            Some((SocketAddr::new(ip.into(), port), data))
        }
        [6, 24, ..] => {
            let (header, data) = bytes.split_first_chunk::<24>()?;
            let ip = Ipv6Addr::from(part::<16, 24>(header, 8));
            Some((SocketAddr::new(ip.into(), port), data))
        }
        _ => None,
    }
}

/// What a UDP datagram begins with whose sender does not know the other end's queue pair yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    /// False for an answer, which carries no data.
    pub(crate) has_data: bool,
    /// The sender's queue pair, or 0 where none is at that address: datagrams go there by UDP.
    pub(crate) qpn: u32,
    /// The sender's address.
    pub(crate) ip: IpAddr,
}

const TAG: [u8; 4] = [0x55; 4];

impl Introduction {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let op = if self.has_data { DATA as u8 } else { CONTROL as u8 };
        let qpn = (self.qpn & 0xff_ffff).to_be_bytes();
        match self.ip {
            IpAddr::V4(ip) => [&TAG[..], &[4, op, 16, 0], &qpn, &ip.octets()].concat(),
            IpAddr::V6(ip) => [&TAG[..], &[6, op, 28, 0], &qpn, &ip.octets()].concat(),
        }
    }

    /// `None` for what no datagram rsocket sends. The data follows.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let [version, op, len, _] = part::<4, 12>(head, 4);
        if part::<4, 12>(head, 0) != TAG {
            return None;
        }
        let (ip, data): (IpAddr, _) = match (version, len) {
            (4, 16) => rest.split_first_chunk::<4>().map(|(ip, data)| ((*ip).into(), data))?,
            (6, 28) => rest.split_first_chunk::<16>().map(|(ip, data)| ((*ip).into(), data))?,
            _ => return None,
        };
        let has_data = match u32::from(op) {
            DATA => true,
            CONTROL => false,
            _ => return None,
        };
        let qpn = u32::from_be_bytes(part(head, 8)) & 0xff_ffff;
        Some((Self { has_data, qpn, ip }, data))
    }
}

/// `N` of `M` bytes.
fn part<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut part = [0; N];
    for (to, from) in part.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    part
}

fn join<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut whole = [0; N];
    for (to, from) in whole.iter_mut().zip(parts.iter().copied().flatten()) {
        *to = *from;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_lies_where_rsockets_have_it() {
        let connect = Connect {
            credits: 384,
            order: Order::Same,
            mappings: 5,
            table: Place { addr: 0x0102_0304_0506_0708, rkey: 0x1122_3344, len: 2 },
            data: Place { addr: 0xa1a2_a3a4_a5a6_a7a8, rkey: 0x5566_7788, len: 0x1_0000 },
        };
        let flags = if cfg!(target_endian = "big") { 3 } else { 2 };
        let expected = [
            1, flags, 0x01, 0x80, 0, 0, 0, 5, // version, flags, credits, mappings
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 2, // table
            0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, // data: address
            0x55, 0x66, 0x77, 0x88, 0, 1, 0, 0, // data: key, length
        ];
        assert_eq!(connect.encode(), expected);
        // With Linux's padding.
        let padded = [&expected[..], &[0; 16]].concat();
        assert_eq!(Connect::decode(&padded), Some(connect));
        assert_eq!(connect.mapping_at(1), Some(0x0102_0304_0506_0708 + 32 + 24));
        assert_eq!(connect.mapping_at(5), None);
    }

    #[test]
    fn private_data_of_others_is_refused() {
        let mut bytes = Connect::default().encode();
        assert_eq!(Connect::decode(&bytes[..CONNECT_LEN - 1]), None);
        assert_eq!(Connect::decode(&[]), None);
        bytes[1] = u8::from(!cfg!(target_endian = "big"));
        let other = Connect::decode(&bytes).unwrap();
        assert_eq!((other.order, other.mappings), (Order::Swapped, 0));
        bytes[0] = 2;
        assert_eq!(Connect::decode(&bytes), None);
    }

    #[test]
    fn messages_have_their_kind_in_the_upper_bits() {
        let known = [
            (Message::Data(0x1234), 0x0000_1234),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Mapping(3), 0xc000_0003),
            (Message::Control(Control::Disconnect), 0xe000_0000),
            (Message::Control(Control::KeepAlive), 0xe000_0001),
            (Message::Control(Control::Shutdown), 0xe000_0002),
        ];
        for (message, imm) in known {
            assert_eq!((message.encode(), Message::decode(imm)), (imm, message));
        }
        for imm in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::decode(imm), Message::Unknown, "{imm:#x}");
        }
        // Upstream counts past sixteen bits and means the lower ones.
        assert_eq!(Message::decode(0x8001_0002), Message::Credits(2));
    }

    #[test]
    fn table_entries_are_in_their_owners_order() {
        let place = Place { addr: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d, len: 0x10 };
        let mapping = Mapping { offset: 7, place };
        assert_eq!(Place::from_table(&place.to_table(Order::Same)), place);
        assert_eq!(Mapping::from_table(&mapping.to_table(Order::Same)), mapping);
        let swapped = Place::from_table(&place.to_table(Order::Swapped));
        assert_eq!((swapped.addr, swapped.len), (0x0807_0605_0403_0201, 0x1000_0000));
    }

    #[test]
    fn offsets_are_found_in_their_mapping_only() {
        let place = Place { addr: 0x1000, rkey: 9, len: 0x100 };
        let mapping = Mapping { offset: 0x40, place };
        let found = |offset| mapping.find(offset).map(|place| (place.addr, place.len));
        assert_eq!(found(0x3f), None);
        assert_eq!(found(0x40), Some((0x1000, 0x100)));
        assert_eq!(found(0x13f), Some((0x10ff, 1)));
        assert_eq!(found(0x140), None);
        let last = Mapping { offset: u64::MAX - 1, place };
        assert_eq!(last.find(u64::MAX).map(|place| place.len), Some(0xff));
        assert_eq!(Mapping::default().find(0), None);
    }

    #[test]
    fn numbers_of_mappings_are_rounded() {
        for (value, byte, back) in
            [(0, 0, 0), (128, 128, 128), (129, 128, 128), (256, 129, 256), (0x3ff, 131, 0x300)]
        {
            assert_eq!((compress(value), expand(byte)), (byte, back), "{value}");
        }
    }

    #[test]
    fn datagrams_say_where_they_come_from() {
        let v4: SocketAddr = "192.0.2.7:258".parse().unwrap();
        let header = datagram_header(v4);
        assert_eq!(header, [4, 8, 1, 2, 192, 0, 2, 7]);
        let datagram = [&header[..], b"data"].concat();
        assert_eq!(open_datagram(&datagram), Some((v4, &b"data"[..])));
        let v6: SocketAddr = "[2001:db8::9]:7".parse().unwrap();
        let header = datagram_header(v6);
        assert_eq!((header.len(), &header[..8]), (24, &[6, 24, 0, 7, 0, 0, 0, 0][..]));
        assert_eq!(open_datagram(&header), Some((v6, &[][..])));
        for bad in [&[][..], &[4, 8, 0], &[4, 24, 0, 0, 0, 0, 0, 0], &header[..23], &[5; 40]] {
            assert_eq!(open_datagram(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn introductions_lie_where_rsockets_have_them() {
        let known = Introduction { has_data: true, qpn: 0x01_0203, ip: [10, 0, 0, 1].into() };
        let bytes = known.encode();
        assert_eq!(bytes, [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 10, 0, 0, 1]);
        let answer = Introduction { has_data: false, ip: Ipv6Addr::LOCALHOST.into(), ..known };
        let long = answer.encode();
        assert_eq!((long.len(), &long[4..8]), (28, &[6, 7, 28, 0][..]));
        let with_data = [&bytes[..], b"x"].concat();
        assert_eq!(Introduction::decode(&with_data), Some((known, &b"x"[..])));
        assert_eq!(Introduction::decode(&long), Some((answer, &[][..])));
        let mut bad = bytes.clone();
        for (at, value) in [(0, 0x54), (4, 6), (5, 1), (6, 28)] {
            let was = std::mem::replace(&mut bad[at], value);
            assert_eq!(Introduction::decode(&bad), None, "byte {at}");
            bad[at] = was;
        }
        assert_eq!(Introduction::decode(&bytes[..15]), None);
        assert_eq!(Introduction::decode(&long[..27]), None);
    }
}
