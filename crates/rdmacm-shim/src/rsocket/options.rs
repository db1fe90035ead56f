//! Options of rsockets.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
    os::fd::AsRawFd,
};

use libc::{
    IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ACCEPTCONN, SO_BROADCAST,
    SO_DOMAIN, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PROTOCOL, SO_RCVBUF,
    SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_TYPE, SOL_SOCKET, TCP_CONGESTION, TCP_INFO,
    TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_MAXSEG, TCP_NODELAY, socklen_t, tcp_info,
};
use verbs_abi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};

use super::{
    datagram::Datagram,
    keep_alive,
    settings::{MOST_DEPTH, Wishes},
    stream::{Core, Phase, Stream},
    table::Socket,
    waiting::Waits,
    wire::{compress, expand},
};
use crate::error::{Errno, Result};

/// The value of an option, as a program gave it.
#[derive(Clone, Copy)]
pub(crate) struct Value<'a>(pub(crate) &'a [u8]);

impl Value<'_> {
    fn number(self) -> Result<c_int> {
        let bytes = self.0.first_chunk().ok_or(Errno(libc::EINVAL))?;
        Ok(c_int::from_ne_bytes(*bytes))
    }

    fn size(self) -> Result<u32> {
        Ok(self.number()?.cast_unsigned())
    }

    fn linger(self) -> Result<Option<u32>> {
        let (on, seconds) = self.0.split_first_chunk::<4>().ok_or(Errno(libc::EINVAL))?;
        let seconds = Value(seconds).number()?;
        Ok((i32::from_ne_bytes(*on) != 0).then_some(u32::try_from(seconds).unwrap_or(0)))
    }
}

/// An unknown option.
const UNKNOWN: Errno = Errno(libc::ENOPROTOOPT);

impl Socket {
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: Value<'_>) -> Result<()> {
        match self {
            Self::Stream(stream) => {
                stream.set_option(level, name, value)?;
                if let Some(listener) = stream.listener.get() {
                    listener.set_options(stream.core().options);
                }
                if (level, name) == (SOL_SOCKET, SO_KEEPALIVE) && value.number()? != 0 {
                    keep_alive::watch(stream);
                }
                Ok(())
            }
            Self::Datagram(datagram) => datagram.set_option(level, name, value),
        }
    }

    /// The bytes of an option's value.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>> {
        match self {
            Self::Stream(stream) => stream.option(level, name),
            Self::Datagram(datagram) => datagram.option(level, name),
        }
    }
}

impl Wishes {
    /// Options that both kinds have.
    fn set(&mut self, level: c_int, name: c_int, value: Value<'_>) -> Result<bool> {
        match (level, name) {
            // As upstream, and as Linux does for TCP.
            (SOL_SOCKET, SO_RCVBUF) => self.receive_bytes = value.size()?.saturating_mul(2),
            (SOL_SOCKET, SO_SNDBUF) => self.send_bytes = value.size()?.saturating_mul(2),
            (SOL_RDMA, RDMA_SQSIZE) => self.sends = value.size()?.min(MOST_DEPTH),
            (SOL_RDMA, RDMA_RQSIZE) => self.receives = value.size()?.min(MOST_DEPTH),
            (SOL_RDMA, RDMA_INLINE) => self.inline = value.size()?.min(MOST_INLINE),
            (SOL_RDMA, RDMA_IOMAPSIZE) => {
                let wanted = u16::try_from(value.size()?).unwrap_or(u16::MAX);
                self.mappings = expand(compress(wanted));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn get(&self, level: c_int, name: c_int) -> Option<c_int> {
        let value = match (level, name) {
            (SOL_SOCKET, SO_RCVBUF) => self.receive_bytes,
            (SOL_SOCKET, SO_SNDBUF) => self.send_bytes,
            (SOL_RDMA, RDMA_SQSIZE) => self.sends,
            (SOL_RDMA, RDMA_RQSIZE) => self.receives,
            (SOL_RDMA, RDMA_INLINE) => self.inline,
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.mappings.into(),
            _ => return None,
        };
        Some(c_int::try_from(value).unwrap_or(c_int::MAX))
    }
}

impl Stream {
    fn set_option(&self, level: c_int, name: c_int, value: Value<'_>) -> Result<()> {
        let mut core = self.core();
        let is_new = matches!(core.phase, Phase::Fresh | Phase::Bound | Phase::Listening);
        if level == SOL_RDMA && !is_new {
            return Err(Errno(libc::EINVAL));
        }
        let options = &mut core.options;
        if options.wishes.set(level, name, value)? {
            return Ok(());
        }
        match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR | SO_REUSEPORT) => options.reuse |= value.number()? != 0,
            (SOL_SOCKET, SO_OOBINLINE) => options.out_of_band_inline = value.number()? != 0,
            (SOL_SOCKET, SO_LINGER) => options.linger = value.linger()?,
            (SOL_SOCKET, SO_KEEPALIVE) => options.keep_alive = value.number()? != 0,
            (IPPROTO_IP, IP_TOS) => options.tos = value.number()?,
            (IPPROTO_TCP, TCP_NODELAY) => options.no_delay = value.number()? != 0,
            (IPPROTO_TCP, TCP_KEEPIDLE) => {
                let seconds = u32::try_from(value.number()?).ok().filter(|seconds| *seconds > 0);
                options.keep_alive_after = seconds.ok_or(Errno(libc::EINVAL))?;
            }
            // A reliable connection does all of it in its own way.
            (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL | TCP_MAXSEG | TCP_CONGESTION) => {}
            (IPPROTO_IPV6, IPV6_V6ONLY) => options.one_family = value.number()? != 0,
            (SOL_RDMA, RDMA_ROUTE) => return Err(Errno(libc::EOPNOTSUPP)),
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }

    fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>> {
        let mut core = self.core();
        let options = &core.options;
        if let Some(value) = options.wishes.get(level, name) {
            return Ok(value.to_ne_bytes().into());
        }
        let number = match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR | SO_REUSEPORT) => options.reuse.into(),
            (SOL_SOCKET, SO_OOBINLINE) => options.out_of_band_inline.into(),
            (SOL_SOCKET, SO_KEEPALIVE) => options.keep_alive.into(),
            (SOL_SOCKET, SO_ERROR) => self.take_error(&mut core),
            (SOL_SOCKET, SO_BROADCAST) => 0,
            (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, SO_PROTOCOL) => IPPROTO_TCP,
            (SOL_SOCKET, SO_DOMAIN) if options.is_v6 => libc::AF_INET6,
            (SOL_SOCKET, SO_DOMAIN) => libc::AF_INET,
            (SOL_SOCKET, SO_ACCEPTCONN) => (core.phase == Phase::Listening).into(),
            (SOL_SOCKET, SO_LINGER) => {
                let l_linger = options.linger.map_or(0, |secs| secs.cast_signed());
                let is_on = c_int::from(options.linger.is_some());
                return Ok([is_on, l_linger].map(c_int::to_ne_bytes).concat());
            }
            (IPPROTO_IP, IP_TOS) => options.tos,
            (IPPROTO_TCP, TCP_NODELAY) => options.no_delay.into(),
            (IPPROTO_TCP, TCP_KEEPIDLE) => options.keep_alive_after.cast_signed(),
            (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL) => 1,
            (IPPROTO_TCP, TCP_CONGESTION) => return Ok(b"rdma\0".into()),
            (IPPROTO_TCP, TCP_MAXSEG) => self.segment(&mut core),
            (IPPROTO_TCP, TCP_INFO) => return Ok(info(&core)),
            (IPPROTO_IPV6, IPV6_V6ONLY) => options.one_family.into(),
            _ => return Err(UNKNOWN),
        };
        Ok(number.to_ne_bytes().into())
    }

    fn take_error(&self, core: &mut Core) -> c_int {
        self.advance(core);
        let of_flow = core.link.as_ref().map_or(0, |link| link.flow.error());
        match std::mem::take(&mut core.error) {
            0 => of_flow,
            errno => errno,
        }
    }

    /// Bytes of a packet.
    fn segment(&self, core: &mut Core) -> c_int {
        let route = self.id(core).public.route;
        // SAFETY: null, or the identifier's own.
        match unsafe { route.path_rec.as_ref() } {
            Some(path) => 128 << path.mtu.min(5),
            None => 2048,
        }
    }
}

/// What a program can learn of a connection; little of it means something here. As bytes: a value
/// of the structure does not keep what is in its padding.
fn info(core: &Core) -> Vec<u8> {
    let mut info = vec![0; size_of::<tcp_info>()];
    let mut set = |at: usize, value: &[u8]| {
        info.iter_mut().skip(at).zip(value).for_each(|(to, from)| *to = *from);
    };
    let is_up = core.link.as_ref().is_some_and(|link| link.flow.is_up());
    set(offset_of!(tcp_info, tcpi_state), &[if is_up { ESTABLISHED } else { CLOSED }]);
    set(offset_of!(tcp_info, tcpi_snd_cwnd), &core.options.wishes.sends.to_ne_bytes());
    set(offset_of!(tcp_info, tcpi_snd_mss), &2048_u32.to_ne_bytes());
    info
}

impl Datagram {
    fn set_option(&self, level: c_int, name: c_int, value: Value<'_>) -> Result<()> {
        let known = self.lock().wishes.set(level, name, value)?;
        if level == SOL_RDMA {
            return if known { Ok(()) } else { Err(UNKNOWN) };
        }
        let len = socklen_t::try_from(value.0.len()).map_err(|_| Errno(libc::EINVAL))?;
        let (fd, value) = (self.udp.as_raw_fd(), value.0.as_ptr());
        // SAFETY: the value is as long as is said.
        let set = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value, len) };
        if set == 0 { Ok(()) } else { Err(Errno::last()) }
    }

    fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>> {
        if let Some(value) = self.lock().wishes.get(level, name) {
            return Ok(value.to_ne_bytes().into());
        }
        let mut value = vec![0_u8; 256];
        let mut len = 256 as socklen_t;
        let (fd, at) = (self.udp.as_raw_fd(), value.as_mut_ptr().cast::<c_void>());
        // SAFETY: the value is as long as is said.
        let got = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, at, &raw mut len) };
        if got != 0 {
            return Err(Errno::last());
        }
        value.truncate(len as usize);
        Ok(value)
    }
}

/// Of `tcp_info`.
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;
/// The device takes at most so many bytes with a request.
const MOST_INLINE: u32 = 1024;
