//! The device list: every device of every daemon that answers.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    path::{Path, PathBuf},
    ptr,
    sync::Once,
    time::Duration,
};

use rnic_abi::{
    control::{DeviceInfo, Reply, Request},
    os::{OfProcess, discovery},
};
use verbs_abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, Zeroed, be64, ibv_device};

use crate::{error::Errno, report, session::Session};

/// Padding: provider libraries that check whether a device is theirs read beyond its end.
const SLACK: usize = 512;

/// A device in a list or under a context.
#[repr(C)]
pub(crate) struct Device {
    ibv: ibv_device,
    slack: [u8; SLACK],
    socket: PathBuf,
    info: DeviceInfo,
    index: c_int,
    /// Lists and contexts that hold it; guarded by [`KNOWN`].
    references: usize,
}

/// Devices with references: a device has the same address in every list of a process that contains
/// it.
#[derive(Default)]
pub(crate) struct Known(Vec<*mut Device>);

// SAFETY: the pointers are only followed under the mutex, or by code that holds a reference.
unsafe impl Send for Known {}

/// Those of this process.
pub(crate) static KNOWN: OfProcess<Known> = OfProcess::new();

impl Device {
    pub(crate) fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// The name in the daemon, which may differ from the one in the list.
    pub(crate) fn daemon_name(&self) -> &str {
        &self.info.name
    }

    /// Adds a reference.
    ///
    /// # Safety
    /// The caller holds one.
    pub(crate) unsafe fn retain(device: *mut Self) {
        let _known = KNOWN.lock();
        // SAFETY: alive by contract, and the count is guarded.
        unsafe { (*device).references += 1 };
    }

    /// Drops a reference.
    ///
    /// # Safety
    /// The caller holds one and gives it up.
    pub(crate) unsafe fn release(device: *mut Self) {
        let mut known = KNOWN.lock();
        // SAFETY: alive by contract, and the count is guarded.
        unsafe { (*device).references -= 1 };
        // SAFETY: as above; when the count is zero there is no other reference.
        if unsafe { (*device).references } == 0 {
            known.0.retain(|&other| other != device);
            // SAFETY: made by Box::into_raw, and unreachable now.
            drop(unsafe { Box::from_raw(device) });
        }
    }

    fn new(socket: &Path, info: DeviceInfo, name: &str, index: c_int) -> Box<Self> {
        let mut ibv = ibv_device::zeroed();
        ibv.node_type = IBV_NODE_CA;
        ibv.transport_type = IBV_TRANSPORT_IB;
        set_text(&mut ibv.name, name);
        set_text(&mut ibv.dev_name, &format!("uverbs{index}"));
        set_text(&mut ibv.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        set_text(&mut ibv.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        let socket = socket.to_owned();
        Box::new(Self { ibv, slack: [0; SLACK], socket, info, index, references: 0 })
    }
}

/// Copies as much of the text as fits with a final zero byte.
pub(crate) fn set_text<const N: usize>(to: &mut [c_char; N], text: &str) {
    for (to, from) in to[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

impl Known {
    /// The known device of a daemon, or a new one, with one more reference.
    fn adopt(&mut self, socket: &Path, info: DeviceInfo) -> *mut Device {
        // SAFETY: what is in the table is alive while it is locked.
        let found = self
            .0
            .iter()
            .copied()
            .find(|&device| unsafe { (*device).socket == socket && (*device).info == info });
        let device = found.unwrap_or_else(|| {
            let name = self.free_name(&info.name);
            let index = self.free_index();
            let device = Box::into_raw(Device::new(socket, info, &name, index));
            self.0.push(device);
            device
        });
        // SAFETY: alive, and the count is guarded by the lock that the caller holds.
        unsafe { (*device).references += 1 };
        device
    }

    /// Chooses the name in lists: programs select a device by name, so devices of two daemons must
    /// not have the same.
    fn free_name(&self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 2;
        while self.0.iter().any(|&device| name_of(device).to_bytes() == name.as_bytes()) {
            name = format!("{wanted}-{number}");
            number += 1;
        }
        name
    }

    fn free_index(&self) -> c_int {
        // SAFETY: what is in the table is alive while it is locked.
        let taken = |index| self.0.iter().any(|&device| unsafe { (*device).index } == index);
        (0..).find(|&index| !taken(index)).unwrap_or(-1)
    }
}

fn name_of<'a>(device: *mut Device) -> &'a CStr {
    // SAFETY: a live device, whose name ends with a zero byte.
    unsafe { CStr::from_ptr((&raw const (*device).ibv.name).cast()) }
}

/// The devices of all daemons that answer.
fn discover() -> Vec<(PathBuf, DeviceInfo)> {
    let (mut found, mut paths) = (Vec::new(), Vec::new());
    let ask =
        |path: &Path, limit| devices_at(path, limit).inspect_err(|error| explain(path, error));
    for (path, said) in discovery::ask_each(ask) {
        let devices = said.unwrap_or_default();
        found.extend(devices.into_iter().map(|info| (path.clone(), info)));
        paths.push(path.display().to_string());
    }
    if found.is_empty() && report::debug_wanted() {
        report::say(format_args!(
            "no soft-rnic daemon at {}: start `rnicd`, use `rnic run -- PROGRAM`, or set \
             RNIC_SOCKET",
            paths.join(" or ")
        ));
    }
    found
}

fn devices_at(path: &Path, limit: Duration) -> io::Result<Vec<DeviceInfo>> {
    let session = Session::connect_within(path, limit)?;
    let devices = session.call(&Request::ListDevices, |reply, _| match reply {
        Reply::Devices(devices) => Some(devices),
        _ => None,
    });
    devices.map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
}

/// Reports a daemon that listens but cannot be used. No daemon at all is normal.
fn explain(path: &Path, error: &io::Error) {
    static ONCE: Once = Once::new();
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
        io::ErrorKind::PermissionDenied => report::say_once(
            &ONCE,
            format_args!(
                "you may not use the soft-rnic daemon at {path}: join the group that owns the \
                 socket, or run your own with `rnic run -- PROGRAM`"
            ),
        ),
        io::ErrorKind::WouldBlock => report::say_once(
            &ONCE,
            format_args!(
                "the soft-rnic daemon at {path} does not answer: if it is stopped, continue it \
                 (kill -CONT). Until it answers programs use other devices, or wait where there \
                 is no other"
            ),
        ),
        _ => report::say_once(&ONCE, format_args!("the daemon at {path}: {error}")),
    }
}

/// Returns an array of devices that ends in NULL, to be given to `ibv_free_device_list`; NULL and
/// errno on failure.
///
/// # Safety
/// `num_devices` is null or points to an int.
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    let found = discover();
    let mut known = KNOWN.lock();
    let mut list: Vec<*mut ibv_device> =
        found.into_iter().map(|(socket, info)| known.adopt(&socket, info).cast()).collect();
    drop(known);
    if !num_devices.is_null() {
        // SAFETY: not null, and an int by contract.
        unsafe { num_devices.write(c_int::try_from(list.len()).unwrap_or(c_int::MAX)) };
    }
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Frees what `ibv_get_device_list` returned.
///
/// # Safety
/// `list` is null or a list from `ibv_get_device_list` that was not freed yet.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let mut devices = 0;
    // SAFETY: the list ends in NULL.
    while unsafe { !(*list.add(devices)).is_null() } {
        // SAFETY: each entry carries one reference.
        unsafe { Device::release((*list.add(devices)).cast()) };
        devices += 1;
    }
    let list = ptr::slice_from_raw_parts_mut(list, devices + 1);
    // SAFETY: a boxed slice of this length was made for the list.
    drop(unsafe { Box::from_raw(list) });
}

/// Name of a device, owned by it.
///
/// # Safety
/// `device` is from a device list that was not freed yet.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: by contract.
    unsafe { (&raw const (*device).name).cast() }
}

/// GUID of a device's node, in network byte order.
///
/// # Safety
/// As [`ibv_get_device_name`].
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> be64 {
    // SAFETY: by contract every device is one of ours.
    u64::from_ne_bytes(unsafe { (*device.cast::<Device>()).info.node_guid })
}

/// The device's index, constant while the program holds the device; -1 without one.
///
/// # Safety
/// As [`ibv_get_device_name`].
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: by contract every device is one of ours.
    unsafe { (*device.cast::<Device>()).index }
}

/// The first device of one daemon, with a reference that is never given back.
#[cfg(test)]
pub(crate) fn device_at(path: &Path) -> *mut ibv_device {
    let info = devices_at(path, Duration::from_secs(60)).expect("the daemon answers").remove(0);
    KNOWN.lock().adopt(path, info).cast()
}
