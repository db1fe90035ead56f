//! Opening an AF_XDP port: memory, rings, bind, program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::config::{XdpMode, XskCaps, XskConfig, XskStats};
use super::receive::Receiver;
use super::transmit::Transmitter;
use super::{Rings, XskPort};
use crate::program::{AttachMode, MAX_QUEUES, XdpProgram};
use crate::ring::{Consumer, Descriptor, Producer};
use crate::umem::{CHUNK, TX_FRAME, Umem};
use crate::{Error, Result, netdev, sys};

/// A socket option of `linux/if_xdp.h` that libc lacks.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Closing a socket frees its queue asynchronously: how long a busy queue is tried again.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Receive room of a chunk: the kernel keeps 256 bytes in front (XDP_PACKET_HEADROOM).
const RX_ROOM: u32 = CHUNK as u32 - 256;
/// Ethernet header and one VLAN tag.
const LINK_HEADER: u32 = 18;

/// One way to bind the socket and attach the program.
#[derive(Clone, Copy)]
struct Attempt {
    bind_flags: u16,
    mode: AttachMode,
    multi_buffer: bool,
    name: &'static str,
}

pub(super) fn open(config: &XskConfig, program: Option<Arc<XdpProgram>>) -> Result<XskPort> {
    validate(config)?;
    let ifindex = config.index.map_or_else(|| netdev::index(&config.interface), Ok)?;
    let mtu = netdev::mtu(&config.interface)?;
    let single_fits = mtu + LINK_HEADER <= RX_ROOM;
    let attached = program.as_ref().map(|program| program.mode());
    let none = Error::ModeUnsupported { interface: config.interface.clone(), mode: "any" };
    let attempts = attempts(config.mode, attached, single_fits);
    let opened = first_that_works(none, attempts, |attempt| {
        try_open(config, ifindex, attempt, program.clone())
    });
    let opened = opened.map(|(port, passed_over)| XskPort { passed_over, ..port });
    opened.map_err(|last| match last {
        // Queue 0 always exists, so what was refused is a frame in several chunks.
        Error::QueueMissing { interface, queue: 0 } if !single_fits => {
            Error::FrameTooLong { interface, mtu, limit: RX_ROOM - LINK_HEADER }
        }
        last => last,
    })
}

/// The outcome of the first attempt that succeeds, with the first failure before it that says more
/// than that a mode is not supported; or the failure that no other attempt can mend. Else the last
/// failure, unless that only says that a mode is not supported while another said more; `none` if
/// there are no attempts.
fn first_that_works<A, T>(
    none: Error,
    attempts: impl IntoIterator<Item = A>,
    mut open: impl FnMut(A) -> Result<T>,
) -> Result<(T, Option<Error>)> {
    let (mut last, mut unforeseen) = (none, None);
    for attempt in attempts {
        match open(attempt) {
            Err(error) if is_final(&error) => return Err(error),
            Err(error @ (Error::Os { .. } | Error::ProgramRejected { .. })) => {
                // Drivers refuse with all kinds of errors what they do not offer.
                unforeseen.get_or_insert(error);
            }
            Err(error) => last = error,
            Ok(opened) => return Ok((opened, unforeseen)),
        }
    }
    Err(match last {
        Error::ModeUnsupported { .. } => unforeseen.unwrap_or(last),
        last => last,
    })
}

/// Whether it is the same in every mode.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::InterfaceMissing { .. }
            | Error::Privilege { .. }
            | Error::AlreadyAttached { .. }
            | Error::QueueBusy { .. }
            | Error::MemoryLimit { .. }
            | Error::InvalidConfig(_)
    )
}

fn validate(config: &XskConfig) -> Result<()> {
    if !(64..=65_536).contains(&config.rx_frames) {
        return Err(Error::InvalidConfig("rx_frames must be 64..=65536"));
    }
    if !(16..=32_768).contains(&config.tx_frames) {
        return Err(Error::InvalidConfig("tx_frames must be 16..=32768"));
    }
    if !(128 << 10..=1 << 30).contains(&config.bounce_bytes) {
        return Err(Error::InvalidConfig("bounce_bytes must be 128 KiB..=1 GiB"));
    }
    if config.queue >= MAX_QUEUES {
        return Err(Error::InvalidConfig("queue must be below 256"));
    }
    Ok(())
}

/// The ways to try, best first.
fn attempts(wanted: XdpMode, attached: Option<AttachMode>, single_fits: bool) -> Vec<Attempt> {
    let zero_copy = |multi_buffer| Attempt {
        bind_flags: libc::XDP_ZEROCOPY,
        mode: AttachMode::Native,
        multi_buffer,
        name: "zero-copy",
    };
    let copy = |mode: AttachMode, multi_buffer| Attempt {
        bind_flags: libc::XDP_COPY,
        mode,
        multi_buffer,
        name: mode.name(),
    };
    let mut all = Vec::new();
    // Without multi-buffer support (drivers; Linux before 6.6) frames must fit one chunk.
    for multi_buffer in [true, false] {
        if matches!(wanted, XdpMode::Auto | XdpMode::ZeroCopy) {
            all.push(zero_copy(multi_buffer));
        }
    }
    for mode in [AttachMode::Native, AttachMode::Generic] {
        let asked = match mode {
            AttachMode::Native => XdpMode::Native,
            AttachMode::Generic => XdpMode::Generic,
        };
        if wanted == XdpMode::Auto || wanted == asked {
            all.extend([copy(mode, true), copy(mode, false)]);
        }
    }
    all.retain(|attempt| attempt.multi_buffer || single_fits);
    all.retain(|attempt| attached.is_none_or(|mode| mode == attempt.mode));
    all
}

fn try_open(
    config: &XskConfig,
    ifindex: u32,
    attempt: Attempt,
    program: Option<Arc<XdpProgram>>,
) -> Result<XskPort> {
    let socket = open_socket()?;
    let umem = Umem::new(config.bounce_bytes, config.rx_frames, config.tx_frames)
        .map_err(Error::os("packet memory"))?;
    register(socket.as_fd(), &umem)?;
    let rings = map_rings(socket, config, &umem)?;
    let socket = rings.socket.as_fd();
    sys::set_buffers(socket, config.tx_frames * TX_FRAME * 2);
    bind(socket, config, ifindex, attempt)?;
    let options =
        sys::option(socket, libc::SOL_XDP, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })
            .map_err(Error::os("XDP_OPTIONS"))?;
    let tx_budget = sys::set_option(
        socket,
        libc::SOL_XDP,
        XDP_MAX_TX_SKB_BUDGET,
        &i32::try_from(config.tx_budget).unwrap_or(i32::MAX),
    );
    let program = match program {
        Some(program) => program,
        None => {
            let interface = (config.interface.as_str(), ifindex);
            Arc::new(XdpProgram::attach_at(interface, config.port, config.steer, attempt.mode)?)
        }
    };
    program.set_socket(config.queue, socket)?;
    for address in &config.addresses {
        program.add_address(*address)?;
    }
    let caps = XskCaps {
        mode: attempt.mode,
        zero_copy: options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
        multi_buffer: attempt.multi_buffer,
        max_frame: if attempt.multi_buffer { TX_FRAME } else { CHUNK },
        tx_budget: tx_budget.is_ok().then_some(config.tx_budget),
    };
    Ok(XskPort {
        rings,
        umem,
        receiver: Receiver::new(config.rx_frames),
        transmitter: Transmitter::new(config.tx_frames),
        program,
        caps,
        passed_over: None,
    })
}

fn open_socket() -> Result<OwnedFd> {
    sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => {
            Error::Privilege { operation: "opening an AF_XDP socket", needs: "CAP_NET_RAW" }
        }
        _ => Error::Os { operation: "socket(AF_XDP)", source: error },
    })
}

fn register(socket: BorrowedFd<'_>, umem: &Umem) -> Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: umem.registered_start(),
        len: umem.registered_len() as u64,
        chunk_size: CHUNK as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    sys::set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                Error::MemoryLimit { bytes: umem.registered_len() }
            }
            _ => Error::Os { operation: "XDP_UMEM_REG", source: error },
        }
    })
}

/// Creates and maps the rings, and gives all receive chunks to the kernel. RX and fill ring have
/// room for every chunk, TX and completion ring for two descriptors of every frame.
fn map_rings(socket: OwnedFd, config: &XskConfig, umem: &Umem) -> Result<Rings> {
    let fd = socket.as_fd();
    let rx_size = config.rx_frames.next_power_of_two() as u32;
    let tx_size = (2 * config.tx_frames).next_power_of_two() as u32;
    for (option, size) in [
        (libc::XDP_UMEM_FILL_RING, rx_size),
        (libc::XDP_UMEM_COMPLETION_RING, tx_size),
        (libc::XDP_RX_RING, rx_size),
        (libc::XDP_TX_RING, tx_size),
    ] {
        sys::set_option(fd, libc::SOL_XDP, option, &(size as i32))
            .map_err(Error::os("setting up an AF_XDP ring"))?;
    }
    let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let none = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
    let offsets = sys::option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, none)
        .map_err(Error::os("XDP_MMAP_OFFSETS"))?;
    let mut fill = Producer::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, rx_size)
        .map_err(Error::os("mapping the fill ring"))?;
    let completion = Consumer::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, tx_size)
        .map_err(Error::os("mapping the completion ring"))?;
    let rx = Consumer::<Descriptor>::map(fd, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, rx_size)
        .map_err(Error::os("mapping the RX ring"))?;
    let tx = Producer::<Descriptor>::map(fd, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, tx_size)
        .map_err(Error::os("mapping the TX ring"))?;
    for chunk in umem.rx_chunk_addresses() {
        let pushed = fill.push(chunk);
        debug_assert!(pushed);
    }
    fill.publish();
    Ok(Rings { fill, completion, rx, tx, socket })
}

fn bind(fd: BorrowedFd<'_>, config: &XskConfig, ifindex: u32, attempt: Attempt) -> Result<()> {
    let multi_buffer = if attempt.multi_buffer { libc::XDP_USE_SG } else { 0 };
    let flags = attempt.bind_flags | libc::XDP_USE_NEED_WAKEUP | multi_buffer;
    let mut tries = 0;
    loop {
        match sys::bind_xdp(fd, ifindex, config.queue, flags) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < BUSY_TRIES => {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) => return Err(bind_error(config, attempt, error)),
        }
    }
}

fn bind_error(config: &XskConfig, attempt: Attempt, error: io::Error) -> Error {
    let interface = config.interface.clone();
    match error.raw_os_error() {
        Some(libc::EBUSY) => Error::QueueBusy { interface, queue: config.queue },
        Some(libc::EOPNOTSUPP) => Error::ModeUnsupported { interface, mode: attempt.name },
        Some(libc::EINVAL) => Error::QueueMissing { interface, queue: config.queue },
        Some(libc::ENODEV) => Error::InterfaceMissing { interface },
        Some(libc::EPERM) => {
            Error::Privilege { operation: "binding an AF_XDP socket", needs: "CAP_NET_RAW" }
        }
        _ => Error::Os { operation: "bind(AF_XDP)", source: error },
    }
}

/// Adds what the kernel counted (XDP_STATISTICS).
pub(super) fn add_kernel_stats(fd: BorrowedFd<'_>, stats: &mut XskStats) {
    let none = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    let Ok(kernel) = sys::option(fd, libc::SOL_XDP, libc::XDP_STATISTICS, none) else { return };
    stats.rx_dropped = kernel.rx_dropped;
    stats.rx_invalid = kernel.rx_invalid_descs;
    stats.rx_ring_full = kernel.rx_ring_full;
    stats.fill_empty = kernel.rx_fill_ring_empty_descs;
    stats.tx_invalid = kernel.tx_invalid_descs;
    stats.tx_ring_empty = kernel.tx_ring_empty_descs;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> Error {
        Error::Os { operation: "bind(AF_XDP)", source: io::Error::from_raw_os_error(errno) }
    }

    fn unsupported() -> Error {
        Error::ModeUnsupported { interface: "eth0".into(), mode: "native" }
    }

    /// What comes of attempts with these outcomes, and how many were made.
    fn outcome(attempts: Vec<Result<u8>>) -> (std::result::Result<u8, String>, usize) {
        let (outcome, count) = attempt(attempts);
        (outcome.map(|(opened, _)| opened), count)
    }

    type Opened = (u8, Option<String>);

    fn attempt(attempts: Vec<Result<u8>>) -> (std::result::Result<Opened, String>, usize) {
        let mut count = 0;
        let opened = first_that_works(unsupported(), attempts, |attempt| {
            count += 1;
            attempt
        });
        let opened = opened.map(|(opened, passed)| (opened, passed.map(|error| error.to_string())));
        (opened.map_err(|error| error.to_string()), count)
    }

    #[test]
    fn what_kept_a_better_mode_from_working_is_told() {
        let failed = vec![Err(unsupported()), Err(os(libc::EIO)), Err(os(libc::ENOENT)), Ok(3)];
        let reason = os(libc::EIO).to_string();
        assert_eq!(attempt(failed), (Ok((3, Some(reason))), 4));
        assert_eq!(attempt(vec![Err(unsupported()), Ok(3)]), (Ok((3, None)), 2));
    }

    #[test]
    fn a_mode_that_fails_in_an_unforeseen_way_leaves_the_next_one() {
        assert_eq!(outcome(vec![Err(os(libc::EIO)), Err(unsupported()), Ok(3)]), (Ok(3), 3));
        let busy = || Error::QueueBusy { interface: "eth0".into(), queue: 0 };
        assert_eq!(outcome(vec![Err(busy()), Ok(2)]), (Err(busy().to_string()), 1));
        let reason = os(libc::EIO).to_string();
        let failed = vec![Err(os(libc::EIO)), Err(os(libc::ENOENT)), Err(unsupported())];
        assert_eq!(outcome(failed), (Err(reason), 3));
        let missing = || Error::QueueMissing { interface: "eth0".into(), queue: 7 };
        let told = missing().to_string();
        assert_eq!(outcome(vec![Err(os(libc::EIO)), Err(missing())]), (Err(told), 2));
        assert_eq!(outcome(Vec::new()), (Err(unsupported().to_string()), 0));
    }
}
