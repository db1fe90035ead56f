//! The devices, and the sessions with the connection managers of their daemons.

use std::{
    ffi::CStr,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    path::Path,
    process, ptr,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::{Duration, Instant},
};

use rnic_abi::{
    control::{CmRequest, DeviceInfo, GidEntry, Reply, Request},
    os::{
        Connection, Descriptors, OfProcess, discovery,
        function::{self, Engine},
    },
};
use verbs_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, Zeroed, be64, ibv_context, ibv_device,
    ibv_gid, ibv_pd, ibv_port_attr, ibv_xrcd, ibv_xrcd_init_attr, own_verbs, verbs_context,
};

use crate::{
    error::{Errno, Result},
    verbs,
};

/// A device with its session. It stays as long as the process.
pub(crate) struct Device {
    /// The process that found it. In its children, which have their own, nothing of it is used: not
    /// the session, which is the parent's, nor a lock, which may have been held at the fork.
    process: u32,
    connection: Mutex<Connection>,
    name: String,
    guid: be64,
    /// Of the devices before it, how many `is_like` takes for it: they share an interface.
    twins: usize,
    /// Once it is used.
    opened: Mutex<Option<Opened>>,
    /// What its daemon has said last, and when.
    addresses: Mutex<Option<(Instant, Vec<Own>)>>,
    mtu: Mutex<Option<(Instant, u8)>>,
    /// For XRC, once an identifier needs one.
    xrcd: Mutex<*mut ibv_xrcd>,
}

/// The device as libibverbs has it.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) context: *mut ibv_context,
    /// For identifiers whose program names no other.
    pub(crate) pd: *mut ibv_pd,
}

/// An address of a device, with its index there.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    pub(crate) device: &'static Device,
    pub(crate) index: u8,
    pub(crate) ip: IpAddr,
}

// SAFETY: the connection is behind a lock, and objects of libibverbs may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// READs and atomics of one queue pair that the device takes.
pub(crate) const MAX_DEPTH: u8 = 16;

/// The devices of all daemons, found at the first call, and at least one. A child made by fork
/// finds them anew.
///
/// # Errors
/// ENODEV when there is no daemon.
pub(crate) fn devices() -> Result<&'static [Device]> {
    let mut known = DEVICES.lock();
    if let Some(devices) = *known {
        return Ok(devices);
    }
    let found = Device::find();
    if found.is_empty() {
        return Err(Errno(libc::ENODEV));
    }
    let devices: &'static [Device] = found.leak();
    *known = Some(devices);
    Ok(devices)
}

/// That of the first daemon.
///
/// # Errors
/// As of [`devices`].
pub(crate) fn first() -> Result<&'static Device> {
    devices()?.first().ok_or(Errno(libc::ENODEV))
}

/// What `look` finds in the addresses of all devices, in the order of the devices. It looks again
/// where it says EADDRNOTAVAIL and they are not asked for just now.
///
/// # Errors
/// As of [`devices`], and those of `look`.
pub(crate) fn with_addresses<T>(look: impl Fn(&[Own]) -> Result<T>) -> Result<T> {
    let devices = devices()?;
    let known: Vec<Own> = devices.iter().flat_map(Device::known_addresses).collect();
    match look(&known) {
        Err(Errno(libc::EADDRNOTAVAIL)) => {
            let now: Vec<Own> = devices.iter().flat_map(Device::addresses).collect();
            look(&now)
        }
        found => found,
    }
}

static DEVICES: OfProcess<Option<&'static [Device]>> = OfProcess::new();

impl Device {
    fn find() -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let answers = discovery::ask_each(|path, limit| {
            greet(path, limit).inspect_err(|error| explain(path, error))
        });
        for (connection, info) in answers.into_iter().filter_map(|(_, answer)| answer.ok()) {
            let guid = u64::from_ne_bytes(info.node_guid);
            let is_twin =
                |other: &&Self| other.guid == guid && other.name.starts_with(info.name.as_str());
            let twins = found.iter().filter(is_twin).count();
            found.push(Self::of(connection, (info.name, guid), twins));
        }
        found
    }

    fn of(connection: Connection, (name, guid): (String, be64), twins: usize) -> Self {
        Self {
            process: process::id(),
            connection: Mutex::new(connection),
            name,
            guid,
            twins,
            opened: Mutex::default(),
            addresses: Mutex::default(),
            mtu: Mutex::default(),
            xrcd: Mutex::new(ptr::null_mut()),
        }
    }

    /// # Errors
    /// EIO in a child of the process that found the device.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == process::id() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }

    /// The device as libibverbs has it, open from now on.
    ///
    /// # Errors
    /// ENODEV when the daemon does not let it be opened; EIO in a child.
    pub(crate) fn opened(&self) -> Result<Opened> {
        self.check_process()?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = *opened {
            return Ok(opened);
        }
        let context = open_verbs(self).ok_or(Errno(libc::ENODEV))?;
        // SAFETY: the context is open.
        let pd = unsafe { verbs::ibv_alloc_pd(context) };
        if pd.is_null() {
            return Err(Errno::last());
        }
        let new = Opened { context, pd };
        *opened = Some(new);
        Ok(new)
    }

    fn connection(&self) -> Result<MutexGuard<'_, Connection>> {
        self.check_process()?;
        Ok(self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the connection manager.
    ///
    /// # Errors
    /// Its refusal; EMFILE where the program has no room for a descriptor; EIO when the daemon is
    /// gone, and in a child of the process that has the session.
    pub(crate) fn call(&self, request: CmRequest) -> Result<(Reply, Descriptors)> {
        let answer = self.connection()?.call(&Request::Connections(request), &[]);
        let lost = |error: io::Error| match error.raw_os_error() {
            Some(libc::EMFILE) => Errno(libc::EMFILE),
            _ => Errno(libc::EIO),
        };
        match answer.map_err(lost)? {
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

    /// Addresses of the device as they were a moment ago: of many connections at a time, one asks.
    pub(crate) fn known_addresses(&'static self) -> Vec<Own> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        match known.as_ref().filter(|(at, _)| at.elapsed() < MOMENT) {
            Some((_, own)) => own.clone(),
            None => {
                drop(known);
                self.addresses()
            }
        }
    }

    /// Addresses of the device, in one message: a table has many empty places.
    pub(crate) fn addresses(&'static self) -> Vec<Own> {
        let Ok(connection) = self.connection() else { return Vec::new() };
        let answer = connection.call(&Request::QueryGids { start: 0 }, &[]);
        drop(connection);
        let Ok((Ok(Reply::Gids(gids)), _)) = answer else { return Vec::new() };
        let of_entry = |entry: GidEntry| {
            let index = u8::try_from(entry.index).ok()?;
            Some(Own { device: self, index, ip: address_of(ibv_gid { raw: entry.gid }) })
        };
        let own: Vec<Own> = gids.into_iter().filter_map(of_entry).collect();
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Instant::now(), own.clone()));
        own
    }

    /// Whether an address is another one's of these devices. One that is no device's may be a name
    /// of this one: programs use loopback addresses.
    pub(crate) fn is_of_another(&self, ip: IpAddr, all: &'static [Self]) -> bool {
        let others = all.iter().filter(|other| !ptr::eq(*other, self));
        others.flat_map(Self::known_addresses).any(|own| own.ip == ip)
    }

    /// Path MTU code of the link as it was a moment ago.
    pub(crate) fn mtu(&self) -> Result<u8> {
        self.check_process()?;
        let mut known = self.mtu.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mtu)) = known.filter(|(at, _)| at.elapsed() < MOMENT) {
            return Ok(mtu);
        }
        let mtu = u8::try_from(port(self.opened()?.context).active_mtu).unwrap_or(1);
        *known = Some((Instant::now(), mtu));
        Ok(mtu)
    }

    /// The domain of the XRC queues of identifiers whose program names no other.
    pub(crate) fn xrcd(&self) -> Result<*mut ibv_xrcd> {
        self.check_process()?;
        let mut known = self.xrcd.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_null() {
            let context = self.opened()?.context;
            // SAFETY: it is open.
            let open = unsafe { extension(context) }.open_xrcd.ok_or(Errno(libc::EOPNOTSUPP))?;
            let mut attr = ibv_xrcd_init_attr::zeroed();
            attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            (attr.fd, attr.oflags) = (-1, libc::O_CREAT);
            // SAFETY: the context is open, and the attributes are a local variable.
            *known = unsafe { open(context, &raw mut attr) };
        }
        if known.is_null() { Err(Errno::last()) } else { Ok(*known) }
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

/// How long what a daemon says is not asked for again.
const MOMENT: Duration = Duration::from_millis(50);

/// A session with a daemon, which may take so long for each answer, and its device.
fn greet(path: &Path, limit: Duration) -> io::Result<(Connection, DeviceInfo)> {
    let mut connection = Connection::connect_within(path, limit)?;
    connection.greet()?;
    if Engine::wanted()? != Engine::Daemon {
        connection = function::connect(path)?.connection;
        connection.greet()?;
    }
    let devices = connection.call(&Request::ListDevices, &[])?.0;
    connection.wait_for_ever()?;
    let Ok(Reply::Devices(devices)) = devices else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let first = devices.into_iter().next();
    Ok((connection, first.ok_or(io::ErrorKind::NotFound)?))
}

/// Of a daemon that listens and does not answer, or is of another version, programs would see only
/// that they wait, or that there is no device.
fn explain(path: &Path, error: &io::Error) {
    static ONCE: Once = Once::new();
    let path = path.display();
    let text = match error.kind() {
        io::ErrorKind::WouldBlock => format!(
            "the soft-rnic daemon at {path} does not answer: if it is stopped, continue it (kill \
             -CONT). Until it answers programs use other devices, or wait where there is no other"
        ),
        io::ErrorKind::Unsupported => format!("the daemon at {path}: {error}"),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return,
        _ if matches!(Engine::wanted(), Ok(Engine::Program)) => {
            format!("this program has no engine of its own: {error}")
        }
        _ => return,
    };
    ONCE.call_once(|| crate::stubs::say(&text));
}

/// The port of an open device.
fn port(context: *mut ibv_context) -> ibv_port_attr {
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: by contract, and the structure is longer than what is written.
    unsafe { verbs::ibv_query_port(context, 1, &raw mut attr) };
    attr
}

/// The functions that libibverbs has only here.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn extension<'a>(context: *mut ibv_context) -> &'a verbs_context {
    let at = std::mem::offset_of!(verbs_context, context);
    // SAFETY: every context of our libibverbs is the last member of a verbs_context.
    unsafe { &*context.cast::<u8>().sub(at).cast::<verbs_context>() }
}

/// What libibverbs has for this library only.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn own_verbs<'a>(context: *mut ibv_context) -> &'a own_verbs {
    // SAFETY: every context of our libibverbs has them.
    unsafe { &*extension(context).priv_.cast::<own_verbs>() }
}

fn open_verbs(wanted: &Device) -> Option<*mut ibv_context> {
    // SAFETY: the list ends with a null pointer and is freed once, after the device is open.
    unsafe {
        let list = verbs::ibv_get_device_list(ptr::null_mut());
        if list.is_null() {
            return None;
        }
        let all = (0..).map(|at| *list.add(at)).take_while(|device| !device.is_null());
        let found = all.filter(|device| is_like(*device, wanted)).nth(wanted.twins);
        let context = found.map(|device| verbs::ibv_open_device(device));
        verbs::ibv_free_device_list(list);
        context.filter(|context| !context.is_null())
    }
}

/// Whether it may be this device. libibverbs adds a number to names that several devices have.
///
/// # Safety
/// `device` is one of a list.
unsafe fn is_like(device: *mut ibv_device, wanted: &Device) -> bool {
    // SAFETY: by contract; names are C strings.
    let (name, guid) = unsafe {
        let name = CStr::from_ptr(verbs::ibv_get_device_name(device));
        (name.to_bytes(), verbs::ibv_get_device_guid(device))
    };
    guid == wanted.guid && name.starts_with(wanted.name.as_bytes())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::forked::status_of_child;
    use rnic_abi::control::Answer;

    /// Without a daemon.
    pub(crate) fn device() -> &'static Device {
        with_daemon().0
    }

    /// The test is the daemon at the other end.
    pub(crate) fn with_daemon() -> (&'static Device, Connection) {
        let (connection, daemon) = Connection::pair().unwrap();
        (Box::leak(Box::new(Device::of(connection, ("rnic0".into(), 0), 0))), daemon)
    }

    #[test]
    fn what_a_daemon_said_a_moment_ago_is_not_asked_for_again() {
        let (device, daemon) = with_daemon();
        let said = |index, last| {
            *device.addresses.lock().unwrap() = None;
            let gid = gid_of([10, 0, 0, last].into()).raw;
            let answer: Answer = Ok(Reply::Gids(vec![GidEntry { index, gid, ifindex: 0 }]));
            daemon.send_message(&answer, &[]).unwrap();
        };
        let seen =
            |own: Vec<Own>| own.into_iter().map(|own| (own.index, own.ip)).collect::<Vec<_>>();
        let [old, new] = [(3, [10, 0, 0, 1].into()), (4, [10, 0, 0, 2].into())];
        said(3, 1);
        assert_eq!(seen(device.known_addresses()), [old]);
        // However long this test takes.
        let later = Instant::now() + Duration::from_secs(3600);
        device.addresses.lock().unwrap().as_mut().unwrap().0 = later;
        assert_eq!(seen(device.known_addresses()), [old]);
        said(4, 2);
        assert_eq!(seen(device.addresses()), [new]);
    }

    #[test]
    fn an_address_is_known_for_another_devices() {
        let new = || Device::of(Connection::pair().unwrap().0, ("rnic0".into(), 0), 0);
        let all: &[Device] = vec![new(), new()].leak();
        let [first, second, neither] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        // However long this test takes.
        let later = Instant::now() + Duration::from_secs(3600);
        for (device, ip) in all.iter().zip([first, second]) {
            *device.addresses.lock().unwrap() = Some((later, vec![Own { device, index: 0, ip }]));
        }
        assert_eq!(
            [first, second, neither].map(|ip| all[0].is_of_another(ip, all)),
            [false, true, false]
        );
        assert_eq!(
            [first, second, neither].map(|ip| all[1].is_of_another(ip, all)),
            [true, false, false]
        );
    }

    /// As if another thread were about to ask the daemon.
    #[test]
    fn a_child_keeps_out_of_the_session_of_its_parent() {
        let (device, daemon) = with_daemon();
        let held = (device.connection(), device.opened.lock(), device.addresses.lock());
        let (mtu, xrcd) = (device.mtu.lock(), device.xrcd.lock());
        let is_lost = |error| error == Errno(libc::EIO);
        let status = status_of_child(|| {
            device.done(CmRequest::Release { id: 1 }).is_err_and(is_lost)
                && device.open_channel().is_err_and(is_lost)
                && device.opened().is_err_and(is_lost)
                && (device.mtu().is_err_and(is_lost) && device.xrcd().is_err_and(is_lost))
                && (device.addresses().is_empty() && device.known_addresses().is_empty())
        });
        drop((held, mtu, xrcd));
        assert_eq!(status, 0);
        assert!(daemon.try_recv(&mut [0; 64]).is_err(), "it has sent something");
    }

    /// As if another thread were about to find the device.
    #[test]
    fn a_child_finds_the_device_whatever_threads_of_its_parent_do() {
        let known = DEVICES.lock();
        let status = status_of_child(|| DEVICES.lock().is_none());
        drop(known);
        assert_eq!(status, 0);
    }
}
