//! The opcode table: what every base transport header opcode means.
//!
//! The low five bits of an opcode name the operation, the high three the transport service, so one
//! table of operations (`OPERATIONS`) and the rules of each transport give all of it.

mod header_set;

pub use header_set::HeaderSet;

use core::fmt;

/// Transport service of an opcode (bits 7:5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    Rc,
    Uc,
    Rd,
    Ud,
    Cnp,
    Xrc,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    AtomicAck,
    CmpSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    Cnp,
    Resync,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// The packet begins a message.
    pub const fn is_start(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// The packet ends a message.
    pub const fn is_end(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// Position of a packet that does or does not begin and end its message.
    pub const fn new(is_start: bool, is_end: bool) -> Position {
        match (is_start, is_end) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

/// What the end of a message carries besides data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trailer {
    #[default]
    None,
    Imm,
    Invalidate,
}

/// How much payload a packet must carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// No payload.
    Zero,
    /// Exactly the path MTU, without padding.
    FullMtu,
    /// 1 ..= path MTU.
    SomeUpToMtu,
    /// 0 ..= path MTU.
    UpToMtu,
    /// Exactly 8 bytes, without padding.
    Eight,
}

impl PayloadRule {
    /// Does a payload of `len` bytes followed by `pad` pad bytes obey the rule under `mtu` bytes?
    /// What most packets of long messages obey is asked first.
    #[inline]
    pub const fn allows(self, len: usize, pad: u8, mtu: usize) -> bool {
        if matches!(self, PayloadRule::FullMtu) {
            return len == mtu && pad == 0;
        }
        match self {
            PayloadRule::Zero => len == 0 && pad == 0,
            PayloadRule::Eight => len == 8 && pad == 0,
            PayloadRule::SomeUpToMtu => len >= 1 && len <= mtu,
            PayloadRule::FullMtu | PayloadRule::UpToMtu => len <= mtu,
        }
    }
}

/// Everything fixed by an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// As packet analysers print it, for example `RC_WRITE_ONLY_IMM`.
    pub name: &'static str,
    pub transport: Transport,
    pub operation: Operation,
    pub position: Position,
    /// Requests go to the responder half of a queue pair, the rest to its requester half.
    pub is_request: bool,
    /// Extension headers present.
    pub headers: HeaderSet,
    /// Bytes before the payload: base transport header and extension headers.
    pub header_len: u8,
    pub payload: PayloadRule,
}

impl OpcodeInfo {
    pub const fn has(&self, headers: HeaderSet) -> bool {
        self.headers.has(headers)
    }

    /// What the end of the message carries; `None` for packets that carry neither.
    pub const fn trailer(&self) -> Trailer {
        if self.has(HeaderSet::IMM_DT) {
            Trailer::Imm
        } else if self.has(HeaderSet::IETH) {
            Trailer::Invalidate
        } else {
            Trailer::None
        }
    }
}

/// One row of the operation table: the reliable connected form of an operation.
struct OperationRow {
    operation: Operation,
    position: Position,
    headers: HeaderSet,
    payload: PayloadRule,
}

const fn row(
    operation: Operation,
    position: Position,
    headers: HeaderSet,
    payload: PayloadRule,
) -> OperationRow {
    OperationRow { operation, position, headers, payload }
}

/// Operations by the low five bits of the opcode.
#[rustfmt::skip]
const OPERATIONS: [Option<OperationRow>; 32] = {
    use Operation as O;
    use PayloadRule::{Eight, FullMtu, SomeUpToMtu, UpToMtu, Zero};
    use Position::{First, Last, Middle, Only};
    const NONE: HeaderSet = HeaderSet::NONE;
    const RETH: HeaderSet = HeaderSet::RETH;
    const ATOMIC: HeaderSet = HeaderSet::ATOMIC_ETH;
    const AETH: HeaderSet = HeaderSet::AETH;
    const IMM: HeaderSet = HeaderSet::IMM_DT;
    const IETH: HeaderSet = HeaderSet::IETH;
    [
        Some(row(O::Send, First, NONE, FullMtu)),
        Some(row(O::Send, Middle, NONE, FullMtu)),
        Some(row(O::Send, Last, NONE, SomeUpToMtu)),
        Some(row(O::Send, Last, IMM, SomeUpToMtu)),
        Some(row(O::Send, Only, NONE, UpToMtu)),
        Some(row(O::Send, Only, IMM, UpToMtu)),
        Some(row(O::Write, First, RETH, FullMtu)),
        Some(row(O::Write, Middle, NONE, FullMtu)),
        Some(row(O::Write, Last, NONE, SomeUpToMtu)),
        Some(row(O::Write, Last, IMM, SomeUpToMtu)),
        Some(row(O::Write, Only, RETH, UpToMtu)),
        Some(row(O::Write, Only, RETH.with(IMM), UpToMtu)),
        Some(row(O::ReadRequest, Only, RETH, Zero)),
        Some(row(O::ReadResponse, First, AETH, FullMtu)),
        Some(row(O::ReadResponse, Middle, NONE, FullMtu)),
        Some(row(O::ReadResponse, Last, AETH, SomeUpToMtu)),
        Some(row(O::ReadResponse, Only, AETH, UpToMtu)),
        Some(row(O::Ack, Only, AETH, Zero)),
        Some(row(O::AtomicAck, Only, AETH.with(HeaderSet::ATOMIC_ACK_ETH), Zero)),
        Some(row(O::CmpSwap, Only, ATOMIC, Zero)),
        Some(row(O::FetchAdd, Only, ATOMIC, Zero)),
        Some(row(O::Resync, Only, NONE, Zero)),
        Some(row(O::Send, Last, IETH, SomeUpToMtu)),
        Some(row(O::Send, Only, IETH, UpToMtu)),
        None, None, None, None,
        Some(row(O::Flush, Only, HeaderSet::FETH.with(RETH), Zero)),
        Some(row(O::AtomicWrite, Only, RETH, Eight)),
        None, None,
    ]
};

/// The headers a transport puts before those of the operation.
const fn transport_headers(transport: Transport, is_request: bool) -> HeaderSet {
    match transport {
        Transport::Rc | Transport::Uc | Transport::Cnp => HeaderSet::NONE,
        Transport::Ud => HeaderSet::DETH,
        Transport::Rd if is_request => HeaderSet::RDETH.with(HeaderSet::DETH),
        Transport::Rd => HeaderSet::RDETH,
        Transport::Xrc if is_request => HeaderSet::XRCETH,
        Transport::Xrc => HeaderSet::NONE,
    }
}

const fn is_request(operation: Operation) -> bool {
    !matches!(
        operation,
        Operation::ReadResponse | Operation::Ack | Operation::AtomicAck | Operation::Cnp
    )
}

const fn describe(code: u8, name: &'static str) -> OpcodeInfo {
    let transport = match code >> 5 {
        0 => Transport::Rc,
        1 => Transport::Uc,
        2 => Transport::Rd,
        3 => Transport::Ud,
        4 => Transport::Cnp,
        5 => Transport::Xrc,
        _ => panic!("opcode of no transport"),
    };
    let row = if matches!(transport, Transport::Cnp) {
        row(Operation::Cnp, Position::Only, HeaderSet::CNP, PayloadRule::Zero)
    } else {
        match &OPERATIONS[(code & 0x1f) as usize] {
            Some(r) => row(r.operation, r.position, r.headers, r.payload),
            None => panic!("opcode of no operation"),
        }
    };
    let is_request = is_request(row.operation);
    let headers = row.headers.with(transport_headers(transport, is_request));
    OpcodeInfo {
        name,
        transport,
        operation: row.operation,
        position: row.position,
        is_request,
        headers,
        header_len: crate::headers::Bth::LEN as u8 + headers.wire_len(),
        payload: row.payload,
    }
}

macro_rules! opcodes {
    ($($variant:ident = $code:literal, $name:literal;)*) => {
        /// Every opcode of the base transport header.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode { $($variant = $code,)* }

        impl Opcode {
            pub const ALL: &'static [Opcode] = &[$(Opcode::$variant,)*];

            /// `None` for reserved and manufacturer codes.
            #[inline]
            pub const fn from_u8(code: u8) -> Option<Opcode> {
                OPCODES[code as usize]
            }

            /// Asked several times for each packet: a load, without a branch.
            #[inline]
            pub const fn info(self) -> &'static OpcodeInfo {
                &INFOS[self as usize]
            }
        }

        /// By code.
        static OPCODES: [Option<Opcode>; 256] = {
            let mut opcodes = [None; 256];
            $(opcodes[$code] = Some(Opcode::$variant);)*
            opcodes
        };

        /// By code; codes of no opcode have the first one's.
        static INFOS: [OpcodeInfo; 256] = {
            let mut infos = [describe(0, ""); 256];
            $(infos[$code] = describe($code, $name);)*
            infos
        };
    };
}

opcodes! {
    RcSendFirst = 0x00, "RC_SEND_FIRST";
    RcSendMiddle = 0x01, "RC_SEND_MIDDLE";
    RcSendLast = 0x02, "RC_SEND_LAST";
    RcSendLastImm = 0x03, "RC_SEND_LAST_IMM";
    RcSendOnly = 0x04, "RC_SEND_ONLY";
    RcSendOnlyImm = 0x05, "RC_SEND_ONLY_IMM";
    RcWriteFirst = 0x06, "RC_WRITE_FIRST";
    RcWriteMiddle = 0x07, "RC_WRITE_MIDDLE";
    RcWriteLast = 0x08, "RC_WRITE_LAST";
    RcWriteLastImm = 0x09, "RC_WRITE_LAST_IMM";
    RcWriteOnly = 0x0a, "RC_WRITE_ONLY";
    RcWriteOnlyImm = 0x0b, "RC_WRITE_ONLY_IMM";
    RcReadRequest = 0x0c, "RC_READ_REQUEST";
    RcReadRespFirst = 0x0d, "RC_READ_RESP_FIRST";
    RcReadRespMiddle = 0x0e, "RC_READ_RESP_MIDDLE";
    RcReadRespLast = 0x0f, "RC_READ_RESP_LAST";
    RcReadRespOnly = 0x10, "RC_READ_RESP_ONLY";
    RcAck = 0x11, "RC_ACKNOWLEDGE";
    RcAtomicAck = 0x12, "RC_ATOMIC_ACK";
    RcCmpSwap = 0x13, "RC_CMP_SWAP";
    RcFetchAdd = 0x14, "RC_FETCH_ADD";
    RcSendLastInv = 0x16, "RC_SEND_LAST_INV";
    RcSendOnlyInv = 0x17, "RC_SEND_ONLY_INV";
    RcFlush = 0x1c, "RC_FLUSH";
    RcAtomicWrite = 0x1d, "RC_ATOMIC_WRITE";
    UcSendFirst = 0x20, "UC_SEND_FIRST";
    UcSendMiddle = 0x21, "UC_SEND_MIDDLE";
    UcSendLast = 0x22, "UC_SEND_LAST";
    UcSendLastImm = 0x23, "UC_SEND_LAST_IMM";
    UcSendOnly = 0x24, "UC_SEND_ONLY";
    UcSendOnlyImm = 0x25, "UC_SEND_ONLY_IMM";
    UcWriteFirst = 0x26, "UC_WRITE_FIRST";
    UcWriteMiddle = 0x27, "UC_WRITE_MIDDLE";
    UcWriteLast = 0x28, "UC_WRITE_LAST";
    UcWriteLastImm = 0x29, "UC_WRITE_LAST_IMM";
    UcWriteOnly = 0x2a, "UC_WRITE_ONLY";
    UcWriteOnlyImm = 0x2b, "UC_WRITE_ONLY_IMM";
    RdSendFirst = 0x40, "RD_SEND_FIRST";
    RdSendMiddle = 0x41, "RD_SEND_MIDDLE";
    RdSendLast = 0x42, "RD_SEND_LAST";
    RdSendLastImm = 0x43, "RD_SEND_LAST_IMM";
    RdSendOnly = 0x44, "RD_SEND_ONLY";
    RdSendOnlyImm = 0x45, "RD_SEND_ONLY_IMM";
    RdWriteFirst = 0x46, "RD_WRITE_FIRST";
    RdWriteMiddle = 0x47, "RD_WRITE_MIDDLE";
    RdWriteLast = 0x48, "RD_WRITE_LAST";
    RdWriteLastImm = 0x49, "RD_WRITE_LAST_IMM";
    RdWriteOnly = 0x4a, "RD_WRITE_ONLY";
    RdWriteOnlyImm = 0x4b, "RD_WRITE_ONLY_IMM";
    RdReadRequest = 0x4c, "RD_READ_REQUEST";
    RdReadRespFirst = 0x4d, "RD_READ_RESP_FIRST";
    RdReadRespMiddle = 0x4e, "RD_READ_RESP_MIDDLE";
    RdReadRespLast = 0x4f, "RD_READ_RESP_LAST";
    RdReadRespOnly = 0x50, "RD_READ_RESP_ONLY";
    RdAck = 0x51, "RD_ACKNOWLEDGE";
    RdAtomicAck = 0x52, "RD_ATOMIC_ACK";
    RdCmpSwap = 0x53, "RD_CMP_SWAP";
    RdFetchAdd = 0x54, "RD_FETCH_ADD";
    RdResync = 0x55, "RD_RESYNC";
    UdSendOnly = 0x64, "UD_SEND_ONLY";
    UdSendOnlyImm = 0x65, "UD_SEND_ONLY_IMM";
    Cnp = 0x81, "CNP";
    XrcSendFirst = 0xa0, "XRC_SEND_FIRST";
    XrcSendMiddle = 0xa1, "XRC_SEND_MIDDLE";
    XrcSendLast = 0xa2, "XRC_SEND_LAST";
    XrcSendLastImm = 0xa3, "XRC_SEND_LAST_IMM";
    XrcSendOnly = 0xa4, "XRC_SEND_ONLY";
    XrcSendOnlyImm = 0xa5, "XRC_SEND_ONLY_IMM";
    XrcWriteFirst = 0xa6, "XRC_WRITE_FIRST";
    XrcWriteMiddle = 0xa7, "XRC_WRITE_MIDDLE";
    XrcWriteLast = 0xa8, "XRC_WRITE_LAST";
    XrcWriteLastImm = 0xa9, "XRC_WRITE_LAST_IMM";
    XrcWriteOnly = 0xaa, "XRC_WRITE_ONLY";
    XrcWriteOnlyImm = 0xab, "XRC_WRITE_ONLY_IMM";
    XrcReadRequest = 0xac, "XRC_READ_REQUEST";
    XrcReadRespFirst = 0xad, "XRC_READ_RESP_FIRST";
    XrcReadRespMiddle = 0xae, "XRC_READ_RESP_MIDDLE";
    XrcReadRespLast = 0xaf, "XRC_READ_RESP_LAST";
    XrcReadRespOnly = 0xb0, "XRC_READ_RESP_ONLY";
    XrcAck = 0xb1, "XRC_ACKNOWLEDGE";
    XrcAtomicAck = 0xb2, "XRC_ATOMIC_ACK";
    XrcCmpSwap = 0xb3, "XRC_CMP_SWAP";
    XrcFetchAdd = 0xb4, "XRC_FETCH_ADD";
    XrcSendLastInv = 0xb6, "XRC_SEND_LAST_INV";
    XrcSendOnlyInv = 0xb7, "XRC_SEND_ONLY_INV";
    XrcFlush = 0xbc, "XRC_FLUSH";
    XrcAtomicWrite = 0xbd, "XRC_ATOMIC_WRITE";
}

impl Opcode {
    /// RC SEND packet at `position` of a message that ends with `trailer`.
    ///
    /// The trailer only shows on the last packet, so callers pass that of the message.
    pub const fn rc_send(position: Position, trailer: Trailer) -> Opcode {
        match (position, trailer) {
            (Position::First, _) => Opcode::RcSendFirst,
            (Position::Middle, _) => Opcode::RcSendMiddle,
            (Position::Last, Trailer::None) => Opcode::RcSendLast,
            (Position::Last, Trailer::Imm) => Opcode::RcSendLastImm,
            (Position::Last, Trailer::Invalidate) => Opcode::RcSendLastInv,
            (Position::Only, Trailer::None) => Opcode::RcSendOnly,
            (Position::Only, Trailer::Imm) => Opcode::RcSendOnlyImm,
            (Position::Only, Trailer::Invalidate) => Opcode::RcSendOnlyInv,
        }
    }

    /// RC RDMA WRITE packet at `position` of a message with or without immediate data.
    pub const fn rc_write(position: Position, imm: bool) -> Opcode {
        match (position, imm) {
            (Position::First, _) => Opcode::RcWriteFirst,
            (Position::Middle, _) => Opcode::RcWriteMiddle,
            (Position::Last, false) => Opcode::RcWriteLast,
            (Position::Last, true) => Opcode::RcWriteLastImm,
            (Position::Only, false) => Opcode::RcWriteOnly,
            (Position::Only, true) => Opcode::RcWriteOnlyImm,
        }
    }

    /// RC RDMA READ response packet at `position`.
    pub const fn rc_read_response(position: Position) -> Opcode {
        match position {
            Position::First => Opcode::RcReadRespFirst,
            Position::Middle => Opcode::RcReadRespMiddle,
            Position::Last => Opcode::RcReadRespLast,
            Position::Only => Opcode::RcReadRespOnly,
        }
    }

    /// UD SEND, with or without immediate data.
    pub const fn ud_send(imm: bool) -> Opcode {
        if imm { Opcode::UdSendOnlyImm } else { Opcode::UdSendOnly }
    }

    /// The same operation on another transport; `None` where that transport does not have it.
    pub const fn on(self, transport: Transport) -> Option<Opcode> {
        let base = match transport {
            Transport::Rc => 0x00,
            Transport::Uc => 0x20,
            Transport::Rd => 0x40,
            Transport::Ud => 0x60,
            Transport::Xrc => 0xa0,
            Transport::Cnp => return None,
        };
        if matches!(self, Opcode::Cnp) {
            return None;
        }
        Opcode::from_u8(base | (self.code() & 0x1f))
    }

    pub const fn code(self) -> u8 {
        self as u8
    }

    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// The opcode that has exactly this [name](Self::name).
    pub fn named(name: &str) -> Option<Opcode> {
        Self::ALL.iter().copied().find(|opcode| opcode.name() == name)
    }

    pub const fn transport(self) -> Transport {
        self.info().transport
    }

    pub const fn operation(self) -> Operation {
        self.info().operation
    }

    pub const fn position(self) -> Position {
        self.info().position
    }

    pub const fn is_request(self) -> bool {
        self.info().is_request
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests;
