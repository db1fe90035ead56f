//! The bpf(2) commands that maps, programs and the link of an XDP program need.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const MAP_FREEZE: libc::c_long = 22;
const LINK_CREATE: libc::c_long = 28;

/// The map can be mapped.
const MMAPABLE: u32 = 1 << 10;

const ATTACH_TYPE_XDP: u32 = 37;
/// The program copes with packets in several buffers, so any MTU can attach.
const F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// Program types used here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramKind {
    Xdp = 6,
    /// Chooses among the sockets of one port.
    SkReuseport = 21,
}

impl ProgramKind {
    /// How it attaches; 0 lets the kernel fill it in.
    fn attach_type(self) -> u32 {
        match self {
            Self::Xdp => ATTACH_TYPE_XDP,
            Self::SkReuseport => 0,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Xdp => F_XDP_HAS_FRAGS,
            Self::SkReuseport => 0,
        }
    }
}

/// Map types used here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapKind {
    Hash = 1,
    /// One that can be mapped.
    Array = 2,
    XskMap = 17,
    ReuseportSockArray = 20,
}

/// One eBPF instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Destination register in the low, source register in the high nibble.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
/// `T` must be the layout that `command` expects (a prefix of `union bpf_attr`), and every pointer
/// in it valid for what the command does with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: pointer and size describe `attributes`; the rest is the caller's contract.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size_of::<T>()) };
    super::check(result as i32)
}

/// Creates a map.
pub(crate) fn create_map(
    kind: MapKind,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
) -> io::Result<OwnedFd> {
    let flags = if matches!(kind, MapKind::Array) { MMAPABLE } else { 0 };
    let mut attributes = MapCreate { kind: kind as u32, key_size, value_size, max_entries, flags };
    // SAFETY: no pointers; the descriptor returned is new and ours.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(MAP_CREATE, &mut attributes)?)) }
}

/// From now on only programs can change it.
pub(crate) fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let mut map = map.as_raw_fd() as u32;
    // SAFETY: no pointers.
    unsafe { bpf(MAP_FREEZE, &mut map).map(drop) }
}

/// Sets an element. Key and value must have the sizes the map was created with.
pub(crate) fn update_element(map: BorrowedFd<'_>, key: &[u8], value: &[u8; 4]) -> io::Result<()> {
    let mut attributes = MapElement {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: key.as_ptr() as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: all maps that are changed by this have 4-byte values, and keys of 4 or 16 bytes that
    // the callers pass as arrays of that size; the kernel only reads both.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes).map(drop) }
}

/// Removes an element. The key must have the size the map was created with.
pub(crate) fn delete_element(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut attributes = MapElement {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: key.as_ptr() as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: as in `update_element`.
    unsafe { bpf(MAP_DELETE_ELEM, &mut attributes).map(drop) }
}

/// Loads a program; on refusal by the verifier the error carries its log.
pub(crate) fn load_program(
    kind: ProgramKind,
    name: &[u8],
    instructions: &[Instruction],
) -> Result<OwnedFd, (io::Error, String)> {
    let mut log = vec![0u8; 1 << 16];
    let mut attributes = ProgramLoad {
        kind: kind as u32,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log: log.as_mut_ptr() as u64,
        kernel_version: 0,
        flags: kind.flags(),
        name: [0; 16],
        ifindex: 0,
        attach_type: kind.attach_type(),
    };
    let length = name.len().min(15);
    attributes.name[..length].copy_from_slice(&name[..length]);
    // SAFETY: instructions and licence are read, the log is written up to its size, all during the
    // call; the descriptor returned is new and ours.
    match unsafe { bpf(PROG_LOAD, &mut attributes) } {
        // SAFETY: as above.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) => {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            Err((error, String::from_utf8_lossy(&log[..end]).into_owned()))
        }
    }
}

/// Attaches an XDP program; it stays attached while the returned descriptor is open.
pub(crate) fn create_link(
    program: BorrowedFd<'_>,
    ifindex: u32,
    xdp_flags: u32,
) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program: program.as_raw_fd() as u32,
        ifindex,
        attach_type: ATTACH_TYPE_XDP,
        flags: xdp_flags,
    };
    // SAFETY: no pointers; the descriptor returned is new and ours.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(LINK_CREATE, &mut attributes)?)) }
}
