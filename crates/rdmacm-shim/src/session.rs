//! The device, and the session with its daemon's connection manager.

use std::{
    ffi::CStr,
    net::IpAddr,
    os::fd::OwnedFd,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rnic_abi::{
    ABI_VERSION,
    control::{CmRequest, GidEntry, Reply, Request},
    os::{Connection, Descriptors, candidate_socket_paths},
};
use verbs_abi::{Zeroed, ibv_ah_attr, ibv_context, ibv_device, ibv_gid, ibv_pd, ibv_port_attr};

use crate::{
    error::{Errno, Result},
    verbs,
};

/// A device with its session. It stays as long as the process.
pub(crate) struct Device {
    connection: Mutex<Connection>,
    pub(crate) context: *mut ibv_context,
    /// For identifiers whose program names no other.
    pub(crate) pd: *mut ibv_pd,
    process: u32,
}

// SAFETY: the connection is behind a lock, and objects of libibverbs may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// READs and atomics of one queue pair that the device takes.
pub(crate) const MAX_DEPTH: u8 = 16;

/// The device, found at the first call. A child made by fork finds it anew.
///
/// # Errors
/// ENODEV when there is no daemon.
pub(crate) fn device() -> Result<&'static Device> {
    static DEVICE: Mutex<Option<&'static Device>> = Mutex::new(None);
    let mut known = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    match *known {
        Some(device) if device.process == std::process::id() => Ok(device),
        _ => {
            let device: &'static Device = Box::leak(Box::new(Device::open()?));
            *known = Some(device);
            Ok(device)
        }
    }
}

impl Device {
    fn open() -> Result<Self> {
        let none = Errno(libc::ENODEV);
        let opened = candidate_socket_paths().iter().find_map(|path| {
            let connection = Connection::connect(path).ok()?;
            let hello = connection.call(&Request::Hello { abi: ABI_VERSION }, &[]).ok()?.0;
            let agrees = matches!(hello, Ok(Reply::Hello { abi: ABI_VERSION, .. }));
            let devices = connection.call(&Request::ListDevices, &[]).ok().filter(|_| agrees)?.0;
            let Ok(Reply::Devices(devices)) = devices else { return None };
            Some((connection, devices.into_iter().next()?.name))
        });
        let (connection, name) = opened.ok_or(none)?;
        let context = open_verbs(&name).ok_or(none)?;
        // SAFETY: the context is open.
        let pd = unsafe { verbs::ibv_alloc_pd(context) };
        if pd.is_null() {
            return Err(Errno::last());
        }
        let connection = Mutex::new(connection);
        Ok(Self { connection, context, pd, process: std::process::id() })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the connection manager.
    ///
    /// # Errors
    /// Its refusal; EIO when the daemon is gone.
    pub(crate) fn call(&self, request: CmRequest) -> Result<(Reply, Descriptors)> {
        let answer = self.connection().call(&Request::Connections(request), &[]);
        match answer.map_err(|_| Errno(libc::EIO))? {
            (Ok(reply), fds) => Ok((reply, fds)),
            (Err(refusal), _) => {
                crate::stubs::debug(&refusal.message);
                Err(Errno(if refusal.errno > 0 { refusal.errno } else { libc::EIO }))
            }
        }
    }

    /// A request that is answered by [`Reply::Done`].
    pub(crate) fn done(&self, request: CmRequest) -> Result<()> {
        match self.call(request)?.0 {
            Reply::Done => Ok(()),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    /// A request that is answered by [`Reply::Handle`].
    pub(crate) fn handle(&self, request: CmRequest) -> Result<u32> {
        match self.call(request)?.0 {
            Reply::Handle(handle) => Ok(handle),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    /// A new event channel.
    pub(crate) fn open_channel(&self) -> Result<(u32, OwnedFd)> {
        let (reply, fds) = self.call(CmRequest::OpenChannel)?;
        let Reply::Handle(handle) = reply else { return Err(Errno(libc::EPROTO)) };
        let [fd] = fds.exactly().map_err(|_| Errno(libc::EPROTO))?;
        Ok((handle, fd))
    }

    pub(crate) fn port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: the context is open, and the structure is longer than what is written.
        unsafe { verbs::ibv_query_port(self.context, 1, &raw mut attr) };
        attr
    }

    /// Addresses of the device with their indexes, in one message: a table has many empty places.
    pub(crate) fn addresses(&self) -> Vec<(u8, IpAddr)> {
        let answer = self.connection().call(&Request::QueryGids { start: 0 }, &[]);
        let Ok((Ok(Reply::Gids(gids)), _)) = answer else { return Vec::new() };
        let of_entry = |entry: GidEntry| {
            Some((u8::try_from(entry.index).ok()?, address_of(ibv_gid { raw: entry.gid })))
        };
        gids.into_iter().filter_map(of_entry).collect()
    }

    /// Whether the way to a peer is found. May take seconds.
    pub(crate) fn reach(&self, attr: &ibv_ah_attr) -> Result<()> {
        let mut attr = *attr;
        // SAFETY: the domain is the device's, and the attributes a local variable.
        let ah = unsafe { verbs::ibv_create_ah(self.pd, &raw mut attr) };
        if ah.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: just made.
        unsafe { verbs::ibv_destroy_ah(ah) };
        Ok(())
    }
}

/// An address as a GID.
pub(crate) fn gid_of(address: IpAddr) -> ibv_gid {
    let raw = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

/// A GID as an address.
pub(crate) fn address_of(gid: ibv_gid) -> IpAddr {
    std::net::Ipv6Addr::from(gid.raw).to_canonical()
}

fn open_verbs(name: &str) -> Option<*mut ibv_context> {
    // SAFETY: the list ends with a null pointer and is freed once, after the device is open.
    unsafe {
        let list = verbs::ibv_get_device_list(ptr::null_mut());
        if list.is_null() {
            return None;
        }
        let mut at = list;
        let mut context: *mut ibv_context = ptr::null_mut();
        while !(*at).is_null() && context.is_null() {
            if is_named(*at, name) {
                context = verbs::ibv_open_device(*at);
            }
            at = at.add(1);
        }
        verbs::ibv_free_device_list(list);
        (!context.is_null()).then_some(context)
    }
}

/// # Safety
/// `device` is one of a list.
unsafe fn is_named(device: *mut ibv_device, name: &str) -> bool {
    // SAFETY: by contract; names are C strings.
    unsafe { CStr::from_ptr(verbs::ibv_get_device_name(device)) }.to_bytes() == name.as_bytes()
}
